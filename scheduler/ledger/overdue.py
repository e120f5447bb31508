"""Overdue ticks and stale models: whether a schedule does what it should, though nothing has failed. Reads only."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from spanwise.orchestrator import process
from spanwise.orchestrator.lease import Holder
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.run_dir import run_dir
from spanwise.orchestrator.serving import Push, newest_push
from spanwise.orchestrator.store import Address, Store
from spanwise.scheduler.ledger.heartbeat import SchedulerRecord, is_heard, read_scheduler
from spanwise.scheduler.ledger.holder import newest_run
from spanwise.scheduler.ledger.pauses import SchedulePause
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_keys, read_schedule
from spanwise.scheduler.ledger.ticks import TickRecord, drop_taken, list_open
from spanwise.scheduler.schedule.due import ON_TIME_S, find_due, must_wait
from spanwise.scheduler.schedule.schedule_key import pipeline_of
from spanwise.scheduler.schedule.ticks import Tick, starts, ticks

_MANY = 1000

LOST_S = 60.0
"""From outside, where its heartbeat cannot be watched, a scheduler counts as dead when the last beat is this old."""


@dataclass(frozen=True, kw_only=True)
class OverdueTicks:
    """Ticks that should have been taken, and were not."""

    first: Tick
    count: int  #: how many have come since, that one included; at most 1000 are counted
    abandoned: bool = False  #: it was taken by a scheduler that has died since, and nobody has taken it over


@dataclass(frozen=True, kw_only=True)
class StaleModel:
    """A model that has been in service for too long."""

    pushed: datetime | None  #: the last push; None: there never was one
    allowed: timedelta


def find_overdue(
    store: Store,
    schedule: ScheduleRecord,
    now: datetime,
    *,
    newest: TickRecord | None,
    paused: SchedulePause | None,
    holder: Holder | None,
) -> OverdueTicks | None:
    """The ticks that a scheduler should have taken, and none has.

    `newest` is the last tick that was taken, `paused` the pause that holds, `holder` who holds the pipeline. A tick is
    overdue a minute after its run should have begun, unless the schedule is paused, the ticks before it are still being
    worked on, or it waits for the end of a run, as the scheduler would let it wait.
    """
    if paused is not None:
        return None
    timetable = schedule.timetable
    for record in list_open(store, schedule.key):
        taker = read_scheduler(store, record.holder)
        if taker is not None and not taker.ended and _is_there(store, taker, now):
            return None
        if not _has_run(store, record, holder):
            return OverdueTicks(first=record.tick, count=1, abandoned=True)
    since = schedule.since if newest is None else max(newest.tick.at, schedule.since)
    come = itertools.islice(ticks(timetable, since, now), _MANY)
    late = [tick for tick in come if (now - starts(timetable, tick)).total_seconds() > ON_TIME_S]
    late = drop_taken(store, schedule.key, late)
    if not late:
        return None
    if holder is not None and must_wait(find_due(timetable, since, now), timetable, holder.acquired):
        return None
    return OverdueTicks(first=late[0], count=len(late))


def _has_run(store: Store, record: TickRecord, holder: Holder | None) -> bool:
    """Whether a run of a tick goes on, without the scheduler that began it."""
    run = newest_run(store, record)
    return run is not None and not run.state.ended and holder is not None and run.token == holder.token


def _is_there(store: Store, taker: SchedulerRecord, now: datetime) -> bool:
    """Whether a scheduler beats; where its clock is another, that is listened to."""
    if abs(now - taker.beaten).total_seconds() <= LOST_S:
        return True

    def read_beat() -> int:
        found = read_scheduler(store, taker.number)
        return taker.beat if found is None else found.beat

    alive = process.is_alive(taker.who)
    return alive is not False and is_heard(store, f"scheduler {taker.number}", read_beat)


def find_stale(store: Store, schedule: ScheduleRecord, now: datetime) -> StaleModel | None:
    """The model in service, when none has been pushed for longer than the schedule allows."""
    allowed = schedule.timetable.freshness
    if allowed is None:
        return None
    newest = last_push(store, schedule)
    return StaleModel(pushed=newest, allowed=allowed) if now - (newest or schedule.since) > allowed else None


def last_push(store: Store, schedule: ScheduleRecord) -> datetime | None:
    """When a model was last pushed."""
    return max((push.created for push in newest_pushes(store, schedule) if push.created is not None), default=None)


def newest_pushes(store: Store, schedule: ScheduleRecord) -> list[Push]:
    """The last push of each of its Pushers that has pushed, also of those that were renamed since; none without any."""
    pipeline, places = pipeline_of(schedule.key), [*schedule.pushes]
    if schedule.pushes and schedule.pushed_before:
        every = (read_schedule(store, key) for key in list_keys(store, pipeline))
        elsewhere = {place for known in every if known is not None for place in known.pushes}
        places += [place for place in schedule.pushed_before if place not in elsewhere]
    pushers = (Address(pipeline, *place.split("/")) for place in places)
    return [push for pusher in pushers if (push := newest_push(store, pusher)) is not None]


def measure_progress(store: Store, run: Run, home: Path) -> tuple[int, int, int]:
    """What grows as long as a run does something: executions begun, executions ended, and bytes printed."""
    executions = store.executions(run)
    printed = _count_printed_bytes(store, run_dir(home, run) / "logs")
    return len(executions), sum(execution.state.ended for execution in executions), printed


def _count_printed_bytes(store: Store, logs: Path) -> int:
    """Of a run on another host, the bytes that it has written to the object storage of the root."""
    if store.archive is not None and not logs.exists():
        return store.archive.count_log_bytes(logs)
    printed = 0
    for log in logs.glob("*"):
        with contextlib.suppress(OSError):
            printed += log.stat().st_size
    return printed
