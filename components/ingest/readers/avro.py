"""Avro object container files: a piece is a run of whole blocks, found by their headers and checked at their markers.

A column is a field of the record that the file's schema describes; how its Avro type becomes an Arrow type is
`arrow_type`. Files of one span may have schemas of different age: see `FileLayout.defaults`.
"""

from __future__ import annotations

from contextlib import contextmanager
from decimal import Context, Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa

from spanwise.components.ingest.readers.avro_blocks import block_ends, read_block, read_header
from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.readers.column import Misfit, written
from spanwise.pipelines.input.readers.columns import fit
from spanwise.pipelines.input.readers.descriptor import Descriptor, Dialect, FileLayout, Format, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from spanwise.pipelines.input.readers.column import Column

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
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
    ("fixed", "duration"): pa.month_day_nano_interval(),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("string", "uuid"): pa.string(),
}
#: A union of numbers has the type that holds them all.
_NUMBERS = ("int", "long", "float", "double")
_MOST_DIGITS_128 = 38
_DIGITS = Context(prec=1000)


def describe(path: str, fmt: Format, dialect: Dialect) -> FileLayout:
    """The columns of the file's schema, and pieces of about `part_bytes`. Decodes no row.

    Raises:
        UnreadableInput: the file is empty, cut short, damaged between two blocks or no Avro; or a column has a type
            that no Arrow column can have.
    """
    with _open_file(path) as file:
        header = read_header(file, path)
        named: dict[str, Any] = {}
        types = tuple(arrow_type(f["type"], named, f"{path}: column '{f['name']}'") for f in header.fields)
        pieces = []
        start = stop = header.size
        row = first_row = 1
        for rows, end in block_ends(file, header):
            if stop > start and end - start > dialect.part_bytes:
                pieces.append(_piece(path, fmt, start, stop, first_row))
                start, first_row = stop, row
            stop, row = end, row + rows
        pieces.append(_piece(path, fmt, start, stop, first_row))
        schemas = _named_schemas(header.schema)
        defaults = tuple(
            (field["name"], pa.scalar(_default(field["type"], field["default"], schemas), type_))
            for field, type_ in zip(header.fields, types, strict=True)
            if "default" in field
        )
    return FileLayout(
        names=tuple(field["name"] for field in header.fields),
        types=types,
        descriptors=tuple(pieces),
        defaults=defaults,
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
    columns = written(columns)
    absent = dict(descriptor.absent)
    row = descriptor.first_line
    for rows in _row_batches(descriptor):
        arrays = [
            _array([r[column.name] for r in rows], types[column.name], column, f"{descriptor.path}, from row {row} on")
            if column.name in types
            else _repeat(absent[column.name], len(rows))
            for column in columns
        ]
        batch = pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])
        yield fit(batch, columns, descriptor, row, reject)
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
        type_ = _LOGICAL.get((kind, str(logical))) or pa.binary(schema["size"])
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
        fields = read_header(file, descriptor.path).fields
    named: dict[str, Any] = {}
    return {field["name"]: arrow_type(field["type"], named, descriptor.path) for field in fields}


def _array(values: list[object], type_: pa.DataType, column: Column, where: str) -> pa.Array[Any]:
    try:
        return pa.array(values, type=type_)
    except pa.ArrowInvalid as error:
        # a union of numbers: a pin may take what no double holds
        if column.source != "pinned" or not pa.types.is_floating(type_):
            raise Misfit(column.name, f"{where} ({error})") from None
        return pa.array([None if value is None else str(value) for value in values], type=pa.string())


def _repeat(value: object, count: int) -> pa.Array[Any]:
    repeated: pa.Array[Any] = cast("Any", pa).repeat(value, count)
    return repeated


# --- defaults


def _default(schema: object, value: Any, schemas: Mapping[str, Any]) -> Any:
    """A default as `pa.scalar` takes it, from the form that it has in a schema: bytes are text of code points to 255.

    Logical types stay numbers of their unit. The default of a union is of its first branch, since Avro 1.12 of any.
    """
    if isinstance(schema, list):
        branches = [branch for branch in schema if (branch == "null") == (value is None)]
        return _default(branches[0], value, schemas) if branches else value
    if isinstance(schema, str):
        found = schemas.get(schema, schema)
        return value.encode("latin-1") if found == "bytes" else _default_of(found, value, schemas)
    return _default_of(schema, value, schemas)


def _default_of(schema: Any, value: Any, schemas: Mapping[str, Any]) -> Any:
    kind = schema["type"] if isinstance(schema, dict) else schema
    found = value
    if not isinstance(kind, str) or (isinstance(schema, dict) and kind in schemas):
        found = _default(kind, value, schemas)
    elif kind in ("bytes", "fixed"):
        found = value.encode("latin-1")
        if schema.get("logicalType") == "decimal":
            number = Decimal(int.from_bytes(found, "big", signed=True))
            found = number.scaleb(-schema.get("scale", 0), context=_DIGITS)
    elif kind == "array":
        found = [_default(schema["items"], each, schemas) for each in value]
    elif kind == "map":
        found = [(key, _default(schema["values"], each, schemas)) for key, each in value.items()]
    elif kind == "record":
        given = {f["name"]: value[f["name"]] if f["name"] in value else f["default"] for f in schema["fields"]}
        found = {f["name"]: _default(f["type"], given[f["name"]], schemas) for f in schema["fields"]}
    return found


def _named_schemas(schema: object) -> dict[str, Any]:
    """The schemas that others may refer to by name."""
    if isinstance(schema, list):
        return {name: each for branch in schema for name, each in _named_schemas(branch).items()}
    if not isinstance(schema, dict):
        return {}
    found = {schema["name"]: schema} if "name" in schema else {}
    inner = [schema.get(key) for key in ("type", "items", "values")] + [f["type"] for f in schema.get("fields", ())]
    return found | _named_schemas(inner)


# --- rows


def _row_batches(descriptor: Descriptor) -> Iterator[list[dict[str, object]]]:
    """The rows of the piece, whole blocks together."""
    with _open_file(descriptor.path) as file:
        header = read_header(file, descriptor.path)
        rows: list[dict[str, object]] = []
        file.seek(descriptor.start)
        while (at := file.tell()) != descriptor.stop:
            try:
                rows += read_block(file, header)
            except (EOFError, ValueError) as error:
                raise ValueError(f"the block at byte {at} is cut short or damaged: {error}") from error
            if len(rows) >= _BATCH_ROWS:
                yield rows
                rows = []
    if rows:
        yield rows


def _piece(path: str, fmt: Format, start: int, stop: int, first_row: int) -> Descriptor:
    return Descriptor(path=path, format=fmt, start=start, stop=stop, first_line=first_row, size_bytes=stop - start)


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
        raise UnreadableInput(
            f"{path}: not a whole Avro file ({said}). Was it copied while still being written? "
            "Copy it again, and check it at its origin."
        ) from error
