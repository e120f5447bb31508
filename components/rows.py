"""Rows: the rows of one split over several spans, in one order and with one set of columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.artifact import Examples
from orchestrator.errors import ColumnsChanged, ParameterError, UnreadableInput
from orchestrator.span import Calendar

_TABLE_ROWS = 1 << 20  # read at once where the whole table is wanted anyway


@dataclass(frozen=True, kw_only=True)
class Part:
    """A row group of one of the files: what one worker reads at a time."""

    path: str
    group: int
    rows: int
    place: str  #: names it whatever folder it lies in: artifact, file, number


def columns_of(examples: Sequence[Examples], split: str) -> pa.Schema:
    """Every column that any of the spans has. A span that lacks one, or has only nulls in it, gives nulls.

    Raises:
        ColumnsChanged: two spans have different types for one column.
        UnreadableInput: a file is missing or damaged.
    """
    found: dict[str, tuple[pa.DataType, Examples]] = {}
    for artifact in examples:
        for path in _files(artifact, split):
            for field in _opened(path).schema_arrow:
                before = found.get(field.name)
                if before is None or pa.types.is_null(before[0]):
                    found[field.name] = (field.type, artifact)
                elif field.type != before[0] and not pa.types.is_null(field.type):
                    raise ColumnsChanged(
                        f"column {field.name!r} is {before[0]} in span {_label(before[1])} and {field.type} in "
                        f"span {_label(artifact)}. Ingest one of them again with the type pinned: "
                        f"types={{{field.name!r}: …}}."
                    )
    return pa.schema([(name, type_) for name, (type_, _) in found.items()])


def batches(
    examples: Sequence[Examples], split: str, columns: Sequence[str] | None = None, batch_size: int = 1 << 16
) -> Iterator[pa.RecordBatch]:
    """The rows in the order of the artifacts and, within each, of its files; memory is that of a few batches.

    Raises:
        ParameterError: no span has such a column or such a split.
        ColumnsChanged, UnreadableInput: as `columns_of`.
    """
    schema = chosen(columns_of(examples, split), columns)
    for artifact in examples:
        for path in _files(artifact, split):
            file = _opened(path)
            there = [name for name in schema.names if name in file.schema_arrow.names]
            try:
                for batch in file.iter_batches(batch_size, columns=there):
                    yield _conformed(batch, schema)
            except (pa.ArrowException, OSError) as error:
                raise UnreadableInput(f"{path}: damaged ({error}). Ingest its span again.") from error


def parts(examples: Sequence[Examples], split: str) -> list[Part]:
    """The row groups of a split that have rows, in the order of the artifacts and, within each, of its files.

    Raises:
        ParameterError: no span has such a split.
        UnreadableInput: a file is missing or damaged.
    """
    found = []
    for artifact in examples:
        for path in _files(artifact, split):
            with _opened(path) as file:
                sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            name = path.rpartition("/")[2]
            found += [
                Part(path=path, group=group, rows=rows, place=f"{artifact.span}/{artifact.version}/{name}/{group}")
                for group, rows in enumerate(sizes)
                if rows
            ]
    return found


def of_part(part: Part, schema: pa.Schema, batch_size: int = 1 << 16) -> Iterator[pa.RecordBatch]:
    """The rows of a part with the columns and types of `schema`; what the file lacks is null.

    Raises:
        UnreadableInput: the file is damaged.
    """
    with _opened(part.path) as file:
        there = [name for name in schema.names if name in file.schema_arrow.names]
        try:
            for batch in file.iter_batches(batch_size, row_groups=[part.group], columns=there):
                yield _conformed(batch, schema)
        except (pa.ArrowException, OSError) as error:
            raise UnreadableInput(f"{part.path}: damaged ({error}). Ingest its span again.") from error


def table(examples: Sequence[Examples], split: str, columns: Sequence[str] | None = None) -> pa.Table:
    """All of the rows at once."""
    schema = chosen(columns_of(examples, split), columns)
    return pa.Table.from_batches(batches(examples, split, columns, _TABLE_ROWS), schema)


def chosen(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The named columns, in the order named.

    Raises:
        ParameterError: one is not there.
    """
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise ParameterError(f"the examples have no column {name!r}; they have: {', '.join(schema.names)}.")
    return pa.schema([schema.field(name) for name in columns])


def _files(artifact: Examples, split: str) -> list[str]:
    return sorted(str(path) for path in artifact.split(split).glob("*.parquet"))


def _opened(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(f"{path}: cannot be read as Parquet ({error}). Ingest its span again.") from error


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns and types of the schema; what it lacks is null."""
    arrays = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        array = pa.nulls(len(batch), field.type) if place < 0 else batch.column(place)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    # an empty list of arrays would make a batch without rows
    return pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else batch


def _label(artifact: Examples) -> str:
    return Calendar(artifact.calendar or "number").label(artifact.span)
