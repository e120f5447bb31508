"""Rows of Arrow IPC files; those on a local disk are mapped into memory: only what is used is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.element import Spec, Table
from spanwise.pipelines.input.files import PartStream, Paths, conform, list_files, locate, unify_schemas
from spanwise.pipelines.input.op import Count, Knob, Op, Opening, Stream

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"ARROW1"  # how a file begins; a stream does not


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrowFiles(Op):
    paths: tuple[str, ...]
    schema: pa.Schema = field(repr=False)
    rows: int | None  #: None if that requires reading them

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return Table(self.schema)

    @property
    def cardinality(self) -> Count:
        return self.rows

    def open(self, opening: Opening) -> Stream:
        def read(part: int) -> Iterator[pa.RecordBatch]:
            return cut_blocks(open_ipc(self.paths[part])[1], opening.block)

        def finish(batch: pa.RecordBatch) -> pa.RecordBatch:
            return conform(batch, self.schema)

        return PartStream(len(self.paths), read, finish, self.paths.__getitem__)


def arrow_files(paths: Paths) -> ArrowFiles:
    """The op, with what the files' metadata says.

    Raises:
        DatasetError: there is no such file.
        UnreadableInput: a file is not Arrow IPC, or is damaged.
        ColumnsChanged: two files have different types for one column.
    """
    files = list_files("from_arrow_files", paths)
    schema = unify_schemas("from_arrow_files", ((path, open_ipc(path)[0]) for path in files))
    counts = [count_rows(path) for path in files]
    known = [count for count in counts if count is not None]
    return ArrowFiles(paths=files, schema=schema, rows=sum(known) if len(known) == len(counts) else None)


def open_ipc(path: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns and the batches of a file, which lie in the mapped file unless it is compressed.

    Raises:
        UnreadableInput: there is none, it is not Arrow IPC, or is damaged.
    """
    import pyarrow as pa

    try:
        content = _content(path)
        if content.read(len(_MAGIC)) == _MAGIC:
            file = pa.ipc.open_file(content)
            return file.schema, map(file.get_batch, range(file.num_record_batches))
        content.seek(0)
        stream = pa.ipc.open_stream(content)
        return stream.schema, iter(stream)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(f"{path}: cannot be read as Arrow IPC ({error}).") from error


def count_rows(path: str) -> int | None:
    """How many rows a file has by its metadata; None for a stream, which has to be read for that."""
    from pyarrow import dataset

    with _content(path) as content:
        if content.read(len(_MAGIC)) != _MAGIC:
            return None
    filesystem, name = locate(path)
    return int(dataset.dataset(name, format="ipc", filesystem=filesystem).count_rows())


def _content(path: str) -> pa.NativeFile:
    import pyarrow as pa
    from pyarrow.fs import LocalFileSystem

    filesystem, name = locate(path)
    return pa.memory_map(name) if isinstance(filesystem, LocalFileSystem) else filesystem.open_input_file(name)


def cut_blocks(batches: Iterable[pa.RecordBatch], block: Knob) -> Iterator[pa.RecordBatch]:
    """The batches, in pieces no larger than a block."""
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            taken = batch.slice(at, block.value)
            at += taken.num_rows
            yield taken
