"""JSON lines: one object a row. A string is text, whatever it looks like; a key that is not in a row is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spanwise.components.ingest.readers import text
from spanwise.components.ingest.readers.columns import EXACT_DOUBLE, Column, Misfit, canonical, join, join_all, reads_as
from spanwise.components.ingest.readers.descriptor import Descriptor, Dialect, FileLayout, Format, Rejected
from spanwise.orchestrator.errors import UnreadableInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    size = Path(path).stat().st_size
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
    # the parser would take a number for an instant; the cast takes only text
    raw = pa.schema([(c.name, pa.string() if pa.types.is_temporal(c.type) else c.type) for c in columns])
    for block in text.read_blocks(descriptor, dialect, _find_boundary):
        if not block.data.strip():
            continue
        try:
            table = _parse(block.data, raw).cast(schema)
        except (pa.ArrowException, NotImplementedError):
            table = _parse_carefully(block, descriptor, columns, reject)
        yield from table.to_batches()


def _parse(data: bytes, schema: pa.Schema | None) -> pa.Table:
    table = pa.json.read_json(
        cast("IO[bytes]", pa.BufferReader(data)),
        # one chunk: the order of the keys and the types must not depend on where the parser cuts
        read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "error"
        ),
    )
    if table.num_rows != sum(1 for line in data.split(b"\n") if line.strip()):
        # the parser also takes two objects in a line and one over two lines, which blocks would cut
        raise pa.ArrowInvalid("not one object a line")
    return table


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
    return canonical(type_)


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
    try:
        row = json.loads(
            raw,
            parse_int=JsonNumber,
            parse_float=JsonNumber,
            parse_constant=JsonNumber,
            object_pairs_hook=_build_object,
        )
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(row, dict):
        return f"a JSON object wanted, {str(raw[:1], 'utf-8')}... found"
    return row


def _build_object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{repeated}' is repeated in one object")
    return result


def _type_of_value(value: Value) -> pa.DataType:
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, JsonNumber):
        whole = re.fullmatch(r"-?\d+", value) and -(2**63) <= int(value) < 2**63
        return pa.int64() if whole else pa.float64()
    if isinstance(value, list):
        inner: pa.DataType = pa.null()
        for item in value:
            inner = join(inner, _type_of_value(item))
        return pa.list_(inner)
    if isinstance(value, dict):
        return pa.struct(sorted((name, _type_of_value(item)) for name, item in value.items()))
    return pa.string()


def _convert(value: Value, column: Column) -> Value:
    """The value as a Python object of the column's type; raises if it does not fit."""
    if value is None:
        return None
    wanted = column.type
    if pa.types.is_string(wanted):
        if column.source == "previous" and (isinstance(value, JsonNumber) or not isinstance(value, str)):
            raise TypeError("text wanted")
        return value if isinstance(value, str) else _format_value(value)
    if pa.types.is_nested(wanted):
        plain = _to_python(value)
        pa.array([plain], type=wanted)
        if not _covers(wanted, _type_of_value(value)):
            raise TypeError("a field that the type does not have")
        return plain
    if isinstance(value, list | dict):
        raise TypeError("a scalar wanted")
    # text may be an instant, for which JSON has no type of its own, or of any type that is pinned
    is_text = isinstance(value, str) and not isinstance(value, JsonNumber)
    allowed = is_text and (column.source == "pinned" or pa.types.is_temporal(wanted))
    if not allowed and not reads_as(_type_of_value(value), wanted):
        raise TypeError("another kind of value")
    if isinstance(value, JsonNumber) and pa.types.is_integer(wanted) and not re.fullmatch(r"-?\d+", value):
        if abs(float(value)) >= EXACT_DOUBLE:
            raise ValueError("digits may be lost")
        return pc.cast(pa.scalar(float(value)), wanted, safe=True).as_py()
    source = pa.scalar(value) if isinstance(value, bool) else pa.scalar(str(value))
    return pc.cast(source, wanted, safe=True).as_py()


def _covers(wanted: pa.DataType, found: pa.DataType) -> bool:
    if pa.types.is_struct(wanted) and pa.types.is_struct(found):
        return all(
            wanted.get_field_index(field.name) >= 0 and _covers(wanted.field(field.name).type, field.type)
            for field in found
        )
    if pa.types.is_list(wanted) and pa.types.is_list(found):
        return _covers(wanted.value_type, found.value_type)
    return reads_as(found, wanted)


def _to_python(value: Value) -> Value:
    if isinstance(value, JsonNumber):
        return int(value) if re.fullmatch(r"-?\d+", value) and -(2**63) <= int(value) < 2**63 else float(value)
    if isinstance(value, list):
        return [_to_python(item) for item in value]
    if isinstance(value, dict):
        return {name: _to_python(item) for name, item in value.items()}
    return value


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
