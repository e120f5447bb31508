"""Nested arrays: what is inside lists, maps and structs, and to which row it belongs, also in slices.

Arrow's own functions for this crash, or give other values, for some slices of lists of one length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def inside_lists(array: pa.Array[Any]) -> tuple[tuple[pa.Array[Any], ...], Ints, Ints]:
    """What is inside lists of any kind: the elements, or keys and items of maps; and where that of each row lies in it.

    A missing list has no elements, but for one of a fixed length.
    """
    kind, rows = array.type, len(array)
    some = cast("Any", array)
    if pa.types.is_fixed_size_list(kind):
        starts = np.arange(rows, dtype=np.int64) * kind.list_size
        inner = some.values.slice(array.offset * kind.list_size, rows * kind.list_size)
        return (inner,), starts, starts + kind.list_size
    offsets = some.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    whole = (some.keys, some.items) if pa.types.is_map(kind) else (some.values,)
    starts, ends = offsets[:-1] - first, offsets[1:] - first
    if array.null_count:
        ends = np.where(is_missing(array), starts, ends)
    return tuple(each.slice(first, last - first) for each in whole), starts, ends


def inside_structs(array: pa.Array[Any]) -> tuple[pa.Array[Any], ...]:
    """The fields of structs, with whatever values where the struct itself is missing."""
    return tuple(cast("Any", array).field(index) for index in range(array.type.num_fields))


def is_missing(array: pa.Array[Any]) -> NDArray[np.bool_]:
    """Which values are missing."""
    missing: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return missing
