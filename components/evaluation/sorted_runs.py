"""Sorted runs: the rows of one model in files by score, so that a window of any size can be read in that order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spanwise.components.evaluation.bootstrap import Floats
from spanwise.components.evaluation.exact_rows import ExactRows
from spanwise.components.evaluation.metrics import Whole
from spanwise.components.evaluation.scored_parts import STRIDE, finite_scores

_BUFFER_ROWS = 1 << 20

Records = NDArray[np.void]


class SortedRuns:
    """Files of rows, each with the scores above those of the file before it."""

    def __init__(self, folder: Path, sample: Sequence[Floats], slicings: int, run_rows: int) -> None:
        """`sample` holds one in `STRIDE` of the scores of each part; a file has about `run_rows`."""
        self._folder = folder
        self._run_rows = run_rows
        self._cuts = _choose_cuts(np.sort(np.concatenate(sample)), max(1, run_rows // STRIDE))
        self._buffer: list[Records] = []
        self._buffered = 0
        self._type = np.dtype(
            [("score", "f8"), ("label", "f8"), ("id", "u8"), ("weight", "f8"), ("groups", "i2", (slicings,))]
        )

    def append(self, exact: ExactRows, model: str, groups: Sequence[Whole]) -> None:
        """Adds the rows of a part; `groups` has the group of each row, by slicing, -1 for none."""
        records = np.empty(len(exact.labels), self._type)
        records["score"], records["label"], records["id"] = finite_scores(exact, model), exact.labels, exact.ids
        records["weight"] = 1.0 if exact.weights is None else exact.weights
        for number, of_rows in enumerate(groups):
            records["groups"][:, number] = of_rows
        self._buffer.append(records)
        self._buffered += len(records)
        if self._buffered >= _BUFFER_ROWS:
            self._flush()

    def read(self) -> Iterator[tuple[Records, bool]]:
        """The rows, from the least score up, in pieces that are sorted; a file is removed when it was read.

        With each piece comes whether all its rows have one score, which the next piece may have too. Otherwise two
        pieces have no score in common.
        """
        self._flush()
        for number in range(len(self._cuts) + 1):
            file = self._file(number)
            if not file.exists():
                continue
            count = file.stat().st_size // self._type.itemsize
            is_tie = 0 < number < len(self._cuts) and self._cuts[number - 1] == np.nextafter(
                self._cuts[number], -np.inf
            )
            step = self._run_rows if is_tie else count
            for first in range(0, count, step):
                records = np.fromfile(
                    file, self._type, count=min(step, count - first), offset=first * self._type.itemsize
                )
                yield records[np.argsort(records["score"], kind="stable")], is_tie
            file.unlink()

    def _flush(self) -> None:
        if not self._buffer:
            return
        records = np.concatenate(self._buffer)
        self._buffer, self._buffered = [], 0
        numbers = np.searchsorted(self._cuts, records["score"], side="left")
        order = np.argsort(numbers, kind="stable")
        found, firsts = np.unique(numbers[order], return_index=True)
        for number, part in zip(found.tolist(), np.split(records[order], firsts[1:]), strict=True):
            with self._file(number).open("ab") as file:
                part.tofile(file)

    def _file(self, number: int) -> Path:
        return self._folder / f"run-{number}"


def _choose_cuts(sample: Floats, step: int) -> Floats:
    """The greatest scores of all files but the last; a score that fills a file has one of its own."""
    cuts, times = np.unique(sample[step::step], return_counts=True)
    below = np.nextafter(cuts[times > 1], -np.inf)
    found: Floats = np.unique(np.concatenate([cuts, below]))
    return found
