"""Rows of CSV files with a line of names at their top."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.errors import DatasetError, UnreadableInput
from pipelines.input.element import Spec, Table
from pipelines.input.files import PartStream, Paths, conformed, listed, place
from pipelines.input.op import Op, Opening, Stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv as pacsv


@dataclass(frozen=True, kw_only=True, eq=False)
class Csv(Op):
    paths: tuple[str, ...]
    schema: pa.Schema = field(repr=False)
    delimiter: str = ","

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1:
            raise DatasetError(f"from_csv(delimiter={self.delimiter!r}): wants one character.")

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
            return iter(opened(self.paths[part], self.delimiter, self.schema))

        def finish(batch: pa.RecordBatch) -> pa.RecordBatch:
            return conformed(batch, self.schema)

        return PartStream(len(self.paths), read, finish, self.paths.__getitem__)


def csv(paths: Paths, schema: pa.Schema | None, delimiter: str) -> Csv:
    """The op; without a schema, the types are those that the first lines of the first file look like.

    Raises:
        DatasetError: there is no such file.
        UnreadableInput: a file cannot be read.
    """
    files = listed("from_csv", paths)
    found = opened(files[0], delimiter, None).schema if schema is None else schema
    return Csv(paths=files, schema=found, delimiter=delimiter)


def opened(path: str, delimiter: str, schema: pa.Schema | None) -> pacsv.CSVStreamingReader:
    """A reader of the file.

    Raises:
        UnreadableInput: there is none, or its first lines are no CSV of these types.
    """
    import pyarrow as pa
    from pyarrow import csv as pacsv

    try:
        filesystem, name = place(path)
        return pacsv.open_csv(
            filesystem.open_input_stream(name),  # type: ignore[arg-type]  # the stubs know files of Python only
            parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(column_types=schema, strings_can_be_null=True),
        )
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(
            f"{path}: cannot be read as CSV ({error}). Give from_csv a schema= to say its types."
        ) from error
