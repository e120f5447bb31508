"""Records of delimited text: where one ends and the next begins, and how many fields it has.

The rule is that of pyarrow's own parser: a quote opens a quoted value only at the beginning of a field; within it, two
quotes stand for one and newlines are part of the value; anywhere else a quote is a character like any other.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_QUOTE, _NEWLINE = ord('"'), ord("\n")
_LONG_BYTES = 4096


def find_last_end(data: bytes, delimiter: str) -> int:
    """Where the last complete record in `data` ends; 0 if none does. `data` begins with a record.

    Without quotes that is the last newline. Where every quote stands at the edge of a field, a newline ends a record if
    the number of quotes before it is even, which needs no look at the other bytes. Otherwise each quoted value is read.
    """
    if b'"' not in data:
        return data.rfind(b"\n") + 1
    text = np.frombuffer(data, dtype=np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    if not _at_edges(text, quotes, delimiter):
        return _find_last_end_by_values(data, text, quotes, delimiter)
    newline = data.rfind(b"\n")
    while newline >= 0:
        before = int(np.searchsorted(quotes, newline))
        if before % 2 == 0:
            return newline + 1
        newline = data.rfind(b"\n", 0, int(quotes[before - 1]))
    return 0


def find_unclosed(data: bytes, delimiter: str) -> int | None:
    """Where the quote stands that opens a value which never ends; None if all end. `data` begins with a record."""
    if b'"' not in data:
        return None
    field = _field(delimiter)
    # only what follows the last complete record can hold it
    pos = find_last_end(data, delimiter)
    while pos < len(data):
        match = field.match(data, pos)
        if match is None or (match.end() == pos and data[pos] == _QUOTE):
            return pos
        pos = match.end() + 1
    return None


def split(data: bytes, delimiter: str) -> list[tuple[int, bytes]]:
    """The records of `data`, each with the number of newlines before it; blank lines are left out."""
    records = []
    start = 0
    lines = 0
    if b'"' not in data and b"\r" not in data:
        lines_of = enumerate(data.splitlines(keepends=True))
        return [(number, record) for number, record in lines_of if record != b"\n"]
    for end in [*_find_ends(data, delimiter), len(data)]:
        record = data[start:end]
        if record.strip(b"\r\n"):
            records.append((lines, record))
        lines += count_newlines(record)
        start = end
    return records


def count_newlines(data: bytes) -> int:
    """How many lines end in `data`, in any of the three conventions."""
    if len(data) < _LONG_BYTES:
        newlines = data.count(b"\n")
    else:
        newlines = int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) == _NEWLINE))  # three times as fast
    return newlines if b"\r" not in data else newlines + data.count(b"\r") - data.count(b"\r\n")


def count_fields(record: bytes, delimiter: str) -> int:
    """How many fields a record has."""
    record = record.rstrip(b"\r\n")
    if b'"' not in record:
        return record.count(delimiter.encode()) + 1
    count = 0
    pos = 0
    field = _field(delimiter)
    while True:
        match = field.match(record, pos)
        pos = len(record) if match is None else match.end()
        count += 1
        if pos >= len(record):
            return count
        pos += 1


def _at_edges(text: NDArray[np.uint8], quotes: NDArray[np.intp], delimiter: str) -> bool:
    """Whether quotes open and close in turn, so that counting them tells what is inside a value."""
    edges = _edges(delimiter)
    opens, closes = quotes[0::2], quotes[1::2]
    opened = edges[text[opens - 1]]
    opened[0] |= opens[0] == 0
    # a quote that follows the closing one at once is the second half of a doubled quote
    opened[1:] |= opens[1:] == closes[: len(opens) - 1] + 1
    following = np.minimum(closes + 1, len(text) - 1)
    closed = edges[text[following]] | (text[following] == _QUOTE)
    if len(closes):
        closed[-1] |= closes[-1] + 1 == len(text)
    return bool(opened.all() and closed.all())


def _find_last_end_by_values(data: bytes, text: NDArray[np.uint8], quotes: NDArray[np.intp], delimiter: str) -> int:
    field = _field(delimiter)
    openings = quotes[(quotes == 0) | _edges(delimiter)[text[quotes - 1]]]  # if no value holds them
    end = pos = 0
    for opening in openings.tolist():
        if opening < pos:
            continue
        end = data.rfind(b"\n", pos, opening) + 1 or end
        value = field.match(data, opening)
        if value is None:  # it does not end
            return end
        pos = value.end()
    return data.rfind(b"\n", pos) + 1 or end


def _find_ends(data: bytes, delimiter: str) -> Iterator[int]:
    field = _field(delimiter)
    pos = 0
    while True:
        match = field.match(data, pos)
        if match is None:
            return
        end = match.end()
        if end >= len(data):
            return
        byte = data[end]
        pos = end + 1
        if byte == ord("\r"):
            if pos >= len(data):
                return
            if data[pos] == ord("\n"):
                pos += 1
            yield pos
        elif byte == ord("\n"):
            yield pos


@cache
def _edges(delimiter: str) -> NDArray[np.bool_]:
    """Of each byte, whether a field may begin after it."""
    edges = np.zeros(256, dtype=bool)
    edges[[ord(delimiter), ord("\n"), ord("\r")]] = True
    return edges


@cache
def _field(delimiter: str) -> re.Pattern[bytes]:
    """One field. Fails to match where a quoted value does not end."""
    sep = re.escape(delimiter.encode())
    return re.compile(rb'(?:"(?>[^"]+|"")*+"[^' + sep + rb'\r\n]*+|(?!")[^' + sep + rb"\r\n]*+)")
