"""Exact sums: the sum of numbers, and of their squares, without any rounding.

A double is a whole number of 53 bits times a power of two, so a sum of doubles is such a number too, of some more bits,
and Python's integers hold it whatever its size. Sums are therefore the same however rows are cut into batches and in
whatever order batches are merged, and what is derived from them is rounded once.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from spanwise.components.statistics.accumulators.value_counts import NumberArray

_LIMB = 21  # bits; 64 bits are three limbs, and a product of two, summed `_MOST` times, stays below 2^63
_MASK = np.int64((1 << _LIMB) - 1)
_MOST = 1 << 14  # not 2^17, so that temporaries fit into the cache

_MANTISSA = np.uint64(52)  # stored bits of a double's mantissa
_ONE = np.uint64(1) << _MANTISSA  # the bit that is not stored
_BIAS = 1075  # of the exponent, where the mantissa is a whole number
_ROOT_BITS = 128  # of the whole number whose root is taken, for a root of more than 53 bits


def exact_sums(values: NumberArray, counts: NDArray[np.int64]) -> tuple[Fraction, Fraction]:
    """The sum of finite numbers, of which each occurs so often, and the sum of their squares.

    `values` are ascending, so that numbers with the same exponent stand together.
    """
    size = int(counts.sum())
    if not size:
        return Fraction(0), Fraction(0)
    if size > _MOST:
        if values.size == 1:
            value = Fraction(values[0].item())
            return value * size, value * value * size
        half = values.size // 2
        left, right = exact_sums(values[:half], counts[:half]), exact_sums(values[half:], counts[half:])
        return left[0] + right[0], left[1] + right[1]
    return _sum_limbs(values, counts, once=size == values.size)


def _sum_limbs(values: NumberArray, counts: NDArray[np.int64], *, once: bool) -> tuple[Fraction, Fraction]:
    wholes, exponents = _split(values)
    negative = values < 0
    first = np.ones(values.size, np.bool_)
    first[1:] = (exponents[1:] != exponents[:-1]) | (negative[1:] != negative[:-1])
    (starts,) = np.nonzero(first)
    a, b, c = (wholes >> (2 * _LIMB)).astype(np.int64), (wholes >> _LIMB).astype(np.int64), wholes.astype(np.int64)
    b, c = b & _MASK, c & _MASK
    limbs = np.stack([a, b, c, a * a, 2 * a * b, 2 * a * c + b * b, 2 * b * c, c * c])
    sums = np.add.reduceat(limbs if once else limbs * counts, starts, axis=1)
    least = int(exponents[starts].min())
    total = squares = 0
    for run, exponent, minus in zip(
        sums.T.tolist(), exponents[starts].tolist(), negative[starts].tolist(), strict=True
    ):
        shift = exponent - least
        whole = _join(run[:3]) << shift
        total += -whole if minus else whole
        squares += _join(run[3:]) << 2 * shift
    return _scaled(total, least), _scaled(squares, 2 * least)


def _split(values: NumberArray) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Each number without its sign as a whole number times two to the power of another."""
    if values.dtype == np.uint64:
        return values.astype(np.uint64), np.zeros(values.size, np.int64)
    if values.dtype == np.int64:
        return np.abs(values).view(np.uint64), np.zeros(values.size, np.int64)  # |-2^63| is right as unsigned
    bits = np.abs(values).view(np.uint64)
    exponents = bits >> _MANTISSA
    mantissas = bits & (_ONE - np.uint64(1))
    return np.where(exponents > 0, mantissas | _ONE, mantissas), np.maximum(exponents, 1).astype(np.int64) - _BIAS


def _join(limbs: list[int]) -> int:
    """The number of which these are the limbs, the greatest first; a limb may be larger than it should."""
    whole = 0
    for limb in limbs:
        whole = (whole << _LIMB) + limb
    return whole


def _scaled(whole: int, exponent: int) -> Fraction:
    return Fraction(whole << exponent) if exponent >= 0 else Fraction(whole, 1 << -exponent)


def to_double(value: Fraction) -> float:
    """The nearest double; infinite beyond the greatest."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.copysign(math.inf, value.numerator)


def square_root(value: Fraction) -> float:
    """The square root, rounded once; it is a double also where the square is none."""
    if not value:
        return 0.0
    shift = (_ROOT_BITS - value.numerator.bit_length() + value.denominator.bit_length()) // 2
    scaled = value * 4**shift if shift >= 0 else value / 4**-shift
    root = math.isqrt(scaled.numerator // scaled.denominator)
    return to_double(Fraction(root, 1 << shift) if shift >= 0 else Fraction(root << -shift))


def to_text(value: Fraction) -> str:
    """A sum as text, such as `0x1f4p-3`: a whole number in hexadecimal, times two to the power."""
    return f"{value.numerator:#x}p-{value.denominator.bit_length() - 1}"


def from_text(text: str) -> Fraction:
    """The reverse of `to_text`."""
    whole, _, power = text.partition("p-")
    return Fraction(int(whole, 16), 1 << int(power))
