"""Records: our dataclasses as plain data, for JSON and for the metadata, and back.

Fields are text, numbers, truth values, times, lengths of time, paths, enums, literals, tuples, mappings and
dataclasses, or None. Importing pydantic would take longer than most commands that read a record.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from spanwise.orchestrator.artifact import Value

T = TypeVar("T")
Read: TypeAlias = Callable[[Any], Any]


class MisfitError(ValueError):
    """Data that is no such record."""

    def __init__(self, value: object, wanted: str, field: str = "") -> None:
        super().__init__(f"{field}: {value!r} is not {wanted}" if field else f"{value!r} is not {wanted}")
        self.value = value
        self.wanted = wanted
        self.field = field  #: the way to it, such as `timetable.retry.times`

    def below(self, name: str) -> MisfitError:
        """The same, of the value that holds it."""
        return MisfitError(self.value, self.wanted, f"{name}.{self.field}" if self.field else name)


def to_plain(record: object, *, without: Collection[str] = ()) -> dict[str, Value]:
    """A dataclass as plain data that JSON can hold; `without` are fields that are left out."""
    fields = _fields(cast("Any", type(record)))
    return {name: _plain(getattr(record, name), kind) for name, (kind, _) in fields.items() if name not in without}


def from_plain(kind: type[T], data: Mapping[str, object]) -> T:
    """The dataclass that `to_plain` wrote; fields that a newer program has added are ignored.

    Raises:
        MisfitError: the data does not fit.
    """
    return cast("T", _reader(cast("Any", kind))(data))


def _plain(value: object, kind: object) -> Value:  # noqa: PLR0911  a table of kinds
    if dataclasses.is_dataclass(value):
        return to_plain(value)
    match value:
        case Enum():
            return cast("Value", value.value)
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
        case Path():
            return str(value)
        case list() | tuple():
            return [_plain(each, None) for each in value]
        case Mapping():
            return {cast("str", _plain(key, None)): _plain(each, None) for key, each in value.items()}
        case int() if kind is float or float in get_args(kind):
            return value if isinstance(value, bool) else float(value)
    return cast("Value", value)


@functools.cache
def _fields(kind: type) -> dict[str, tuple[object, Read]]:
    """The annotation of each field, and what reads its value."""
    hints = typing.get_type_hints(kind)
    return {f.name: (hints[f.name], _reader(hints[f.name])) for f in dataclasses.fields(kind)}


@functools.cache
def _reader(kind: Any) -> Read:  # noqa: C901, PLR0911  a table of kinds
    if dataclasses.is_dataclass(kind):
        return functools.partial(_read_record, cast("type", kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return functools.partial(_parse, kind, kind, f"one of {', '.join(str(each.value) for each in kind)}")
    if kind is datetime:
        return functools.partial(_parse, kind, datetime.fromisoformat, "a time")
    if kind is timedelta:
        return functools.partial(_parse, kind, lambda value: timedelta(seconds=value), "a length of time in seconds")
    if kind is Path:
        return functools.partial(_parse, kind, Path, "a path")
    if isinstance(kind, type):
        return functools.partial(_read_value, kind)
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return functools.partial(_choose, inner)
    if get_origin(kind) is tuple and inner[1:] == (...,):
        return functools.partial(_read_tuple, _reader(inner[0]))
    if get_origin(kind) is Mapping:
        return functools.partial(_read_mapping, *map(_reader, inner))
    if get_origin(kind) in (Union, types.UnionType):
        return functools.partial(_read_any, [_reader(each) for each in inner])
    raise TypeError(f"A record has a field of {kind}, which records do not take.")


def _read_record(kind: type, data: object) -> object:
    if isinstance(data, kind):
        return data
    if not isinstance(data, Mapping):
        raise MisfitError(data, kind.__name__)
    given = {}
    for name, (_, read) in _fields(kind).items():
        if name not in data:
            continue
        try:
            given[name] = read(data[name])
        except MisfitError as error:
            raise error.below(name) from None
    try:
        return kind(**given)
    except TypeError as error:  # a field is missing
        raise MisfitError(dict(data), f"{kind.__name__} ({error})") from None


def _parse(kind: type, parse: Read, wanted: str, value: object) -> object:
    try:
        return value if isinstance(value, kind) else parse(value)
    except (TypeError, ValueError):
        raise MisfitError(value, wanted) from None


def _choose(choices: tuple[str, ...], value: object) -> object:
    if value not in choices:
        raise MisfitError(value, f"one of {', '.join(choices)}")
    return value


def _read_value(kind: type, value: object) -> object:
    if type(value) is kind:
        return value
    if (kind is float and type(value) is int) or (kind is int and isinstance(value, float) and value.is_integer()):
        return kind(value)
    raise MisfitError(value, f"of type {kind.__name__}")


def _read_tuple(read: Read, value: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise MisfitError(value, "a list")
    return tuple(map(read, value))


def _read_mapping(read_key: Read, read_value: Read, value: object) -> dict[object, object]:
    if not isinstance(value, Mapping):
        raise MisfitError(value, "a mapping")
    return {read_key(key): read_value(each) for key, each in value.items()}


def _read_any(readers: list[Read], value: object) -> object:
    """The first that reads it."""
    refusal = MisfitError(value, "of any of its types")
    for read in readers:
        try:
            return read(value)
        except MisfitError as error:
            refusal = error if value is not None and error.field else refusal
    raise refusal
