"""Span rules: which span a tick means. Pure; a rule of the user's own is only known by its name here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import ClassVar, TypeAlias

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import ScheduleError

SpanRule: TypeAlias = Callable[[datetime], int]
"""Returns the span that a tick means. It gets the wall time that the schedule names, in the schedule's zone."""

_DAY_ZERO = date(1970, 1, 1)
_HOURS = 24


@dataclass(frozen=True)
class DaysBefore:
    """The day so many days before the tick, in the schedule's zone: the span rule of a calendar of days."""

    days: int
    calendar: ClassVar = Calendar.DAY

    def __call__(self, tick: datetime) -> int:
        return (tick.date() - _DAY_ZERO).days - self.days


@dataclass(frozen=True)
class HoursBefore:
    """The hour that the clock showed so many real hours before the tick, in the schedule's zone.

    Where clocks are put back, two hours of a year bear the same name; a schedule in UTC has no such hours.
    """

    hours: int
    calendar: ClassVar = Calendar.HOUR

    def __call__(self, tick: datetime) -> int:
        shown = (tick.astimezone(UTC) - timedelta(hours=self.hours)).astimezone(tick.tzinfo)
        return (shown.date() - _DAY_ZERO).days * _HOURS + shown.hour


@dataclass(frozen=True)
class CustomSpanRule:
    """A span rule that only the pipeline file has, so that the file has to be asked for the span of a tick."""

    name: str  #: of the callable, for people
    calendar: ClassVar = Calendar.NUMBER


def days_before(days: int) -> DaysBefore:
    """The span is the day so many days before the tick: with 1, a run in the night learns from yesterday."""
    return DaysBefore(_whole(days, "days_before"))


def hours_before(hours: int) -> HoursBefore:
    """The span is the hour so many hours before the tick: with 1, a run learns from the hour that has just ended."""
    return HoursBefore(_whole(hours, "hours_before"))


def _whole(number: int, name: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise ScheduleError(f"{name} takes a whole number, not {number!r}; for example {name}(1).")
    return number


def apply_rule(rule: SpanRule, wall: datetime) -> int:
    try:
        span = rule(wall)
    except Exception as error:
        raise ScheduleError(
            f"the span rule {rule_name(rule)} failed for the tick {wall.isoformat()}: {type(error).__name__}: {error}"
        ) from error
    if isinstance(span, bool) or not isinstance(span, int):
        raise ScheduleError(
            f"the span rule {rule_name(rule)} gave {span!r} for the tick {wall.isoformat()}, which is no whole number."
        )
    return span


def rule_name(rule: SpanRule) -> str:
    return str(getattr(rule, "__qualname__", repr(rule)))
