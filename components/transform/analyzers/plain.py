"""Plain values as JSON that keeps their types: dates, bytes, decimals, NaN and infinities come back as they were."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TypeAlias
from zoneinfo import ZoneInfo

Plain: TypeAlias = (
    "None | bool | int | float | str | bytes | date | datetime | time | timedelta | Decimal | list[Plain] "
    "| tuple[Plain, ...] | dict[str, Plain]"
)

_MICROSECOND = timedelta(microseconds=1)


def _format_moment(moment: datetime) -> str:
    """The moment with its offset and, where it has one, the name of its zone, as in RFC 9557."""
    zone = moment.tzinfo.key if isinstance(moment.tzinfo, ZoneInfo) else None
    return moment.isoformat() + (f"[{zone}]" if zone else "")


def _parse_moment(text: str) -> datetime:
    moment, _, zone = text.rstrip("]").partition("[")
    found = datetime.fromisoformat(moment)
    return found.astimezone(ZoneInfo(zone)) if zone else found


# The exact class decides: a datetime is a date, and a bool an int.
_WRITE: dict[type, tuple[str, Callable[..., str]]] = {
    bytes: ("bytes", lambda v: base64.b64encode(v).decode()),
    datetime: ("datetime", _format_moment),
    date: ("date", date.isoformat),
    time: ("time", time.isoformat),
    timedelta: ("microseconds", lambda v: str(v // _MICROSECOND)),
    Decimal: ("decimal", str),
}
_READ: dict[str, Callable[[str], Plain]] = {
    "float": float,
    "bytes": base64.b64decode,
    "datetime": _parse_moment,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "microseconds": lambda v: timedelta(microseconds=int(v)),
    "decimal": Decimal,
}


def dumps(value: Plain, *, indent: int | None = None) -> str:
    """The value as JSON text, the same for equal values; a tuple comes back as a list.

    Raises:
        TypeError: it is, or holds, something that is not plain; the message says what.
    """
    return json.dumps(to_json(value), ensure_ascii=False, allow_nan=False, indent=indent)


def loads(text: str) -> Plain:
    """The reverse of `dumps`."""
    return from_json(json.loads(text))


def to_json(value: Plain) -> object:
    """The value in JSON's own types: what JSON lacks is an object with one key that starts with '$'."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) and not key.startswith("$") for key in value):
            raise TypeError(f"the keys of a plain dict are texts that do not start with '$', not {list(value)!r}")
        return {key: to_json(value[key]) for key in sorted(value)}
    if type(value) not in _WRITE:
        raise TypeError(f"{type(value).__qualname__} is not plain: use numbers, text, bytes, dates, lists and dicts")
    tag, write = _WRITE[type(value)]
    return {f"${tag}": write(value)}


def from_json(value: object) -> Plain:
    """The reverse of `to_json`."""
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, text),) = value.items()
            if key.startswith("$"):
                return _READ[key[1:]](text)
        return {key: from_json(each) for key, each in value.items()}
    assert value is None or isinstance(value, bool | int | float | str)
    return value
