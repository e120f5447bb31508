"""Rows of CSV files with a header line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import DatasetError, UnreadableInput
from spanwise.pipelines.input.element import Spec, Table
from spanwise.pipelines.input.files import PartStream, Paths, check_unique_columns, conform, list_files, locate
from spanwise.pipelines.input.op import Op, Opening, Stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv as pacsv


@dataclass(frozen=True, kw_only=True, eq=False)
class Csv(Op):
    paths: tuple[str, ...]
    schema: pa.Schema = field(repr=False)
    delimiter: str = ","

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
            return iter(open_csv(self.paths[part], self.delimiter, self.schema))

        def finish(batch: pa.RecordBatch) -> pa.RecordBatch:
            return conform(batch, self.schema)

        return PartStream(len(self.paths), read, finish, self.paths.__getitem__)


def csv(paths: Paths, schema: pa.Schema | None, delimiter: str) -> Csv:
    """The op; without a schema, the columns are those of all files, with types inferred from their first lines.

    Raises:
        DatasetError: there is no such file, or the delimiter is not one character.
        UnreadableInput: a file cannot be read.
    """
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise DatasetError(f"from_csv(delimiter={delimiter!r}): expected one character.")
    files = list_files("from_csv", paths)
    return Csv(paths=files, schema=_infer_columns(files, delimiter) if schema is None else schema, delimiter=delimiter)


def _infer_columns(files: Sequence[str], delimiter: str) -> pa.Schema:
    """Every column of any file, with the type inferred from the first file that has values for it."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {}
    for path in files:
        schema = open_csv(path, delimiter, None).schema
        check_unique_columns(f"from_csv: {path}", schema)
        for column in schema:
            if pa.types.is_null(types.get(column.name, pa.null())):
                types[column.name] = column.type
    return pa.schema(types.items())


def open_csv(path: str, delimiter: str, schema: pa.Schema | None) -> pacsv.CSVStreamingReader:
    """A reader of the file.

    Raises:
        UnreadableInput: there is none, or its first lines are not CSV of these types.
    """
    import pyarrow as pa
    from pyarrow import csv as pacsv

    try:
        filesystem, name = locate(path)
        return pacsv.open_csv(
            filesystem.open_input_stream(name),  # type: ignore[arg-type]  # the stubs know files of Python only
            parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(column_types=schema, strings_can_be_null=True),
        )
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(
            f"{path}: cannot be read as CSV ({error}). Pass from_csv a schema= with the types."
        ) from error
