"""Parquet: a piece is a run of row groups."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.readers.column import written
from spanwise.pipelines.input.readers.columns import fit, layout_of_schema
from spanwise.pipelines.input.readers.descriptor import Descriptor, Dialect, FileLayout, Format, Rejected
from spanwise.pipelines.input.readers.stored_types import stored_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spanwise.pipelines.input.readers.column import Column


def describe(path: str, fmt: Format, dialect: Dialect) -> FileLayout:
    """The columns and types of the footer, and pieces of about `part_bytes` uncompressed.

    Raises:
        UnreadableInput: the file is empty, cut short or no Parquet, or names a column twice.
    """
    with _open_file(path) as file:
        names, types = layout_of_schema(path, file.schema_arrow)
        pieces = []
        start, size, row, first_row = 0, 0, 1, 1
        for group in range(file.num_row_groups):
            about = file.metadata.row_group(group)
            if size and size + about.total_byte_size > dialect.part_bytes:
                pieces.append(_piece(path, fmt, start, group, first_row, size))
                start, size, first_row = group, 0, row
            size += about.total_byte_size
            row += about.num_rows
        pieces.append(_piece(path, fmt, start, file.num_row_groups, first_row, size))
        return FileLayout(names=names, types=types, descriptors=tuple(pieces))


def infer(
    descriptor: Descriptor, dialect: Dialect, known: frozenset[str], blocks: int | None
) -> dict[str, pa.DataType]:
    """The types of the footer; no row is read."""
    del dialect, blocks
    with _open_file(descriptor.path) as file:
        return {field.name: stored_type(field.type) for field in file.schema_arrow if field.name not in known}


def read(
    descriptor: Descriptor, dialect: Dialect, columns: Sequence[Column], reject: Callable[[Rejected], None]
) -> Iterator[pa.RecordBatch]:
    """The rows as `columns`.

    Raises:
        Misfit: a value does not fit a type that is the previous span's.
    """
    del dialect
    columns = written(columns)
    row = descriptor.first_line
    for batch in _batches(descriptor, [column.name for column in columns]):
        yield fit(batch, columns, descriptor, row, reject)
        row += batch.num_rows


def _batches(descriptor: Descriptor, names: list[str]) -> Iterator[pa.RecordBatch]:
    with _open_file(descriptor.path) as file:
        for group in range(descriptor.start, descriptor.stop or 0):
            # pyarrow joins no dictionaries of several row groups in a list or a struct
            yield from file.iter_batches(batch_size=1 << 16, row_groups=[group], columns=names)


def _piece(path: str, fmt: Format, start: int, stop: int, first_row: int, size: int) -> Descriptor:
    return Descriptor(path=path, format=fmt, start=start, stop=stop, first_line=first_row, size_bytes=size)


@contextmanager
def _open_file(path: str) -> Iterator[pa.parquet.ParquetFile]:
    """An open file, with the errors of reading as ours; what is done with the rows is not done inside."""
    try:
        if Path(path).stat().st_size == 0:
            raise UnreadableInput(f"{path}: the file is empty (0 bytes).")
        # memory-mapped pages would count as this process's memory until the file is closed
        with pa.parquet.ParquetFile(path, memory_map=False, pre_buffer=False, page_checksum_verification=True) as file:
            yield file
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the footer, which has names, has no checksum
        if "all lists to be of size" in str(error):
            raise UnreadableInput(
                f"{path}: a column of lists of one length lacks a list, and pyarrow cannot read such a file ({error}). "
                "Write it as lists of any length."
            ) from error
        raise UnreadableInput(
            f"{path}: not a whole Parquet file ({str(error).strip()}). Was it copied while still being written? "
            "Copy it again, and check it at its origin."
        ) from error
