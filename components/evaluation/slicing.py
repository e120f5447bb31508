"""Slicings: what a slice has in common. Pure."""

from __future__ import annotations

from typing import TypeAlias

Slicing: TypeAlias = tuple[str, ...]
"""Columns; their values make a slice for each combination that occurs. Without any: all rows."""

SPAN = "span"
"""The span of the examples that a row is from, where they have no column of that name."""
