"""Schedules: what a user writes of when a pipeline runs, and the timetables that follow from it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from spanwise.orchestrator.errors import ScheduleError
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.scheduler.schedule.cadence import find_zone, first_moment
from spanwise.scheduler.schedule.cron import CRON_EXAMPLE
from spanwise.scheduler.schedule.division import Part, check_division, division_of
from spanwise.scheduler.schedule.schedule_key import HALF_NAMES, WHOLE, schedule_key
from spanwise.scheduler.schedule.span_rule import SourceRule, SpanRule, plain_rule
from spanwise.scheduler.schedule.timetable import ScheduleTerms, Timetable

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Schedule(ScheduleTerms):
    """When a pipeline runs, for which span, and what is done when a tick comes and the last run has not ended.

        daily = Schedule(flights, cron="0 3 * * *", zone="America/New_York", span=days_before(1))

    With `parts` in place of `cron`, what ingests and what trains have a cadence each:

        Schedule(flights, parts={"ingest": "0 * * * *", "train": "0 3 * * *"}, span=hours_before(1))

    Further parts say at which node they begin: `"push": Part("0 9 * * 1", at="Evaluator")`.

    Raises:
        ScheduleError: a field cannot mean anything, or two contradict each other; found when it is made.
    """

    pipeline: Callable[..., Pipeline] | Pipeline | None = None  #: None: the only one in its file
    _: KW_ONLY
    parts: Mapping[str, str | Part] | None = None  #: the parts in order, each with a cron: "ingest", "train", …
    span: SpanRule | Mapping[str, SpanRule | None] | None = None
    """Which span a tick means; None: the newest there is, which may be an old one. With parts, it is that of what is
    ingested, and what trains learns from the newest; a mapping says it for each. A mapping by nodes gives each node
    that ingests a rule of its own; the span of the first one names the tick."""
    start: datetime | date | None = None  #: no tick before; without a zone it is wall time, a date is its first moment
    end: datetime | date | None = None  #: no tick after; a date is its last moment

    def __post_init__(self) -> None:
        if not (self.pipeline is None or isinstance(self.pipeline, Pipeline) or callable(self.pipeline)):
            raise ScheduleError(f"{self.pipeline!r} is no pipeline, nor a function that makes one.")
        _check_parts(self)
        timetables_of(self, _name_of(self.pipeline))


def timetables_of(schedule: Schedule, pipeline: str) -> list[Timetable]:
    """The timetables of a schedule whose pipeline has this name: one, or one for each part."""
    return [timetable_of(schedule, pipeline, part) for part in (schedule.parts or {WHOLE: ""})]


def rule_of(schedule: Schedule, part: str) -> SpanRule | None:
    """The span rule of a part."""
    if rules := source_rules(schedule, part):
        return next(iter(rules.values()))
    if isinstance(schedule.span, Mapping):
        return schedule.span.get(part)
    return schedule.span if _is_first(schedule, part) else None


def _is_first(schedule: Schedule, part: str) -> bool:
    return schedule.parts is None or part == next(iter(schedule.parts))


def source_rules(schedule: Schedule, part: str) -> Mapping[str, SpanRule | None]:
    """The span rule of each node that ingests in a part; empty where they have none of their own."""
    by_node = isinstance(schedule.span, Mapping) and not set(schedule.span) & set(schedule.parts or HALF_NAMES)
    return schedule.span if by_node and _is_first(schedule, part) else {}  # type: ignore[return-value]


def timetable_of(schedule: Schedule, pipeline: str, part: str = WHOLE) -> Timetable:
    """The timetable of a part of a schedule whose pipeline has this name; without a part, of all of it."""
    zone = find_zone(schedule.zone)
    span, rules = rule_of(schedule, part), source_rules(schedule, part)
    if span is not None and not callable(span):
        raise ScheduleError(
            f"span={span!r} cannot be called with a tick. Say which span a tick means, for example span=days_before(1)."
        )
    terms = {f.name: getattr(schedule, f.name) for f in fields(ScheduleTerms)}
    if schedule.parts is not None:
        own = schedule.parts[part]
        terms["cron"] = own.cron if isinstance(own, Part) else own
        if _is_first(schedule, part):
            terms["freshness"] = None  # it pushes no model
        if isinstance(own, Part):
            terms |= own.terms
            zone = find_zone(str(terms["zone"]))
    return Timetable(
        schedule_key(pipeline, part),
        span=None if span is None else plain_rule(span),
        sources=tuple(SourceRule(node, plain_rule(rule)) for node, rule in rules.items() if rule is not None),
        start=_bound("start", schedule.start, zone),
        end=_bound("end", schedule.end, zone),
        division=() if schedule.parts is None else division_of(schedule.parts),
        **terms,
    )


def _bound(name: str, value: object, zone: ZoneInfo) -> datetime | None:
    """A bound of a schedule in UTC: a date is its first moment as a start, its last as an end."""
    match value:
        case None:
            return None
        case datetime():
            whole = value.replace(microsecond=0)
            return whole.astimezone(UTC) if whole.tzinfo is not None else first_moment(zone, whole)
        case date():
            midnight = datetime.combine(value, time())
            return first_moment(zone, midnight) if name == "start" else first_moment(zone, midnight + _DAY) - _SECOND
    raise ScheduleError(f"{name}={value!r} is no date. Write for example {name}=date(2026, 3, 1).")


def _name_of(pipeline: object) -> str:
    return str(getattr(pipeline, "name", None) or getattr(pipeline, "__name__", "pipeline"))


def _check_parts(schedule: Schedule) -> None:
    parts, span = schedule.parts, schedule.span
    example = 'parts={"ingest": "0 * * * *", "train": "0 3 * * *"}'
    if parts is None:
        if isinstance(span, Mapping) and (not span or set(span) & set(HALF_NAMES)):
            raise ScheduleError(
                f"span={span!r} is for a schedule with parts=. Write one rule, one by node, or {example}."
            )
        if not schedule.cron:
            raise ScheduleError(f"cron {schedule.cron!r} has 0 fields. {CRON_EXAMPLE} Or one for each part: {example}.")
        return
    if schedule.cron:
        raise ScheduleError(f"cron={schedule.cron!r} and parts= exclude each other: parts= gives each part a cron.")
    check_division(parts, [f.name for f in fields(ScheduleTerms) if f.name != "cron"])
    by_part = isinstance(span, Mapping) and (not span or set(span) & set(parts))  # else rules by node
    unknown = [part for part in span if part not in parts] if isinstance(span, Mapping) and by_part else []
    if unknown or (by_part and not span):
        raise ScheduleError(f"span= takes {' and '.join(parts)}, not {unknown[0] if unknown else span!r}.")
