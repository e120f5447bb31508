"""The bootstrap: how far a figure would vary on other rows like these, from replicates with random row weights.

The weights of a row depend only on its id and the number of the replicate: they are the same in every process, for all
batch sizes and for two models, so that the difference of the two models has an interval of its own. In a Poisson
bootstrap each row counts 0, 1, 2 … times, once on average (Hanley & MacGibbon 2006; it needs no total, so it merges).
In a jackknife each replicate leaves out one of as many groups of rows.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spanwise.pipelines.input.bit_mixing import splitmix64

Floats: TypeAlias = NDArray[np.float64]
Ids: TypeAlias = NDArray[np.uint64]
Counts: TypeAlias = NDArray[np.uint8]
ResampleMethod: TypeAlias = Literal["bootstrap", "jackknife"]

LANES = 4
"""Replicates whose weights are drawn from one hash of a row, 16 bits each."""

_Z = 1.959963984540054  # the normal quantile of 0.975
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def row_ids(place: str, first: int, count: int) -> Ids:
    """The ids of `count` rows of a place (a file's row group), from its row `first` on."""
    seed = np.uint64(int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "little"))
    return splitmix64(seed + np.arange(first, first + count, dtype=np.uint64) * _GOLDEN)


def weights(ids: Ids, method: ResampleMethod, replicates: int, first: int, last: int) -> Counts:
    """How often each row counts in the replicates from `first` up to `last`, shape `(last - first, rows)`."""
    if method == "jackknife":
        group = splitmix64(ids.copy()) % np.uint64(replicates)
        kept: Counts = (group != np.arange(first, last, dtype=np.uint64)[:, None]).astype(np.uint8)
        return kept
    drawn = np.empty((last - first, len(ids)), dtype=np.uint8)
    for word in range(first // LANES, (last - 1) // LANES + 1):
        lanes = splitmix64(ids ^ splitmix64(np.array([word + 1], dtype=np.uint64))).view(np.uint16)
        counts = np.zeros(len(lanes), dtype=np.uint8)
        for more in _poisson():  # comparing all with a few numbers is faster than looking each up
            counts += lanes >= more
        begin, end = max(first, word * LANES), min(last, (word + 1) * LANES)
        of_word = counts.reshape(-1, LANES).T
        drawn[begin - first : end - first] = of_word[begin - word * LANES : end - word * LANES]
    return drawn


def interval(values: Floats, method: ResampleMethod) -> tuple[Floats, Floats]:
    """The ends of the 95 % intervals of figures, of which the first of the last axis is the value itself.

    The ends are a Student quantile of standard errors away. NaN where the value, or more than a tenth of its
    replicates, is undefined: too few rows, or rows of one class.
    """
    value, drawn = values[..., 0], values[..., 1:]
    defined = np.isfinite(drawn)
    count = defined.sum(axis=-1)
    enough = np.isfinite(value) & (count >= 0.9 * drawn.shape[-1]) & (count > 1)
    counted = np.maximum(count, 2)
    mean = np.where(defined, drawn, 0).sum(axis=-1) / counted
    squares = np.where(defined, np.square(drawn - mean[..., None]), 0).sum(axis=-1)
    variance = squares * (counted - 1) / counted if method == "jackknife" else squares / (counted - 1)
    reach = np.where(enough, student(drawn.shape[-1] - 1) * np.sqrt(variance), np.nan)
    return value - reach, value + reach


def student(freedom: int) -> float:
    """The 0.975 quantile of Student's distribution, within 0.2 % from 5 degrees of freedom on (Cornish & Fisher)."""
    z, v = _Z, max(freedom, 1)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


@functools.cache
def _poisson() -> NDArray[np.uint16]:
    """The least of 2**16 equally likely draws with which a row counts once, twice and so on.

    It counts 1 time on average; each share is within 2**-16.
    """
    shares = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(12)])
    counts = np.searchsorted(shares, (np.arange(1 << 16) + 0.5) / (1 << 16))
    return np.searchsorted(counts, np.arange(1, counts[-1] + 1)).astype(np.uint16)
