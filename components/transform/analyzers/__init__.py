"""What is learned from all rows of a window before any of them is transformed."""

from spanwise.components.transform.analyzers.analyzer import Analyzer, PreprocessingError
from spanwise.components.transform.analyzers.numbers import (
    Boundaries,
    Count,
    Extremes,
    MeanAndDeviation,
    NumberRange,
    Quantile,
    Total,
)
from spanwise.components.transform.analyzers.plain import Plain
from spanwise.components.transform.analyzers.terms import Terms
from spanwise.components.transform.analyzers.weighted import (
    HeaviestTerms,
    WeightedBoundaries,
    WeightedMeanAndDeviation,
    WeightedQuantile,
)

__all__ = [
    "Analyzer",
    "Boundaries",
    "Count",
    "Extremes",
    "HeaviestTerms",
    "MeanAndDeviation",
    "NumberRange",
    "Plain",
    "PreprocessingError",
    "Quantile",
    "Terms",
    "Total",
    "WeightedBoundaries",
    "WeightedMeanAndDeviation",
    "WeightedQuantile",
]
