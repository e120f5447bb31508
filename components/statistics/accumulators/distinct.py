"""Distinct counts: about how many different values there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import datasketches
import numpy as np
import pyarrow as pa

from spanwise.components.statistics.accumulators.accumulator import State, raw, text
from spanwise.components.statistics.accumulators.value_counts import NumberArray, count_texts, count_values, to_list

LOG_SIZE = 12


@dataclass(frozen=True)
class Distinct:
    """A HyperLogLog sketch (Apache DataSketches, 4096 registers of 8 bits), as its bytes; empty for no values.

    One standard error is 1.6 %: 95 of 100 estimates are within 3.3 %. Up to some hundred values it is exact, but for
    hash collisions.
    """

    sketch: bytes = b""

    @classmethod
    def accumulate(cls, values: pa.Array[Any]) -> Self:
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            return cls.from_texts(to_list(count_texts(values)[0]))
        return cls.from_numbers(count_values(values).values)

    @classmethod
    def from_texts(cls, values: Iterable[str]) -> Self:
        return cls._of(value or "\0" for value in values)  # the sketch takes no empty text

    @classmethod
    def from_numbers(cls, values: NumberArray) -> Self:
        # above 2^63 a number is hashed by its bits, since the sketch takes signed ones
        return cls._of((values.view(np.int64) if values.dtype == np.uint64 else values).tolist())

    @classmethod
    def _of(cls, values: Iterable[str | int | float]) -> Self:
        sketch = datasketches.hll_sketch(LOG_SIZE, datasketches.HLL_8)
        update = sketch.update
        for value in values:
            update(value)
        return cls(b"" if sketch.is_empty() else sketch.serialize_compact())

    @property
    def estimate(self) -> int:
        """About how many; 0 when there are none."""
        return round(datasketches.hll_sketch.deserialize(self.sketch).get_estimate()) if self.sketch else 0

    def merge(self, other: Self) -> Self:
        if not self.sketch or not other.sketch:
            return self if self.sketch else other
        union = datasketches.hll_union(LOG_SIZE)
        union.update(datasketches.hll_sketch.deserialize(self.sketch))
        union.update(datasketches.hll_sketch.deserialize(other.sketch))
        return type(self)(union.get_result(datasketches.HLL_8).serialize_compact())

    def state(self) -> State:
        return {"hll": text(self.sketch)}

    @classmethod
    def from_state(cls, state: State) -> Self:
        return cls(raw(state, "hll"))
