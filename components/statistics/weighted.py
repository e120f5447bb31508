"""Weighted statistics: the figures of a column in which each row counts by its weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spanwise.components.statistics.accumulators.accumulator import State, number
from spanwise.components.statistics.accumulators.value_counts import to_numbers
from spanwise.orchestrator.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class WeightedStatistics:
    """The weight of rows with and without a value; mean and spread of finite numbers, each times its weight.

    Sums are taken around one of the values, and the mean has a second double with the digits that the first one has no
    room for. So a constant has no spread, and merging is exact to about 1e-15.
    """

    present: float = 0.0  #: weight of the rows with a value
    missing: float = 0.0  #: weight of the rows without one
    counted: float = 0.0  #: weight of the finite numbers
    high: float = 0.0  #: the mean is high + low
    low: float = 0.0
    m2: float = 0.0  #: weighted sum of squared distances from the mean

    @classmethod
    def accumulate(cls, array: pa.Array[Any], weights: NDArray[np.float64], *, numbers: bool) -> Self:
        """Counts a column; `numbers` says whether its values are numbers."""
        there = np.asarray(array.is_valid())
        present, missing = float(weights[there].sum()), float(weights[~there].sum())
        if not numbers:
            return cls(present=present, missing=missing)
        values, weights = to_numbers(array).astype(np.float64), weights[there]
        kept = np.isfinite(values) & (weights > 0)
        values, weights = values[kept], weights[kept]
        if not values.size:
            return cls(present=present, missing=missing)
        counted, middle = float(weights.sum()), float(values[values.size // 2])
        away = values - middle
        mean = float((weights * away).sum()) / counted
        m2 = float((weights * (away - mean) ** 2).sum())
        high, low = _add(middle, mean)
        return cls(present=present, missing=missing, counted=counted, high=high, low=low, m2=m2)

    @property
    def missing_share(self) -> float:
        """0 when there is no weight."""
        return self.missing / self.total if self.total else 0.0

    @property
    def total(self) -> float:
        """The weight of all rows."""
        return self.present + self.missing

    @property
    def mean(self) -> float:
        """NaN when there is nothing."""
        return self.high + self.low if self.counted else math.nan

    @property
    def std(self) -> float:
        """The root of the weighted mean of squared distances from the mean; NaN when there is nothing."""
        return math.sqrt(self.m2 / self.counted) if self.counted else math.nan

    def merge(self, other: Self) -> Self:
        present, missing = self.present + other.present, self.missing + other.missing
        counted = self.counted + other.counted
        if not self.counted or not other.counted:
            some = self if self.counted else other
            return type(self)(
                present=present, missing=missing, counted=counted, high=some.high, low=some.low, m2=some.m2
            )
        share = other.counted / counted
        apart = (other.high - self.high) + (other.low - self.low)
        high, low = _add(self.high, self.low + apart * share)
        m2 = self.m2 + other.m2 + apart**2 * self.counted * share
        return type(self)(present=present, missing=missing, counted=counted, high=high, low=low, m2=m2)

    def add_absent(self, weight: float) -> Self:
        """The same where a span had rows of so much weight and no such column."""
        return self.merge(type(self)(missing=weight))

    def state(self) -> State:
        return dict(vars(self))

    @classmethod
    def from_state(cls, state: State) -> Self:
        return cls(**{name: number(state, name) for name in vars(cls())})


def read_weights(name: str, array: pa.Array[Any]) -> NDArray[np.float64]:
    """A column of weights.

    Raises:
        ParameterError: it has no numbers, or one that is missing, negative or not finite.
    """
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_decimal(array.type)):
        raise ParameterError(f"the weight {name!r} is {array.type}; weights are numbers.")
    weights = to_numbers(array).astype(np.float64)
    odd = weights[~(np.isfinite(weights) & (weights >= 0))]
    if array.null_count or odd.size:
        found = "a missing value" if array.null_count else f"the value {odd[0]:g}"
        raise ParameterError(f"the weight {name!r} has {found}; weights are finite numbers that are not negative.")
    return weights


def _add(one: float, other: float) -> tuple[float, float]:
    """The sum as a double and the rest that it rounds off (Knuth's two-sum)."""
    high = one + other
    back = high - one
    return high, (one - (high - back)) + (other - back)
