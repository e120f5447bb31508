"""Span rules: which span a tick means. Pure; a rule of the user's own is only known by its name here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, TypeAlias

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import ScheduleError

SpanRule: TypeAlias = Callable[[datetime], int]
"""Returns the span that a tick means. It gets the wall time that the schedule names, in the schedule's zone."""


@dataclass(frozen=True)
class PeriodsBefore:
    """The hour, day, week, month or quarter so many before the one that the tick is in, in the schedule's zone.

    Hours are real ones: where clocks are put back, two hours of a year bear the same name; a schedule in UTC has no
    such hours.
    """

    count: int
    calendar: Calendar

    def __call__(self, tick: datetime) -> int:
        if self.calendar is Calendar.HOUR:
            shown = (tick.astimezone(UTC) - timedelta(hours=self.count)).astimezone(tick.tzinfo)
            return self.calendar.span_at(shown)
        return self.calendar.span_at(tick) - self.count


@dataclass(frozen=True)
class CustomSpanRule:
    """A span rule that only the pipeline file has, so that the file has to be asked for the span of a tick."""

    name: str  #: of the callable, for people
    calendar: ClassVar = Calendar.NUMBER


@dataclass(frozen=True)
class SourceRule:
    """The span rule of one node that ingests, where each has its own."""

    node: str
    rule: PeriodsBefore | CustomSpanRule


def plain_rule(rule: SpanRule) -> PeriodsBefore | CustomSpanRule:
    """A rule as plain data; of a user's own, only its name is left."""
    return rule if isinstance(rule, PeriodsBefore) else CustomSpanRule(rule_name(rule))


def hours_before(hours: int) -> PeriodsBefore:
    """The span is the hour so many hours before the tick: with 1, a run learns from the hour that has just ended."""
    return PeriodsBefore(_whole(hours, "hours_before"), Calendar.HOUR)


def days_before(days: int) -> PeriodsBefore:
    """The span is the day so many days before the tick: with 1, a run in the night learns from yesterday."""
    return PeriodsBefore(_whole(days, "days_before"), Calendar.DAY)


def weeks_before(weeks: int) -> PeriodsBefore:
    """The span is the ISO week so many weeks before that of the tick: with 1, a run learns from last week."""
    return PeriodsBefore(_whole(weeks, "weeks_before"), Calendar.WEEK)


def months_before(months: int) -> PeriodsBefore:
    """The span is the month so many months before that of the tick: with 1, a run on 1 May learns from April."""
    return PeriodsBefore(_whole(months, "months_before"), Calendar.MONTH)


def quarters_before(quarters: int) -> PeriodsBefore:
    """The span is the quarter so many quarters before that of the tick: with 1, a run learns from the last quarter."""
    return PeriodsBefore(_whole(quarters, "quarters_before"), Calendar.QUARTER)


def check_rule(rule: SpanRule | None, calendar: Calendar, pipeline: str) -> None:
    """Refuses a rule of another calendar than the pipeline's; a pipeline of numbers may count whatever it likes.

    Raises:
        ScheduleError: the spans of the pipeline are not what the rule counts.
    """
    if not isinstance(rule, PeriodsBefore) or calendar in (Calendar.NUMBER, rule.calendar):
        return
    raise ScheduleError(
        f"span={rule.calendar.value}s_before({rule.count}) gives {rule.calendar.value}s, and the spans of {pipeline!r} "
        f"are {calendar.value}s. Write for example span={calendar.value}s_before(1)."
    )


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
