"""Calendars: how spans are counted, written and typed. Pure.

A span is a whole number: whatever number the data is named by, or the days or hours since 1970-01-01.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from enum import Enum
from typing import TypeAlias

from spanwise.orchestrator.errors import UsageError

Version: TypeAlias = "int | None"  # None: the data has no versions

MOST_DIGITS = 18
"""Of a span or version: the metadata stores them in 64 bits."""

HOURS_PER_DAY = 24

_DAY_ZERO = date(1970, 1, 1)
_LONGEST_LIST = 8  # more spans than this are shortened in a message
_ENDS = 3  # to this many at each end

_LABEL = {
    "DAY": re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"),
    "HOUR": re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})T(?P<hour>[0-9]{2})"),
}


class Calendar(Enum):
    """What a span counts, and so how it is written and typed."""

    NUMBER = "number"  #: a span is whatever number the pattern's {SPAN} reads
    DAY = "day"  #: days since 1970-01-01; earlier days are negative
    HOUR = "hour"  #: hours since 1970-01-01T00

    @classmethod
    def from_name(cls, name: object) -> Calendar:
        """The calendar of that name; NUMBER for an unknown one."""
        return next((calendar for calendar in cls if calendar.value == name), cls.NUMBER)

    def label(self, span: int) -> str:
        """The span as people write it: `7`, `2013-01-05`, `2013-01-05T13`.

        A span outside the years 1 to 9999 has no date and is written as its number.
        """
        days, hour = divmod(span, HOURS_PER_DAY) if self is Calendar.HOUR else (span, 0)
        day = day_of(days)
        if self is Calendar.NUMBER or day is None:
            return str(span)
        return f"{day}T{hour:02}" if self is Calendar.HOUR else str(day)

    def parse(self, text: str) -> int:
        """The span that `text` names: its label or its plain number.

        Raises:
            UsageError: it is neither, or a number without a date, such as `20130105` (a day 57,000 years from now).
        """
        text = text.strip()
        if re.fullmatch(rf"[+-]?[0-9]{{1,{MOST_DIGITS}}}", text):
            return self._number(text)
        if self is not Calendar.NUMBER and (found := _LABEL[self.name].fullmatch(text)):
            span = span_of(found)
            if span is not None:
                return span
        raise UsageError(f"{text!r} is not a span. {self.hint}")

    def parse_range(self, text: str) -> tuple[int, int]:
        """The first and last span of `A..B`, both included; `A` alone is the range from A to A."""
        first, dots, last = text.partition("..")
        if dots and not (first.strip() and last.strip()):
            raise UsageError(f"{text!r} is a range with an open end; write both, for example {self._example_range}.")
        start = self.parse(first)
        end = self.parse(last) if dots else start
        if end < start:
            raise UsageError(
                f"{text!r} is an empty range: {self.label(end)} is before {self.label(start)}. "
                f"Write the earlier span first: {self.label(end)}..{self.label(start)}"
            )
        return start, end

    def _number(self, text: str) -> int:
        span = int(text)
        if self is Calendar.NUMBER or day_of(span // HOURS_PER_DAY if self is Calendar.HOUR else span) is not None:
            return span
        raise UsageError(
            f"{text!r} is not a span: {span:,} {self.value}s from 1970-01-01 is outside the years 1 to 9999. "
            f"{self.hint}"
        )

    @property
    def hint(self) -> str:
        """A sentence for messages: what a span is, with an example."""
        if self is Calendar.NUMBER:
            return "A span is a whole number here, for example 7."
        example = self.parse(self._example)
        article = "an" if self is Calendar.HOUR else "a"
        return f"A span is {article} {self.value} here, for example {self._example} (or its number, {example})."

    @property
    def _example(self) -> str:
        return {"NUMBER": "7", "DAY": "2013-01-05", "HOUR": "2013-01-05T13"}[self.name]

    @property
    def _example_range(self) -> str:
        return {
            "NUMBER": "7..9",
            "DAY": "2013-01-05..2013-01-09",
            "HOUR": "2013-01-05T13..2013-01-05T18",
        }[self.name]


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


def day_of(days: int) -> date | None:
    """The date of a day since 1970-01-01; None outside the years 1 to 9999."""
    try:
        return _DAY_ZERO + timedelta(days=days)
    except OverflowError:
        return None


def span_of(match: re.Match[str]) -> int | None:
    """Days since 1970-01-01, or hours where the match has that group; None when it is not a date."""
    texts = match.groupdict()
    try:
        at = datetime(int(texts["year"]), int(texts["month"]), int(texts["day"]), int(texts.get("hour", 0)))  # noqa: DTZ001  a name, not a moment
    except ValueError:
        return None
    days = (at.date() - _DAY_ZERO).days
    return days * HOURS_PER_DAY + at.hour if "hour" in texts else days
