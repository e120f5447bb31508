"""Moments: count, mean and spread of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from spanwise.components.statistics.accumulators.accumulator import State, number, whole
from spanwise.components.statistics.accumulators.value_counts import ValueCounts, count_values


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Count, mean and sum of squared distances from the mean, of finite numbers.

    Sums are of doubles, so that whole numbers never overflow, and are taken around the mean (Chan, Golub & LeVeque
    1983), so that a large mean does not swallow a small spread: the relative error stays near 1e-15 per merge.
    """

    count: int = 0
    mean: float = math.nan  #: NaN when there is nothing
    m2: float = 0.0  #: sum of squared distances from the mean; infinite when that exceeds a double

    @classmethod
    def accumulate(cls, values: pa.Array[Any]) -> Self:
        return cls.from_counts(count_values(values))

    @classmethod
    def from_counts(cls, found: ValueCounts) -> Self:
        count = found.count
        if not count:
            return cls()
        values, counts = found.values.astype(np.float64), found.counts.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # some BLAS kernels flag both when a sum overflows
            scale = float(np.abs(values).max()) if not np.isfinite(np.dot(values, counts)) else 1.0
            mean = float(np.dot(values / scale, counts)) / count * scale
            m2 = float(np.dot((values - mean) ** 2, counts))
        return cls(count=count, mean=mean, m2=m2)

    @property
    def std(self) -> float:
        """The standard deviation of these values themselves (divided by their count, as TFX does)."""
        return math.sqrt(self.m2 / self.count) if self.count else math.nan

    def merge(self, other: Self) -> Self:
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        share = other.count / count
        apart = other.mean - self.mean
        mean = self.mean * (1 - share) + other.mean * share if math.isinf(apart) else self.mean + apart * share
        return type(self)(count=count, mean=mean, m2=self.m2 + other.m2 + apart * (apart * (self.count * share)))

    def state(self) -> State:
        mean, m2 = (value if math.isfinite(value) else None for value in (self.mean, self.m2))  # JSON has no others
        return {"count": self.count, "mean": mean, "m2": m2}

    @classmethod
    def from_state(cls, state: State) -> Self:
        mean = math.nan if state["mean"] is None else number(state, "mean")
        m2 = math.inf if state["m2"] is None else number(state, "m2")
        return cls(count=whole(state, "count"), mean=mean, m2=m2)
