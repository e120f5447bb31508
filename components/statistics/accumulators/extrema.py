"""Extrema: the least and the greatest number, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from spanwise.components.statistics.accumulators.accumulator import State
from spanwise.components.statistics.accumulators.value_counts import ValueCounts, count_values


@dataclass(frozen=True, kw_only=True)
class Extrema:
    """The least and the greatest finite number; whole numbers stay whole, to 64 bits."""

    least: float | None = None  #: None when there is nothing
    greatest: float | None = None

    @classmethod
    def accumulate(cls, values: pa.Array[Any]) -> Self:
        return cls.from_counts(count_values(values))

    @classmethod
    def from_counts(cls, found: ValueCounts) -> Self:
        if not found.values.size:
            return cls()
        return cls(least=found.values[0].item(), greatest=found.values[-1].item())

    def merge(self, other: Self) -> Self:
        least = [x.least for x in (self, other) if x.least is not None]
        greatest = [x.greatest for x in (self, other) if x.greatest is not None]
        return type(self)(least=min(least, default=None), greatest=max(greatest, default=None))

    def state(self) -> State:
        return {"least": self.least, "greatest": self.greatest}

    @classmethod
    def from_state(cls, state: State) -> Self:
        least, greatest = state["least"], state["greatest"]
        assert isinstance(least, int | float | None)
        assert isinstance(greatest, int | float | None)
        return cls(least=least, greatest=greatest)
