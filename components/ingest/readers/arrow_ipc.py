"""Arrow IPC, a file (Feather v2) or a stream: a piece of a file is a run of record batches, a stream is one piece."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc

from spanwise.components.ingest.readers.columns import canonical, fit
from spanwise.components.ingest.readers.descriptor import Descriptor, Dialect, FileLayout, Format, Rejected
from spanwise.orchestrator.errors import UnreadableInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spanwise.components.ingest.readers.columns import Column

_FILE_MAGIC = b"ARROW1"


def describe(path: str, fmt: Format, dialect: Dialect) -> FileLayout:
    """The columns and types of the schema, and pieces of about `part_bytes`.

    Raises:
        UnreadableInput: the file is empty, cut short or no Arrow IPC, or names a column twice.
    """
    size = _size(path)
    with _open_file(path) as reader:
        schema = reader.schema
        names = schema.names
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise UnreadableInput(f"{path}: two columns are called '{repeated[0]}'. Rename one.")
        types = tuple(canonical(field.type) for field in schema)
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            count = reader.num_record_batches
            pieces = -(-size // dialect.part_bytes) if count else 1
            step = max(1, -(-count // pieces))
            row = 1
            found = []
            for start in range(0, max(count, 1), step):
                stop = min(start + step, count)
                found.append(_piece(path, fmt, start, stop, row, size * (stop - start) // max(count, 1)))
                if stop < count:
                    row += sum(reader.get_batch(index).num_rows for index in range(start, stop))
            return FileLayout(names=tuple(names), types=types, descriptors=tuple(found))
    return FileLayout(names=tuple(names), types=types, descriptors=(_piece(path, fmt, 0, None, 1, size),))


def infer(
    descriptor: Descriptor, dialect: Dialect, known: frozenset[str], blocks: int | None
) -> dict[str, pa.DataType]:
    """The types of the schema; no row is read."""
    del dialect, blocks
    with _open_file(descriptor.path) as reader:
        return {field.name: canonical(field.type) for field in reader.schema if field.name not in known}


def read(
    descriptor: Descriptor, dialect: Dialect, columns: Sequence[Column], reject: Callable[[Rejected], None]
) -> Iterator[pa.RecordBatch]:
    """The rows as `columns`.

    Raises:
        Misfit: a value does not fit a type that is the previous span's.
    """
    del dialect
    row = descriptor.first_line
    with _open_file(descriptor.path) as reader:
        for batch in _batches(reader, descriptor):
            yield fit(batch, columns, descriptor, row, reject)
            row += batch.num_rows


def _batches(
    reader: pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader, descriptor: Descriptor
) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        for index in range(descriptor.start, descriptor.stop or 0):
            yield reader.get_batch(index)
    else:
        yield from reader


def _piece(path: str, fmt: Format, start: int, stop: int | None, first_row: int, size: int) -> Descriptor:
    return Descriptor(path=path, format=fmt, start=start, stop=stop, first_line=first_row, size_bytes=size)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise UnreadableInput(f"{path}: could not be read ({error.strerror}).") from error


@contextmanager
def _open_file(path: str) -> Iterator[pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader]:
    if _size(path) == 0:
        raise UnreadableInput(f"{path}: the file is empty (0 bytes).")
    try:
        with pa.OSFile(path, "rb") as source:
            magic = source.read(len(_FILE_MAGIC))
            source.seek(0)
            opener = pa.ipc.open_file if magic == _FILE_MAGIC else pa.ipc.open_stream
            with opener(source) as reader:
                yield reader
    except (OSError, pa.ArrowException) as error:
        raise UnreadableInput(
            f"{path}: not a whole Arrow file ({str(error).strip()}). Was it copied while still being written? "
            "Copy it again, and check it at its origin."
        ) from error
