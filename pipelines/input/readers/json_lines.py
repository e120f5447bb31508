"""JSON lines: one object a row. A string is text, whatever it looks like; a key that is not in a row is missing."""

from __future__ import annotations

import json
import math
import re
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.readers import text
from spanwise.pipelines.input.readers.column import (
    EXACT_DOUBLE,
    Column,
    Misfit,
    exact_below,
    is_exact,
    join,
    join_all,
    refuse_long,
    written,
)
from spanwise.pipelines.input.readers.columns import reads_as
from spanwise.pipelines.input.readers.descriptor import Descriptor, Dialect, FileLayout, Format, Rejected
from spanwise.pipelines.input.readers.stored_types import stored_type
from spanwise.pipelines.input.readers.written_values import largest, read_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: How deeply a row may be nested: deeper ones crash parsers, and Arrow reads no more levels from its own files.
MAX_DEPTH = 64

_ODD_CONSTANT = re.compile(rb"[:\[,]\s*(?:-?Inf(?!inity)|-NaN)")
#: Whole numbers that a double may round; also what is inside of texts.
_LARGE_WHOLE = re.compile(rb"(?<![\w.+-])-?\d{8,}(?![\d.eE])")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_WHOLE = re.compile(r"-?\d+")
_FEWEST_DIGITS = 16  # of a whole number that a double may round
_MOST_DIGITS = 20  # of a whole number that fits an integer type; Python refuses to convert thousands of them
_BRACKET = re.compile(rb"[\[\]{}]")

#: A value of a row: numbers keep the text they were written with.
Value = object


class JsonNumber(str):
    """A number as it is written."""

    __slots__ = ()


def describe(path: str, fmt: Format, dialect: Dialect) -> FileLayout:
    """Pieces of about `part_bytes`. A newline always ends a row: inside a JSON string it can only be escaped.

    Raises:
        UnreadableInput: the file is empty or holds one JSON array instead of lines.
    """
    with text.open_text(path, dialect) as source:
        head = source.read(1 << 12)
    if not head:
        raise UnreadableInput(f"{path}: the file is empty. It must have one JSON object a line.")
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":
        raise UnreadableInput(
            f"{path}: one JSON array. Write one object a line instead, for example with: jq -c '.[]' {path}"
        )
    start = 3 if head.startswith(b"\xef\xbb\xbf") else 0
    size = text.size_of(path)
    whole = Descriptor(path=path, format=fmt, start=start, stop=None, first_line=1, size_bytes=size)
    if not text.is_plain(path, dialect) or size <= dialect.part_bytes:
        return FileLayout(names=(), types=None, descriptors=(whole,))
    pieces = tuple(
        Descriptor(path=path, format=fmt, start=begin, stop=end, first_line=line, size_bytes=end - begin)
        for begin, end, line in text.cut_pieces(whole, dialect, _find_boundary)
    )
    return FileLayout(names=(), types=None, descriptors=pieces or (whole,))


def infer(
    descriptor: Descriptor, dialect: Dialect, known: frozenset[str], blocks: int | None
) -> dict[str, pa.DataType]:
    """The narrowest type of each key, also of the known ones: JSON values have types."""
    del known
    types: dict[str, pa.DataType] = {}
    for number, block in enumerate(text.read_blocks(descriptor, dialect, _find_boundary)):
        if number == blocks:
            break
        types = join_all(types, _infer_block(block))
    return types


def read(
    descriptor: Descriptor, dialect: Dialect, columns: Sequence[Column], reject: Callable[[Rejected], None]
) -> Iterator[pa.RecordBatch]:
    """The rows as `columns`.

    Raises:
        Misfit: a value does not fit a type that was inferred, or is the previous span's.
    """
    schema = pa.schema([(column.name, column.type) for column in columns])
    raw = pa.schema([(column.name, _as_written(column.type)) for column in columns])
    for block in text.read_blocks(descriptor, dialect, _find_boundary):
        if not block.data.strip():
            continue
        try:
            table = _read_written(_parse(block.data, raw), schema)
        except (pa.ArrowException, NotImplementedError):
            table = _parse_carefully(block, descriptor, columns, reject)
        yield from table.to_batches()


def _as_written(type_: pa.DataType) -> pa.DataType:
    """The type with text for instants, dates and times: the parser takes numbers for them, and ignores zones."""
    if pa.types.is_temporal(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_as_written(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _as_written(field.type)) for field in type_])
    return type_


def _read_written(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns with their own types, of those `_as_written`; times inside structs and lists are read row by row."""
    read = [
        read_texts(column, field.type) if pa.types.is_time(field.type) else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(read, schema=schema)


def _parse(data: bytes, schema: pa.Schema | None) -> pa.Table:
    """All rows at once.

    Raises:
        pa.ArrowInvalid: a row must be read by itself, because it is bad, or because pyarrow would read it otherwise
            than it does when it is alone.
    """
    rows = [row for row in map(bytes.strip, data.split(b"\n")) if row]
    if b"null" in rows:
        raise pa.ArrowInvalid(
            "a row that is no object"
        )  # pyarrow takes it for a row, and crashes where it is the first
    if _may_be_deep(data) and any(_depth(row) > MAX_DEPTH for row in rows):
        raise pa.ArrowInvalid("a row that is nested too deeply")  # pyarrow would crash
    if (b"Inf" in data or b"-NaN" in data) and _ODD_CONSTANT.search(data):
        raise pa.ArrowInvalid("a constant that only pyarrow knows")
    table = pa.json.read_json(
        cast("IO[bytes]", pa.BufferReader(data)),
        # one chunk: the order of the keys and the types must not depend on where the parser cuts
        read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "error"
        ),
    )
    if table.num_rows != len(rows):
        # the parser also takes two objects in a line and one over two lines, which blocks would cut
        raise pa.ArrowInvalid("not one object a line")
    for column in table.columns:
        refuse_long(column)
    # a narrow type decides for all: at worst rows are read one by one
    kind = pa.float32() if any("float" in str(column.type) for column in table.columns) else pa.float64()
    most = max((_largest(column) for column in table.columns), default=0.0)
    whole = [n.decode() for n in _LARGE_WHOLE.findall(data)] if exact_below(kind) <= most < math.inf else []
    # without a schema pyarrow gives doubles where uint64 would do
    wide = schema is None and any(len(number) >= _FEWEST_DIGITS for number in whole)
    if math.isinf(most) or wide or not all(is_exact(number, kind) for number in whole):
        raise pa.ArrowInvalid("a number that is too large, or that would be rounded")
    return table


def _largest(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> float:
    """The largest absolute value of the floating-point numbers in a column; 0 if there are none."""
    if pa.types.is_floating(column.type):
        return largest(column)
    if pa.types.is_list(column.type):
        return _largest(pc.list_flatten(column))
    if pa.types.is_struct(column.type):
        chunks = cast("list[pa.StructArray]", column.chunks if isinstance(column, pa.ChunkedArray) else [column])
        return max((_largest(part) for chunk in chunks for part in chunk.flatten()), default=0.0)
    return 0.0


def _may_be_deep(data: bytes) -> bool:
    """Whether there is a line with more than `MAX_DEPTH` brackets."""
    text = np.frombuffer(data, dtype=np.uint8)
    opened = np.flatnonzero((text | 0x20) == ord("{"))  # the bit that is all between them makes [ a {
    line_of = np.searchsorted(np.flatnonzero(text == ord("\n")), opened)
    return bool((line_of[MAX_DEPTH:] == line_of[:-MAX_DEPTH]).any())


def _depth(line: bytes) -> int:
    """How deeply a row is nested, or one level too deep; the row itself is the first level."""
    if line.count(b"{") + line.count(b"[") <= MAX_DEPTH:
        return 0  # not worth a look
    deepest = depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", line)):
        depth += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, depth)
        if deepest > MAX_DEPTH:
            break
    return deepest


def _find_boundary(data: bytes, final: bool) -> int:
    return len(data) if final else data.rfind(b"\n") + 1


def _infer_block(block: text.TextBlock) -> dict[str, pa.DataType]:
    if not block.data.strip():
        return {}
    try:
        table = _parse(block.data, None)
    except (pa.ArrowException, NotImplementedError):
        types: dict[str, pa.DataType] = {}
        for _, raw in _split_lines(block):
            row = _parse_row(raw)
            if isinstance(row, dict):
                types = join_all(types, {name: _type_of_value(value) for name, value in row.items()})
        return types
    return {field.name: _strip_instants(field.type) for field in table.schema}


def _strip_instants(type_: pa.DataType) -> pa.DataType:
    """The type without pyarrow's guess that a text is an instant."""
    if pa.types.is_timestamp(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_strip_instants(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct(sorted((field.name, _strip_instants(field.type)) for field in type_))
    return stored_type(type_)


def _parse_carefully(
    block: text.TextBlock, descriptor: Descriptor, columns: Sequence[Column], reject: Callable[[Rejected], None]
) -> pa.Table:
    """Reads a block with an error row by row; finds its line, and rejects the rows that may be rejected."""
    names = {column.name for column in columns}
    good: list[tuple[int, str, dict[str, Value]]] = []
    refused: dict[int, Rejected] = {}
    for line, raw in _split_lines(block):
        row = _parse_row(raw)
        shown = raw.decode()
        if isinstance(row, str):
            refused[line] = Rejected(path=descriptor.path, line=line, reason=row, text=shown)
        else:
            good.append((line, shown, row))
            if not names.issuperset(row):
                raise Misfit(None)
    columns = written(columns)
    arrays: dict[str, list[Value]] = {}
    for column in sorted(columns, key=lambda c: c.source != "inferred"):
        values = arrays[column.name] = []
        for line, shown, row in good:
            value = row.get(column.name)
            try:
                values.append(_convert(value, column))
            except (ValueError, TypeError, OverflowError, pa.ArrowException, NotImplementedError) as error:
                if column.source == "inferred":
                    raise Misfit(column.name) from error
                if column.source == "previous":
                    raise Misfit(column.name, f"{descriptor.path}, line {line} ({_format_value(value)})") from error
                reason = f"column '{column.name}': {_format_value(value)} is no {column.type}"
                refused.setdefault(line, Rejected(path=descriptor.path, line=line, reason=reason, text=shown))
                values.append(None)
    for line in sorted(refused):
        reject(refused[line])
    accepted = [index for index, (line, _, _) in enumerate(good) if line not in refused]
    return pa.table(
        [pa.array([arrays[column.name][index] for index in accepted], type=column.type) for column in columns],
        schema=pa.schema([(column.name, column.type) for column in columns]),
    )


def _split_lines(block: text.TextBlock) -> Iterator[tuple[int, bytes]]:
    for number, raw in enumerate(block.data.split(b"\n"), block.first_line):
        if stripped := raw.strip():
            yield number, stripped


def _parse_row(raw: bytes) -> dict[str, Value] | str:
    """The object in a line, or why there is none."""
    if _depth(raw) > MAX_DEPTH:
        return f"nested more deeply than {MAX_DEPTH} levels"
    try:
        row = json.loads(
            raw,
            parse_int=JsonNumber,
            parse_float=JsonNumber,
            parse_constant=JsonNumber,
            object_pairs_hook=_build_object,
        )
        if b"\\u" in raw:
            json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        return f"not JSON: {ascii(error.object[error.start])[1:-1]} is half a character"
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(row, dict):
        found = str(raw[:20], "utf-8", "replace")
        return f"a JSON object wanted, {found}{'...' if len(raw) > len(found) else ''} found"
    return row


def _build_object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        shown = repeated.encode(errors="backslashreplace").decode()
        raise ValueError(f"the key '{shown}' is repeated in one object")
    return result


def _type_of_value(value: Value) -> pa.DataType:
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, JsonNumber):
        return _type_of_number(value)
    if isinstance(value, list):
        inner: pa.DataType = pa.null()
        for item in value:
            inner = join(inner, _type_of_value(item))
        return pa.list_(inner)
    if isinstance(value, dict):
        return pa.struct(sorted((name, _type_of_value(item)) for name, item in value.items()))
    return pa.string()


def _type_of_number(value: JsonNumber) -> pa.DataType:
    """The narrowest type that holds a number as it is written; text if there is none."""
    if not _WHOLE.fullmatch(value):
        return pa.float64() if _fits_double(value) else pa.string()
    digits = len(value)
    if digits <= _MOST_DIGITS and -(2**63) <= int(value) < 2**63:
        return pa.int64()
    if digits <= _MOST_DIGITS and 0 <= int(value) < 2**64:
        return pa.uint64()
    return pa.float64() if is_exact(value) else pa.string()


def _fits_double(value: JsonNumber) -> bool:
    return math.isfinite(float(value)) or value.lstrip("-") in ("NaN", "Infinity")


def _convert(value: Value, column: Column) -> Value:
    """The value as a Python object of the column's type; raises if it does not fit."""
    wanted = column.type
    if value is not None and pa.types.is_string(wanted):
        if column.source == "previous" and (isinstance(value, JsonNumber) or not isinstance(value, str)):
            raise TypeError("text wanted")
        return value if isinstance(value, str) else _format_value(value)
    return _convert_value(value, wanted, column.source)


def _convert_value(value: Value, wanted: pa.DataType, source: str) -> Value:
    if value is None:
        return None
    if pa.types.is_list(wanted) or pa.types.is_large_list(wanted):
        if not isinstance(value, list):
            raise TypeError("a list wanted")
        return [_convert_value(item, wanted.value_type, source) for item in value]
    if pa.types.is_struct(wanted):
        if not isinstance(value, dict) or any(wanted.get_field_index(name) < 0 for name in value):
            raise TypeError("an object of these fields wanted")
        return {name: _convert_value(item, wanted.field(name).type, source) for name, item in value.items()}
    if isinstance(value, list | dict):
        raise TypeError("a scalar wanted")
    if isinstance(value, JsonNumber):
        return _convert_number(value, wanted)
    # text may be an instant or a decimal, for which JSON has no types of its own, or of any type that is pinned
    allowed = isinstance(value, str) and (source == "pinned" or not _is_of_json(wanted))
    if not allowed and not reads_as(_type_of_value(value), wanted):
        raise TypeError("another kind of value")
    if isinstance(value, bool):
        return pc.cast(pa.scalar(value), wanted, safe=True).as_py()
    return _read_text(str(value), wanted)


def _read_text(text: str, wanted: pa.DataType) -> Value:
    found: Any = read_texts(pa.array([text]), wanted)[0]
    # as a number, because Python has no nanoseconds
    return cast("Value", found.value if pa.types.is_temporal(wanted) else found.as_py())


def _is_of_json(type_: pa.DataType) -> bool:
    """Whether JSON writes values of a type otherwise than as text."""
    return pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_)


def _convert_number(value: JsonNumber, wanted: pa.DataType) -> Value:
    if not reads_as(pa.float64(), wanted):
        raise TypeError("another kind of value")
    if pa.types.is_integer(wanted) and not _WHOLE.fullmatch(value):
        if abs(float(value)) >= EXACT_DOUBLE:
            raise ValueError("digits may be lost")
        return pc.cast(pa.scalar(float(value)), wanted, safe=True).as_py()
    if pa.types.is_floating(wanted) and abs(float(value)) >= exact_below(wanted):
        return _read_text(str(value), wanted)
    return pc.cast(pa.scalar(str(value)), wanted, safe=True).as_py()  # nothing can be lost


def _format_value(value: Value) -> str:
    """The value as JSON, numbers with their original digits."""
    if isinstance(value, JsonNumber):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(_format_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{_format_value(item)}" for name, item in value.items())
            + "}"
        )
    return json.dumps(value, ensure_ascii=False)
