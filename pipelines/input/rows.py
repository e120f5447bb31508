"""Rows travel in blocks: how a stream of blocks is cut by rows, and how it is read a row at a time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import BatchSpec, ElementSpec, Table, parts_of
from spanwise.pipelines.input.op import Element, Op, Opening, State, Stream

if TYPE_CHECKING:
    import pyarrow as pa


def in_rows(op: Op) -> bool:
    """Whether the elements of an op are rows, so that its stream gives blocks of them."""
    return isinstance(op.spec, Table)


def open_elements(opening: Opening, op: Op) -> Stream:
    """The op's stream, one element at a time: a row is a dict."""
    stream = opening.open(op)
    return RowDicts(stream) if in_rows(op) else stream


def join_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches as one; a single one is not copied."""
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    one: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]  # the stubs are older
    return one


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """No rows of these columns, of any type: Arrow makes no tensors, or structs of them, from an empty list."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)


def row_dicts(block: pa.RecordBatch) -> list[Any]:
    """The rows of a block as dicts; tensors of Arrow's as lists of lists, as their axes say."""
    from spanwise.pipelines.input.arrow_tensors import shaper_of

    rows: list[Any] = block.to_pylist()
    for name, type_ in zip(block.schema.names, block.schema.types, strict=True):
        if (shape := shaper_of(type_)) is not None:
            for row in rows:
                row[name] = shape(row[name])
    return rows


def block_bytes(block: pa.RecordBatch | pa.Table) -> int:
    """About how many bytes rows take. Arrow's `nbytes` takes longer than to cut and pass on a batch."""
    try:
        return int(block.num_rows * sum([kind.bit_width for kind in block.schema.types]) // 8)
    except ValueError:  # some column's cells are of different lengths
        return int(block.nbytes)


def weigh(element: Element) -> float:
    """About how many bytes an element holds."""
    pa = sys.modules.get("pyarrow")
    if pa is not None and isinstance(element, pa.RecordBatch | pa.Table):
        return float(block_bytes(element))
    taken = parts_of(element)
    if taken is not None:
        return sum(map(weigh, taken[1]))
    return float(getattr(element, "nbytes", 0) or sys.getsizeof(element))


class BlockTypes:
    """The types of the columns that a function returns: how rows are cut into blocks must change nothing."""

    def __init__(self, who: str = "") -> None:
        self._who = who
        self._first: pa.Schema | None = None

    @classmethod
    def of_stream(cls, who: str, spec: ElementSpec) -> BlockTypes | None:
        """For blocks, or batches, that come of several passes of one function; None if it has declared them."""
        is_open = isinstance(spec, Table | BatchSpec) and spec.schema is None
        return cls(f"{who}: a function before it ") if is_open else None

    @classmethod
    def of_parts(cls, op: str, specs: Sequence[ElementSpec]) -> BlockTypes | None:
        """For the blocks of several datasets of rows; None if all have declared them."""
        schemas = [spec.schema for spec in specs if isinstance(spec, Table)]
        if None not in schemas:
            return None
        types = cls(f"{op}: a function of one of the datasets ")
        types._first = next((schema for schema in schemas if schema is not None), None)
        return types

    def check(self, block: pa.RecordBatch) -> None:
        """Refuses a block with another type or column than the first one.

        Raises:
            DatasetError: says which.
        """
        first = self._first = self._first or block.schema
        if block.schema.equals(first):
            return
        for column in block.schema:
            if column.name not in first.names:
                break
            if (type_ := first.field(column.name).type) != column.type:
                raise DatasetError(
                    f"{self._who}returned column {column.name!r} as {type_} for other rows, and as {column.type} for "
                    f"these. Declare the types, to which the columns are then converted: map(…, spec=pa.schema(…))."
                )
        if block.schema.names != first.names:
            raise DatasetError(
                f"{self._who}returned the columns {first.names} for other rows, and {block.schema.names} for these."
            )


class CheckedBlocks(Stream):
    """Blocks of which the types are checked."""

    def __init__(self, source: Stream, types: BlockTypes) -> None:
        self._source = source
        self._types = types

    def __next__(self) -> Element:
        block = next(self._source)
        self._types.check(block)
        return block

    def state(self) -> State:
        return self._source.state()

    def restore(self, state: State) -> None:
        self._source.restore(state)

    def close(self) -> None:
        self._source.close()


def checked(source: Stream, types: BlockTypes | None) -> Stream:
    """A stream of blocks whose types are checked, if they are not declared."""
    return source if types is None else CheckedBlocks(source, types)


def open_parts(opening: Opening, op: str, parts: Sequence[Op]) -> list[Stream]:
    """The streams of datasets whose elements an op mixes; rows of all of them have the same types."""
    types = BlockTypes.of_parts(op, [part.spec for part in parts])
    return [checked(opening.open(part), types) for part in parts]


class RowCursor:
    """Takes rows off a stream of blocks by count. Not a stream: a part of those that cut blocks.

    Its state is that of the stream before the block it is in, and the rows used since: so a restored one may meet
    blocks of other sizes.
    """

    def __init__(self, source: Stream) -> None:
        self._source = source
        self.block: pa.RecordBatch | None = None  #: the rows come from
        self._at = 0  # rows of the block that are used
        self._rows = 0  # of the block
        self._before: State | None = None  # the source's, before the block
        self._skip = 0  # rows before the block since then; only after a restore

    def take(self, limit: int) -> pa.RecordBatch:
        """The next rows: at least one, at most `limit`, without copying.

        Raises:
            StopIteration: there are no more.
        """
        at = self._at
        if at == self._rows:
            self._fetch()
            at = self._at
        block = self.block
        assert block is not None
        rows = self._rows - at
        if limit < rows:
            self._at = at + limit
            return block.slice(at, limit)
        self._at = self._rows
        return block.slice(at) if at else block

    def within(self, count: int) -> int | None:
        """Uses up `count` rows of the block and returns where they begin; None, using none, if fewer are left."""
        if self._at == self._rows:
            self._fetch()
        at = self._at
        if count > self._rows - at:
            return None
        self._at = at + count
        return at

    def rest(self) -> pa.RecordBatch:
        """What is left of the block, or all of the next one."""
        return self.take(sys.maxsize)

    def gather(self, count: int) -> pa.RecordBatch | None:
        """Exactly `count` rows as one batch, or the rest; None if nothing is left. Copies only across blocks."""
        pieces: list[pa.RecordBatch] = []
        while count:
            try:
                pieces.append(self.take(count))
            except StopIteration:
                break
            count -= pieces[-1].num_rows
        return join_batches(pieces) if pieces else None

    def _fetch(self) -> None:
        self._before = self._source.state()
        self._at = self._rows = self._skip = 0
        self.block = next(self._source)
        self._rows = self.block.num_rows

    def state(self) -> State:
        if self._at == self._rows or self._before is None:
            return {"input": self._source.state(), "used": 0}
        return {"input": self._before, "used": self._skip + self._at}

    def restore(self, state: State) -> None:
        self._source.restore(state["input"])
        before = state["input"]
        left = used = state["used"]
        while left:
            self._fetch()
            self._at = min(left, self._rows)
            left -= self._at
            self._before, self._skip = before, used - left - self._at


class RowDicts(Stream):
    """The rows of blocks one at a time, as dicts."""

    def __init__(self, source: Stream) -> None:
        self._source = source
        self._rows = RowCursor(source)
        self._dicts: list[Element] = []
        self._at = 0
        self._before: State = {}

    def __next__(self) -> Element:
        if self._at == len(self._dicts):
            self._dicts, self._at = [], 0
            self._before = self._rows.state()
            self._dicts = row_dicts(self._rows.rest())
        self._at += 1
        return self._dicts[self._at - 1]

    def state(self) -> State:
        if self._at == len(self._dicts):
            return self._rows.state()
        return {"input": self._before["input"], "used": self._before["used"] + self._at}

    def restore(self, state: State) -> None:
        self._rows.restore(state)

    def close(self) -> None:
        self._source.close()
