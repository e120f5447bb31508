"""Row blocks: the rows of a split in blocks of one size, whatever files and row groups they lie in.

A summary depends on which rows it was given together, and on the order of merging. Gathered block by block and merged
along one tree over the numbers of the blocks, it depends on the rows and their order alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from spanwise.orchestrator.errors import UnreadableInput

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_ROWS = 1 << 16
"""So many rows are summarized together; the last block of a split has fewer. A constant: it is part of the result."""

BLOCKS = 4
"""A run has so many blocks, or as many as begin in its last row group."""


@dataclass(frozen=True)
class RowSlice:
    """Some rows of a row group."""

    path: str
    group: int
    start: int
    stop: int


@dataclass(frozen=True)
class BlockRun:
    """Consecutive blocks, which one worker reads."""

    first: int  #: the number of the first of them in its split
    blocks: tuple[tuple[RowSlice, ...], ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that it reads."""
        return tuple(dict.fromkeys(piece.path for block in self.blocks for piece in block))


def list_runs(files: Iterable[Path]) -> list[BlockRun]:
    """The blocks of a split, given its files in their order. A row group is read by as few runs as possible.

    Raises:
        UnreadableInput: a file is no Parquet.
    """
    runs: list[BlockRun] = []
    waiting: list[tuple[RowSlice, ...]] = []
    first = 0
    for block in _cut(files):
        if len(waiting) >= BLOCKS and (block[0].path, block[0].group) != (waiting[-1][0].path, waiting[-1][0].group):
            runs.append(BlockRun(first, tuple(waiting)))
            first, waiting = first + len(waiting), []
        waiting.append(block)
    return [*runs, BlockRun(first, tuple(waiting))] if waiting else runs


def read_blocks(run: BlockRun, columns: Sequence[str]) -> Iterator[list[pa.Table]]:
    """Block by block, those of the columns that its files have; in several tables where the block is cut.

    Raises:
        UnreadableInput: a file is missing or damaged.
    """
    groups = _RowGroups(columns)
    try:
        for block in run.blocks:
            yield [table for piece in block for table in groups.read(piece)]
    finally:
        groups.close()


def _cut(files: Iterable[Path]) -> Iterator[tuple[RowSlice, ...]]:
    block: list[RowSlice] = []
    lacking = BLOCK_ROWS
    for path in files:
        for group, rows in enumerate(_count_rows(path)):
            start = 0
            while start < rows:
                stop = min(rows, start + lacking)
                block.append(RowSlice(str(path), group, start, stop))
                lacking -= stop - start
                start = stop
                if not lacking:
                    yield tuple(block)
                    block, lacking = [], BLOCK_ROWS
    if block:
        yield tuple(block)


def _count_rows(path: Path) -> list[int]:
    try:
        footer = pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableInput(f"{path}: could not be read as Parquet ({error}). Ingest its span again.") from error
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


class _RowGroups:
    """Reads slices of row groups in their order, each row group once and no more of it at a time than a block."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._file: pq.ParquetFile | None = None
        self._open: tuple[str, int] | None = None  # path and number of the row group
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        self._at = 0  # rows of the group that are behind

    def read(self, piece: RowSlice) -> Iterator[pa.Table]:
        """The rows of a slice, in several tables where the file gives them in several batches."""
        try:
            self._find(piece)
            while self._at < piece.stop:
                batch = next(self._batches) if self._rest is None else self._rest
                end = self._at + batch.num_rows
                begin, stop = max(piece.start, self._at), min(piece.stop, end)
                if begin < stop:
                    yield pa.Table.from_batches([batch.slice(begin - self._at, stop - begin)])
                self._rest = batch.slice(stop - self._at) if stop < end else None
                self._at = min(max(stop, self._at), end) if stop < end else end
        except (OSError, pa.ArrowException, StopIteration) as error:
            raise UnreadableInput(
                f"{piece.path}: row group {piece.group} cannot be read ({error}). Ingest its span again."
            ) from error

    def _find(self, piece: RowSlice) -> None:
        if self._open == (piece.path, piece.group):
            return
        if self._file is None or self._open is None or self._open[0] != piece.path:
            self.close()
            self._file = pq.ParquetFile(piece.path, page_checksum_verification=True)
        self._open, self._rest, self._at = (piece.path, piece.group), None, 0
        known = set(self._file.schema_arrow.names)
        present = [name for name in self._columns if name in known]
        self._batches = self._file.iter_batches(BLOCK_ROWS, row_groups=[piece.group], columns=present)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
