"""Weighted statistics: the figures of a column in which each row counts by its weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spanwise.components.statistics.accumulators.accumulator import State, number
from spanwise.components.statistics.accumulators.value_counts import to_numbers
from spanwise.components.statistics.accumulators.weights import (
    WeightedOccurrence,
    WeightedQuantiles,
    WeightedTerms,
)
from spanwise.orchestrator.errors import ParameterError

W = TypeVar("W", WeightedQuantiles, WeightedTerms)


@dataclass(frozen=True, kw_only=True)
class WeightedStatistics:
    """The weight of rows with and without a value; mean, spread and quantiles of finite numbers, and frequent values.

    Sums are taken around one of the values, and the mean has a second double with the digits that the first one has no
    room for. So a constant has no spread, and merging is exact to about 1e-15.
    """

    present: float = 0.0  #: weight of the rows with a value
    missing: float = 0.0  #: weight of the rows without one
    counted: float = 0.0  #: weight of the finite numbers
    high: float = 0.0  #: the mean is high + low
    low: float = 0.0
    spread: float = 0.0  #: root of the weighted mean of squared distances from the mean, whose squares may overflow
    quantiles: WeightedQuantiles | None = None  #: of numbers
    terms: WeightedTerms | None = None  #: of what has frequent values

    @classmethod
    def accumulate(
        cls,
        array: pa.Array[Any],
        weights: NDArray[np.float64],
        *,
        numbers: bool,
        show: Callable[[pa.Array[Any]], pa.Array[Any]] | None = None,
    ) -> Self:
        """Counts a column; `numbers` says whether its values are numbers, `show` makes texts of frequent values."""
        terms = None if show is None else WeightedTerms.accumulate(show(array), weights)
        plain = cls._accumulate_moments(array, weights, numbers=numbers)
        quantiles = None
        if numbers:
            quantiles = WeightedQuantiles.accumulate(
                to_numbers(array).astype(np.float64), weights[np.asarray(array.is_valid())]
            )
        return replace(plain, terms=terms, quantiles=quantiles)

    @classmethod
    def accumulate_numbers(cls, values: NDArray[np.float64], weights: NDArray[np.float64]) -> Self:
        """Counts numbers that are all there, without their quantiles."""
        return cls._accumulate_moments(pa.array(values), weights, numbers=True)

    @classmethod
    def _accumulate_moments(cls, array: pa.Array[Any], weights: NDArray[np.float64], *, numbers: bool) -> Self:
        there = np.asarray(array.is_valid())
        present, missing = float(weights[there].sum()), float(weights[~there].sum())
        if not numbers:
            return cls(present=present, missing=missing)
        values, weights = to_numbers(array).astype(np.float64), weights[there]
        kept = np.isfinite(values) & (weights > 0)
        values, weights = values[kept], weights[kept]
        if not values.size:
            return cls(present=present, missing=missing)
        counted = float(weights.sum())
        unit = 2.0 ** (math.frexp(float(np.abs(values).max()))[1] - 1)  # so that no distance is too large for a double
        scaled = values / unit
        middle = float(scaled[scaled.size // 2])
        away = scaled - middle
        mean = float((weights * away).sum()) / counted
        spread = _root_mean_square(away - mean, weights / counted) * unit
        high, low = (part * unit for part in _add(middle, mean))
        return cls(present=present, missing=missing, counted=counted, high=high, low=low, spread=spread)

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
        return self.spread if self.counted else math.nan

    def quantile(self, share: float) -> float:
        """The number up to which this share of the weight lies, within `rank_error`; NaN when there is nothing."""
        return math.nan if self.quantiles is None else float(self.quantiles.quantiles([share])[0])

    @property
    def rank_error(self) -> float:
        """How far a quantile may be off, as a share of all weight."""
        return 0.0 if self.quantiles is None else self.quantiles.rank_error()

    def shares_between(self, edges: Sequence[float]) -> tuple[float, ...]:
        """The share of the weight in each bin; a bin has its upper edge, the first one both, and the ends are open."""
        if self.quantiles is None or not self.counted:
            return (0.0,) * (len(edges) - 1)
        up_to = self.quantiles.share_up_to(edges)
        up_to[0], up_to[-1] = 0.0, 1.0
        return tuple(float(share) for share in np.diff(up_to))

    def top(self, most: int | None = 20) -> tuple[WeightedOccurrence, ...]:
        """The values that weigh most, the heaviest first; where `exact` is false, by an estimate."""
        return () if self.terms is None else self.terms.top(most)

    def merge(self, other: Self) -> Self:
        """The figures of both."""
        return replace(
            self._merge_moments(other),
            quantiles=_merge(self.quantiles, other.quantiles),
            terms=_merge(self.terms, other.terms),
        )

    def _merge_moments(self, other: Self) -> Self:
        present, missing = self.present + other.present, self.missing + other.missing
        counted = self.counted + other.counted
        if not self.counted or not other.counted:
            some = self if self.counted else other
            return type(self)(
                present=present, missing=missing, counted=counted, high=some.high, low=some.low, spread=some.spread
            )
        rest, share = self.counted / counted, other.counted / counted
        half = (other.high / 2 - self.high / 2) + (other.low - self.low) / 2  # the whole may be too large for a double
        if math.isfinite(2 * half):
            high, low = _add(self.high, self.low + 2 * half * share)
        else:
            high, low = self.high * rest + other.high * share, 0.0
        spread = math.hypot(
            self.spread * math.sqrt(rest), other.spread * math.sqrt(share), half * (2 * math.sqrt(rest * share))
        )
        return type(self)(present=present, missing=missing, counted=counted, high=high, low=low, spread=spread)

    def add_absent(self, weight: float) -> Self:
        """The same where a span had rows of so much weight and no such column."""
        return self.merge(type(self)(missing=weight))

    def state(self) -> State:
        found: dict[str, Any] = {name: getattr(self, name) for name in _NUMBERS}
        found["quantiles"] = None if self.quantiles is None else dict(self.quantiles.state())
        found["terms"] = None if self.terms is None else dict(self.terms.state())
        return found

    @classmethod
    def from_state(cls, state: State) -> Self:
        quantiles, terms = (cast("State | None", state.get(name)) for name in ("quantiles", "terms"))
        if "m2" in state:  # of an earlier version: the weighted sum of the squares
            counted = number(state, "counted")
            state = {**state, "spread": math.sqrt(number(state, "m2") / counted) if counted else 0.0}
        return cls(
            **{name: number(state, name) for name in _NUMBERS},
            quantiles=None if quantiles is None else WeightedQuantiles.from_state(quantiles),
            terms=None if terms is None else WeightedTerms.from_state(terms),
        )


_NUMBERS = ("present", "missing", "counted", "high", "low", "spread")


def _merge(one: W | None, other: W | None) -> W | None:
    if one is None or other is None:
        return other if one is None else one
    return one.merge(other)


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


def _root_mean_square(values: NDArray[np.float64], shares: NDArray[np.float64]) -> float:
    """The root of the mean of squares, whose weights have a sum of 1."""
    far = float(np.abs(values).max())
    return far * math.sqrt(float((shares * (values / far) ** 2).sum())) if far else 0.0
