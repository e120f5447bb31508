"""Arrow IPC, a file (Feather v2) or a stream: a piece of a file is a run of record batches, a stream is one piece."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.readers.columns import fit, layout_of_schema
from spanwise.pipelines.input.readers.descriptor import Descriptor, Dialect, FileLayout, Format, Rejected
from spanwise.pipelines.input.readers.stored_types import stored_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spanwise.pipelines.input.readers.column import Column

_FILE_MAGIC = b"ARROW1"
#: How the messages of a stream begin, and how a stream ends; before Arrow 0.15 it ended otherwise.
_CONTINUED = b"\xff\xff\xff\xff"
_END = _CONTINUED + bytes(4)
_OLD_END = bytes(4)


def describe(path: str, fmt: Format, dialect: Dialect) -> FileLayout:
    """The columns and types of the schema, and pieces of about `part_bytes`.

    Raises:
        UnreadableInput: the file is empty, cut short or no Arrow IPC, or names a column twice.
    """
    size = _size(path)
    with _open_file(path) as (reader, _):
        names, types = layout_of_schema(path, reader.schema)
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
            return FileLayout(names=names, types=types, descriptors=tuple(found))
    return FileLayout(names=names, types=types, descriptors=(_piece(path, fmt, 0, None, 1, size),))


def infer(
    descriptor: Descriptor, dialect: Dialect, known: frozenset[str], blocks: int | None
) -> dict[str, pa.DataType]:
    """The types of the schema; no row is read."""
    del dialect, blocks
    with _open_file(descriptor.path) as (reader, _):
        return {field.name: stored_type(field.type) for field in reader.schema if field.name not in known}


def read(
    descriptor: Descriptor, dialect: Dialect, columns: Sequence[Column], reject: Callable[[Rejected], None]
) -> Iterator[pa.RecordBatch]:
    """The rows as `columns`.

    Raises:
        Misfit: a value does not fit a type that is the previous span's.
    """
    del dialect
    row = descriptor.first_line
    for batch in _batches(descriptor):
        yield fit(batch, columns, descriptor, row, reject)
        row += batch.num_rows


def _refuse_wrong_end(path: str, source: pa.NativeFile) -> None:
    """Refuses a stream that was read to an end which is not that of the file, or that no writer has put there."""
    end, size = source.tell(), source.size()
    if end < size:
        raise UnreadableInput(
            f"{path}: the Arrow stream ends at byte {end}, and {size - end} more follow. Were several streams put one "
            "after another? Write each to a file of its own."
        )
    source.seek(0)
    marker = _END if source.read(len(_CONTINUED)) == _CONTINUED else _OLD_END
    source.seek(max(size - len(marker), 0))
    if source.read(len(marker)) != marker:
        raise UnreadableInput(
            f"{path}: the Arrow stream has no end marker, so batches may be missing. Was it copied while still being "
            "written, or its writer never closed? Copy it again, and check it at its origin."
        )


def _batches(descriptor: Descriptor) -> Iterator[pa.RecordBatch]:
    with _open_file(descriptor.path) as (reader, source):
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            for index in range(descriptor.start, descriptor.stop or 0):
                yield _checked(reader.get_batch(index))
        else:
            yield from map(_checked, reader)
            _refuse_wrong_end(descriptor.path, source)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, whose damaged offsets would otherwise be followed out of its memory."""
    batch.validate(full=True)
    return batch


def _piece(path: str, fmt: Format, start: int, stop: int | None, first_row: int, size: int) -> Descriptor:
    return Descriptor(path=path, format=fmt, start=start, stop=stop, first_line=first_row, size_bytes=size)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise UnreadableInput(f"{path}: could not be read ({error.strerror}).") from error


@contextmanager
def _open_file(
    path: str,
) -> Iterator[tuple[pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader, pa.NativeFile]]:
    """An open file, with the errors of reading as ours; what is done with the rows is not done inside."""
    if _size(path) == 0:
        raise UnreadableInput(f"{path}: the file is empty (0 bytes).")
    try:
        with pa.OSFile(path, "rb") as source:
            magic = source.read(len(_FILE_MAGIC))
            source.seek(0)
            opener = pa.ipc.open_file if magic == _FILE_MAGIC else pa.ipc.open_stream
            with opener(source) as reader:
                yield reader, source
    except (OSError, pa.ArrowException) as error:
        raise UnreadableInput(
            f"{path}: not a whole Arrow file ({str(error).strip()}). Was it copied while still being written? "
            "Copy it again, and check it at its origin."
        ) from error
