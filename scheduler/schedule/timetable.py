"""Timetables: a schedule without its pipeline file, as plain data that can be stored, sent and asked for its ticks."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from zoneinfo import ZoneInfo

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.errors import ScheduleError
from spanwise.scheduler.schedule.cadence import find_zone, moments_after
from spanwise.scheduler.schedule.cron import CRON_EXAMPLE, LONG_AGO, CronExpression, parse_cron
from spanwise.scheduler.schedule.division import PartStart
from spanwise.scheduler.schedule.schedule_key import DATA, part_of
from spanwise.scheduler.schedule.span_rule import CustomSpanRule, PeriodsBefore, SourceRule

_SECOND = timedelta(seconds=1)
_SAMPLE = 50  # ticks that are looked at for the shortest interval


class OverrunPolicy(Enum):
    """What to do at a tick when the last run has not ended; the names are the RFC's (Concurrent Runs)."""

    KILL_AND_RUN = "killandrun"  #: the running run is terminated and a new one launched
    ALLOW_TO_COMPLETE = "allowtocomplete"  #: the running run is left alone, and none launched


class Catchup(Enum):
    """Which of the ticks that were missed, because no scheduler ran, still run."""

    SKIP = "skip"  #: none
    LATEST = "latest"  #: the latest
    ALL = "all"  #: each, one after another, the oldest first


@dataclass(frozen=True)
class ScheduleTerms:
    """What a schedule and its timetable have in common."""

    _: KW_ONLY
    cron: str = ""  #: five fields, six with seconds at the end, or @hourly, @daily, @weekly, @monthly, @yearly
    zone: str = "UTC"  #: the IANA time zone whose wall time the expression means
    overrun: OverrunPolicy = OverrunPolicy.ALLOW_TO_COMPLETE
    jitter_s: float = 0.0  #: each run starts up to this much later than its tick, the same for every scheduler
    catchup: Catchup = Catchup.LATEST
    catchup_limit: int = 100  #: with `Catchup.ALL`, how many missed ticks run at most, the newest
    misfire_grace_s: float | None = None  #: a run that could only start later than this is skipped; None: it runs
    retry: Retry = field(default_factory=Retry)  #: how often a failed run is retried before it is reported
    freshness: timedelta | None = None  #: reported when no model has been pushed for this long
    stall_after: timedelta | None = None  #: reported when a run has made no progress and printed nothing for this long
    wait_for_input: timedelta | None = None  #: a run waits this long for its span to arrive before it fails
    poll_s: float = 60.0  #: how often it looks meanwhile


@dataclass(frozen=True)
class Timetable(ScheduleTerms):
    """When a pipeline, or a part of it, runs, and for which span."""

    pipeline: str  #: the schedule key: the name of the pipeline; of a part, with it: `flights:ingest`
    _: KW_ONLY
    span: PeriodsBefore | CustomSpanRule | None = None
    sources: tuple[SourceRule, ...] = ()  #: of the nodes that ingest, where each has its own; `span` is the first
    start: datetime | None = None  #: UTC; no tick before
    end: datetime | None = None  #: UTC; no tick after
    division: tuple[PartStart, ...] = ()  #: all parts of its schedule, in order; none where it is of all of it

    def __post_init__(self) -> None:
        _check_terms(self)

    @property
    def expression(self) -> CronExpression:
        """Its cron expression, parsed."""
        return parse_cron(self.cron, self.pipeline)

    @property
    def clock(self) -> ZoneInfo:
        """The zone whose wall time it means."""
        return find_zone(self.zone)

    @property
    def calendar(self) -> Calendar:
        """How its spans are counted, as far as its span rule says."""
        return Calendar.NUMBER if self.span is None else self.span.calendar

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but probably not intended, a sentence for each."""
        if not self.cron:
            return ()
        found = []
        if self.span is None and not (self.division and part_of(self.pipeline) != self.division[0].name):
            found.append(
                "It has no span=, so a run takes the newest span there is: when data is late, that is silently an old "
                "one. Say which span a tick means, for example span=days_before(1)."
            )
        if self.expression.either_day:
            found.append(
                f"cron {self.cron!r} names days of the month and days of the week: cron runs on either, "
                "not only on days that match both."
            )
        return tuple(found)


def _check_terms(timetable: Timetable) -> None:
    for name, kind in (("overrun", OverrunPolicy), ("catchup", Catchup)):
        value = getattr(timetable, name)
        if not isinstance(value, kind):
            choices = ", ".join(f"{kind.__name__}.{choice.name}" for choice in kind)
            raise ScheduleError(f"{name}={value!r} is none of: {choices}.")
    for name, least in (("jitter_s", 0), ("misfire_grace_s", 0), ("catchup_limit", 1), ("poll_s", 1)):
        value = getattr(timetable, name)
        if value is not None and not (isinstance(value, int | float) and value >= least):
            raise ScheduleError(f"{name}={value!r} has to be a number from {least} up, for example {name}=60.")
    for name in ("freshness", "stall_after", "wait_for_input"):
        value = getattr(timetable, name)
        if value is not None and not (isinstance(value, timedelta) and value > timedelta(0)):
            raise ScheduleError(f"{name}={value!r} has to be a length of time, for example {name}=timedelta(hours=6).")
    if not isinstance(timetable.retry, Retry):
        raise ScheduleError(
            f"retry={timetable.retry!r} is no Retry. Write for example retry=Retry(times=2, backoff_s=60)."
        )
    if not isinstance(timetable.cron, str):
        raise ScheduleError(f"cron={timetable.cron!r} is no text. {CRON_EXAMPLE}")
    _check_ticks(timetable)


def _check_ticks(timetable: Timetable) -> None:
    if not timetable.cron and part_of(timetable.pipeline) == DATA:
        return  # its ticks come with the data
    expression, zone = timetable.expression, timetable.clock
    start, end = timetable.start, timetable.end
    if start is not None and end is not None and end < start:
        raise ScheduleError(f"end={end.isoformat()} is before start={start.isoformat()}, so there is no tick.")
    if start is not None and end is not None and next(moments_after(expression, zone, start - _SECOND))[1] > end:
        raise ScheduleError(
            f"cron {timetable.cron!r} in {timetable.zone} has no tick from start={start.isoformat()} to "
            f"end={end.isoformat()}."
        )
    if timetable.jitter_s:
        wall, shortest = LONG_AGO, timedelta.max
        for _ in range(_SAMPLE):
            before, wall = wall, expression.next_after(wall)
            shortest = min(shortest, wall - before) if before != LONG_AGO else shortest
        if timetable.jitter_s > shortest.total_seconds():
            raise ScheduleError(
                f"jitter_s={timetable.jitter_s:g} is more than the {shortest.total_seconds():g} s between two ticks of "
                f"cron {timetable.cron!r}, so a run could start after the one that follows it."
            )
