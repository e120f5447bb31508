"""Distinct counts: about how many different values there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import datasketches
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spanwise.components.statistics.accumulators.accumulator import State, raw, text
from spanwise.components.statistics.accumulators.value_counts import NumberArray, count_texts, count_values, to_list
from spanwise.pipelines.input.bit_mixing import murmur3

LOG_SIZE = 12

_FIRST = 1024  # values after which a sketch has its registers; it holds some hundred hashes before
_CACHED = 8192  # values whose hashes are computed in a processor's cache
_SEED = np.uint64(9001)  # of the sketch's hash


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
        signed = values.view(np.int64) if values.dtype == np.uint64 else values
        return cls._of(_drop_idle(signed).tolist())

    @classmethod
    def _of(cls, values: Iterable[str | int | float]) -> Self:
        sketch = datasketches.hll_sketch(LOG_SIZE, datasketches.HLL_8)
        deque(map(sketch.update, values), maxlen=0)
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


def _drop_idle(values: NumberArray) -> NumberArray:
    """The values without most of those that leave the sketch of all before them as it is.

    A value changes a sketch if its rank exceeds those of the values before it that share its register. To find those
    here costs less than to hand each value over: of 65,536 different ones some 10,000 remain.
    """
    if values.size <= 2 * _FIRST:
        return values
    low, high = _hash_numbers(values)
    if np.unique(low[:_FIRST] & np.uint64((1 << 26) - 1)).size < _FIRST // 2:  # as good as never
        return values
    top = high >> np.uint64(11)  # 53 bits, as many as a double holds
    _, exponent = np.frexp(top.astype(np.float64))
    register = (low & np.uint64((1 << LOG_SIZE) - 1)).astype(np.uint16)
    order = np.argsort(register, kind="stable")
    ranked = register[order].astype(np.int32) * 64 + (54 - exponent)[order]
    highest = np.maximum.accumulate(ranked)
    kept = top == 0  # of an unknown rank
    kept[:_FIRST] = True
    kept[order[:1]] = True
    kept[order[1:][highest[1:] > highest[:-1]]] = True
    changing: NumberArray = values[kept]
    return changing


def _hash_numbers(values: NumberArray) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Both halves of the hash by which a sketch knows a number: 128 bits of MurmurHash3 of its eight bytes."""
    lows, highs = np.empty(values.size, np.uint64), np.empty(values.size, np.uint64)
    size = np.uint64(8)
    for start in range(0, values.size, _CACHED):
        piece = slice(start, start + _CACHED)
        bits = (values[piece] + values.dtype.type(0)).view(np.uint64)  # -0.0 is 0.0
        bits *= np.uint64(0x87C37B91114253D5)
        high = bits >> np.uint64(33)
        bits <<= np.uint64(31)
        bits |= high
        bits *= np.uint64(0x4CF5AD432745937F)
        bits ^= _SEED ^ size
        bits += _SEED ^ size
        np.add(bits, _SEED ^ size, out=high)
        low = murmur3(bits)
        high = murmur3(high)
        low += high
        high += low
        lows[piece], highs[piece] = low, high
    return lows, highs
