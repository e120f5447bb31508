"""Cadences: the moments that a cron expression names on the clock of a zone. Pure.

A cron expression names wall times; which moments those are, where clocks are changed, is decided here:

*A schedule that names hours* (`30 2 * * *`, `0 9-17 * * *`) runs once for each wall time that it names. A wall time
that does not exist that day, because the clock is put forward over it, is the first moment after the gap; one that
comes twice, because the clock is put back, is its first occurrence.

*A schedule for every hour* (`0 * * * *`, `*/15 * * * *`) runs at each moment at which the clock shows a time that it
names. It counts real hours: 23 ticks in the night of 23 hours, 25 in that of 25 hours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

from spanwise.orchestrator.errors import ScheduleError
from spanwise.scheduler.schedule.cron import CronExpression

_SECOND = timedelta(seconds=1)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


@lru_cache(maxsize=1024)
def find_zone(name: str) -> ZoneInfo:
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


def moments_after(expression: CronExpression, zone: ZoneInfo, after: datetime) -> Iterator[tuple[datetime, datetime]]:
    """The wall times that the expression names, each with its moment, for the moments after `after`, ascending."""
    return (_each_moment if expression.every_hour else _each_wall)(expression, zone, after)


def last_moment(expression: CronExpression, zone: ZoneInfo, until: datetime) -> tuple[datetime, datetime]:
    """The last wall time that the expression names whose moment is at or before `until`, and that moment."""
    return (_last_moment if expression.every_hour else _last_wall)(expression, zone, until)


def describe_clock_change(expression: CronExpression, zone: ZoneInfo, local: datetime, at: datetime) -> str:
    """What a change of the clock did to a tick, or to the one that would have come before it."""
    shown = f"{local:%H:%M}"
    if local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset():
        before = at - (2 * _HOUR if expression.every_hour else _SECOND)
        if _offset(zone, before) == local.utcoffset():
            return ""
        last = expression.last_before(local.replace(tzinfo=None))
        if _shown(zone, first_moment(zone, last)) == last:
            return ""
        how = "no time passes there" if expression.every_hour else "it falls together with this"
        return f"gap: {last:%H:%M} does not exist that day, {how}"
    if _shown(zone, at) != local.replace(tzinfo=None):
        return f"gap: {shown} does not exist that day, this is the first moment after it"
    if expression.every_hour:
        return f"fold: {shown} comes twice, this is the {'second' if local.fold else 'first'}"
    return f"fold: {shown} comes twice, only this first one counts"


def first_moment(zone: ZoneInfo, wall: datetime) -> datetime:
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
    return cast("timedelta", moment.astimezone(zone).utcoffset())


def _shown(zone: ZoneInfo, moment: datetime) -> datetime:
    """What the clock shows then."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _each_wall(expression: CronExpression, zone: ZoneInfo, after: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Wall times and their moments for a schedule that names hours; of those that meet at a gap's end, the last."""
    wall = _shown(zone, after)
    while True:
        wall = expression.next_after(wall)
        at = first_moment(zone, wall)
        if at <= after:
            continue  # its first occurrence was before; the clock has been put back since
        end = _shown(zone, at)
        if end != wall:
            wall = expression.last_before(end + _SECOND)
        yield wall, at


def _last_wall(expression: CronExpression, zone: ZoneInfo, moment: datetime) -> tuple[datetime, datetime]:
    local = moment.astimezone(zone)
    again = _offset_of(local, fold=0) - _offset_of(local, fold=1) if local.fold else timedelta(0)
    wall = _shown(zone, moment) + again + _SECOND  # up to here the clock has shown every time
    while True:
        wall = expression.last_before(wall)
        at = first_moment(zone, wall)
        if at <= moment:
            return wall, at


def _offset_of(local: datetime, *, fold: int) -> timedelta:
    return cast("timedelta", local.replace(fold=fold).utcoffset())


def _each_moment(expression: CronExpression, zone: ZoneInfo, after: datetime) -> Iterator[tuple[datetime, datetime]]:
    """What the clock shows, and when, for a schedule of every hour."""
    offset, since = _offset(zone, after), after  # from `since` on the clock has that offset, until it is changed
    while True:
        at = (expression.next_after((after + offset).replace(tzinfo=None)) - offset).replace(tzinfo=UTC)
        change = next(_changes(zone, since, at), None)
        if change is None:
            yield (at + offset).replace(tzinfo=None), at
            after = since = at
        else:  # the clock does not show that time then: look again from the change on, by the new offset
            after, since, offset = change - _SECOND, change, _offset(zone, change)


def _last_moment(expression: CronExpression, zone: ZoneInfo, moment: datetime) -> tuple[datetime, datetime]:
    while True:
        offset = _offset(zone, moment)
        at = (expression.last_before((moment + offset + _SECOND).replace(tzinfo=None)) - offset).replace(tzinfo=UTC)
        changes = list(_changes(zone, at, moment))
        if not changes:
            return (at + offset).replace(tzinfo=None), at
        moment = changes[-1] - _SECOND
