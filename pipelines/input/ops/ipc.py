"""Rows of Arrow IPC files; those on a local disk are mapped into memory: only what is used is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.element import Spec, Table
from spanwise.pipelines.input.files import (
    PartStream,
    Paths,
    conform,
    list_files,
    locate,
    refuse_other_columns,
    unify_schemas,
)
from spanwise.pipelines.input.op import Count, Knob, Op, Opening, Stream

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"ARROW1"  # how a file begins; a stream does not


@dataclass(frozen=True)
class ArrowFile:
    """What the metadata of a file said when the dataset was made."""

    columns: frozenset[str]
    rows: int | None  #: None for a stream


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrowFiles(Op):
    paths: tuple[str, ...]
    file_bytes: Mapping[str, int] = field(default_factory=dict, repr=False)  #: of these paths, where they are known
    files: dict[str, ArrowFile] = field(repr=False)  #: of these paths, and maybe of others
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
            path = self.paths[part]
            schema, batches = open_ipc(path)
            known = self.files[path]
            refuse_other_columns(path, schema, self.schema, known.columns)
            return cut_blocks(_refuse_other_rows(path, batches, known.rows), opening.block)

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
    schemas = [(path, open_ipc(path)[0]) for path in files]
    schema = unify_schemas("from_arrow_files", schemas)
    found = {path: ArrowFile(frozenset(each.names), count_rows(path)) for path, each in schemas}
    counts = [found[path].rows for path in files]
    known = [count for count in counts if count is not None]
    rows = sum(known) if len(known) == len(counts) else None
    return ArrowFiles(paths=files, files=found, schema=schema, rows=rows)


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


def _refuse_other_rows(path: str, batches: Iterable[pa.RecordBatch], rows: int | None) -> Iterator[pa.RecordBatch]:
    """The batches, of a file that had so many rows: other ops may count on their number."""
    found = 0
    for batch in batches:
        found += batch.num_rows
        if rows is not None and found > rows:
            break
        yield batch
    if rows is not None and found != rows:
        raise UnreadableInput(
            f"{path} was replaced after the dataset was made: it had {rows:,} rows then, and has "
            f"{'more' if found > rows else f'{found:,}'} now. Make the dataset again."
        )


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
