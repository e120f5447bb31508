"""Rows of JSON lines and of TFRecord files of tf.Example, read by the rules of ExampleGen: one reader for both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.element import Spec, Table
from spanwise.pipelines.input.files import PartStream, Paths, check_unique_columns, conform, list_files
from spanwise.pipelines.input.op import Opening, Stream
from spanwise.pipelines.input.ops.file_source import FileSource
from spanwise.pipelines.input.readers.descriptor import Dialect

if TYPE_CHECKING:
    import pyarrow as pa

    from spanwise.pipelines.input.readers.column import Column
    from spanwise.pipelines.input.readers.descriptor import Descriptor, Rejected

RowFormat: TypeAlias = Literal["jsonl", "tfrecord"]

_SOURCES = {"jsonl": "from_json_lines", "tfrecord": "from_tfrecord"}

#: What is read of each file to infer types, and what is parsed at once.
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class RowFiles(FileSource):
    format: RowFormat
    schema: pa.Schema = field(repr=False)
    dialect: Dialect
    inferred: bool = field(default=False, repr=False)  #: whether the types are those of the files' first blocks

    @property
    def name(self) -> str:
        return {"jsonl": "JsonLines", "tfrecord": "TFRecord"}[self.format]

    @property
    def spec(self) -> Spec:
        return Table(self.schema)

    def open(self, opening: Opening) -> Stream:
        def finish(batch: pa.RecordBatch) -> pa.RecordBatch:
            return conform(batch, self.schema)

        return PartStream(len(self.paths), self._read, finish, self.paths.__getitem__)

    def _read(self, part: int) -> Iterator[pa.RecordBatch]:
        from spanwise.pipelines.input.readers.column import Misfit

        source, path = _SOURCES[self.format], self.paths[part]
        try:
            for piece in _pieces(self.format, path, self.dialect):
                yield from _reader(self.format).read(piece, self.dialect, self._columns(), _refuse)
        except Misfit as misfit:
            raise UnreadableInput(_misfit_message(source, path, misfit, self.schema)) from misfit

    def _columns(self) -> list[Column]:
        from spanwise.pipelines.input.readers.column import Column

        # what was inferred is read as a span reads what the one before had: each value survives, or is reported
        origin: Literal["previous", "pinned"] = "previous" if self.inferred else "pinned"
        return [Column(name=each.name, type=each.type, source=origin) for each in self.schema]


def row_files(kind: RowFormat, paths: Paths, schema: pa.Schema | None, dialect: Dialect | None) -> RowFiles:
    """The op; without a schema, the types are inferred from the first MiB of each file, and hold for all of it.

    Raises:
        DatasetError: there is no such file.
        UnreadableInput: a file cannot be read.
    """
    dialect = dialect or Dialect()
    files = list_files(_SOURCES[kind], paths)
    dialect = replace(dialect, block_bytes=min(dialect.block_bytes, _BLOCK_BYTES), part_bytes=1 << 62)
    if schema is not None:
        check_unique_columns(f"{_SOURCES[kind]}(schema=)", schema)
        return RowFiles(paths=files, format=kind, schema=schema, dialect=dialect)
    return RowFiles(paths=files, format=kind, schema=_infer(kind, files, dialect), dialect=dialect, inferred=True)


def _infer(kind: RowFormat, files: Sequence[str], dialect: Dialect) -> pa.Schema:
    import pyarrow as pa

    from spanwise.pipelines.input.readers.column import element_type, is_single, join_all
    from spanwise.pipelines.input.readers.columns import storable

    types: dict[str, pa.DataType] = {}
    for path in files:
        for piece in _pieces(kind, path, dialect):
            types = join_all(types, _reader(kind).infer(piece, dialect, frozenset(), 1))
    plain = {name: element_type(type_) if is_single(type_) else type_ for name, type_ in types.items()}
    return pa.schema([(name, storable(type_)) for name, type_ in plain.items()])


def _pieces(kind: RowFormat, path: str, dialect: Dialect) -> Sequence[Descriptor]:
    descriptors: Sequence[Descriptor] = _reader(kind).describe(path, kind, dialect).descriptors
    return descriptors


def _reader(kind: RowFormat) -> Any:
    if kind == "jsonl":
        from spanwise.pipelines.input.readers import json_lines

        return json_lines
    from spanwise.pipelines.input.readers import tf_record

    return tf_record


def _misfit_message(source: str, path: str, misfit: Any, schema: pa.Schema) -> str:
    if misfit.column is None:
        return (
            f"{path}: has columns that the beginnings of the files do not have. Pass {source} a schema= with all of "
            f"them; those of the beginnings are {', '.join(schema.names)}."
        )
    return (
        f"{misfit.where or path}: column {misfit.column!r} is {schema.field(misfit.column).type}, and this value is "
        f"not. Pass {source} a schema= with the types."
    )


def _refuse(rejected: Rejected) -> None:
    shown = rejected.text if len(rejected.text) <= 200 else rejected.text[:200] + "..."  # noqa: PLR2004 -- one screen
    raise UnreadableInput(f"{rejected.path}, line {rejected.line}: {rejected.reason}. The row: {shown}")
