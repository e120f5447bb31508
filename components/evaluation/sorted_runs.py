"""Sorted runs: the rows of one model in files by score, so that a window of any size can be read in that order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spanwise.components.evaluation.bootstrap import Floats, Ids
from spanwise.components.evaluation.exact_rows import ExactRows
from spanwise.components.evaluation.metrics import ScoredRows, Whole
from spanwise.components.evaluation.scored_parts import STRIDE, finite_scores

PIECE_ROWS = 1 << 16
"""About so many rows are given at once: what is computed of them, with replicates, stays in a processor's cache."""

_BUFFER_ROWS = 1 << 18

Records = NDArray[np.void]


@dataclass(frozen=True, kw_only=True)
class SortedPiece:
    """Rows in the order of their scores."""

    rows: ScoredRows  #: as one group
    ids: Ids
    groups: Sequence[Whole]  #: the group of each row, by slicing, -1 for none
    is_tie: bool  #: whether all have one score, which the next run may have too; otherwise it has none in common


class SortedRuns:
    """Files of rows, each with the scores above those of the file before it."""

    def __init__(self, folder: Path, sample: Sequence[Floats], slicings: int, run_rows: int) -> None:
        """`sample` holds one in `STRIDE` of the scores of each part; a file has about `run_rows`."""
        self._folder = folder
        self._run_rows = run_rows
        self._cuts = _choose_cuts(np.sort(np.concatenate(sample)), max(1, run_rows // STRIDE))
        self._buffer: list[Records] = []
        self._buffered = 0
        self._slicings = slicings
        self._type = np.dtype([])

    def append(self, exact: ExactRows, model: str, groups: Sequence[Whole]) -> None:
        """Adds the rows of a part; `groups` has the group of each row, by slicing, -1 for none."""
        columns = {
            "score": finite_scores(exact, model),
            "label": exact.labels,
            "id": exact.ids,
            "unscored": ~np.isfinite(exact.scores[model]),
            **({} if exact.weights is None else {"weight": exact.weights}),
            **{f"group {number}": of_rows.astype(np.int16) for number, of_rows in enumerate(groups)},
        }
        self._type = np.dtype([(name, column.dtype) for name, column in columns.items()])
        records = np.empty(len(exact.labels), self._type)
        for name, column in columns.items():
            records[name] = column
        self._buffer.append(records)
        self._buffered += len(records)
        if self._buffered >= _BUFFER_ROWS:
            self._flush()

    def read(self) -> Iterator[SortedPiece]:
        """The rows, from the greatest score down, in runs that are sorted; a file is removed when it was read."""
        self._flush()
        for number in reversed(range(len(self._cuts) + 1)):
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
                yield from self._sort(records, is_tie=bool(is_tie))
            file.unlink()

    def _sort(self, records: Records, *, is_tie: bool) -> Iterator[SortedPiece]:
        order = np.argsort(np.ascontiguousarray(records["score"]))
        columns = {name: np.ascontiguousarray(records[name])[order] for name in records.dtype.names or ()}
        cuts = [0, *([] if is_tie else _cut_between(columns["score"])), len(records)]
        for first, end in reversed(list(pairwise(cuts))):
            some = {name: column[first:end] for name, column in columns.items()}
            rows = ScoredRows(
                labels=some["label"],
                scores=some["score"],
                unscored=some["unscored"],
                starts=np.zeros(1, np.int64),
                weights=some.get("weight"),
            )
            groups = [some[f"group {number}"] for number in range(self._slicings)]
            yield SortedPiece(rows=rows, ids=some["id"], groups=groups, is_tie=is_tie)

    def _flush(self) -> None:
        if not self._buffer:
            return
        records = np.concatenate(self._buffer)
        self._buffer, self._buffered = [], 0
        numbers = np.searchsorted(self._cuts, records["score"], side="left")
        order = np.argsort(numbers.astype(np.int16), kind="stable")  # by radix: a run in 2**15 would not fit on a disk
        found, firsts = np.unique(numbers[order], return_index=True)
        ordered = records.view(f"V{self._type.itemsize}")[order]  # whole records, not field by field
        for number, part in zip(found.tolist(), np.split(ordered, firsts[1:]), strict=True):
            with self._file(number).open("ab") as file:
                part.tofile(file)

    def _file(self, number: int) -> Path:
        return self._folder / f"run-{number}"


def _cut_between(scores: Floats) -> list[int]:
    """Where to cut scores, which ascend, into about `PIECE_ROWS` each, without a score on both sides of a cut."""
    fresh = np.flatnonzero(np.diff(scores)) + 1
    places = np.searchsorted(fresh, np.arange(PIECE_ROWS, len(scores), PIECE_ROWS))
    cuts: list[int] = np.unique(fresh[places[places < len(fresh)]]).tolist()
    return cuts


def _choose_cuts(sample: Floats, step: int) -> Floats:
    """The greatest scores of all files but the last; a score that fills a file has one of its own."""
    cuts, times = np.unique(sample[step::step], return_counts=True)
    below = np.nextafter(cuts[times > 1], -np.inf)
    found: Floats = np.unique(np.concatenate([cuts, below]))
    return found
