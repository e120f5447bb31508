"""What is learned from all rows of a window before any of them is transformed."""

from components.analyzers.analyzer import Analyzer, PreprocessingError
from components.analyzers.numbers import Boundaries, Count, Extremes, Moments, Quantile, Total
from components.analyzers.plain import Plain
from components.analyzers.terms import Terms

__all__ = [
    "Analyzer",
    "Boundaries",
    "Count",
    "Extremes",
    "Moments",
    "Plain",
    "PreprocessingError",
    "Quantile",
    "Terms",
    "Total",
]
