"""Batches of exactly so many elements. Of rows they are slices of the block, cut last and not copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import DatasetError
from pipelines.input.element import Batch as BatchSpec
from pipelines.input.element import Spec, batched
from pipelines.input.op import Count, Element, Op, Opening, Rows, State, Stream, Through, ceil_div, rows_of, whole
from pipelines.input.stacking import joined, stack

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch(Op):
    input: Op
    size: int
    drop_remainder: bool = False
    ragged: bool = False  #: whether arrays of different lengths make a `Ragged`

    def __post_init__(self) -> None:
        whole("batch", "size", self.size)
        if isinstance(self.input.spec, BatchSpec):
            raise DatasetError("batch: the elements are RecordBatches already; use rebatch for other sizes of them.")

    @property
    def spec(self) -> Spec:
        even = self.drop_remainder or (isinstance(count := self.input.cardinality, int) and count % self.size == 0)
        return batched(self.input.spec, self.size if even else None)

    @property
    def cardinality(self) -> Count:
        return ceil_div(self.input.cardinality, self.size, drop=self.drop_remainder)

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        return RowBatchStream(source, self) if rows_of(self.input) else BatchStream(source, self)


class RowBatchStream(Stream):
    def __init__(self, source: Stream, op: Batch) -> None:
        self._source = source
        self._rows = Rows(source)
        self._size = op.size
        self._drop = op.drop_remainder

    def __next__(self) -> pa.RecordBatch:
        batch = self._rows.take(self._size)
        return batch if batch.num_rows == self._size else self._filled(batch)

    def _filled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        pieces = [batch]
        missing = self._size - batch.num_rows
        while missing:
            try:
                pieces.append(self._rows.take(missing))
            except StopIteration:
                if self._drop:
                    raise
                break
            missing -= pieces[-1].num_rows
        whole: pa.RecordBatch = joined(pieces)
        return whole

    def state(self) -> State:
        return self._rows.state()

    def restore(self, state: State) -> None:
        self._rows.restore(state)

    def close(self) -> None:
        self._source.close()


class BatchStream(Through):
    def __init__(self, source: Stream, op: Batch) -> None:
        super().__init__(source)
        self._op = op

    def __next__(self) -> Element:
        elements = []
        for element in self._source:
            elements.append(element)
            if len(elements) == self._op.size:
                break
        if not elements or (self._op.drop_remainder and len(elements) < self._op.size):
            raise StopIteration
        return stack(elements, ragged=self._op.ragged)
