"""Weights: quantiles and frequent values of rows of which each counts by its weight, in a few kilobytes.

Weights have no levels of equal worth, as the summary of plain quantiles does. So a summary that is too long is replaced
by the values at ranks of equal distance, and says how much weight that may have moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spanwise.components.bounds import is_at_least
from spanwise.components.statistics.accumulators.accumulator import State, number, raw, text
from spanwise.components.statistics.accumulators.value_counts import to_list

CAPACITY = 1024
"""A summary of quantiles holds at most this many values."""

MOST = 1536
"""So many different texts are weighed exactly."""

_ROUNDING = 1e-12  # of the whole weight: sums of doubles are not exact

_NOTHING = np.empty(0, np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedQuantiles:
    """A summary of finite numbers with weights above 0.

    Exact up to 1,024 different numbers. Beyond, each reduction moves ranks by at most 1/1024 of the weight it sees, and
    `rank_error` is the sum of that. The least and the greatest stay exact.
    """

    values: NDArray[np.float64] = field(default_factory=lambda: _NOTHING)  #: ascending, each once
    weights: NDArray[np.float64] = field(default_factory=lambda: _NOTHING)
    error: float = 0.0  #: weight by which a rank may be off

    @classmethod
    def accumulate(cls, values: NDArray[np.float64], weights: NDArray[np.float64]) -> Self:
        """Of numbers in any order; those that are not finite, and those without weight, are left out."""
        kept = np.isfinite(values) & (weights > 0)
        return cls(values=values[kept], weights=weights[kept]).reduced()

    def merge(self, other: Self) -> Self:
        return type(self)(
            values=np.concatenate([self.values, other.values]),
            weights=np.concatenate([self.weights, other.weights]),
            error=self.error + other.error,
        ).reduced()

    @property
    def total(self) -> float:
        """The weight of all numbers."""
        return float(self.weights.sum())

    def quantiles(self, shares: Sequence[float]) -> NDArray[np.float64]:
        """The least number up to which at least each share of the weight lies; NaN when there is nothing."""
        if not self.values.size:
            return np.full(len(shares), math.nan)
        ends = np.cumsum(self.weights)
        ranks = (np.asarray(shares, np.float64) - _ROUNDING) * ends[-1]
        places = np.minimum(np.searchsorted(ends, ranks, side="left"), self.values.size - 1)
        return np.asarray(self.values[places], np.float64)

    def boundaries(self, buckets: int) -> NDArray[np.float64]:
        """The inner boundaries of so many groups of equal weight, ascending, `buckets - 1` of them."""
        return self.quantiles([place / buckets for place in range(1, buckets)])

    def share_up_to(self, points: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
        """For each point the share of the weight of numbers that are no greater."""
        ends = np.concatenate([[0.0], np.cumsum(self.weights)])
        return ends[np.searchsorted(self.values, points, side="right")] / (ends[-1] or 1.0)

    def rank_error(self) -> float:
        """The greatest possible error of a rank, as a share of all weight."""
        return self.error / self.total if self.error else 0.0

    def reduced(self) -> Self:
        """The same in at most CAPACITY values."""
        order = np.argsort(self.values, kind="stable")
        values, weights = _group(self.values[order], self.weights[order])
        if values.size <= CAPACITY:
            return type(self)(values=values, weights=weights, error=self.error)
        ends = np.cumsum(weights)
        step = ends[-1] / CAPACITY
        places = np.searchsorted(ends, (np.arange(CAPACITY) + 0.5) * step, side="left")
        picked = values[np.minimum(places, values.size - 1)]
        picked[0], picked[-1] = values[0], values[-1]  # the ends stay what they are
        values, weights = _group(picked, np.full(CAPACITY, step))
        return type(self)(values=values, weights=weights, error=self.error + step)

    def state(self) -> State:
        return {
            "values": text(self.values.astype("<f8").tobytes()),
            "weights": text(self.weights.astype("<f8").tobytes()),
            "error": self.error,
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        values, weights = (np.frombuffer(raw(state, name), "<f8").astype(np.float64) for name in ("values", "weights"))
        return cls(values=values, weights=weights, error=number(state, "error"))


def _group(
    values: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ascending numbers, each once, with the sum of its weights."""
    if not values.size:
        return values, weights
    first = np.ones(values.size, np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    (starts,) = np.nonzero(first)
    return values[starts], np.add.reduceat(weights, starts)


@dataclass(frozen=True)
class WeightedOccurrence:
    """A value and the weight of its rows."""

    value: str
    weight: float  #: but for rounding, never too low; too high by at most `error`
    error: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether the weight is exact, but for rounding, rather than an estimate."""
        return not self.error


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedTerms:
    """Texts with the weights of their rows: all of them, or those that weigh most.

    Counters of Misra & Gries 1982, merged as in Agarwal et al. 2012: with `most`, beyond so many texts
    a weight is too high by at most `error`, which is at most 1/most of all weight.
    """

    weights: dict[str, float] = field(default_factory=dict)  #: by text, in its order; a lower bound of each
    error: float = 0.0
    most: int | None = MOST

    @classmethod
    def accumulate(cls, values: pa.Array[Any], weights: NDArray[np.float64], *, most: int | None = MOST) -> Self:
        """Of texts; missing ones, and those without weight, are left out."""
        there = np.asarray(values.is_valid())
        encoded = cast("pa.DictionaryArray[Any, Any]", pc.dictionary_encode(values.drop_null()))
        texts = to_list(encoded.dictionary)
        sums = np.bincount(encoded.indices.to_numpy(zero_copy_only=False), weights[there], minlength=len(texts))
        return cls(weights=dict(zip(texts, sums.tolist(), strict=True)), most=most).reduced()

    def merge(self, other: Self) -> Self:
        weights = dict(self.weights)
        for value, weight in other.weights.items():
            weights[value] = weights.get(value, 0.0) + weight
        return type(self)(weights=weights, error=self.error + other.error, most=self.most).reduced()

    def top(self, most: int | None = None, *, at_least: float = 0.0) -> tuple[WeightedOccurrence, ...]:
        """Those that weigh most, the heaviest first, equals by their UTF-8 bytes."""
        found = [WeightedOccurrence(value, weight + self.error, self.error) for value, weight in self.weights.items()]
        kept = [each for each in found if is_at_least(each.weight, at_least)]
        return tuple(sorted(kept, key=lambda each: (-each.weight, each.value.encode()))[:most])

    def reduced(self) -> Self:
        """The same in at most `most` texts, in the order of their bytes."""
        weights, error = {value: weight for value, weight in self.weights.items() if weight > 0}, self.error
        if self.most is not None and len(weights) > self.most:
            least = sorted(weights.values(), reverse=True)[self.most]
            weights = {value: weight - least for value, weight in weights.items() if weight > least}
            error += least
        ordered = dict(sorted(weights.items(), key=lambda each: each[0].encode()))
        return type(self)(weights=ordered, error=error, most=self.most)

    def state(self) -> State:
        return {
            "texts": list(self.weights),
            "weights": text(np.array(list(self.weights.values()), "<f8").tobytes()),
            "error": self.error,
            "most": self.most,
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        texts, most = state["texts"], state["most"]
        assert isinstance(texts, list)
        assert most is None or isinstance(most, int)
        weights = np.frombuffer(raw(state, "weights"), "<f8").tolist()
        return cls(weights=dict(zip(map(str, texts), weights, strict=True)), error=number(state, "error"), most=most)
