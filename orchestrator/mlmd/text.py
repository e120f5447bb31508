"""Values as ML Metadata can store them: every JSON value is read back exactly as it was written.

Strings, booleans and integers of 32 bits are stored as they are. Everything else is JSON text after `json:`:

- floats, because a double column stores six decimals;
- whole numbers beyond 32 bits, because the integer columns of MySQL and PostgreSQL are no larger;
- lists, dicts and None, which have no column;
- strings with a NUL, which are cut there; with a backslash, which ml-metadata 1.17 quotes wrongly for PostgreSQL (a
  syntax error); with half a surrogate pair, which protobuf refuses; and those that begin with `json:` or, as what
  ml-metadata takes for a struct, with `mlmd-struct::`.

JSON has backslashes of its own, so in that text they are written `%5C`, and `%` is `%25`.

ml-metadata has PostgreSQL index all texts, and an index there holds no more than 2704 bytes, compressed, of a property.
So of a longer text the property has the first piece, and `<property>#2`, `<property>#3`, … have the others.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import TypeAlias

from spanwise.orchestrator.artifact import Value

Stored: TypeAlias = bool | int | str
"""The values that we store in properties of ML Metadata."""

PIECE_BYTES = 2000
"""The index has the name of the property, too, of at most 255 characters."""

_parse = json.JSONDecoder().raw_decode  # json.loads takes twice as long, since it looks for spaces around the value

_JSON, _STRUCT = "json:", "mlmd-struct::"
_INT32 = range(-(2**31), 2**31)


def encode(value: Value) -> Stored:
    """Encodes a value for a property."""
    if isinstance(value, bool) or (isinstance(value, str) and _plain(value)):
        return value
    if isinstance(value, int) and value in _INT32:
        return value
    return _JSON + json.dumps(value).replace("%", "%25").replace("\\", "%5C")


def decode(encoded: Stored) -> Value:
    """Decodes the value of a property."""
    if not isinstance(encoded, str) or encoded[:5] != _JSON:  # faster than startswith; most values are plain
        return encoded
    text = encoded.removeprefix(_JSON)
    if "%" in text:
        text = text.replace("%5C", "\\").replace("%25", "%")
    value: Value = _parse(text)[0]
    return value


def divide(text: str) -> list[str]:
    """The pieces of a text; most have one."""
    if len(text) * 4 <= PIECE_BYTES:  # whatever its characters are
        return [text]
    encoded, pieces, start = text.encode(), [], 0
    while start < len(encoded):
        piece = encoded[start : start + PIECE_BYTES].decode(errors="ignore")  # without a character that was cut
        pieces.append(piece)
        start += len(piece.encode())
    return pieces


def name_piece(name: str, number: int) -> str:
    """The property of a further piece, of number 2 or more."""
    return f"{name}#{number}"


def join(first: Mapping[str, Stored], further: Mapping[str, Stored]) -> Mapping[str, Stored]:
    """The properties `first` with the rest of their texts, which is among `further`."""
    if "#" not in "".join(further):  # faster than to look at one name after another; very few have it
        return first
    return {name: _join(name, value, further) for name, value in first.items() if "#" not in name}


def _join(name: str, value: Stored, further: Mapping[str, Stored]) -> Stored:
    names = map(name_piece, itertools.repeat(name), itertools.count(2))
    pieces = [str(further[each]) for each in itertools.takewhile(further.__contains__, names)]
    return "".join([str(value), *pieces]) if pieces else value


def fits_an_integer(value: Value) -> bool:
    """Whether every database can store the value in an integer column."""
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT32


def is_storable(text: str) -> bool:
    """Whether every database can store this text as it is."""
    if "\0" in text or "\\" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(text: str) -> bool:
    return not text.startswith((_JSON, _STRUCT)) and is_storable(text)
