"""Rows of Arrow IPC files, mapped into memory: what is not touched is not read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.errors import UnreadableInput
from pipelines.input.element import Spec, Table
from pipelines.input.files import PartStream, Paths, conformed, listed, unified
from pipelines.input.op import Knob, Op, Opening, Stream

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrowFiles(Op):
    paths: tuple[str, ...]
    schema: pa.Schema = field(repr=False)
    rows: int

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return Table(self.schema)

    @property
    def cardinality(self) -> int:
        return self.rows

    def open(self, opening: Opening) -> Stream:
        def read(part: int) -> Iterator[pa.RecordBatch]:
            return cut(opened(self.paths[part]), opening.block)

        def finish(batch: pa.RecordBatch) -> pa.RecordBatch:
            return conformed(batch, self.schema)

        return PartStream(len(self.paths), read, finish, self.paths.__getitem__)


def arrow_files(paths: Paths) -> ArrowFiles:
    """The op, with what the files say of themselves.

    Raises:
        DatasetError: there is no such file.
        UnreadableInput: a file is no Arrow IPC, or damaged.
        ColumnsChanged: two files have different types for one column.
    """
    files = listed("from_arrow_files", paths)
    tables = {path: opened(path) for path in files}
    schema = unified("from_arrow_files", {path: table.schema for path, table in tables.items()})
    return ArrowFiles(paths=files, schema=schema, rows=sum(table.num_rows for table in tables.values()))


def opened(path: str) -> pa.Table:
    """A file as a table whose columns lie in the mapped file, unless it is compressed.

    Raises:
        UnreadableInput: there is none, it is no Arrow IPC, or damaged.
    """
    import pyarrow as pa

    try:
        mapped = pa.memory_map(path)
        head = mapped.read(6)
        mapped.seek(0)
        return pa.ipc.open_file(mapped).read_all() if head == b"ARROW1" else pa.ipc.open_stream(mapped).read_all()
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(f"{path}: cannot be read as Arrow IPC ({error}).") from error


def cut(table: pa.Table, block: Knob) -> Iterator[pa.RecordBatch]:
    """The batches of a table, no larger than a block."""
    for batch in table.to_batches():
        at = 0
        while at < batch.num_rows:
            taken = batch.slice(at, block.value)
            at += taken.num_rows
            yield taken
