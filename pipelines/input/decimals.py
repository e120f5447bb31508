"""Decimals as doubles: the nearest ones. Arrow multiplies by a power of ten, and makes 89.60000000000001 of 89.6."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_EXACT = 2**53  # up to here a double holds every whole number
_SCALES = range(23)  # and these powers of ten


def to_doubles(array: pa.Array[Any]) -> pa.Array[Any]:
    """The doubles nearest to an array of decimals; what is missing stays so."""
    if array.type.bit_width < 128:  # noqa: PLR2004  there are decimals of 32 and of 64 bits
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    missing = np.asarray(array.is_null())
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return pa.nulls(len(array), pa.float64())
    words = np.frombuffer(memoryview(buffer), "<i8").reshape(-1, array.type.bit_width // 64)[array.offset :][
        : len(array)
    ]
    low = words[:, 0]
    simple = (words[:, 1:] == (low >> 63)[:, None]).all(axis=1) & (low >= -_EXACT) & (low <= _EXACT) & ~missing
    if array.type.scale in _SCALES:
        found = low / 10.0**array.type.scale  # of two exact doubles, rounded once
    else:
        found, simple = np.zeros(len(array)), np.zeros(len(array), np.bool_)
    others = np.flatnonzero(~(simple | missing))
    found[others] = [float(str(value)) for value in array.take(others).to_pylist()]
    return pa.array(found, pa.float64(), mask=missing)
