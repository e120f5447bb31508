"""Queries: where a SQL text refers to the span, and the values that are bound there. Pure; connects to no database.

    SELECT * FROM flights WHERE departed >= {SPAN_START} AND departed < {SPAN_END}

`{SPAN_START}` is where the span begins and `{SPAN_END}` where the next one does: dates for days, weeks, months and
quarters, instants in UTC for hours, whole numbers for spans that are just numbered. `{SPAN}` is the span's number. They
are bound as parameters and never pasted into the text. TFX's `@span_begin_timestamp`, `@span_end_timestamp` (seconds
since 1970, UTC) and `@span_yyyymmdd_utc` (text) are understood as well, for days.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TypeAlias

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import ParameterError, UsageError

Value: TypeAlias = "int | str | date | datetime"
"""What a parameter of a query may be."""

_NAMES = ("{SPAN_START}", "{SPAN_END}", "{SPAN}")
_TFX = ("@span_begin_timestamp", "@span_end_timestamp", "@span_yyyymmdd_utc")
_CASTS: dict[type, str] = {int: "bigint", str: "text", date: "date", datetime: "timestamptz"}
_SECONDS_A_DAY = 86_400

_TOKEN = re.compile(
    r"""(?P<quoted>(?<!\w)[Ee]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`"""
    r"|(?P<dollar>\$(?:[A-Za-z_]\w*)?\$).*?(?P=dollar))"
    r"|(?P<comment>--[^\n]*|/\*.*?\*/)"
    r"|(?P<hole>\{SPAN[A-Za-z_]*\}|@span_\w+)",
    re.DOTALL,
)


@dataclass(frozen=True)
class QueryPlaceholder:
    """The place of a value in a query."""

    name: str


@dataclass(frozen=True)
class Query:
    """A SQL text with the places of its values."""

    text: str  #: as the user wrote it, without a semicolon at its end
    parts: tuple[str | QueryPlaceholder, ...]

    @classmethod
    def parse(cls, text: str, who: str) -> Query:
        """Reads a query. `who` opens the message of an error.

        Raises:
            ParameterError: it is empty, has an unknown placeholder, or one inside quotes.
        """
        if not text.strip():
            raise ParameterError(f"{who} is empty; write a SELECT, for example: {_EXAMPLE}")
        text = text.rstrip().rstrip(";") + "\n"  # it may be put into brackets, and end with a comment
        parts: list[str | QueryPlaceholder] = []
        end = 0
        for token in _TOKEN.finditer(text):
            if token["comment"]:
                continue
            if token["quoted"]:
                _refuse_quoted(token["quoted"], who)
                continue
            if token["hole"] not in (*_NAMES, *_TFX):
                raise ParameterError(
                    f"{who} does not support the placeholder {token['hole']}; supported are {', '.join(_NAMES)}."
                )
            parts += [text[end : token.start()], QueryPlaceholder(token["hole"])]
            end = token.end()
        return cls(text, (*parts, text[end:]))

    def wrap(self, before: str, after: str) -> Query:
        """The query between two texts, which have no placeholders."""
        return Query(before + self.text + after, (before, *self.parts, after))

    @property
    def has_span(self) -> bool:
        """Whether it selects one span; without, all rows are span 0."""
        return any(isinstance(part, QueryPlaceholder) for part in self.parts)

    @property
    def counts_days(self) -> bool:
        """Whether it has one of TFX's placeholders, which are of days."""
        return any(isinstance(part, QueryPlaceholder) and part.name in _TFX for part in self.parts)

    def bind(self, span: int, calendar: Calendar) -> tuple[str, tuple[Value, ...]]:
        """The text with `?` for each value, and the values in their order.

        Raises:
            UsageError: the span is not a date.
        """
        values = _values(span, calendar) if self.has_span else {}
        text = "".join(part if isinstance(part, str) else "?" for part in self.parts)
        return text, tuple(values[part.name] for part in self.parts if isinstance(part, QueryPlaceholder))

    def bind_settings(self, span: int, calendar: Calendar) -> tuple[str, dict[str, str]]:
        """The text, in which each value is read from a setting of the transaction, and the settings. For PostgreSQL.

        Raises:
            UsageError: the span is not a date.
        """
        values = _values(span, calendar) if self.has_span else {}
        used = {part.name for part in self.parts if isinstance(part, QueryPlaceholder)}
        read = {name: f"(current_setting('{_setting(name)}')::{_CASTS[type(values[name])]})" for name in used}
        text = "".join(part if isinstance(part, str) else read[part.name] for part in self.parts)
        return text, {_setting(name): str(values[name]) for name in used}

    def fill(self, span: int, calendar: Calendar) -> str:
        """The text with the values in it, to read and to try by hand.

        Raises:
            UsageError: the span is not a date.
        """
        values = _values(span, calendar) if self.has_span else {}
        return "".join(part if isinstance(part, str) else _literal(values[part.name]) for part in self.parts).rstrip()


def span_of(value: object, calendar: Calendar, who: str) -> int:
    """The span that a date, an instant, a text of one, or a number stands for.

    Raises:
        UsageError: none of these, or a number that was probably meant otherwise, such as a year.
    """
    found = value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        found = int(value)
    elif isinstance(value, str):
        with contextlib.suppress(UsageError):
            return calendar.parse(value)
        found = _read_text(value)
    if isinstance(found, int) and not isinstance(found, bool):
        if calendar.is_likely(found):
            return found
        raise UsageError(
            f"{who} gives {value!r}, and numbers count {calendar.value}s from {calendar.label(0)}, so that is probably "
            f"meant otherwise. Give a date or an instant. {calendar.hint}"
        )
    if isinstance(found, datetime) and calendar is not Calendar.NUMBER:
        return calendar.span_at(found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC))
    if isinstance(found, date) and not isinstance(found, datetime) and calendar not in (Calendar.NUMBER, Calendar.HOUR):
        return calendar.span_at(datetime(found.year, found.month, found.day))  # noqa: DTZ001  a day, not a moment
    wanted = {Calendar.NUMBER: "a whole number", Calendar.HOUR: "an instant"}.get(calendar, "a date or its number")
    raise UsageError(f"{who} gives {value!r}, and the newest span is {wanted}. {calendar.hint}")


def _read_text(text: str) -> date | None:
    """A date or an instant in ISO 8601."""
    for read in (date.fromisoformat, datetime.fromisoformat):
        with contextlib.suppress(ValueError):
            return read(text)
    return None


def _setting(name: str) -> str:
    return "spanwise." + name.strip("{}@").lower()


def _refuse_quoted(quoted: str, who: str) -> None:
    inside = [name for name in (*_NAMES, *_TFX) if name in quoted]
    if inside:
        raise ParameterError(
            f"{who}: {inside[0]} is inside quotes, where it is only text: {quoted}. Remove the quotes; "
            "it is bound as a value and needs none."
        )


def _values(span: int, calendar: Calendar) -> dict[str, Value]:
    start, end = _begin(span, calendar), _begin(span + 1, calendar)
    values: dict[str, Value] = {"{SPAN}": span, "{SPAN_START}": start, "{SPAN_END}": end}
    if calendar is Calendar.DAY:
        values["@span_begin_timestamp"] = span * _SECONDS_A_DAY
        values["@span_end_timestamp"] = (span + 1) * _SECONDS_A_DAY
        values["@span_yyyymmdd_utc"] = str(start).replace("-", "")
    return values


def _begin(span: int, calendar: Calendar) -> Value:
    if calendar is Calendar.NUMBER:
        return span
    start = calendar.start_of(span)
    if start is None:
        raise UsageError(f"span {span:,} is not a {calendar.value} in the years 1 to 9999. {calendar.hint}")
    return start.replace(tzinfo=UTC) if calendar is Calendar.HOUR else start.date()


def _literal(value: Value) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"


_EXAMPLE = "SELECT * FROM flights WHERE departed >= {SPAN_START} AND departed < {SPAN_END}"
