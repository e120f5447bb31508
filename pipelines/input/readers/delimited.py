"""CSV and TSV: a header line, then one record a row. A type is one that every value of the span can be read as."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.pipelines.input.readers import records, text
from spanwise.pipelines.input.readers.column import EXACT_DOUBLE, Column, Misfit, join_all, written
from spanwise.pipelines.input.readers.descriptor import (
    NULL_VALUES,
    Descriptor,
    Dialect,
    FileLayout,
    Format,
    ReadAs,
    Rejected,
)
from spanwise.pipelines.input.readers.fields import FieldParser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_BOM = b"\xef\xbb\xbf"
_HTML = re.compile(rb"\s*<(!doctype html|html)[\s>]", re.IGNORECASE)
_DATE = re.compile(r"\s*\d{4}-\d{2}-\d{2}(?!\d)")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_WHOLE = re.compile(r"\d+")


def describe(path: str, fmt: Format, dialect: Dialect) -> FileLayout:
    """The header's names, and pieces of about `part_bytes`; a compressed or transcoded file is one piece.

    Raises:
        UnreadableInput: the file is empty, or its header is missing, repeats a name or leaves one out.
    """
    delimiter = _choose_delimiter(fmt, dialect)
    head = _read_head(path, delimiter, dialect)
    bom = len(_BOM) if head.startswith(_BOM) else 0
    if not head[bom:].strip():
        raise UnreadableInput(f"{path}: the file is empty. It must have a header line and rows.")
    if _HTML.match(head, bom):
        raise UnreadableInput(
            f"{path}: is an HTML page, such as a web server sends for an error or a login. Download the file again."
        )
    first = records.split(head[bom:], delimiter)[0]
    names = tuple(_split_fields(first[1], delimiter))
    if dialect.column_names:
        start, line = bom, 1
        if len(names) != len(dialect.column_names):
            raise UnreadableInput(
                f"{path}, line 1: {len(names)} fields, but column_names has {len(dialect.column_names)} names."
            )
        names = dialect.column_names
    else:
        start = bom + head[bom:].index(first[1]) + len(first[1])
        line = 1 + head.count(b"\n", 0, start)
        _check_header(path, names)
        _refuse_other_delimiter(path, names, delimiter, dialect)
    dialect.check_null_values(path, names)
    size = text.size_of(path)
    whole = Descriptor(path=path, format=fmt, start=start, stop=None, first_line=line, size_bytes=size, names=names)
    if not text.is_plain(path, dialect) or size <= dialect.part_bytes:
        return FileLayout(names=names, types=None, descriptors=(whole,))
    pieces = tuple(
        Descriptor(path=path, format=fmt, start=begin, stop=end, first_line=number, size_bytes=end - begin, names=names)
        for begin, end, number in text.cut_pieces(whole, dialect, _boundary_of(path, delimiter))
    )
    return FileLayout(names=names, types=None, descriptors=pieces or (whole,))


def infer(
    descriptor: Descriptor, dialect: Dialect, known: frozenset[str], blocks: int | None
) -> dict[str, pa.DataType]:
    """The narrowest type of each unknown column. Rows with another number of fields do not count."""
    wanted = [name for name in descriptor.names if name not in known]
    types: dict[str, pa.DataType] = dict.fromkeys(wanted, pa.null())
    if not wanted:
        return types
    parser = _parser_of(descriptor, dialect)
    boundary = _boundary_of(descriptor.path, parser.delimiter)
    for number, block in enumerate(text.read_blocks(descriptor, dialect, boundary)):
        if number == blocks:
            break
        types = join_all(types, parser.infer(block.data, wanted))
    return types


def read(
    descriptor: Descriptor, dialect: Dialect, columns: Sequence[Column], reject: Callable[[Rejected], None]
) -> Iterator[pa.RecordBatch]:
    """The rows as `columns`.

    Raises:
        Misfit: a value does not fit a type that was inferred, or is the previous span's.
    """
    parser = _parser_of(descriptor, dialect)
    columns = written(columns)
    types = {column.name: column.type for column in columns}
    for block in text.read_blocks(descriptor, dialect, _boundary_of(descriptor.path, parser.delimiter)):
        try:
            table = parser.parse(block.data, types)
        except pa.ArrowException:
            table = _parse_carefully(block, descriptor, parser, columns, reject)
        yield from table.to_batches()


def _parser_of(descriptor: Descriptor, dialect: Dialect) -> FieldParser:
    delimiter = _choose_delimiter(descriptor.format, dialect)
    return FieldParser(names=descriptor.names, delimiter=delimiter, dialect=dialect)


def _parse_carefully(
    block: text.TextBlock,
    descriptor: Descriptor,
    parser: FieldParser,
    columns: Sequence[Column],
    reject: Callable[[Rejected], None],
) -> pa.Table:
    """Reads a block with an error column by column; finds its line, and rejects the rows that may be rejected."""
    care = CarefulParser(descriptor=descriptor, parser=parser)
    rows, refused = care.rows_of(block)
    if refused:
        with suppress(pa.ArrowException):
            table = care.table_of(rows, columns)
            _reject_in_order(refused, reject)
            return table
    # first what stops the ingest, then the rows to reject: the result must not depend on the order
    for column in sorted(columns, key=lambda c: c.source != "inferred"):
        try:
            care.column_of(rows, column)
        except pa.ArrowException as error:
            if column.source == "inferred":
                raise Misfit(column.name) from error
            for row, value in care.find_misfits(rows, column):
                if column.source == "previous":
                    raise Misfit(column.name, f"{descriptor.path}, line {row.line} ({value!r})") from error
                reason = f"column '{column.name}': {value!r} is no {column.type}"
                refused.setdefault(row, _reject_row(descriptor, row, reason))
    _reject_in_order(refused, reject)
    accepted = [row for row in rows if row not in refused]
    with suppress(pa.ArrowException):
        return care.table_of(accepted, columns)
    return pa.table({column.name: care.column_of(accepted, column) for column in columns})


@dataclass(frozen=True, kw_only=True, eq=False)
class DelimitedRow:
    number: int  #: within the block
    line: int  #: of the file
    record: bytes  #: with its newline


@dataclass(frozen=True, kw_only=True)
class CarefulParser:
    """Parses chosen rows of a piece, one column at a time."""

    descriptor: Descriptor
    parser: FieldParser

    def rows_of(self, block: text.TextBlock) -> tuple[list[DelimitedRow], dict[DelimitedRow, Rejected]]:
        """The rows with the right number of fields, and the others with the reason."""
        wanted = len(self.descriptor.names)
        good, refused = [], {}
        for number, (lines, record) in enumerate(records.split(block.data, self.parser.delimiter)):
            ended = record if record.endswith((b"\n", b"\r")) else record + b"\n"
            row = DelimitedRow(number=number, line=block.first_line + lines, record=ended)
            count = records.count_fields(record, self.parser.delimiter)
            if count == wanted:
                good.append(row)
            else:
                refused[row] = _reject_row(self.descriptor, row, f"{wanted} fields wanted, {count} found")
        return good, refused

    def column_of(self, rows: Sequence[DelimitedRow], column: Column) -> pa.ChunkedArray[Any]:
        """A column; in a column of integers, numbers such as 3.0 are integers."""
        data = b"".join(row.record for row in rows)
        try:
            return self._parse_column(data, column, column.type)
        except pa.ArrowException:
            if column.source == "inferred" or not pa.types.is_integer(column.type):
                raise
        try:
            numbers = self._parse_column(data, column, pa.float64())
            if pc.any(pc.greater_equal(pc.abs(numbers), pa.scalar(EXACT_DOUBLE))).as_py():
                raise pa.ArrowInvalid("a double that may have lost digits")
            return pc.cast(numbers, column.type, safe=True)
        except pa.ArrowException:
            if len(rows) == 1:
                raise
        # each value may be readable in one of the two ways, though not all in the same
        half = len(rows) // 2
        chunks = [*self.column_of(rows[:half], column).chunks, *self.column_of(rows[half:], column).chunks]
        return pa.chunked_array(chunks, type=column.type)

    def table_of(self, rows: Sequence[DelimitedRow], columns: Sequence[Column]) -> pa.Table:
        """All columns at once; stricter than `column_of`."""
        types = {column.name: column.type for column in columns}
        return self.parser.parse(b"".join(row.record for row in rows), types)

    def find_misfits(self, rows: Sequence[DelimitedRow], column: Column) -> list[tuple[DelimitedRow, str]]:
        """The rows with a value that does not fit, and that value."""
        texts = self.parser.texts(b"".join(row.record for row in rows), (column.name,)).column(0).to_pylist()
        # each value once, and alone: a column has few wrong values, and the other columns need not be parsed
        alone = replace(self, parser=replace(self.parser, names=(column.name,)))
        values = list(dict.fromkeys(cast("list[str]", texts)))
        single = [
            DelimitedRow(number=number, line=0, record=b'"' + value.encode().replace(b'"', b'""') + b'"\n')
            for number, value in enumerate(values)
        ]
        wrong = {values[row.number] for row in alone.find_unfit(single, column)}
        return [(row, text) for row, text in zip(rows, texts, strict=True) if text in wrong]

    def find_unfit(self, rows: Sequence[DelimitedRow], column: Column) -> list[DelimitedRow]:
        """The rows with a value that does not fit, by bisection, which is fast for a few among many."""
        try:
            self.column_of(rows, column)
        except pa.ArrowException:
            if len(rows) == 1:
                return list(rows)
            half = len(rows) // 2
            return self.find_unfit(rows[:half], column) + self.find_unfit(rows[half:], column)
        return []

    def _parse_column(self, data: bytes, column: Column, type_: pa.DataType) -> pa.ChunkedArray[Any]:
        return self.parser.parse(data, {column.name: type_}).column(0)


def _reject_in_order(refused: Mapping[DelimitedRow, Rejected], reject: Callable[[Rejected], None]) -> None:
    for row in sorted(refused, key=lambda row: row.number):
        reject(refused[row])


def _reject_row(descriptor: Descriptor, row: DelimitedRow, reason: str) -> Rejected:
    text_ = row.record.rstrip(b"\r\n").decode()
    return Rejected(path=descriptor.path, line=row.line, reason=reason, text=text_)


def _choose_delimiter(fmt: ReadAs, dialect: Dialect) -> str:
    delimiter = dialect.delimiter or ("\t" if fmt == "tsv" else ",")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise ParameterError(f"delimiter: one ASCII character other than a quote or newline, not {delimiter!r}.")
    return delimiter


def _boundary_of(path: str, delimiter: str) -> Callable[[bytes, bool], int]:
    def boundary(data: bytes, final: bool) -> int:
        if not final:
            return records.find_last_end(data, delimiter)
        at = records.find_unclosed(data, delimiter)
        if at is not None:
            raise UnreadableInput(
                f"{path}: the quote that opens {data[at : at + 40].decode(errors='replace')!r} is never closed. "
                "Close it, or write a quote inside a value twice."
            )
        return len(data)

    return boundary


def _read_head(path: str, delimiter: str, dialect: Dialect) -> bytes:
    """The beginning of the file, at least to the end of its first record that is not blank."""
    with text.open_text(path, dialect) as source:
        head = b""
        while fresh := source.read(max(1 << 16, len(head))):
            head += fresh
            if records.find_last_end(head.removeprefix(_BOM).lstrip(b"\r\n"), delimiter):
                break
            if len(head) > text.LONGEST_RECORD_BYTES:
                raise UnreadableInput(f"{path}: the first line has not ended after {len(head) >> 20} MiB.")
    end = records.find_last_end(head, delimiter) or len(head)
    return text.check_utf8(head[:end], path, 0, 1)


def _split_fields(record: bytes, delimiter: str) -> list[str]:
    """The values of one record as text, as the parser itself reads them."""
    if not record.strip(b"\r\n"):
        return []
    record = record if record.endswith((b"\n", b"\r")) else record + b"\n"
    table = pa.csv.read_csv(
        cast("IO[bytes]", pa.BufferReader(record)),
        read_options=pa.csv.ReadOptions(autogenerate_column_names=True, block_size=len(record) + 1),
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types={f"f{index}": pa.string() for index in range(records.count_fields(record, delimiter))},
            strings_can_be_null=False,
        ),
    )
    return [column[0].as_py() for column in table.columns]


def _check_header(path: str, names: Sequence[str]) -> None:
    fix = "Add a header line, or name the columns: column_names=(...)."
    for place, name in enumerate(names, 1):
        if not name.strip():
            raise UnreadableInput(f"{path}, line 1: field {place} of the header has no name. {fix}")
    # a whole number can be a name (a year); a missing value, a fraction or a date cannot
    odd = [n for n in names if n in NULL_VALUES or _DATE.match(n) or _is_fraction(n)]
    if odd or all(_NUMBER.fullmatch(name) for name in names):
        shown = ", ".join(repr(name) for name in (odd or names)[:3])
        raise UnreadableInput(f"{path}, line 1: a row of data where the header should be ({shown}). {fix}")
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise UnreadableInput(f"{path}, line 1: two columns are named '{repeated[0]}'. Rename one. {fix}")


def _refuse_other_delimiter(path: str, names: Sequence[str], delimiter: str, dialect: Dialect) -> None:
    """Refuses a header of one name that holds what other files have between names, unless the delimiter was given."""
    other = next((mark for mark in ";\t|," if mark in names[0] and mark != delimiter), None)
    if len(names) == 1 and other is not None and dialect.delimiter is None:
        raise UnreadableInput(
            f"{path}, line 1: the header is one name, {names[0]!r}, which holds {other!r}. If that separates columns, "
            f"name it: dialect=Dialect(delimiter={other!r}). If it is part of the name: delimiter={delimiter!r}."
        )


def _is_fraction(name: str) -> bool:
    return _NUMBER.fullmatch(name) is not None and _WHOLE.fullmatch(name.strip()) is None
