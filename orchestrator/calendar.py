"""Calendars: how spans are counted, written and typed. Pure.

A span is a whole number: whatever number the data is named by, or the hours, days, ISO weeks, months or quarters since
the one that 1970-01-01 is in. Neighbours differ by one in every calendar, also across the end of a year, so that a
window can count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import Enum
from typing import TypeAlias

from spanwise.orchestrator.errors import UsageError

Version: TypeAlias = "int | None"  # None: the data has no versions

MOST_DIGITS = 18
"""Of a span or version: the metadata stores them in 64 bits."""

DIGITS: Mapping[str, int] = {"YYYY": 4, "MM": 2, "DD": 2, "HH": 2, "GGGG": 4, "WW": 2, "Q": 1}
"""How many digits each part of a date has. `GGGG` is the ISO year, which the days around New Year share with their
week: 2025-12-29 is in 2026-W01."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  a name, not a moment
_HOURS_PER_DAY = 24
_MONTHS_PER_YEAR = 12
_MONTHS_PER_QUARTER = 3
_DAYS_PER_WEEK = 7
_DAYS_BEFORE_EPOCH = 3  # 1970-W01 began on Monday 1969-12-29
_ALWAYS_IN_LAST_WEEK = (12, 28)  # month and day

_LIKELY = ("1980", "2200")  # years; a number of a date before or after is probably meant otherwise
_YEARS = range(1900, 2200)  # of longer spans, such a number is meant as a year: week 2026 would be 2008-W44

_LONGEST_LIST = 8  # more spans than this are shortened in a message
_ENDS = 3  # to this many at each end
_RANGE = 4  # from the first span of an example to the last


class Calendar(Enum):
    """What a span counts, and so how it is written and typed."""

    NUMBER = "number"  #: a span is whatever number the pattern's {SPAN} reads
    HOUR = "hour"  #: hours since 1970-01-01T00
    DAY = "day"  #: days since 1970-01-01; earlier days are negative
    WEEK = "week"  #: ISO weeks, Monday to Sunday, since 1970-W01
    MONTH = "month"  #: months since 1970-01
    QUARTER = "quarter"  #: quarters since 1970-Q1

    @classmethod
    def from_name(cls, name: object) -> Calendar:
        """The calendar of that name; NUMBER for an unknown one."""
        return next((calendar for calendar in cls if calendar.value == name), cls.NUMBER)

    @property
    def date_parts(self) -> tuple[str, ...]:
        """The parts of a date that name a span, such as `YYYY` and `MM`; none where spans are numbers."""
        return tuple(re.findall(r"[{]([A-Z]+)[}]", _LABELS.get(self.value, "")))

    def label(self, span: int) -> str:
        """The span as people write it: `7`, `2013-01-05`, `2013-01-05T13`, `2013-W01`, `2013-01`, `2013-Q1`.

        A span outside the years 1 to 9999 has no date and is written as its number.
        """
        texts = self.write_date(span)
        return str(span) if texts is None else _LABELS[self.value].format(**texts)

    def parse(self, text: str) -> int:
        """The span that `text` names: its label or its plain number.

        Raises:
            UsageError: it is neither, there is no such date (`2025-W53`), or it is a number without a date, such as
                `20130105` (a day 57,000 years from now).
        """
        text = text.strip()
        if re.fullmatch(rf"[+-]?[0-9]{{1,{MOST_DIGITS}}}", text):
            return self._number(text)
        if self is not Calendar.NUMBER and (found := _label_regex(_LABELS[self.value]).fullmatch(text)):
            parts = {name: int(digits) for name, digits in found.groupdict().items()}
            span = self.read_date(parts)
            if span is not None:
                return span
            raise UsageError(f"{text!r} is not a span: {self._reason(parts)}. {self.hint}")
        if ".." in text:
            raise UsageError(f"{text!r} is a range of spans; one span is wanted here. {self.hint}")
        raise UsageError(f"{text!r} is not a span. {self._meant(text)}{self.hint}")

    def is_likely(self, number: int) -> bool:
        """Whether a plain number given for a span is meant so: it is not small, a year or a date without dashes.

        `5` would be 1970-01-06, and week 202604 is in the year 5852.
        """
        if self is Calendar.NUMBER:
            return True
        is_year = self in (Calendar.WEEK, Calendar.MONTH, Calendar.QUARTER) and number in _YEARS
        return self.start_of(number) is not None and _LIKELY[0] <= self.label(number) < _LIKELY[1] and not is_year

    def parse_range(self, text: str) -> tuple[int, int]:
        """The first and last span of `A..B`, both included; `A` alone is the range from A to A."""
        first, dots, last = text.partition("..")
        if dots and not (first.strip() and last.strip()):
            example = self.parse(_EXAMPLES[self.value])
            both = f"{self.label(example)}..{self.label(example + _RANGE)}"
            raise UsageError(f"{text!r} is a range with an open end; write both, for example {both}.")
        start = self.parse(first)
        end = self.parse(last) if dots else start
        if end < start:
            raise UsageError(
                f"{text!r} is an empty range: {self.label(end)} is before {self.label(start)}. "
                f"Write the earlier span first: {self.label(end)}..{self.label(start)}"
            )
        return start, end

    def start_of(self, span: int) -> datetime | None:
        """The wall time at which the span begins; None for a number, and outside the years 1 to 9999."""
        starts: dict[Calendar, Callable[[], datetime]] = {
            Calendar.HOUR: lambda: _EPOCH + timedelta(hours=span),
            Calendar.DAY: lambda: _EPOCH + timedelta(days=span),
            Calendar.WEEK: lambda: _EPOCH + timedelta(days=span * _DAYS_PER_WEEK - _DAYS_BEFORE_EPOCH),
            Calendar.MONTH: lambda: _month(span),
            Calendar.QUARTER: lambda: _month(span * _MONTHS_PER_QUARTER),
        }
        try:
            return starts[self]() if self in starts else None
        except (OverflowError, ValueError):
            return None

    def span_at(self, wall: datetime) -> int:
        """The span that a wall time is in. A calendar of numbers has none."""
        days = (wall.date() - _EPOCH.date()).days
        months = (wall.year - _EPOCH.year) * _MONTHS_PER_YEAR + wall.month - 1
        match self:
            case Calendar.HOUR:
                return days * _HOURS_PER_DAY + wall.hour
            case Calendar.DAY:
                return days
            case Calendar.WEEK:
                return (days + _DAYS_BEFORE_EPOCH) // _DAYS_PER_WEEK
            case Calendar.MONTH:
                return months
            case Calendar.QUARTER:
                return months // _MONTHS_PER_QUARTER
            case Calendar.NUMBER:
                raise ValueError("a calendar of numbers knows no dates")

    def write_date(self, span: int) -> dict[str, str] | None:
        """The parts of the span's date, padded with zeros: `{"YYYY": "2013", "MM": "01"}`; None when it has no date."""
        start = self.start_of(span)
        if start is None:
            return None
        iso = start.isocalendar()
        parts = {
            "YYYY": start.year,
            "MM": start.month,
            "DD": start.day,
            "HH": start.hour,
            "GGGG": iso.year,
            "WW": iso.week,
            "Q": (start.month - 1) // _MONTHS_PER_QUARTER + 1,
        }
        return {name: f"{parts[name]:0{DIGITS[name]}}" for name in self.date_parts}

    def read_date(self, parts: Mapping[str, int]) -> int | None:
        """The span whose date has these parts; None when there is no such date."""
        try:
            match self:
                case Calendar.WEEK:
                    start = datetime.fromisocalendar(parts["GGGG"], parts["WW"], 1)
                case Calendar.QUARTER:
                    start = datetime(parts["YYYY"], parts["Q"] * _MONTHS_PER_QUARTER - 2, 1)  # noqa: DTZ001  as above
                case _:
                    start = datetime(parts["YYYY"], parts["MM"], parts.get("DD", 1), parts.get("HH", 0))  # noqa: DTZ001
        except ValueError:
            return None
        return self.span_at(start)

    @property
    def example(self) -> str:
        """A label for messages."""
        return _EXAMPLES[self.value]

    @property
    def hint(self) -> str:
        """A sentence for messages: what a span is, with an example."""
        if self is Calendar.NUMBER:
            return "A span is a whole number here, for example 7."
        written = _EXAMPLES[self.value]
        article = "an" if self is Calendar.HOUR else "a"
        return f"A span is {article} {self.value} here, for example {written} (or its number, {self.parse(written)})."

    def _number(self, text: str) -> int:
        span = int(text)
        if self is Calendar.NUMBER or self.start_of(span) is not None:
            return span
        raise UsageError(
            f"{text!r} is not a span: {span:,} {self.value}s from {self.label(0)} is outside the years 1 to 9999. "
            f"{self._meant(text)}{self.hint}"
        )

    def _meant(self, text: str) -> str:
        """The label that has the digits of a text, where these are separated in another way: `2013/1/5`, `20130105`."""
        if self is Calendar.NUMBER:
            return ""
        label, widths = _LABELS[self.value], [DIGITS[name] for name in self.date_parts]
        groups = re.findall("[0-9]+", text)
        if groups and len(groups[0]) == len(text) == sum(widths):
            groups = [text[sum(widths[:n]) : sum(widths[: n + 1])] for n in range(len(widths))]
        if len(groups) != len(widths) or len(groups[0]) != widths[0] or max(map(len, groups)) > widths[0]:
            return ""  # the year comes first, in four digits: otherwise 05/01/13 would be guessed
        if set(re.sub("[0-9/._ -]", "", text).upper()) != set(re.sub("[{][A-Z]+[}]|-", "", label)):
            return ""
        span = self.read_date({name: int(digits) for name, digits in zip(self.date_parts, groups, strict=True)})
        return "" if span is None else f"Did you mean {self.label(span)}? "

    def _reason(self, parts: Mapping[str, int]) -> str:
        """Why there is no such date."""
        year = parts.get("GGGG", 0)
        if self is Calendar.WEEK and year:
            return f"the ISO year {year:04} has {date(year, *_ALWAYS_IN_LAST_WEEK).isocalendar().week} weeks"
        return f"there is no such {self.value}"


_LABELS = {
    "hour": "{YYYY}-{MM}-{DD}T{HH}",
    "day": "{YYYY}-{MM}-{DD}",
    "week": "{GGGG}-W{WW}",
    "month": "{YYYY}-{MM}",
    "quarter": "{YYYY}-Q{Q}",
}
_EXAMPLES = {
    "number": "7",
    "hour": "2013-01-05T13",
    "day": "2013-01-05",
    "week": "2013-W01",
    "month": "2013-01",
    "quarter": "2013-Q1",
}


def _label_regex(label: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"[{]([A-Z]+)[}]", lambda name: f"(?P<{name[1]}>[0-9]{{{DIGITS[name[1]]}}})", label))


def _month(months: int) -> datetime:
    years, month = divmod(months, _MONTHS_PER_YEAR)
    return datetime(_EPOCH.year + years, month + 1, 1)  # noqa: DTZ001  a name, not a moment


def format_versions(spans: Iterable[tuple[int, Version]], calendar: Calendar) -> str:
    """Spans with their versions, adjacent ones merged: `2013-01-02 v2, 2013-01-03 to 2013-01-05 v1`."""
    groups: list[list[tuple[int, Version]]] = []
    for span, version in spans:
        if groups and groups[-1][-1] == (span - 1, version):
            groups[-1].append((span, version))
        else:
            groups.append([(span, version)])
    if len(groups) > _LONGEST_LIST:
        ids = [span for group in groups for span, _ in group]
        return f"{len(ids)} spans, {calendar.label(min(ids))} to {calendar.label(max(ids))}"
    return ", ".join(_range(group, calendar) for group in groups)


def _range(group: Sequence[tuple[int, Version]], calendar: Calendar) -> str:
    (first, version), (last, _) = group[0], group[-1]
    suffix = "" if version is None else f" v{version}"
    return f"{calendar.label(first)}{f' to {calendar.label(last)}' if last != first else ''}{suffix}"


def format_labels(spans: Sequence[int], calendar: Calendar) -> str:
    """The labels of spans, the middle of a long list left out: `1, 2, 3 ... 7, 8, 9 (9 in all)`."""
    labels = [calendar.label(span) for span in spans]
    if len(labels) <= _LONGEST_LIST:
        return ", ".join(labels)
    return f"{', '.join(labels[:_ENDS])} ... {', '.join(labels[-_ENDS:])} ({len(labels)} in all)"
