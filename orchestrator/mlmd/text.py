"""Values as ML Metadata can keep them: whatever JSON can say goes in and comes back exactly equal.

A string is kept as it is, a boolean and a number of 32 bits too. Everything else is JSON text after `json:`:

- floats, because a double column keeps six decimals;
- whole numbers beyond 32 bits, because the integer columns of MySQL and PostgreSQL hold no more;
- lists, dicts and None, which have no column;
- strings with a NUL, which are cut there; with a backslash, which ml-metadata 1.17 quotes wrongly for PostgreSQL (a
  syntax error); with half a surrogate pair, which protobuf refuses; and those that begin with `json:`.

JSON has backslashes of its own, so in that text they are written `%5C`, and `%` is `%25`.
"""

from __future__ import annotations

import json
from typing import TypeAlias

from spanwise.orchestrator.artifact import Value

Stored: TypeAlias = bool | int | str
"""What a property of ML Metadata holds here."""

_JSON = "json:"
_INT32 = range(-(2**31), 2**31)


def stored(value: Value) -> Stored:
    """The value as a property keeps it."""
    if isinstance(value, bool) or (isinstance(value, str) and _plain(value)):
        return value
    if isinstance(value, int) and value in _INT32:
        return value
    return _JSON + json.dumps(value).replace("%", "%25").replace("\\", "%5C")


def restored(kept: Stored) -> Value:
    """What was put in."""
    if isinstance(kept, str) and kept.startswith(_JSON):
        text = kept.removeprefix(_JSON).replace("%5C", "\\").replace("%25", "%")
        value: Value = json.loads(text)
        return value
    return kept


def fits_an_integer(value: Value) -> bool:
    """Whether every database can keep it in an integer column."""
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT32


def keepable(text: str) -> bool:
    """Whether every database keeps this text as it is."""
    if "\0" in text or "\\" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(text: str) -> bool:
    return not text.startswith(_JSON) and keepable(text)
