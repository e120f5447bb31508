"""Histograms: how many numbers fall between fixed edges, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from spanwise.components.statistics.accumulators.accumulator import State
from spanwise.components.statistics.accumulators.counted import Counted, counted
from spanwise.orchestrator.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts between edges that are known beforehand; each bin has its lower edge, the last one both."""

    edges: tuple[float, ...]  #: ascending, one more than counts
    counts: tuple[int, ...]
    outside: int = 0  #: finite numbers below the first or above the last edge

    @classmethod
    def accumulate(cls, values: pa.Array[Any], edges: Sequence[float]) -> Self:
        return cls.of_counted(counted(values), edges)

    @classmethod
    def of_counted(cls, found: Counted, edges: Sequence[float]) -> Self:
        counts, _ = np.histogram(found.values.astype(np.float64), np.asarray(edges), weights=found.counts)
        inside = tuple(int(count) for count in counts)
        return cls(edges=tuple(edges), counts=inside, outside=found.count - sum(inside))

    def merge(self, other: Self) -> Self:
        if self.edges != other.edges:
            raise ParameterError(
                f"histograms with {len(self.edges)} and {len(other.edges)} edges were to be merged; "
                "accumulate both between the same edges."
            )
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return type(self)(edges=self.edges, counts=counts, outside=self.outside + other.outside)

    def state(self) -> State:
        return {"edges": list(self.edges), "counts": list(self.counts), "outside": self.outside}

    @classmethod
    def of_state(cls, state: State) -> Self:
        edges, counts, outside = state["edges"], state["counts"], state["outside"]
        assert isinstance(edges, list)
        assert isinstance(counts, list)
        assert isinstance(outside, int)
        return cls(
            edges=tuple(float(str(edge)) for edge in edges),
            counts=tuple(int(str(count)) for count in counts),
            outside=outside,
        )
