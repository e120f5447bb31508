"""Rows of an Arrow table, in memory or mapped from a file: its blocks are views, nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spanwise.pipelines.input.element import Spec, Table
from spanwise.pipelines.input.op import Knob, Op, Opening, State, Stream

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrow(Op):
    table: pa.Table = field(repr=False)

    @property
    def spec(self) -> Spec:
        return Table(self.table.schema)

    @property
    def cardinality(self) -> int:
        return int(self.table.num_rows)

    def open(self, opening: Opening) -> Stream:
        return ArrowStream(self.table.to_batches(), opening.block)


class ArrowStream(Stream):
    """Gives RecordBatches from memory, cut to the size of a block. Its state is a number of rows."""

    def __init__(self, batches: Sequence[pa.RecordBatch], block: Knob) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self._block = block
        self._number = 0  # of the batch
        self._row = 0  # in the batch
        self._at = 0  # rows given

    def __next__(self) -> pa.RecordBatch:
        if self._number == len(self._batches):
            raise StopIteration
        batch = self._batches[self._number]
        taken = batch.slice(self._row, self._block.value)
        self._skip(taken.num_rows)
        return taken

    def _skip(self, rows: int) -> None:
        """Skips up to `rows` rows, at most to the end of the batch."""
        self._at += rows
        self._row += rows
        if self._row == self._batches[self._number].num_rows:
            self._number, self._row = self._number + 1, 0

    def state(self) -> State:
        return {"rows": self._at}

    def restore(self, state: State) -> None:
        while self._at < state["rows"]:
            self._skip(min(state["rows"] - self._at, self._batches[self._number].num_rows))
