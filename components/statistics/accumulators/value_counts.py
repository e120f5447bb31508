"""Counted values: the distinct finite numbers of one batch, ascending, with how often each occurs.

Sorting a batch once, or counting it by its value where integers lie close together, serves every figure of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spanwise.pipelines.input.decimals import to_doubles

NumberArray: TypeAlias = "NDArray[np.int64 | np.uint64 | np.float64]"

_DENSE = 4  # integers within so many times their number are counted, which is faster than sorting


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueCounts:
    """The distinct finite numbers of a batch."""

    values: NumberArray  #: ascending
    counts: NDArray[np.int64]
    nan: int = 0
    infinite: int = 0

    @property
    def count(self) -> int:
        """How many finite numbers there were."""
        return int(self.counts.sum())


def count_values(array: pa.Array[Any]) -> ValueCounts:
    """Counts the numbers of an array; nulls are left out, NaN and infinities counted apart.

    Booleans count as 0 and 1, decimals as the nearest double, dates and times as their whole number of units since
    the epoch or midnight.
    """
    values = to_numbers(array)
    if values.dtype != np.float64:
        return _integers(values)
    finite = np.isfinite(values)
    if finite.all():
        return _count_sorted(values)
    nan = int(np.isnan(values).sum())
    kept = _count_sorted(values[finite])
    return ValueCounts(values=kept.values, counts=kept.counts, nan=nan, infinite=int(values.size - finite.sum()) - nan)


def to_numbers(array: pa.Array[Any]) -> NumberArray:
    """The values that are there, as int64, uint64 or float64."""
    kind = array.type
    array = array.drop_null()
    if pa.types.is_decimal(kind):
        array = to_doubles(array)
    elif pa.types.is_temporal(kind):
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())  # noqa: PLR2004  the two widths there are
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    found = array.to_numpy(zero_copy_only=False)
    if pa.types.is_uint64(kind):
        return np.asarray(found, np.uint64)
    if found.dtype.kind in "iu":
        return np.asarray(found, np.int64)
    return np.asarray(found, np.float64)


def _integers(values: NumberArray) -> ValueCounts:
    if not values.size:
        return ValueCounts(values=values, counts=np.empty(0, np.int64))
    least, most = int(values.min()), int(values.max())
    if most - least > _DENSE * values.size:
        return _count_sorted(values)
    counts = np.bincount((values - values.dtype.type(least)).astype(np.int64))
    (found,) = np.nonzero(counts)
    return ValueCounts(values=np.add(found, least, dtype=values.dtype, casting="unsafe"), counts=counts[found])


def _count_sorted(values: NumberArray) -> ValueCounts:
    ordered = np.sort(values)
    first = np.empty(ordered.size, np.bool_)
    first[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    (starts,) = np.nonzero(first)
    return ValueCounts(values=ordered[starts], counts=np.diff(starts, append=ordered.size).astype(np.int64))


def count_weighted(values: pa.Array[Any], counts: pa.Array[Any]) -> ValueCounts:
    """Counts numbers that come with how often each occurs, such as the lengths of distinct texts."""
    numbers_, weights = np.asarray(values), np.asarray(counts)
    if not numbers_.size:
        return ValueCounts(values=numbers_.astype(np.int64), counts=np.empty(0, np.int64))
    found, place = np.unique(numbers_, return_inverse=True)
    return ValueCounts(values=found.astype(np.int64), counts=np.bincount(place, weights=weights).astype(np.int64))


def count_texts(array: pa.Array[Any]) -> tuple[pa.StringArray, pa.Int64Array]:
    """The distinct values of an array of text, in order of appearance, and how often each occurs."""
    found = pc.value_counts(array.drop_null())
    return cast("pa.StringArray", found.field("values")), cast("pa.Int64Array", found.field("counts"))


def to_list(array: pa.Array[Any]) -> list[Any]:
    """The values of an array without nulls."""
    return array.to_pylist()
