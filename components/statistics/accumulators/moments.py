"""Moments: count, mean and spread of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import pyarrow as pa

from spanwise.components.statistics.accumulators.accumulator import State, whole
from spanwise.components.statistics.accumulators.exact_sums import (
    exact_sums,
    from_text,
    square_root,
    to_double,
    to_text,
)
from spanwise.components.statistics.accumulators.value_counts import ValueCounts, count_values


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Count, sum and sum of squares of finite numbers, exactly; mean and deviation are rounded once.

    So a constant has a deviation of 0, a large mean does not swallow a small spread, and nothing depends on how the
    values were cut into batches.
    """

    count: int = 0
    total: Fraction = Fraction(0)
    squares: Fraction = Fraction(0)

    @classmethod
    def accumulate(cls, values: pa.Array[Any]) -> Self:
        return cls.from_counts(count_values(values))

    @classmethod
    def from_counts(cls, found: ValueCounts) -> Self:
        total, squares = exact_sums(found.values, found.counts)
        return cls(count=found.count, total=total, squares=squares)

    @property
    def mean(self) -> float:
        """The double nearest to the mean; NaN when there is nothing."""
        return to_double(self.total / self.count) if self.count else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of these values themselves (divided by their count, as TFX does)."""
        if not self.count:
            return math.nan
        return square_root((self.squares * self.count - self.total**2) / self.count**2)

    def merge(self, other: Self) -> Self:
        return type(self)(
            count=self.count + other.count, total=self.total + other.total, squares=self.squares + other.squares
        )

    def state(self) -> State:
        known = {"mean": self.mean, "std": self.std} if self.count else {"mean": None, "std": None}  # JSON has no NaN
        return {"count": self.count, **known, "sum": to_text(self.total), "squares": to_text(self.squares)}

    @classmethod
    def from_state(cls, state: State) -> Self:
        return cls(
            count=whole(state, "count"), total=from_text(str(state["sum"])), squares=from_text(str(state["squares"]))
        )
