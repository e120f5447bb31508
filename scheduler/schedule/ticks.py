"""Ticks: the moments at which a timetable wants a run, what each is called, and which span it names. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from spanwise.scheduler.schedule.cadence import describe_clock_change, last_moment, moments_after
from spanwise.scheduler.schedule.schedule_key import WHOLE, part_of
from spanwise.scheduler.schedule.span_rule import CustomSpanRule, SourceRule, SpanRule, apply_rule
from spanwise.scheduler.schedule.timetable import Timetable

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A moment at which a pipeline is to run."""

    at: datetime  #: the scheduled moment, UTC; never the moment somebody woke up
    name: str  #: unique in its pipeline: `2026-03-08T03:00` (wall time), or `2026-03-08T08:00Z` when every hour counts
    wall: datetime = field(compare=False)
    """The time that the expression names, in the schedule's zone; in a gap it is one that no clock shows."""
    span: int | None = None  #: None: the newest there is, unless it is `span_unknown`
    note: str = ""  #: what a change of the clock did to it
    part: str = WHOLE  #: which part of the pipeline runs
    from_scratch: bool = False  #: its run starts from no earlier model
    ruled_by_file: bool = False  #: only the pipeline file knows its span
    by_node: Mapping[str, int] | None = field(default=None, compare=False)
    """The span of each node that ingests, where each has its own, else none; None: nobody has said or recorded it."""

    @property
    def span_unknown(self) -> bool:
        """Whether it means a certain span, and nobody has said which: not the newest there is."""
        return self.ruled_by_file and self.span is None


def ticks(timetable: Timetable, after: datetime, until: datetime | None = None) -> Iterator[Tick]:
    """The ticks after `after`, ascending, up to `until` or the end of the schedule; `until` itself is included."""
    if not timetable.cron:
        return
    expression, zone = timetable.expression, timetable.clock
    begin = after.astimezone(UTC).replace(microsecond=0)
    if timetable.start is not None:
        begin = max(begin, timetable.start - _SECOND)
    bounds = [bound for bound in (until, timetable.end) if bound is not None]
    end = min(bounds) if bounds else None
    for wall, at in moments_after(expression, zone, begin):
        if end is not None and at > end:
            return
        yield _tick(timetable, wall, at)


def latest(timetable: Timetable, at: datetime) -> Tick | None:
    """The last tick at or before a moment; None when the schedule had not begun."""
    if not timetable.cron:
        return None
    expression, zone = timetable.expression, timetable.clock
    end = at if timetable.end is None else min(at, timetable.end)
    moment = end.astimezone(UTC).replace(microsecond=0)
    wall, found = last_moment(expression, zone, moment)
    if timetable.start is not None and found < timetable.start:
        return None
    return _tick(timetable, wall, found)


def jitter_of(timetable: Timetable, tick: Tick) -> timedelta:
    """How much later than the tick its run starts: 0 to `jitter_s`, the same in every process."""
    if not timetable.jitter_s:
        return timedelta(0)
    digest = hashlib.sha256(f"{timetable.pipeline}@{tick.name}".encode()).digest()
    return timedelta(seconds=timetable.jitter_s * int.from_bytes(digest[:8]) / 2**64)


def starts(timetable: Timetable, tick: Tick) -> datetime:
    """The moment from which the run of a tick may start."""
    return tick.at + jitter_of(timetable, tick)


def span_of(rule: SpanRule, tick: Tick) -> int:
    """The span that a rule gives for a tick.

    Raises:
        ScheduleError: the rule raised, or gave something that is no whole number.
    """
    return apply_rule(rule, tick.wall)


def source_spans(timetable: Timetable, tick: Tick) -> Mapping[str, int] | None:
    """The span of each node that ingests, where each has its own; empty where all have that of the tick.

    They are those of the tick, whatever became of the rules since; of a node that it does not name, since it was
    renamed or added, that of its rule now. None where neither is known: only the pipeline file has the rule, or the
    tick does not name the first node, and the rule of that gives another span now.
    """
    known = tick.by_node
    if known is not None and not (known and timetable.sources):
        return known
    known = known or {}
    others = [source for source in timetable.sources if source.node not in known]
    ruled = _apply_rules(others, tick.wall.astimezone(timetable.clock))
    if ruled is None:
        return None
    named = {**known, **ruled}
    spans = {source.node: named[source.node] for source in timetable.sources}
    first = next(iter(spans), "")
    return None if first in ruled and ruled[first] != tick.span else spans


def _apply_rules(sources: Sequence[SourceRule], wall: datetime) -> dict[str, int] | None:
    """The span that the rule of each node gives; None where only the pipeline file has one of these rules."""
    spans: dict[str, int] = {}
    for source in sources:
        if isinstance(source.rule, CustomSpanRule):
            return None
        spans[source.node] = apply_rule(source.rule, wall)
    return spans


def _tick(timetable: Timetable, wall: datetime, at: datetime) -> Tick:
    expression, zone, rule = timetable.expression, timetable.clock, timetable.span
    local = at.astimezone(zone) if expression.every_hour else wall.replace(tzinfo=zone)
    return Tick(
        at=at,
        name=f"{at:{expression.tick_format}}Z" if expression.every_hour else f"{wall:{expression.tick_format}}",
        wall=local,
        span=None if rule is None or isinstance(rule, CustomSpanRule) else apply_rule(rule, local),
        note=describe_clock_change(expression, zone, local, at),
        part=part_of(timetable.pipeline),
        ruled_by_file=isinstance(rule, CustomSpanRule),
        by_node=_apply_rules(timetable.sources, local),
    )
