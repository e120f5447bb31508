"""Rows: the rows of one split over several spans, in one order and with one set of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from spanwise.orchestrator.artifact import Examples
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.pipelines.input.files import conform, unify_schemas
from spanwise.pipelines.input.op import Op, list_ops
from spanwise.pipelines.input.ops.parquet import Parquet, ParquetRowGroup, open_parquet, read_footer

if TYPE_CHECKING:
    from spanwise.pipelines.input.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class ExamplesPart:
    """A row group of one of the files: what one worker reads at a time."""

    path: str
    group: int
    rows: int
    place: str  #: names it whatever folder it lies in: artifact, file, number
    span: str  #: as people write it


def read_schema(examples: Sequence[Examples], split: str) -> pa.Schema:
    """Every column that any of the spans has. A span that lacks one, or has only nulls in it, gives nulls.

    Raises:
        ParameterError: no span has such a split.
        ColumnsChanged: two spans have different types for one column.
        UnreadableInput: a file is missing or damaged.
    """
    return _unify_columns(_list_files(examples, split))


def open_dataset(examples: Sequence[Examples], split: str, columns: Sequence[str] | None = None) -> Dataset:
    """The rows in the order of the artifacts and, within each, of its files.

    Raises:
        ParameterError: no span has such a column or such a split.
        ColumnsChanged, UnreadableInput: as `columns_of`.
    """
    from spanwise.pipelines.input.dataset import Dataset

    files = _list_files(examples, split)
    return Dataset(_parquet_op(files, _unify_columns(files), columns))


def open_part(
    examples: Sequence[Examples], split: str, columns: Sequence[str] | None, choose: Callable[[Parquet], Op]
) -> Dataset:
    """The part of the rows of `open_dataset` that `choose` makes of its op.

    Of examples in object storage that are not on this machine the footers alone are read, and then only the artifacts
    are copied of which the part has rows.

    Raises:
        ParameterError, ColumnsChanged, UnreadableInput: as `open_dataset`.
    """
    from spanwise.pipelines.input.dataset import Dataset

    files = _list_files(examples, split, copy=False)
    part = choose(_parquet_op(files, _unify_columns(files), columns))
    read = {group.path for op in list_ops(part) if isinstance(op, Parquet) for group in op.groups}
    for artifact in {file.artifact.uri: file.artifact for file in files if file.path in read}.values():
        artifact.path  # noqa: B018  copies it
    return Dataset(part)


def open_by_artifact(
    examples: Sequence[Examples], split: str, columns: Sequence[str] | None = None
) -> list[tuple[Examples, Parquet]]:
    """What reads each of the artifacts, all with the same columns, in the same places as the rows of `open_dataset`.

    Raises:
        ParameterError, ColumnsChanged, UnreadableInput: as `dataset`.
    """
    files = _list_files(examples, split)
    schema = _unify_columns(files)
    return [
        (each, _parquet_op([file for file in files if file.artifact is each], schema, columns)) for each in examples
    ]


def read_table(examples: Sequence[Examples], split: str, columns: Sequence[str] | None = None) -> pa.Table:
    """All of the rows at once."""
    return open_dataset(examples, split, columns).to_arrow()


def list_parts(examples: Sequence[Examples], split: str) -> list[ExamplesPart]:
    """The row groups of a split that have rows, in the order of the artifacts and, within each, of its files.

    Raises:
        ParameterError: no span has such a split.
        UnreadableInput: a file is missing or damaged.
    """
    return [
        ExamplesPart(
            path=group.path,
            group=group.number,
            rows=group.rows,
            place=f"{file.place}/{group.number}",
            span=file.label,
        )
        for file in _list_files(examples, split)
        for group in file.groups
    ]


def read_part(part: ExamplesPart, schema: pa.Schema, batch_size: int = 1 << 16) -> Iterator[pa.RecordBatch]:
    """The rows of a part with the columns and types of `schema`; what the file lacks is null.

    Raises:
        UnreadableInput: the file is damaged.
    """
    with open_parquet(part.path) as file:
        there = [name for name in schema.names if name in file.schema_arrow.names]
        try:
            for batch in file.iter_batches(batch_size, row_groups=[part.group], columns=there):
                yield conform(batch, schema)
        except (pa.ArrowException, OSError) as error:
            raise UnreadableInput(f"{part.path}: damaged ({error}). Ingest its span again.") from error


def choose_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
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


@dataclass(frozen=True, kw_only=True)
class ExamplesFile:
    """A Parquet file of an artifact, and what its footer says."""

    artifact: Examples
    path: str
    schema: pa.Schema
    groups: tuple[ParquetRowGroup, ...]

    @property
    def place(self) -> str:
        return f"{self.artifact.span}/{self.artifact.version}/{self.path.rpartition('/')[2]}"

    @property
    def label(self) -> str:
        return Calendar.from_name(self.artifact.calendar).label(self.artifact.span)


def _list_files(examples: Iterable[Examples], split: str, *, copy: bool = True) -> list[ExamplesFile]:
    """The files of a split. Without `copy`, those in object storage may not be on this machine yet."""
    found = []
    for artifact in examples:
        stored = {} if copy else _list_stored(artifact, split)
        for path in sorted(stored or map(str, artifact.split(split).glob("*.parquet"))):
            try:
                schema, groups = read_footer(path, stored.get(path))
            except UnreadableInput as error:
                raise UnreadableInput(f"{error} Ingest its span again.") from error
            found.append(ExamplesFile(artifact=artifact, path=path, schema=schema, groups=tuple(groups)))
    return found


def _list_stored(artifact: Examples, split: str) -> dict[str, BinaryIO]:
    """The files of a split in object storage by the paths of their copies; none if these are on this machine."""
    archive = artifact.archive
    if archive is None or not artifact.id or split not in artifact.split_names or artifact.is_here:
        return {}
    names = [Path(name) for name in archive.list_files(artifact.uri)]
    return {
        str(Path(artifact.uri) / name): archive.open_file(artifact.uri, str(name))
        for name in names
        if name.parent.name == f"Split-{split}" and name.suffix == ".parquet"
    }


def _unify_columns(files: Iterable[ExamplesFile]) -> pa.Schema:
    """The columns that any file has, but those that any span has dropped for good.

    A correction that removes a column from one span thus removes it from every window that reads the span. They are in
    the order of the newest span, which has all that were not dropped: the oldest may have been backfilled without some.
    """

    def fix(name: str) -> str:
        return (
            f"Pin its type, ExampleGen(..., types={{{name!r}: …}}), and ingest the spans again: "
            f"spanwise backfill FILE --span {listed[0].label}..{listed[-1].label} --train-once"
        )

    listed = list(files)
    dropped = {name for file in listed for name in file.artifact.dropped_columns or ()}
    kept = ((f"span {f.label}", pa.schema([field for field in f.schema if field.name not in dropped])) for f in listed)
    found = unify_schemas("the examples", kept, fix)
    newest = listed[-1].schema.names if listed else []
    return pa.schema([found.field(name) for name in dict.fromkeys([*newest, *found.names]) if name in found.names])


def _parquet_op(files: Sequence[ExamplesFile], schema: pa.Schema, columns: Sequence[str] | None) -> Parquet:
    """The op that reads these files, which have some of the columns of `schema`."""
    if columns is not None and not columns:
        raise ParameterError("columns=[] asks for no column; leave it out for all of them.")
    return Parquet(
        paths=tuple(file.path for file in files),
        groups=tuple(group for file in files for group in file.groups),
        schema=schema,
        columns=None if columns is None else tuple(choose_columns(schema, columns).names),
    )
