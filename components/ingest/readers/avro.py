"""Avro object container files: a piece is a run of whole blocks, found by their headers and checked at their markers.

A column is a field of the record that the file's schema describes; how its Avro type becomes an Arrow type is
`arrow_type`. Files of one span may have schemas of different age: see `FileLayout.defaults`.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
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
_SYNC_BYTES = 16
#: Rows that are handed on together; small blocks are gathered up to it.
_BATCH_ROWS = 1 << 14
_LONGEST_VARINT = 10

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


@dataclass(frozen=True, kw_only=True)
class _Header:
    schema: dict[str, Any]  #: of the record, as the file has it
    raw: bytes  #: from the start of the file to its first block
    sync: bytes  #: stands after every block


def describe(path: str, fmt: Format, dialect: Dialect) -> FileLayout:
    """The columns of the file's schema, and pieces of about `part_bytes`. Reads the blocks' headers only.

    Raises:
        UnreadableInput: the file is empty, cut short, damaged between two blocks or no Avro; or a column has a type
            that no Arrow column can have.
    """
    with _opened(path) as file:
        header = _header(file, path)
        fields = header.schema["fields"]
        named: dict[str, Any] = {}
        types = tuple(arrow_type(field["type"], named, f"{path}: column '{field['name']}'") for field in fields)
        pieces = []
        start = stop = len(header.raw)
        row = first_row = 1
        for rows, end in _blocks(file, header):
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
    for rows in _gathered(descriptor):
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
        return _described_type(schema, named, where)
    name = cast("str", schema)
    if name not in _PRIMITIVES and named.get(name) is None:
        raise UnreadableInput(f"{where} is of type {name}, which contains itself; a table has no such column.")
    return _PRIMITIVES.get(name) or cast("pa.DataType", named[name])


def _described_type(schema: dict[str, Any], named: dict[str, Any], where: str) -> pa.DataType:
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
    with _opened(descriptor.path) as file:
        fields = _header(file, descriptor.path).schema["fields"]
    named: dict[str, Any] = {}
    return {field["name"]: arrow_type(field["type"], named, descriptor.path) for field in fields}


def _array(values: list[object], type_: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_string(type_) and any(value is not None and not isinstance(value, str) for value in values[:1]):
        values = [None if value is None else str(value) for value in values]  # fastavro gives a UUID as such
    return pa.array(values, type=type_)


def _gathered(descriptor: Descriptor) -> Iterator[list[dict[str, object]]]:
    """The rows of the piece, whole blocks together."""
    gathered: list[dict[str, object]] = []
    with _opened(descriptor.path) as file:
        header = _header(file, descriptor.path)
        assert descriptor.stop is not None, "the end of each piece is known"
        file.seek(descriptor.start)
        source = _Spliced(header.raw, file, descriptor.stop - descriptor.start)
        for block in fastavro.block_reader(cast("IO[bytes]", source)):
            gathered += cast("Iterator[dict[str, object]]", block)
            if len(gathered) >= _BATCH_ROWS:
                yield gathered
                gathered = []
    if gathered:
        yield gathered


class _Spliced:
    """A file's header followed by some of its blocks, for a decoder that reads from front to back."""

    def __init__(self, header: bytes, file: IO[bytes], size_bytes: int) -> None:
        self._header = io.BytesIO(header)
        self._file = file
        self._left = size_bytes
        self._taken = 0

    def read(self, size: int) -> bytes:
        data = self._header.read(size)
        if not data:
            data = self._file.read(min(size, self._left))
            self._left -= len(data)
        self._taken += len(data)
        return data

    def tell(self) -> int:
        return self._taken


def _piece(path: str, fmt: Format, start: int, stop: int, first_row: int) -> Descriptor:
    return Descriptor(path=path, format=fmt, start=start, stop=stop, first_line=first_row, size_bytes=stop - start)


def _header(file: IO[bytes], path: str) -> _Header:
    """Reads to where the first block begins."""
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        what = "the file is empty (0 bytes)" if not magic else f"not an Avro file: it begins with {magic!r}"
        raise UnreadableInput(f"{path}: {what}.")
    file.seek(0)
    reader = fastavro.block_reader(file)
    schema = reader.writer_schema
    if not (isinstance(schema, dict) and schema.get("type") == "record"):
        raise UnreadableInput(f"{path}: its rows are {json.dumps(schema)}, not records with named fields.")
    end = file.tell()
    file.seek(0)
    raw = file.read(end)
    return _Header(schema=schema, raw=raw, sync=raw[-_SYNC_BYTES:])


def _blocks(file: IO[bytes], header: _Header) -> Iterator[tuple[int, int]]:
    """Rows and end of each block. The data between is skipped; the marker after it tells whether that was right."""
    size = os.fstat(file.fileno()).st_size
    at = len(header.raw)
    while at < size:
        file.seek(at)
        head = io.BytesIO(file.read(2 * _LONGEST_VARINT))
        rows, length = _long(head), _long(head)
        end = at + head.tell() + length + _SYNC_BYTES
        if rows < 0 or length < 0 or end > size:
            raise EOFError(f"the block at byte {at} goes on to byte {end}, and the file has {size}")
        file.seek(end - _SYNC_BYTES)
        if file.read(_SYNC_BYTES) != header.sync:
            raise ValueError(f"the block at byte {at} does not end with the file's marker")
        yield rows, end
        at = end


def _long(data: io.BytesIO) -> int:
    """A whole number as Avro writes it: zig-zag, seven bits a byte."""
    value = 0
    for place in range(_LONGEST_VARINT):
        byte = data.read(1)
        if not byte:
            raise EOFError("it ends inside a number")
        value |= (byte[0] & 0x7F) << (7 * place)
        if byte[0] < 0x80:  # noqa: PLR2004 -- the bit that says whether there is more
            break
    return (value >> 1) ^ -(value & 1)


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    try:
        with Path(path).open("rb") as file:
            yield file
    except OSError as error:
        raise UnreadableInput(f"{path}: cannot be read ({error.strerror}).") from error
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
