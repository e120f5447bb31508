"""Rows of CSV files with a header line, by the rules of ExampleGen: one reader for both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import DatasetError, UnreadableInput
from spanwise.pipelines.input.element import Spec, Table
from spanwise.pipelines.input.files import PartStream, Paths, check_unique_columns, conform, list_files
from spanwise.pipelines.input.op import Op, Opening, Stream
from spanwise.pipelines.input.readers.descriptor import Dialect

if TYPE_CHECKING:
    import pyarrow as pa

    from spanwise.pipelines.input.readers.column import Column
    from spanwise.pipelines.input.readers.descriptor import Descriptor, Rejected

#: What is read of each file to infer types, and what is parsed at once.
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Csv(Op):
    paths: tuple[str, ...]
    file_bytes: Mapping[str, int] = field(default_factory=dict, repr=False)  #: of these paths, where they are known
    schema: pa.Schema = field(repr=False)
    dialect: Dialect
    inferred: bool = field(default=False, repr=False)  #: whether the types are those of the files' first blocks

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return Table(self.schema)

    @property
    def cardinality(self) -> None:
        return None

    def open(self, opening: Opening) -> Stream:
        def read(part: int) -> Iterator[pa.RecordBatch]:
            return _read(self.paths[part], self.schema, self.dialect, inferred=self.inferred)

        def finish(batch: pa.RecordBatch) -> pa.RecordBatch:
            return conform(batch, self.schema)

        return PartStream(len(self.paths), read, finish, self.paths.__getitem__)


def csv(paths: Paths, schema: pa.Schema | None, delimiter: str | None, dialect: Dialect | None) -> Csv:
    """The op; without a schema, the types are inferred from the first MiB of each file, and hold for all of it.

    Raises:
        DatasetError: there is no such file, the delimiter is not one character, or no file has a column of the schema.
        UnreadableInput: a file cannot be read, or has other columns than the first.
    """
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise DatasetError(f"from_csv(delimiter={delimiter!r}): expected one character.")
    if dialect is not None and dialect.delimiter is not None and delimiter is not None:
        raise DatasetError("from_csv takes a delimiter, or a dialect with one, not both.")
    dialect = dialect or Dialect()
    files = list_files("from_csv", paths)
    dialect = replace(
        dialect,
        delimiter=delimiter or dialect.delimiter,
        block_bytes=min(dialect.block_bytes, _BLOCK_BYTES),
        part_bytes=1 << 62,  # a file is one piece
    )
    layouts = [_describe(path, dialect) for path in files]
    if schema is None:
        _refuse_other_columns(layouts)
        return Csv(paths=files, schema=_infer_columns(layouts, dialect), dialect=dialect, inferred=True)
    check_unique_columns("from_csv(schema=)", schema)
    for layout in layouts:
        _refuse_missing_columns(layout, schema)
    return Csv(paths=files, schema=schema, dialect=dialect)


def _describe(path: str, dialect: Dialect) -> Descriptor:
    from spanwise.pipelines.input.readers import delimited

    (whole,) = delimited.describe(path, "csv", dialect).descriptors
    return whole


def _refuse_other_columns(layouts: Sequence[Descriptor]) -> None:
    first = layouts[0]
    for other in layouts[1:]:
        odd = sorted(set(first.names) ^ set(other.names))
        if odd:
            has, lacks = (first, other) if odd[0] in first.names else (other, first)
            raise UnreadableInput(
                f"from_csv: {odd[0]!r} is a column of {has.path} and not of {lacks.path}. Give both a header line with "
                "the same columns, or read what both have: from_csv(..., schema=…)."
            )


def _refuse_missing_columns(layout: Descriptor, schema: pa.Schema) -> None:
    missing = [name for name in schema.names if name not in layout.names]
    if missing:
        raise UnreadableInput(
            f"from_csv: {layout.path} has no column {missing[0]!r}, which the schema has; it has: "
            f"{', '.join(layout.names)}."
        )


def _infer_columns(layouts: Sequence[Descriptor], dialect: Dialect) -> pa.Schema:
    """The columns of the first file, with the types that hold what the first block of each file has in them."""
    import pyarrow as pa

    from spanwise.pipelines.input.readers import delimited
    from spanwise.pipelines.input.readers.column import join_all

    types: dict[str, pa.DataType] = {}
    for layout in layouts:
        types = join_all(types, delimited.infer(layout, dialect, frozenset(), 1))
    return pa.schema([(name, types[name]) for name in layouts[0].names])


def _read(path: str, schema: pa.Schema, dialect: Dialect, *, inferred: bool) -> Iterator[pa.RecordBatch]:
    from spanwise.pipelines.input.readers import delimited
    from spanwise.pipelines.input.readers.column import Misfit

    columns = [_column(field, inferred=inferred) for field in schema]
    layout = _describe(path, dialect)
    _refuse_missing_columns(layout, schema)  # the file may have been replaced
    try:
        yield from delimited.read(layout, dialect, columns, _refuse)
    except Misfit as misfit:
        type_ = schema.field(misfit.column).type if misfit.column else ""
        raise UnreadableInput(
            f"{misfit.where}: column {misfit.column!r} was inferred to be {type_} from the beginning of the files, and "
            "this value is not. Pass from_csv a schema= with the types."
        ) from misfit


def _column(field: pa.Field[pa.DataType], *, inferred: bool) -> Column:
    import pyarrow as pa

    from spanwise.pipelines.input.readers.column import Column

    type_ = field.type.value_type if isinstance(field.type, pa.DictionaryType) else field.type
    # what was inferred is read as a span reads what the one before had: each value survives, or the line is reported
    return Column(name=field.name, type=type_, source="previous" if inferred else "pinned")


def _refuse(rejected: Rejected) -> None:
    shown = rejected.text if len(rejected.text) <= 200 else rejected.text[:200] + "..."  # noqa: PLR2004 -- one screen
    raise UnreadableInput(f"{rejected.path}, line {rejected.line}: {rejected.reason}. The row: {shown}")
