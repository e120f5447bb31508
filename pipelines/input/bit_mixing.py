"""Bit mixing: the last steps of two hashes, which spread each bit of a number over all of its bits. Pure.

Both work in place: give them numbers that nobody else holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits: TypeAlias = NDArray[np.uint64]


def splitmix64(x: Bits) -> Bits:
    """The finalizer of splitmix64 (Steele, Lea & Flood 2014)."""
    return _finalize(x, (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def murmur3(x: Bits) -> Bits:
    """The finalizer of MurmurHash3 (Appleby 2011), of each half of its 128 bits."""
    return _finalize(x, (33, 33, 33), (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53))


def _finalize(x: Bits, shifts: tuple[int, int, int], factors: tuple[int, int]) -> Bits:
    shifted = x >> np.uint64(shifts[0])
    x ^= shifted
    for shift, factor in zip(shifts[1:], factors, strict=True):
        x *= np.uint64(factor)
        x ^= np.right_shift(x, np.uint64(shift), out=shifted)
    return x
