"""Fields of delimited text: which are missing, which type they have, and which types would lose something of them.

pyarrow splits and converts them. What it converts otherwise than it is written is refused by the rules of
`written_values`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from spanwise.pipelines.input.readers.column import EXACT_DOUBLE, is_text, refuse_long
from spanwise.pipelines.input.readers.descriptor import NULL_VALUES
from spanwise.pipelines.input.readers.written_values import (
    FALSE,
    TRUE,
    has_hex,
    largest,
    may_have_lost,
    refuse_loss,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spanwise.pipelines.input.readers.descriptor import Dialect

_INSTANT = re.compile(r"\s*\d{4}-\d{2}-\d{2}(?!\d)")
_TIME = re.compile(r"\s*\d{2}:\d{2}")
_INSTANTS = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
_TIMES = (pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"[\r\n]*+")


@dataclass(frozen=True, kw_only=True)
class FieldParser:
    """Parses whole records of one file."""

    names: tuple[str, ...]  #: of the fields of each record
    delimiter: str
    dialect: Dialect

    def parse(self, data: bytes, types: Mapping[str, pa.DataType]) -> pa.Table:
        """The columns of these types. Fractions are rounded to the nearest of their type, whole numbers never.

        Raises:
            pa.ArrowInvalid: a value cannot be read as the type of its column without loss.
        """
        if _BLANK.fullmatch(data):
            return pa.table({name: pa.array([], type=type_) for name, type_ in types.items()})
        columns: dict[str, pa.ChunkedArray[Any]] = {}
        for nulls, group in self._by_nulls(types).items():
            table = self._convert(data, {name: _parsed_as(types[name]) for name in group}, nulls)
            columns.update(zip(table.column_names, table.columns, strict=True))
            columns.update(
                (name, _cast_text(columns[name], types[name], NULL_VALUES if nulls is None else ()))
                for name in group
                if columns[name].type != types[name]
            )
        self._mark_missing(data, types, columns)
        if self._in_hex(data, [name for name, type_ in types.items() if pa.types.is_integer(type_)]):
            raise pa.ArrowInvalid("a hexadecimal number")
        for name in types:
            self._refuse_loss(data, name, columns[name])
            refuse_long(columns[name])
        return pa.table({name: columns[name] for name in types})

    def infer(self, data: bytes, wanted: Sequence[str]) -> dict[str, pa.DataType]:
        """The narrowest type of each wanted column. Rows with another number of fields do not count."""
        types: dict[str, pa.DataType] = {}
        for nulls, names in self._by_nulls(dict.fromkeys(wanted, pa.null())).items():
            table = self._convert(data, dict.fromkeys(names), nulls, skip_odd_rows=True)
            types.update((name, self._refine(data, name, table.column(name), nulls)) for name in names)
        in_hex = self._in_hex(data, [name for name in wanted if pa.types.is_int64(types[name])])
        return {name: pa.string() if name in in_hex else types[name] for name in wanted}

    def texts(self, data: bytes, names: Sequence[str]) -> pa.Table:
        """Columns as they are written, without quotes, with nothing missing."""
        return self._convert(data, dict.fromkeys(names, pa.string()), (), skip_odd_rows=True)

    def _nulls(self, name: str) -> tuple[str, ...] | None:
        """The texts that a user says are missing in a column; None: the usual."""
        asked = self.dialect.null_values
        return asked.get(name) if isinstance(asked, Mapping) else asked

    def _by_nulls(self, types: Mapping[str, pa.DataType]) -> dict[tuple[str, ...] | None, list[str]]:
        """The columns in groups of the same texts for what is missing."""
        groups: dict[tuple[str, ...] | None, list[str]] = {}
        for name in types:
            groups.setdefault(self._nulls(name), []).append(name)
        return groups

    def _convert(
        self,
        data: bytes,
        types: Mapping[str, pa.DataType | None],
        nulls: tuple[str, ...] | None,
        *,
        skip_odd_rows: bool = False,
        empty_texts: bool = False,
    ) -> pa.Table:
        known = {name: type_ for name, type_ in types.items() if type_ is not None}
        if _BLANK.fullmatch(data):
            return pa.table({name: pa.array([], type=type_ or pa.null()) for name, type_ in types.items()})
        if data.startswith(_BOM):
            data = b"\n" + data  # a character of a value, which pyarrow drops at the beginning
        if not data.endswith((b"\n", b"\r")):
            data += b"\n"  # without it pyarrow takes an empty last field for one in quotes, if there are such
        return pa.csv.read_csv(
            cast("IO[bytes]", pa.BufferReader(data)),
            read_options=pa.csv.ReadOptions(
                column_names=list(self.names),
                # one chunk: the parser's own cuts could fall inside a value, and it refuses a row longer than a chunk
                block_size=len(data) + 1,
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=self.delimiter,
                newlines_in_values=True,
                invalid_row_handler=(lambda _row: "skip") if skip_odd_rows else None,
            ),
            convert_options=pa.csv.ConvertOptions(
                null_values=list(NULL_VALUES if nulls is None else nulls),
                # of the usual ones only an empty field without quotes is missing in a text, see `_mark_missing`
                strings_can_be_null=empty_texts or nulls is not None or not known,
                quoted_strings_can_be_null=not empty_texts,
                # 0 and 1 are numbers: else a column's type would depend on the values in a block
                true_values=list(TRUE),
                false_values=list(FALSE),
                column_types=known,
                include_columns=list(types),
            ),
        )

    def _mark_missing(
        self, data: bytes, types: Mapping[str, pa.DataType], columns: dict[str, pa.ChunkedArray[Any]]
    ) -> None:
        """Makes empty fields without quotes missing in columns of text."""
        texts = [name for name, type_ in types.items() if is_text(type_) and self._nulls(name) is None]
        if not texts:
            return
        # a search for one byte is thirty times as fast
        if b'"' in data and b'""' in data and _empty_quotes(self.delimiter).search(data):
            table = self._convert(data, {name: types[name] for name in texts}, ("",), empty_texts=True)
            columns.update(zip(table.column_names, table.columns, strict=True))
            return
        for name in texts:
            lengths = pc.binary_length(columns[name])
            if pc.min(lengths).as_py() == 0:
                columns[name] = pc.if_else(pc.equal(lengths, pa.scalar(0)), pa.scalar(None, types[name]), columns[name])

    def _refine(
        self, data: bytes, name: str, column: pa.ChunkedArray[Any], nulls: tuple[str, ...] | None
    ) -> pa.DataType:
        """The type of a column that pyarrow has inferred, without what it would lose."""
        found: pa.DataType = column.type
        if pa.types.is_timestamp(found):
            micros = pa.timestamp("us", found.tz)
            return self._first_of(data, name, (micros, found), nulls) if found.unit == "ns" else micros
        if found == pa.time32("s"):
            return pa.time32("ms")
        if pa.types.is_float64(found):
            large = largest(column) >= EXACT_DOUBLE
            return self._first_of(data, name, (pa.uint64(), found), nulls) if large else found
        if pa.types.is_string(found):
            # pyarrow tries seconds, then nanoseconds, which end in 2262: the year 9999 beside a fraction fits neither
            some = pc.drop_null(column)
            first = some[0].as_py() if len(some) else ""
            candidates = _INSTANTS if _INSTANT.match(first) else _TIMES if _TIME.match(first) else ()
            return self._first_of(data, name, candidates, nulls)
        return found

    def _first_of(
        self, data: bytes, name: str, candidates: Sequence[pa.DataType], nulls: tuple[str, ...] | None
    ) -> pa.DataType:
        """The first type that holds every value as it is written; else string."""
        for candidate in candidates:
            try:
                column = self._convert(data, {name: candidate}, nulls, skip_odd_rows=True).column(0)
                self._refuse_loss(data, name, column)
            except pa.ArrowException:
                continue
            return candidate
        return pa.string()

    def _refuse_loss(self, data: bytes, name: str, column: pa.ChunkedArray[Any]) -> None:
        """Refuses numbers that were converted to others than are written."""
        if may_have_lost(column):
            refuse_loss(self.texts(data, (name,)).column(0), column)

    def _in_hex(self, data: bytes, names: Sequence[str]) -> set[str]:
        """Those of the columns of whole numbers that are, somewhere, written in hexadecimal."""
        if not names or not self._may_have_hex(data):
            return set()
        texts = self.texts(data, names)
        return {name for name in names if has_hex(texts.column(name))}

    def _may_have_hex(self, data: bytes) -> bool:
        """Whether a field may begin with 0x. Inside of a field, as in the name N10XJ, it is no number."""
        text = np.frombuffer(data, dtype=np.uint8)
        at = np.flatnonzero((text | 0x20) == ord("x"))  # also X
        at = at[text[at - 1] == ord("0")] - 1
        edges = np.isin(text[at - 1], np.frombuffer(b'"\r\n\t\f +-' + self.delimiter.encode(), dtype=np.uint8))
        return bool((edges | (at == 0)).any())


def _parsed_as(type_: pa.DataType) -> pa.DataType:
    """The type to parse for a column: text where pyarrow's parser does not know the type and its cast does."""
    return pa.string() if pa.types.is_decimal256(type_) or pa.types.is_float16(type_) else type_


def _cast_text(column: pa.ChunkedArray[Any], type_: pa.DataType, nulls: Sequence[str]) -> pa.ChunkedArray[Any]:
    known = pc.invert(pc.is_in(column, pa.array(nulls, type=pa.string())))
    texts = pc.if_else(known, column, pa.nulls(len(column), pa.string()))
    return cast("pa.ChunkedArray[Any]", pc.cast(texts, type_, safe=True))


@cache
def _empty_quotes(delimiter: str) -> re.Pattern[bytes]:
    """An empty field in quotes; also some texts inside of quotes, which does no harm."""
    sep = re.escape(delimiter.encode())
    return re.compile(rb"(?:^|[\r\n" + sep + rb'])""(?:$|[\r\n' + sep + rb"])")
