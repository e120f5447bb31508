"""Quantiles: where the values of a column lie, in a few kilobytes, whatever their number.

Apache DataSketches has such summaries (KLL, REQ), but draws random bits that cannot be seeded: the same data would give
other bytes each time, and bucket boundaries made from them would make every later result look new. This one is the
deterministic ancestor of KLL (Munro & Paterson 1980; Manku, Rajagopalan & Lindsay 1998): values are kept at levels, one
at level i stands for 2^i of those that were seen, and a level that is full gives every other value to the next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spanwise.components.statistics.accumulators.accumulator import State, raw, text, whole
from spanwise.components.statistics.accumulators.value_counts import ValueCounts, count_values

CAPACITY = 1024
"""A level holds fewer values than this; a power of 2."""

_NOTHING = np.empty(0, np.float64)

_ROUNDING = 1e-9  # of a rank: 0.55 * 100 is above 55, as doubles


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantiles:
    """A summary of finite numbers, as doubles.

    Exact up to 1023 values. Beyond, the rank of an answer is off by at most (1 + log2(n / 1024)) / 1024 of n, always:
    0.9 % for 336,776 values, 1.1 % for a million, 2.1 % for a thousand million.
    Measured on batches of 65,536: below 0.2 %.
    """

    count: int = 0
    levels: tuple[NDArray[np.float64], ...] = ()  #: level i, ascending: each value stands for 2^i
    turns: int = 0  #: bit i: which half level i gives away next; by turns, so that errors cancel

    @classmethod
    def accumulate(cls, values: pa.Array[Any]) -> Self:
        return cls.from_counts(count_values(values))

    @classmethod
    def from_counts(cls, found: ValueCounts) -> Self:
        count = found.count
        top = (count // CAPACITY).bit_length()
        ends = np.cumsum(found.counts)
        levels, start = [_NOTHING] * (top + 1), 0
        for level in range(top, -1, -1):  # the middle of each group of 2^level neighbours stands for them
            groups = (count - start) >> level
            ranks = start + (np.arange(groups) << level) + (1 << level) // 2
            levels[level] = found.values[np.searchsorted(ends, ranks, side="right")].astype(np.float64)
            start += groups << level
        return cls(count=count, levels=_trim(levels))

    def merge(self, other: Self) -> Self:
        turns = self.turns ^ other.turns
        levels: list[NDArray[np.float64]] = []
        carried = _NOTHING
        pairs = itertools.zip_longest(self.levels, other.levels, fillvalue=_NOTHING)
        for level in itertools.count():
            mine, theirs = next(pairs, (None, None))
            if mine is None or theirs is None:
                if not carried.size:
                    break
                mine = theirs = _NOTHING
            items = np.sort(np.concatenate([mine, theirs, carried]))
            carried = _NOTHING
            if items.size >= CAPACITY:
                even = items.size & ~1
                carried, items = items[turns >> level & 1 : even : 2], items[even:]
                turns ^= 1 << level
            levels.append(items)
        return type(self)(count=self.count + other.count, levels=_trim(levels), turns=turns)

    def quantiles(self, shares: Sequence[float]) -> NDArray[np.float64]:
        """The least value seen of which at least each share of all values is no greater; NaN when there is nothing."""
        ranks = np.ceil(np.asarray(shares, np.float64) * self.count - _ROUNDING).astype(np.int64)
        return self._at_ranks(ranks)

    def boundaries(self, buckets: int) -> NDArray[np.float64]:
        """The inner boundaries of so many groups of equal weight, ascending, `buckets - 1` of them."""
        ranks = -(-np.arange(1, buckets) * self.count // buckets)  # rounded up
        return self._at_ranks(ranks)

    def _at_ranks(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """The values of which so many are no greater; NaN when there is nothing."""
        values, weights = self.sample()
        if not values.size:
            return np.full(len(ranks), math.nan)
        places = np.searchsorted(np.cumsum(weights), ranks, side="left")
        return values[np.minimum(places, values.size - 1)]

    def share_up_to(self, points: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
        """For each point the share of values that are no greater."""
        values, weights = self.sample()
        ends = np.concatenate([[0], np.cumsum(weights)])
        return ends[np.searchsorted(values, points, side="right")] / max(self.count, 1)

    def rank_error(self) -> float:
        """The greatest possible error of a rank, as a share of all values."""
        return 0.0 if self.count < CAPACITY else (1 + math.log2(self.count / CAPACITY)) / CAPACITY

    def sample(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The values that are kept, ascending, and how many each stands for."""
        if not self.levels:
            return _NOTHING, np.empty(0, np.int64)
        values = np.concatenate(self.levels)
        weights = np.repeat(1 << np.arange(len(self.levels)), [level.size for level in self.levels])
        order = np.argsort(values, kind="stable")
        return values[order], weights[order]

    def state(self) -> State:
        return {
            "count": self.count,
            "sizes": [int(level.size) for level in self.levels],
            "values": text(np.concatenate(self.levels).astype("<f8").tobytes()) if self.levels else "",
            "turns": self.turns,
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        values = np.frombuffer(raw(state, "values"), "<f8").astype(np.float64)
        sizes = state["sizes"]
        assert isinstance(sizes, list)
        ends = list(itertools.accumulate(int(str(size)) for size in sizes))
        levels = tuple(np.split(values, ends[:-1])) if ends else ()
        return cls(count=whole(state, "count"), levels=levels, turns=whole(state, "turns"))


def _trim(levels: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64], ...]:
    while levels and not levels[-1].size:
        levels.pop()
    return tuple(levels)
