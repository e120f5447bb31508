"""Batch runs: batches of rows that lie behind each other in one block, and are cut only where they are used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.op import Element, Op, Opening, State, Stream
from spanwise.pipelines.input.ops.batch import Batch
from spanwise.pipelines.input.ops.prefetch import Prefetch
from spanwise.pipelines.input.rows import block_bytes, in_rows, join_batches
from spanwise.pipelines.input.snapshot.encoding import Encoding, Piece

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Batches of `size` rows each; the last one may be shorter."""

    block: pa.RecordBatch
    size: int


def with_batch_runs(op: Op) -> Op:
    """The graph whose stream yields runs, if it ends in batches of rows. A worker works ahead without a prefetch."""
    match op:
        case Prefetch(input=below):
            changed = with_batch_runs(below)
            return op if changed is below else changed
        case Batch(input=below, numpy=False) if in_rows(below):
            return BatchRuns(input=below, batch=replace(op, input=below))
    return op


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchRuns(Op):
    input: Op
    batch: Batch

    @property
    def spec(self) -> Spec:
        return self.batch.spec

    def open(self, opening: Opening) -> Stream:
        return BatchRunStream(opening.open(self.input), self.batch)


class BatchRunStream(Stream):
    def __init__(self, source: Stream, batch: Batch) -> None:
        self._source = source
        self._size = batch.size
        self._drop = batch.drop_remainder
        self._rest: list[pa.RecordBatch] = []  # fewer rows than a batch, and then the block behind them

    def __next__(self) -> Element:
        rows = sum(block.num_rows for block in self._rest)
        while rows < self._size:
            try:
                self._rest.append(next(self._source))
            except StopIteration:
                return self._last()
            rows += self._rest[-1].num_rows
        *before, block = self._rest
        # a batch that begins in one block and ends in another is copied, and travels alone
        end = self._size - (rows - block.num_rows) if before else rows - rows % self._size
        run = BatchRun(join_batches([*before, block.slice(0, end)]), self._size)
        self._rest = [block.slice(end)] if end < block.num_rows else []
        return run

    def _last(self) -> BatchRun:
        rest, self._rest = self._rest, []
        if not rest or self._drop:
            raise StopIteration
        return BatchRun(join_batches(rest), self._size)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        raise NotImplementedError("a worker's pass starts at the beginning")

    def close(self) -> None:
        self._source.close()


def size_bytes(encoding: Encoding, piece: Piece | BatchRun) -> int:
    """Roughly how much memory a piece takes."""
    return block_bytes(piece.block) if isinstance(piece, BatchRun) else encoding.size_bytes(piece)


def count_elements(encoding: Encoding, pieces: Sequence[Piece | BatchRun]) -> int:
    return sum(
        -(-piece.block.num_rows // piece.size) if isinstance(piece, BatchRun) else encoding.count(piece)
        for piece in pieces
    )


_COPIED_ROWS: Final = 8_192
"""Batches of fewer rows are copied into one block: to send each as a block of its own would take longer."""


def cut_every(encoding: Encoding, piece: Piece | BatchRun, start: int, step: int) -> list[Piece | BatchRun]:
    """Every `step`-th element of a piece, from the one numbered `start` on, which it has."""
    import numpy as np

    if isinstance(piece, BatchRun):
        firsts = range(start * piece.size, piece.block.num_rows, step * piece.size)
        batches = [piece.block.slice(first, piece.size) for first in firsts]
        if piece.size >= _COPIED_ROWS:
            return [BatchRun(batch, piece.size) for batch in batches]
        return [BatchRun(join_batches(batches), piece.size)]
    count = encoding.count(piece)
    if start + step < count:  # a block of rows
        return [piece.take(np.arange(start, count, step))]
    return [encoding.cut(piece, start, start + 1)]


def pack(encoding: Encoding, pieces: Sequence[Piece | BatchRun]) -> tuple[pa.Schema, list[pa.RecordBatch], str]:
    """As `encoding` packs the pieces; runs are blocks already."""
    if not isinstance(pieces[0], BatchRun):
        return encoding.pack(pieces)
    layout = [[[run.size, run.block.num_rows // run.size], [run.block.num_rows % run.size, 1]] for run in pieces]
    blocks = [run.block for run in pieces]
    return blocks[0].schema, blocks, json.dumps([[part for part in runs if all(part)] for runs in layout])
