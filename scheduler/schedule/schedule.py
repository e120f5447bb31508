"""Schedules: which ticks there are, what they are called, and which span each names. Pure; the door to croniter.

A cron expression speaks of wall time, in the zone of the schedule. Croniter is only asked which wall times it names, as
if there were no zones; which moments those are is decided here:

*A schedule that names hours* (`30 2 * * *`, `0 9-17 * * *`) runs once for each wall time that it names. One that does
not exist that day, because the clock is put forward over it, is the first moment after the gap; one that comes twice,
because the clock is put back, is its first occurrence.

*A schedule for every hour* (`0 * * * *`, `*/15 * * * *`) runs at each moment at which the clock shows a time that it
names, and so goes on counting real hours: in the night of 23 hours 23 times, in that of 25 hours 25 times.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from functools import lru_cache
from typing import TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from croniter import croniter
from croniter.croniter import CroniterBadDateError, CroniterError

from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.errors import ScheduleError
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.scheduler.schedule.part import DATA, INGEST, PARTS, TRAIN, WHOLE, line, part_of

SpanRule: TypeAlias = Callable[[datetime], int]
"""Gives the span that a tick means. It gets the wall time that the schedule names, in the schedule's zone."""

_SECOND = timedelta(seconds=1)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_DAY_ZERO = date(1970, 1, 1)
_HOURS = 24
_SAMPLE = 50  # ticks that are looked at for the shortest interval


class OverrunPolicy(Enum):
    """What to do at a tick when the last run has not ended; the names are the RFC's (Concurrent Runs)."""

    KILL_AND_RUN = "killandrun"  #: the running run is terminated and a new one launched
    ALLOW_TO_COMPLETE = "allowtocomplete"  #: the running run is left alone, and none launched


class Catchup(Enum):
    """Which of the ticks that were missed, because no scheduler ran, are made up for."""

    SKIP = "skip"  #: none
    LATEST = "latest"  #: the latest
    ALL = "all"  #: each, one after another, the oldest first


# Spans


@dataclass(frozen=True)
class DaysBefore:
    """The day so many days before the tick, in the schedule's zone: the span rule of a calendar of days."""

    days: int
    calendar: typing.ClassVar = Calendar.DAY

    def __call__(self, tick: datetime) -> int:
        return (tick.date() - _DAY_ZERO).days - self.days


@dataclass(frozen=True)
class HoursBefore:
    """The hour that the clock showed so many real hours before the tick, in the schedule's zone.

    Where clocks are put back, two hours of a year bear the same name; a schedule in UTC has no such hours.
    """

    hours: int
    calendar: typing.ClassVar = Calendar.HOUR

    def __call__(self, tick: datetime) -> int:
        shown = (tick.astimezone(UTC) - timedelta(hours=self.hours)).astimezone(tick.tzinfo)
        return (shown.date() - _DAY_ZERO).days * _HOURS + shown.hour


@dataclass(frozen=True)
class Custom:
    """A span rule that only the pipeline file has: who wants the span of a tick has to ask there."""

    name: str  #: of the callable, for people
    calendar: typing.ClassVar = Calendar.NUMBER


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


# Schedules


@dataclass(frozen=True)
class _Terms:
    """What a schedule and its timetable have in common."""

    _: KW_ONLY
    cron: str = ""  #: five fields, six with seconds at the end, or @hourly, @daily, @weekly, @monthly, @yearly
    zone: str = "UTC"  #: the IANA time zone whose wall time the expression means
    overrun: OverrunPolicy = OverrunPolicy.ALLOW_TO_COMPLETE
    jitter_s: float = 0.0  #: each tick's run starts up to so much later, the same for every scheduler
    catchup: Catchup = Catchup.LATEST
    catchup_limit: int = 100  #: with `Catchup.ALL`, the newest so many are made up for
    misfire_grace_s: float | None = None  #: a run that could only start later than this is not started; None: it is
    retry: Retry = field(default_factory=Retry)  #: how often a failed run is tried again before it is told
    freshness: timedelta | None = None  #: told when no model has been pushed for so long
    stall_after: timedelta | None = None  #: told when a run has made no progress and printed nothing for so long
    wait_for_input: timedelta | None = None  #: a run waits so long for its span to arrive before it counts as failed
    poll_s: float = 60.0  #: how often it looks then


@dataclass(frozen=True)
class Schedule(_Terms):
    """When a pipeline runs, for which span, and what is done when a tick comes and the last run has not ended.

        daily = Schedule(flights, cron="0 3 * * *", zone="America/New_York", span=days_before(1))

    With `parts` in place of `cron`, what ingests and what trains have a cadence each:

        Schedule(flights, parts={"ingest": "0 * * * *", "train": "0 3 * * *"}, span=hours_before(1))

    Raises:
        ScheduleError: a field cannot mean anything, or two contradict each other; found when it is made.
    """

    pipeline: Callable[..., Pipeline] | Pipeline | None = None  #: None: the only one in its file
    _: KW_ONLY
    parts: Mapping[str, str] | None = None  #: a cron for "ingest", a cron for "train"
    span: SpanRule | Mapping[str, SpanRule | None] | None = None
    """Which span a tick means; None: the newest there is, which may be an old one. With parts, it is that of what is
    ingested, and what trains learns from the newest; a mapping says it for each."""
    start: datetime | date | None = None  #: no tick before; without a zone it is wall time, a date is its first moment
    end: datetime | date | None = None  #: no tick after; a date is its last moment

    def __post_init__(self) -> None:
        if not (self.pipeline is None or isinstance(self.pipeline, Pipeline) or callable(self.pipeline)):
            raise ScheduleError(f"{self.pipeline!r} is no pipeline, nor a function that makes one.")
        _check_parts(self)
        timetables_of(self, _name_of(self.pipeline))


@dataclass(frozen=True)
class Timetable(_Terms):
    """A schedule without the pipeline file: plain data that can be kept, sent, and asked for its ticks."""

    pipeline: str  #: the name of the pipeline; of a part, with it: `flights:ingest`
    _: KW_ONLY
    span: DaysBefore | HoursBefore | Custom | None = None
    start: datetime | None = None  #: UTC; no tick before
    end: datetime | None = None  #: UTC; no tick after

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def read(cls, data: Mapping[str, Value]) -> Timetable:
        """The timetable that was `described`; what a newer program has added to the data is passed over."""
        return cls(**{name: _READ[name](data[name]) for name in _READ if name in data})  # type: ignore[arg-type]

    @property
    def clock(self) -> ZoneInfo:
        """The zone whose wall time it means."""
        return _zone(self.zone)

    @property
    def calendar(self) -> Calendar:
        """How its spans are counted, as far as its span rule says."""
        return Calendar.NUMBER if self.span is None else self.span.calendar

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is allowed and hardly meant, a sentence for each."""
        if not self.cron:
            return ()
        words = _words(self.cron, self.pipeline)
        found = []
        if self.span is None and part_of(self.pipeline) != TRAIN:
            found.append(
                "It has no span=, so a run takes the newest span there is: when data is late, that is an old one, "
                "without a word. Say which span a tick means, for example span=days_before(1)."
            )
        if words.either_day:
            found.append(
                f"cron {self.cron!r} names days of the month and days of the week: cron runs on both, "
                "not only where they meet."
            )
        return tuple(found)


def timetables_of(schedule: Schedule, pipeline: str) -> list[Timetable]:
    """The timetables of a schedule whose pipeline has this name: one, or one for each part."""
    return [timetable_of(schedule, pipeline, part) for part in (schedule.parts or {WHOLE: ""})]


def rule_of(schedule: Schedule, part: str) -> SpanRule | None:
    """The span rule of a part."""
    if isinstance(schedule.span, Mapping):
        return schedule.span.get(part)
    return None if part == TRAIN else schedule.span


def timetable_of(schedule: Schedule, pipeline: str, part: str = WHOLE) -> Timetable:
    """The timetable of a part of a schedule whose pipeline has this name; without a part, of all of it."""
    zone = _zone(schedule.zone)
    span = rule_of(schedule, part)
    if span is not None and not callable(span):
        raise ScheduleError(
            f"span={span!r} cannot be called with a tick. Say which span a tick means, for example span=days_before(1)."
        )
    terms = {f.name: getattr(schedule, f.name) for f in fields(_Terms)}
    if schedule.parts is not None:
        terms["cron"] = schedule.parts[part]
        if part == INGEST:
            terms["freshness"] = None  # it pushes no model
    return Timetable(
        line(pipeline, part),
        span=span if span is None or isinstance(span, DaysBefore | HoursBefore) else Custom(_called(span)),
        start=_bound("start", schedule.start, zone),
        end=_bound("end", schedule.end, zone),
        **terms,
    )


def described(timetable: Timetable) -> dict[str, Value]:
    """A timetable as plain data, for JSON and for the metadata; `Timetable.read` reads it."""
    return {f.name: _data(getattr(timetable, f.name)) for f in fields(timetable)}


# Ticks


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A moment at which a pipeline is to run."""

    at: datetime  #: the scheduled moment, UTC; never the moment somebody woke up
    name: str  #: unique in its pipeline: `2026-03-08T03:00` (wall time), or `2026-03-08T08:00Z` when every hour counts
    wall: datetime = field(compare=False)
    """The time that the expression names, in the schedule's zone; in a gap it is one that no clock shows."""
    span: int | None = None  #: None: the newest there is, or the one that a custom rule gives
    note: str = ""  #: what a change of the clock did to it
    part: str = WHOLE  #: which part of the pipeline runs
    from_scratch: bool = False  #: its run starts from no earlier model


def ticks(timetable: Timetable, after: datetime, until: datetime | None = None) -> Iterator[Tick]:
    """The ticks after `after`, ascending, up to `until` or the end of the schedule; `until` itself is included."""
    if not timetable.cron:
        return
    words, zone = _words(timetable.cron, timetable.pipeline), timetable.clock
    begin = after.astimezone(UTC).replace(microsecond=0)
    if timetable.start is not None:
        begin = max(begin, timetable.start - _SECOND)
    bounds = [bound for bound in (until, timetable.end) if bound is not None]
    end = min(bounds) if bounds else None
    for wall, at in _each_moment(words, zone, begin) if words.every_hour else _each_wall(words, zone, begin):
        if end is not None and at > end:
            return
        yield _tick(timetable, wall, at)


def latest(timetable: Timetable, at: datetime) -> Tick | None:
    """The last tick at or before a moment; None when the schedule had not begun."""
    if not timetable.cron:
        return None
    words, zone = _words(timetable.cron, timetable.pipeline), timetable.clock
    end = at if timetable.end is None else min(at, timetable.end)
    moment = end.astimezone(UTC).replace(microsecond=0)
    wall, found = (_last_moment if words.every_hour else _last_wall)(words, zone, moment)
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
    return _asked(rule, tick.wall)


def _asked(rule: SpanRule, wall: datetime) -> int:
    try:
        span = rule(wall)
    except Exception as error:
        raise ScheduleError(
            f"the span rule {_called(rule)} failed for the tick {wall.isoformat()}: {type(error).__name__}: {error}"
        ) from error
    if isinstance(span, bool) or not isinstance(span, int):
        raise ScheduleError(
            f"the span rule {_called(rule)} gave {span!r} for the tick {wall.isoformat()}, which is no whole number."
        )
    return span


def _called(rule: SpanRule) -> str:
    return str(getattr(rule, "__qualname__", repr(rule)))


def _tick(timetable: Timetable, wall: datetime, at: datetime) -> Tick:
    words, zone, rule = _words(timetable.cron, timetable.pipeline), timetable.clock, timetable.span
    local = at.astimezone(zone) if words.every_hour else wall.replace(tzinfo=zone)
    return Tick(
        at=at,
        name=f"{at:{words.stamp}}Z" if words.every_hour else f"{wall:{words.stamp}}",
        wall=local,
        span=None if rule is None or isinstance(rule, Custom) else _asked(rule, local),
        note=_note(words, zone, local, at),
        part=part_of(timetable.pipeline),
    )


def _note(words: _Words, zone: ZoneInfo, local: datetime, at: datetime) -> str:
    """What a change of the clock did to a tick, or to the one that would have come before it."""
    shown = f"{local:%H:%M}"
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        before = at - (2 * _HOUR if words.every_hour else _SECOND)
        if _offset(zone, before) == local.utcoffset():
            return ""
        last = _previous(words, local.replace(tzinfo=None))
        if _shown(zone, _first(zone, last)) == last:
            return ""
        how = "no time passes there" if words.every_hour else "it falls together with this"
        return f"gap: {last:%H:%M} does not exist that day, {how}"
    if _shown(zone, at) != local.replace(tzinfo=None):
        return f"gap: {shown} does not exist that day, this is the first moment after it"
    if words.every_hour:
        return f"fold: {shown} comes twice, this is the {'second' if local.fold else 'first'}"
    return f"fold: {shown} comes twice, only this first one counts"


# Which moments wall times are


def _first(zone: ZoneInfo, wall: datetime) -> datetime:
    """The first moment at which the clock shows this time or, when it is put forward over it, the one after the gap."""
    local = wall.replace(tzinfo=zone)
    at = local.astimezone(UTC)  # fold 0: by the offset that held before a change
    if _shown(zone, at) == wall:
        return at
    return next(_changes(zone, local.replace(fold=1).astimezone(UTC), at))


def _changes(zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
    """The moments in (after, until] at which the clock is put forward or back, to the second.

    Two that undo each other within a day would be missed; no zone has had such.
    """
    offset = _offset(zone, after)
    while after < until:
        ahead = min(after + _DAY, until)
        if _offset(zone, ahead) != offset:
            while ahead - after > _SECOND:
                middle = after + (ahead - after) // _SECOND // 2 * _SECOND
                after, ahead = (middle, ahead) if _offset(zone, middle) == offset else (after, middle)
            yield ahead
            offset = _offset(zone, ahead)
        after = ahead


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return typing.cast("timedelta", moment.astimezone(zone).utcoffset())


def _shown(zone: ZoneInfo, moment: datetime) -> datetime:
    """What the clock shows then."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _each_wall(words: _Words, zone: ZoneInfo, after: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Wall times and their moments for a schedule that names hours; of those that meet at a gap's end, the last."""
    wall = _shown(zone, after)
    while True:
        wall = _next(words, wall)
        at = _first(zone, wall)
        if at <= after:
            continue  # its first occurrence was before; the clock has been put back since
        end = _shown(zone, at)
        if end != wall:
            wall = _previous(words, end + _SECOND)
        yield wall, at


def _last_wall(words: _Words, zone: ZoneInfo, moment: datetime) -> tuple[datetime, datetime]:
    local = moment.astimezone(zone)
    again = _offset_of(local, fold=0) - _offset_of(local, fold=1) if local.fold else timedelta(0)
    wall = _shown(zone, moment) + again + _SECOND  # up to here the clock has shown every time
    while True:
        wall = _previous(words, wall)
        at = _first(zone, wall)
        if at <= moment:
            return wall, at


def _offset_of(local: datetime, *, fold: int) -> timedelta:
    return typing.cast("timedelta", local.replace(fold=fold).utcoffset())


def _each_moment(words: _Words, zone: ZoneInfo, after: datetime) -> Iterator[tuple[datetime, datetime]]:
    """What the clock shows, and when, for a schedule of every hour."""
    offset, since = _offset(zone, after), after  # from `since` on the clock has that offset, until it is changed
    while True:
        at = (_next(words, (after + offset).replace(tzinfo=None)) - offset).replace(tzinfo=UTC)
        change = next(_changes(zone, since, at), None)
        if change is None:
            yield (at + offset).replace(tzinfo=None), at
            after = since = at
        else:  # the clock does not show that time then: look again from the change on, by the new offset
            after, since, offset = change - _SECOND, change, _offset(zone, change)


def _last_moment(words: _Words, zone: ZoneInfo, moment: datetime) -> tuple[datetime, datetime]:
    while True:
        offset = _offset(zone, moment)
        at = (_previous(words, (moment + offset + _SECOND).replace(tzinfo=None)) - offset).replace(tzinfo=UTC)
        changes = list(_changes(zone, at, moment))
        if not changes:
            return (at + offset).replace(tzinfo=None), at
        moment = changes[-1] - _SECOND


# Cron expressions


@dataclass(frozen=True)
class _Field:
    """One field of a cron expression."""

    name: str
    values: str  #: which it takes, for people
    count: int  #: how many those are


_FIELDS = (
    _Field("minute", "0 to 59", 60),
    _Field("hour", "0 to 23", 24),
    _Field("day of the month", "1 to 31, or L for the last", 31),
    _Field("month", "1 to 12, or jan to dec", 12),
    _Field("day of the week", "0 to 7 (0 and 7 are Sunday), or sun to sat", 7),
    _Field("second", "0 to 59", 60),
)
_HOUR_FIELD, _DAY_FIELD, _MONTH_FIELD, _WEEKDAY_FIELD = 1, 2, 3, 4
_FIVE, _SIX = 5, 6
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_CHOSEN = re.compile(r"[hr](\(.*\))?(/\d+)?")  # a field that croniter chooses: by a hash, or at random
_RANGE = re.compile(r"(\w+)-(\w+)")
_STEP = re.compile(r"/(\d+)")
_EXAMPLE = "The fields are minute, hour, day, month and weekday: '0 3 * * *' is each day at 03:00."
_LONG_AGO = datetime(2000, 1, 1)  # noqa: DTZ001  wall time


@dataclass(frozen=True)
class _Words:
    """A cron expression, read."""

    text: str  #: its fields
    seed: str  #: what the values of its `H` fields are derived from
    every_hour: bool  #: it names all hours
    either_day: bool  #: it names days of the month and of the week, and means both
    stamp: str  #: how finely its ticks are named


@lru_cache(maxsize=4096)
def _words(cron: str, pipeline: str) -> _Words:
    """Reads an expression.

    Raises:
        ScheduleError: it cannot mean anything, or means no date at all; the message shows one that can.
    """
    text = _NICKNAMES.get(cron.strip().lower(), cron.strip().lower())
    if text.startswith("@"):
        near = difflib.get_close_matches(text, _NICKNAMES, n=1) or ["@daily"]
        raise ScheduleError(f"cron {cron!r} is none of {', '.join(_NICKNAMES)}. Did you mean {near[0]!r}?")
    parts = text.split()
    if len(parts) not in (_FIVE, _SIX):
        raise ScheduleError(f"cron {cron!r} has {len(parts)} fields, and takes five, or six with seconds. {_EXAMPLE}")
    for part, kind in zip(parts, _FIELDS, strict=False):
        _check_field(cron, part, kind)
    text = " ".join(parts)
    seed = pipeline if any(_CHOSEN.fullmatch(part) for part in parts) else ""
    try:
        expanded = _croniter(text, seed).expanded
    except (CroniterError, ValueError, TypeError, KeyError, IndexError) as error:
        raise ScheduleError(
            f"cron {cron!r} cannot be read: {_culprit(parts, pipeline) or error}. {_EXAMPLE}"
        ) from error
    words = _Words(
        text=text,
        seed=seed,
        every_hour=expanded[_HOUR_FIELD] == ["*"] or len(expanded[_HOUR_FIELD]) == _HOURS,
        either_day=["*"] not in (expanded[_DAY_FIELD], expanded[_WEEKDAY_FIELD]),
        stamp="%Y-%m-%dT%H:%M:%S" if len(parts) == _SIX else "%Y-%m-%dT%H:%M",
    )
    try:
        _next(words, _LONG_AGO)
    except CroniterBadDateError as error:
        day = f"day {parts[_DAY_FIELD]} in month {parts[_MONTH_FIELD]}"
        raise ScheduleError(f"cron {cron!r} means no date at all: there is no {day}. {_EXAMPLE}") from error
    return words


def _check_field(cron: str, part: str, kind: _Field) -> None:
    if (chosen := _CHOSEN.fullmatch(part)) and part.startswith("r"):
        raise ScheduleError(
            f"cron {cron!r}: {chosen[0].upper()} draws the {kind.name} anew in every process, so no two schedulers "
            f"would agree on it. Write H, which is derived from the pipeline's name, or jitter_s=."
        )
    for first, last in _RANGE.findall(part):
        if first == last:
            raise ScheduleError(
                f"cron {cron!r}: the range {first}-{last} has one {kind.name}, and would be read as all of them. "
                f"Write {first}. {_EXAMPLE}"
            )
    for step in _STEP.findall(part):
        if int(step) > kind.count:
            raise ScheduleError(
                f"cron {cron!r}: {part!r} steps by {step} through the {kind.name}, which takes {kind.values}; each "
                f"field counts for itself, so this would not come every {step}. {_EXAMPLE}"
            )


def _culprit(parts: list[str], pipeline: str) -> str:
    """Which field cannot be read, in words; empty when each can by itself."""
    for place, (part, kind) in enumerate(zip(parts, _FIELDS, strict=False)):
        alone = ["*"] * len(parts)
        alone[place] = part
        try:
            croniter(" ".join(alone), 0.0, hash_id=pipeline)
        except (CroniterError, ValueError, TypeError, KeyError, IndexError):
            return f"the {kind.name} is {part!r}, and takes {kind.values}"
    return ""


@lru_cache(maxsize=4096)
def _croniter(text: str, seed: str) -> croniter:
    return croniter(text, 0.0, hash_id=seed)


@lru_cache(maxsize=8192)  # pipelines share expressions, and the tick that was next is soon the last
def _next(words: _Words, wall: datetime) -> datetime:
    """The first wall time after another that the expression names."""
    found: datetime = copy.copy(_croniter(words.text, words.seed)).get_next(datetime, start_time=wall)
    return found


@lru_cache(maxsize=8192)
def _previous(words: _Words, wall: datetime) -> datetime:
    """The last wall time before another that the expression names."""
    found: datetime = copy.copy(_croniter(words.text, words.seed)).get_prev(datetime, start_time=wall)
    return found


# Checks and plain data


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError) as error:
        known = sorted(available_timezones())
        if not known:
            raise ScheduleError(
                f"zone {name!r} is unknown, because this machine has no time zones: pip install tzdata"
            ) from error
        by_name = {zone.lower(): zone for zone in known} | {zone.rpartition("/")[2].lower(): zone for zone in known}
        near = difflib.get_close_matches(str(name).replace(" ", "_").lower(), by_name, n=3)
        meant = " or ".join(dict.fromkeys(repr(by_name[n]) for n in near)) or "for example 'UTC' or 'America/New_York'"
        raise ScheduleError(f"zone {name!r} is no IANA time zone; did you mean {meant}?") from error


def _bound(name: str, value: object, zone: ZoneInfo) -> datetime | None:
    """A bound of a schedule in UTC: a date is its first moment as a start, its last as an end."""
    match value:
        case None:
            return None
        case datetime():
            whole = value.replace(microsecond=0)
            return whole.astimezone(UTC) if whole.tzinfo is not None else _first(zone, whole)
        case date():
            midnight = datetime.combine(value, time())
            return _first(zone, midnight) if name == "start" else _first(zone, midnight + _DAY) - _SECOND
    raise ScheduleError(f"{name}={value!r} is no date. Write for example {name}=date(2026, 3, 1).")


def _name_of(pipeline: object) -> str:
    return str(getattr(pipeline, "name", None) or getattr(pipeline, "__name__", "pipeline"))


def _check_parts(schedule: Schedule) -> None:
    parts, span = schedule.parts, schedule.span
    example = 'parts={"ingest": "0 * * * *", "train": "0 3 * * *"}'
    if parts is None:
        if isinstance(span, Mapping):
            raise ScheduleError(f"span={span!r} is for a schedule with parts=. Write one rule, or {example}.")
        if not schedule.cron:
            raise ScheduleError(f"cron {schedule.cron!r} has 0 fields. {_EXAMPLE} Or one for each part: {example}.")
        return
    if schedule.cron:
        raise ScheduleError(f"cron={schedule.cron!r} has no place beside parts=, which gives each part its own.")
    for name, given in (("parts", parts), ("span", span if isinstance(span, Mapping) else {})):
        unknown = [part for part in given if part not in PARTS] if isinstance(given, Mapping) else [given]
        if unknown:
            raise ScheduleError(f"{name}= takes {' and '.join(PARTS)}, not {unknown[0]!r}. For example: {example}.")
    if not all(part in parts for part in PARTS):
        lacking = next(part for part in PARTS if part not in parts)
        raise ScheduleError(f"parts={dict(parts)!r} has no cron for {lacking!r}. For example: {example}.")


def _check(timetable: Timetable) -> None:
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
        raise ScheduleError(f"cron={timetable.cron!r} is no text. {_EXAMPLE}")
    _check_ticks(timetable)


def _check_ticks(timetable: Timetable) -> None:
    if not timetable.cron and part_of(timetable.pipeline) == DATA:
        return  # its ticks come with the data
    words = _words(timetable.cron, timetable.pipeline)
    _zone(timetable.zone)
    start, end = timetable.start, timetable.end
    if start is not None and end is not None and end < start:
        raise ScheduleError(f"end={end.isoformat()} is before start={start.isoformat()}, so there is no tick.")
    if start is not None and end is not None and next(ticks(timetable, start - _SECOND), None) is None:
        raise ScheduleError(
            f"cron {timetable.cron!r} in {timetable.zone} has no tick from start={start.isoformat()} to "
            f"end={end.isoformat()}."
        )
    if timetable.jitter_s:
        wall, shortest = _LONG_AGO, timedelta.max
        for _ in range(_SAMPLE):
            before, wall = wall, _next(words, wall)
            shortest = min(shortest, wall - before) if before != _LONG_AGO else shortest
        if timetable.jitter_s > shortest.total_seconds():
            raise ScheduleError(
                f"jitter_s={timetable.jitter_s:g} is more than the {shortest.total_seconds():g} s between two ticks of "
                f"cron {timetable.cron!r}, so a run could start after the one that follows it."
            )


def _data(value: object) -> Value:
    """A field of a timetable as JSON has it."""
    match value:
        case Enum():
            return str(value.value)
        case timedelta():
            return value.total_seconds()
        case datetime():
            return value.isoformat()
        case DaysBefore() | HoursBefore() | Custom():
            return _rule_data(value)
        case Retry():
            return asdict(value)
    return typing.cast("Value", value)


def _rule_data(rule: DaysBefore | HoursBefore | Custom) -> Value:
    match rule:
        case DaysBefore(days):
            return {"days_before": days}
        case HoursBefore(hours):
            return {"hours_before": hours}
        case Custom(name):
            return {"custom": name}


def _rule(data: Value) -> DaysBefore | HoursBefore | Custom | None:
    match data:
        case None:
            return None
        case {"days_before": int(days)}:
            return DaysBefore(days)
        case {"hours_before": int(hours)}:
            return HoursBefore(hours)
        case {"custom": str(name)}:
            return Custom(name)
    raise ScheduleError(f"{data!r} is no rule for spans that this version knows.")


def _length(data: Value) -> timedelta | None:
    return None if data is None else timedelta(seconds=typing.cast("float", data))


def _moment(data: Value) -> datetime | None:
    return None if data is None else datetime.fromisoformat(str(data))


def _same(data: Value) -> Value:
    return data


_READ: Mapping[str, Callable[[Value], object]] = {
    **{f.name: _same for f in fields(Timetable)},
    "overrun": OverrunPolicy,
    "catchup": Catchup,
    "retry": lambda data: Retry(**typing.cast("dict[str, float]", data)),  # type: ignore[arg-type]
    "freshness": _length,
    "stall_after": _length,
    "wait_for_input": _length,
    "span": _rule,
    "start": _moment,
    "end": _moment,
}
