"""Row hash: a 64-bit number for each row that is the same in every process, on every machine, in every version.

The recipe, all in unsigned 64-bit arithmetic that wraps:

- `mix(x)` is the finalizer of splitmix64 (Steele, Lea & Flood 2014): x ^= x >> 30, x *= 0xBF58476D1CE4E5B9,
  x ^= x >> 27, x *= 0x94D049BB133111EB, x ^= x >> 31.
- Each kind of value has a tag: its number times 2**56. Numbers are 1, fractions 2, texts 3, instants 4, times of day
  5, lists 6, maps 7.
- A text (or bytes) is `mix(sum + length + tag)`, the sum being over its UTF-8 bytes of
  `mix(256 * (position + 1) + byte)`.
- A whole number, and a float without a fraction within 2**53, is `mix(two's complement + tag)`, so that 3 and 3.0
  hash alike; any other float is `mix(bits of the double ^ tag)`; all NaN are one value. A bool is the number 0 or 1.
- An instant is `mix(mix(seconds since 1970 + tag) + mix(nanoseconds within the second))`; a date is its midnight;
  a time of day is `mix(nanoseconds + tag)`. A missing value is `mix(0x6E756C6C)`.
- A list is `mix(sum + length + tag)`, the sum being over its elements of `mix(256 * (position + 1) + element)`; a map
  likewise, without positions, over `mix(key * 0x9E3779B97F4A7C15 + item)`. A struct is as a row of its fields.
- A value by itself, for the buckets of a feature, is `mix(v ^ 0x5350414E57495345)`.
- A row begins at 0 and takes in its columns in the order of their names: h = mix(h * 0x9E3779B97F4A7C15 + name + v),
  where `name` is the hash of the column's name as a text and v that of the value. The order of columns does not matter.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spanwise.pipelines.input.bit_mixing import splitmix64
from spanwise.pipelines.input.readers.nested import inside_lists, inside_structs, is_missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_APART = np.uint64(0x5350414E57495345)
_NULL = np.uint64(0x6E756C6C)
_NUMBER, _FRACTION, _TEXT, _INSTANT, _TIME, _LIST, _MAP = (np.uint64(tag << 56) for tag in range(1, 8))
_EXACT = float(2**53)
_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def hash_rows(batch: pa.RecordBatch, columns: Sequence[str] = ()) -> Hashes:
    """A hash of each row, shape `(rows,)`; over all columns if none is named."""
    named = ((name, batch.column(name)) for name in sorted(columns or batch.schema.names))
    return _combine(batch.num_rows, named)


def hash_values(array: pa.Array[Any]) -> Hashes:
    """A hash of each value, shape `(values,)`, that says nothing of the hash of a row, whatever its columns are called.

    Otherwise the buckets of a feature would tell in which split its row is.
    """
    return splitmix64(_value_hashes(array) ^ _APART)


def _combine(rows: int, named: Iterable[tuple[str, pa.Array[Any]]]) -> Hashes:
    hashes = np.zeros(rows, dtype=np.uint64)
    for name, array in named:
        hashes *= _GOLDEN
        hashes += _label(name)
        hashes += _value_hashes(array)
        hashes = splitmix64(hashes)
    return hashes


@lru_cache(maxsize=4096)
def _label(name: str) -> np.uint64:
    return np.uint64(_texts(pa.array([name]))[0])


def _value_hashes(array: pa.Array[Any]) -> Hashes:
    """A hash of each value, shape `(values,)`."""
    types = pa.types
    if isinstance(array, pa.ExtensionArray):
        return _value_hashes(array.storage)
    if types.is_dictionary(array.type):
        array = pc.cast(array, array.type.value_type)
    kind = array.type
    if types.is_null(kind):
        return np.full(len(array), splitmix64(np.array([_NULL]))[0])
    if types.is_fixed_size_binary(kind):
        return _value_hashes(pc.cast(array, pa.binary()))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        # each text once: most columns repeat a few
        coded = cast("pa.DictionaryArray[Any, Any]", pc.dictionary_encode(array))
        found = _texts(coded.dictionary)
        codes = _fill_nulls(coded.indices)
        hashes = found[codes] if len(found) else np.zeros(len(array), dtype=np.uint64)
    elif (fixed := _fixed_width(array)) is not None:
        hashes = fixed
    elif types.is_nested(kind):
        hashes = _nested(array)
    else:
        return _value_hashes(pc.cast(array, pa.string()))
    if array.null_count:
        hashes[is_missing(array)] = splitmix64(np.array([_NULL]))[0]
    return hashes


def _nested(array: pa.Array[Any]) -> Hashes:
    """Structs, maps and lists, with anything for what is missing."""
    kind = array.type
    if pa.types.is_struct(kind):
        fields = zip((field.name for field in kind), inside_structs(array), strict=True)
        return _combine(len(array), sorted(fields, key=lambda field: field[0]))
    inner, starts, ends = inside_lists(array)
    hashes = [_value_hashes(each) for each in inner]
    if pa.types.is_map(kind):
        return _sums(splitmix64(hashes[0] * _GOLDEN + hashes[1]), starts, ends, _MAP)
    first = np.zeros(len(hashes[0]), dtype=np.int64)
    filled = np.flatnonzero(ends > starts)
    first[starts[filled]] = starts[filled]
    position = np.arange(len(first)) - np.maximum.accumulate(first)
    return _sums(
        splitmix64((position.astype(np.uint64) + np.uint64(1)) * np.uint64(256) + hashes[0]), starts, ends, _LIST
    )


def _sums(shares: Hashes, starts: NDArray[np.int64], ends: NDArray[np.int64], tag: np.uint64) -> Hashes:
    """A hash for each run of shares: differences of a running sum, which wraps, give the sum of each, also of none."""
    running = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(shares, dtype=np.uint64)])
    return splitmix64(running[ends] - running[starts] + (ends - starts).astype(np.uint64) + tag)


def _fixed_width(array: pa.Array[Any]) -> Hashes | None:
    """Numbers and times, with a 0 for what is missing; None for other types."""
    types, kind = pa.types, array.type
    hashes: Hashes | None = None
    if types.is_boolean(kind) or types.is_integer(kind):
        hashes = _whole(_fill_nulls(pc.cast(array, pa.uint64() if kind == pa.uint64() else pa.int64())))
    elif types.is_floating(kind):
        hashes = _floats(_fill_nulls(pc.cast(array, pa.float64())))
    elif types.is_date(kind):
        days = _fill_nulls(pc.cast(pc.cast(array, pa.date32()), pa.int32()))
        hashes = _instants(days.astype(np.int64) * 86400, 10**9)
    elif types.is_timestamp(kind):
        hashes = _instants(_fill_nulls(pc.cast(array, pa.int64())), _NANOS[kind.unit])
    elif types.is_time(kind):
        hashes = splitmix64(_fill_nulls(pc.cast(pc.cast(array, pa.time64("ns")), pa.int64())).view(np.uint64) + _TIME)
    return hashes


def buckets(hashes: Hashes, weights: Sequence[int]) -> NDArray[np.int64]:
    """For each hash the index of its bucket, in proportion to the weights: hash modulo their sum."""
    bounds = np.cumsum(np.array(weights, dtype=np.uint64))
    chosen: NDArray[np.int64] = np.searchsorted(bounds, hashes % bounds[-1], side="right")
    return chosen


def _fill_nulls(array: pa.Array[Any]) -> NDArray[np.int64]:
    filled = array.fill_null(0) if array.null_count else array
    values: NDArray[np.int64] = filled.to_numpy(zero_copy_only=False)
    return values


def _whole(values: NDArray[np.int64]) -> Hashes:
    return splitmix64(values.view(np.uint64) + _NUMBER)


def _floats(values: NDArray[np.int64] | NDArray[np.float64]) -> Hashes:
    numbers = values.astype(np.float64, copy=True)
    whole = (np.abs(numbers) <= _EXACT) & (np.floor(numbers) == numbers)
    numbers[np.isnan(numbers)] = np.nan  # one bit pattern
    hashes = splitmix64(numbers.view(np.uint64) ^ _FRACTION)
    hashes[whole] = _whole(numbers[whole].astype(np.int64))
    return hashes


def _instants(values: NDArray[np.int64], nanos: int) -> Hashes:
    per_second = 10**9 // nanos
    seconds, fraction = np.divmod(values, per_second)
    within = splitmix64((fraction * nanos).astype(np.uint64))
    return splitmix64(splitmix64(seconds.astype(np.uint64) + _INSTANT) + within)


def _texts(array: pa.Array[Any]) -> Hashes:
    """The hash of each text of an array without nulls."""
    if len(array) == 0:
        return np.zeros(0, dtype=np.uint64)
    data = pc.cast(array, pa.large_binary())
    _, starts, content = data.buffers()
    offsets = np.frombuffer(memoryview(starts or b""), dtype=np.int64)[data.offset : data.offset + len(data) + 1]
    every = np.frombuffer(memoryview(content or b""), dtype=np.uint8)
    text = every[offsets[0] : offsets[-1]].astype(np.uint64)
    offsets = offsets - offsets[0]
    lengths = np.diff(offsets)
    position = np.arange(len(text), dtype=np.uint64) - np.repeat(offsets[:-1], lengths).astype(np.uint64)
    shares = splitmix64((position + np.uint64(1)) * np.uint64(256) + text)
    return _sums(shares, offsets[:-1], offsets[1:], _TEXT)
