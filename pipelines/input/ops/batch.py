"""Batches of a fixed number of elements. Of rows they are slices of the block, cut last and not copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.arrays import as_arrays
from spanwise.pipelines.input.element import BatchSpec, Spec, batch_spec
from spanwise.pipelines.input.op import (
    Count,
    Element,
    Op,
    Opening,
    SingleInputStream,
    Stream,
    ceil_div,
    check_whole,
    needs_full_groups,
    next_group,
)
from spanwise.pipelines.input.ops.as_numpy import array_specs
from spanwise.pipelines.input.rows import RowCursor, in_rows
from spanwise.pipelines.input.stacking import stack

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch(Op):
    input: Op
    size: int
    drop_remainder: bool = False
    ragged: bool = False  #: whether arrays make a `Ragged`, where they need not have one shape
    numpy: bool = False  #: whether batches of rows come as dicts of arrays

    def __post_init__(self) -> None:
        check_whole("batch", "size", self.size)
        if isinstance(self.input.spec, BatchSpec):
            raise DatasetError("batch: the elements are RecordBatches already; use rebatch to change their size.")

    @property
    def needs_all(self) -> str:
        return needs_full_groups(self, drop_remainder=self.drop_remainder)

    @property
    def spec(self) -> Spec:
        even = self.drop_remainder or (isinstance(count := self.input.cardinality, int) and count % self.size == 0)
        spec = batch_spec(self.input.spec, self.size if even else None, ragged=self.ragged)
        return array_specs(spec) if self.numpy and isinstance(spec, BatchSpec) else spec

    @property
    def cardinality(self) -> Count:
        return ceil_div(self.input.cardinality, self.size, drop=self.drop_remainder)

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        if not in_rows(self.input):
            return BatchStream(source, self)
        return ArrayBatchStream(source, self) if self.numpy else RowBatchStream(source, self)


class RowBatchStream(SingleInputStream):
    def __init__(self, source: Stream, op: Batch) -> None:
        self._rows = RowCursor(source)
        super().__init__(source, self._rows)
        self._size = op.size
        self._drop = op.drop_remainder

    def __next__(self) -> Element:
        batch = self._rows.gather(self._size)
        if batch is None or (self._drop and batch.num_rows < self._size):
            raise StopIteration
        return batch


class ArrayBatchStream(RowBatchStream):
    """Makes arrays of a whole block and cuts these: a batch inside a block costs one slice for each column."""

    def __init__(self, source: Stream, op: Batch) -> None:
        super().__init__(source, op)
        self._block: pa.RecordBatch | None = None
        self._arrays: dict[str, Any] = {}

    def __next__(self) -> Element:
        size = self._size
        at = self._rows.within(size)
        if at is None:
            return as_arrays(super().__next__())
        block = self._rows.block
        if block is not None and block is not self._block:
            self._block, self._arrays = block, as_arrays(block)
        return {name: array[at : at + size] for name, array in self._arrays.items()}


class BatchStream(SingleInputStream):
    def __init__(self, source: Stream, op: Batch) -> None:
        super().__init__(source)
        self._op = op

    def __next__(self) -> Element:
        elements = next_group(self._source, self._op.size, drop_remainder=self._op.drop_remainder)
        return stack(elements, ragged=self._op.ragged, spec=self._op.input.spec)
