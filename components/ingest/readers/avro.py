"""Avro object container files: a piece is a run of whole blocks, found by their headers and checked at their markers.

A column is a field of the record that the file's schema describes; how its Avro type becomes an Arrow type is
`arrow_type`. Files of one span may have schemas of different age: see `FileLayout.defaults`.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import fastavro
import pyarrow as pa

from spanwise.components.ingest.readers.columns import fit
from spanwise.components.ingest.readers.descriptor import Descriptor, Dialect, FileLayout, Format, Rejected
from spanwise.orchestrator.errors import UnreadableInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spanwise.components.ingest.readers.columns import Column

_MAGIC = b"Obj\x01"
#: Rows that are handed on together; small blocks are gathered up to it.
_BATCH_ROWS = 1 << 14

_PRIMITIVES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("string", "uuid"): pa.string(),
}
#: A union of numbers has the type that holds them all.
_NUMBERS = ("int", "long", "float", "double")
_MOST_DIGITS_128 = 38


def describe(path: str, fmt: Format, dialect: Dialect) -> FileLayout:
    """The columns of the file's schema, and pieces of about `part_bytes`. Decodes no row.

    Raises:
        UnreadableInput: the file is empty, cut short, damaged between two blocks or no Avro; or a column has a type
            that no Arrow column can have.
    """
    with _open_file(path) as file:
        blocks = _open_blocks(file, path)
        fields = _fields(blocks, path)
        named: dict[str, Any] = {}
        types = tuple(arrow_type(field["type"], named, f"{path}: column '{field['name']}'") for field in fields)
        pieces = []
        start = stop = file.tell()
        row = first_row = 1
        for rows, end in _block_ends(file, blocks):
            if stop > start and end - start > dialect.part_bytes:
                pieces.append(_piece(path, fmt, start, stop, first_row))
                start, first_row = stop, row
            stop, row = end, row + rows
        pieces.append(_piece(path, fmt, start, stop, first_row))
    return FileLayout(
        names=tuple(field["name"] for field in fields),
        types=types,
        descriptors=tuple(pieces),
        defaults=tuple((field["name"], field["default"]) for field in fields if "default" in field),
    )


def infer(
    descriptor: Descriptor, dialect: Dialect, known: frozenset[str], blocks: int | None
) -> dict[str, pa.DataType]:
    """The types of the schema; no row is read."""
    del dialect, blocks
    return {name: type_ for name, type_ in _types(descriptor).items() if name not in known}


def read(
    descriptor: Descriptor, dialect: Dialect, columns: Sequence[Column], reject: Callable[[Rejected], None]
) -> Iterator[pa.RecordBatch]:
    """The rows as `columns`.

    Raises:
        Misfit: a value does not fit a type that is the previous span's.
        UnreadableInput: a block cannot be decoded.
    """
    del dialect
    types = _types(descriptor)
    absent = dict(descriptor.absent)
    row = descriptor.first_line
    for rows in _row_batches(descriptor):
        arrays = {
            column.name: _array([r[column.name] for r in rows], types[column.name])
            if column.name in types
            else pa.array([absent[column.name]] * len(rows))
            for column in columns
        }
        yield fit(pa.RecordBatch.from_pydict(arrays), columns, descriptor, row, reject)
        row += len(rows)


def arrow_type(schema: object, named: dict[str, Any], where: str) -> pa.DataType:
    """The Arrow type of an Avro type.

    Logical types become dates, times, instants and decimals; a union with null is a type that may be missing; a union
    of numbers is the widest of them; a map is a map, a record a struct. `named` collects the types that have a name,
    by name, since an Avro schema may refer to them later.

    Raises:
        UnreadableInput: a union of types that have nothing in common, or a type that contains itself.
    """
    if isinstance(schema, list):
        return _union_type(schema, named, where)
    if isinstance(schema, dict):
        return _complex_type(schema, named, where)
    name = cast("str", schema)
    if name not in _PRIMITIVES and named.get(name) is None:
        raise UnreadableInput(f"{where} is of type {name}, which contains itself; a table has no such column.")
    return _PRIMITIVES.get(name) or cast("pa.DataType", named[name])


def _complex_type(schema: dict[str, Any], named: dict[str, Any], where: str) -> pa.DataType:
    kind, logical = schema["type"], schema.get("logicalType")
    if not isinstance(kind, str):
        return arrow_type(kind, named, where)
    if "name" in schema:
        named[schema["name"]] = None  # not known while it is being described
    if logical == "decimal":
        digits = schema["precision"], schema.get("scale", 0)
        type_: pa.DataType = pa.decimal128(*digits) if digits[0] <= _MOST_DIGITS_128 else pa.decimal256(*digits)
    elif kind == "array":
        type_ = pa.list_(arrow_type(schema["items"], named, where))
    elif kind == "map":
        type_ = pa.map_(pa.string(), arrow_type(schema["values"], named, where))
    elif kind == "fixed":
        type_ = pa.binary(schema["size"])
    elif kind == "record":
        type_ = pa.struct([(f["name"], arrow_type(f["type"], named, f"{where}.{f['name']}")) for f in schema["fields"]])
    else:
        type_ = _LOGICAL.get((kind, str(logical))) or arrow_type(kind if kind != "enum" else "string", named, where)
    if "name" in schema:
        named[schema["name"]] = type_
    return type_


def _union_type(branches: Sequence[object], named: dict[str, Any], where: str) -> pa.DataType:
    kinds = [branch for branch in branches if branch != "null"]
    if all(kind in _NUMBERS for kind in kinds) and len(kinds) > 1:
        # a double holds every float and int, and a long as far as `fit` finds that it survives
        return pa.int64() if set(kinds) == {"int", "long"} else pa.float64()
    if len(kinds) > 1:
        shown = ", ".join(
            kind if isinstance(kind, str) else str(cast("dict[str, Any]", kind)["type"]) for kind in kinds
        )
        raise UnreadableInput(
            f"{where} is a union of {shown}; a column has one type. Write it as one, or read the file with a function "
            "of your own that chooses: reader=my_reader."
        )
    return arrow_type(kinds[0], named, where) if kinds else pa.null()


def _types(descriptor: Descriptor) -> dict[str, pa.DataType]:
    with _open_file(descriptor.path) as file:
        fields = _fields(_open_blocks(file, descriptor.path), descriptor.path)
    named: dict[str, Any] = {}
    return {field["name"]: arrow_type(field["type"], named, descriptor.path) for field in fields}


def _array(values: list[object], type_: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_string(type_) and any(value is not None and not isinstance(value, str) for value in values[:1]):
        values = [None if value is None else str(value) for value in values]  # fastavro gives a UUID as such
    return pa.array(values, type=type_)


def _row_batches(descriptor: Descriptor) -> Iterator[list[dict[str, object]]]:
    """The rows of the piece, whole blocks together."""
    rows: list[dict[str, object]] = []
    with _open_file(descriptor.path) as file:
        blocks = _open_blocks(file, descriptor.path)
        file.seek(descriptor.start)
        while file.tell() != descriptor.stop:
            rows += cast("Iterator[dict[str, object]]", next(blocks))
            if len(rows) >= _BATCH_ROWS:
                yield rows
                rows = []
    if rows:
        yield rows


def _piece(path: str, fmt: Format, start: int, stop: int, first_row: int) -> Descriptor:
    return Descriptor(path=path, format=fmt, start=start, stop=stop, first_line=first_row, size_bytes=stop - start)


def _open_blocks(file: IO[bytes], path: str) -> fastavro.block_reader:
    """Reads the header. The blocks are read one by one, from wherever the file then stands."""
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        what = "the file is empty (0 bytes)" if not magic else f"not an Avro file: it begins with {magic!r}"
        raise UnreadableInput(f"{path}: {what}.")
    file.seek(0)
    return fastavro.block_reader(file)


def _fields(blocks: fastavro.block_reader, path: str) -> list[dict[str, Any]]:
    schema = blocks.writer_schema
    if not (isinstance(schema, dict) and schema.get("type") == "record"):
        raise UnreadableInput(f"{path}: its rows are {json.dumps(schema)}, not records with named fields.")
    return cast("list[dict[str, Any]]", schema["fields"])


def _block_ends(file: IO[bytes], blocks: fastavro.block_reader) -> Iterator[tuple[int, int]]:
    """Rows and end of each block; the marker after a block proves that its size is right."""
    size = os.fstat(file.fileno()).st_size
    while (at := file.tell()) < size:
        try:
            block = next(blocks)
        except (EOFError, StopIteration, ValueError) as error:
            raise ValueError(f"the block at byte {at} is cut short or damaged: {error}") from error
        yield block.num_records, file.tell()


@contextmanager
def _open_file(path: str) -> Iterator[IO[bytes]]:
    try:
        with Path(path).open("rb") as file:
            yield file
    except OSError as error:
        raise UnreadableInput(f"{path}: could not be read ({error.strerror}).") from error
    except UnreadableInput:
        raise
    except Exception as error:  # a decoder meets damaged bytes with whatever they lead it to
        said = str(error).strip() or type(error).__name__
        if "install" in said:  # a codec that is an option of fastavro
            raise UnreadableInput(f"{path}: {said}.") from error
        raise UnreadableInput(
            f"{path}: not a whole Avro file ({said}). Was it copied while still being written? "
            "Copy it again, and check it at its origin."
        ) from error
