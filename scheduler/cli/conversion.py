"""Conversion: option values of the plainest types, without typer's converters, which import pydantic.

Text, lists of text, numbers in range and names of choices are converted here. Everything else, and every mistake, goes
to typer, which knows the message. Importing pydantic took `spanwise runs` two fifths of its time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any

from typer import core

_OTHER = object()  # what only typer can convert
_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def convert_plainly() -> None:
    """Makes typer convert plain values here, in this process."""
    # Typer has no public place for it. A typer that has moved this function converts everything itself, only slower.
    builder = getattr(core, "build_runtime_param", None)
    if builder is not None and not isinstance(builder, _Builder):
        vars(core)["build_runtime_param"] = _Builder(builder)


class _Builder:
    """Takes the place of typer's function that builds the converter of a parameter."""

    def __init__(self, own: Callable[[Any], Any]) -> None:
        self._own = own

    def __call__(self, descriptor: Any) -> _Converter:
        return _Converter(descriptor, lambda: self._own(descriptor))


class _Converter:
    def __init__(self, descriptor: Any, build_own: Callable[[], Any]) -> None:
        self._kind = descriptor.annotation
        self._limits = descriptor.parameter_info
        self._build_own = build_own

    def coerce(self, value: object, param: Any, ctx: Any) -> object:
        """The value as the function of the command takes it."""
        plain = self._convert_many(value) if param.multiple or param.nargs == -1 else self._convert(value)
        return self._build_own().coerce(value, param=param, ctx=ctx) if plain is _OTHER else plain

    def _convert_many(self, value: object) -> object:
        if value is None:
            return ()
        is_text = isinstance(value, list | tuple) and all(type(each) is str for each in value)
        return [*value] if is_text and self._kind == list[str] else _OTHER  # type: ignore[misc]  # it is one of those

    def _convert(self, value: object) -> object:
        if value is None:
            return None
        if self._limits.parser is not None:
            return _OTHER
        if self._kind is str:
            return value if type(value) is str else _OTHER
        if self._kind in (int, float):
            return self._convert_number(value)
        if isinstance(self._kind, type) and issubclass(self._kind, Enum):
            return next((each for each in self._kind if value is each or value == each.value), _OTHER)
        return _OTHER

    def _convert_number(self, value: object) -> object:
        if self._kind is int and isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if not isinstance(value, int | float) or type(value) is not self._kind:
            return _OTHER
        low, high = self._limits.min, self._limits.max
        return value if (low is None or value >= low) and (high is None or value <= high) else _OTHER
