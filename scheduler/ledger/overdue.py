"""Guards: what tells that a schedule is not doing what it should, though nothing has failed. Reads; starts nothing."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from spanwise.orchestrator.run import Run
from spanwise.orchestrator.run_dir import run_dir
from spanwise.orchestrator.store import Address, Store
from spanwise.scheduler.daemon import scheduled_run
from spanwise.scheduler.ledger import heartbeat
from spanwise.scheduler.ledger import ticks as ledger
from spanwise.scheduler.ledger.ticks import Scheduled
from spanwise.scheduler.schedule.due import ON_TIME_S, due, waits
from spanwise.scheduler.schedule.part import pipeline_of
from spanwise.scheduler.schedule.schedule import Tick, Timetable, starts, ticks

_LOOKED_AT = 100  # newest outputs of a pusher, of which most may not have been pushed
_MANY = 1000

LOST_S = 60.0
"""A scheduler whose heartbeat is so old is taken for dead by who looks from outside and cannot watch it."""


@dataclass(frozen=True, kw_only=True)
class Overdue:
    """Ticks that should have been taken, and were not."""

    first: Tick
    count: int  #: how many have come since, that one included; at most 1000 are counted
    abandoned: bool = False  #: it was taken, by a scheduler that has died since, and nobody has taken it over


@dataclass(frozen=True, kw_only=True)
class Stale:
    """A model that has been in service for too long."""

    pushed: datetime | None  #: the last push; None: there never was one
    allowed: timedelta


def overdue(store: Store, known: Scheduled, now: datetime) -> Overdue | None:
    """Whether a scheduler should have done something that none has done.

    A tick counts as overdue a minute after its run should have begun, unless the schedule is paused, the ticks before
    it are still being worked on, or it waits for the end of a run, as the scheduler would have it.
    """
    pipeline = known.pipeline
    timetable = Timetable.read(known.timetable)
    for entry in ledger.open_ticks(store, pipeline):
        holder = heartbeat.read(store, entry.holder)
        gone = holder is None or holder.ended or (now - holder.beaten).total_seconds() > LOST_S
        if not gone:
            return None
        if entry.attempts == 0:
            return Overdue(first=entry.tick, count=1, abandoned=True)
    newest = ledger.newest(store, pipeline)
    since = known.since if newest is None else newest.tick.at
    late = [
        tick
        for tick in itertools.islice(ticks(timetable, since, now), _MANY)
        if (now - starts(timetable, tick)).total_seconds() > ON_TIME_S
    ]
    if not late or ledger.paused(store, pipeline, now) is not None:
        return None
    going = scheduled_run.going(store, pipeline_of(pipeline), now)
    if going is not None and waits(due(timetable, since, now), timetable, going.acquired):
        return None
    return Overdue(first=late[0], count=len(late))


def stale(store: Store, known: Scheduled, now: datetime) -> Stale | None:
    """Whether no model has been pushed for longer than the schedule allows."""
    allowed = Timetable.read(known.timetable).freshness
    if allowed is None:
        return None
    newest = pushed(store, known)
    return Stale(pushed=newest, allowed=allowed) if now - (newest or known.since) > allowed else None


def pushed(store: Store, known: Scheduled) -> datetime | None:
    """When a model was last pushed."""
    found = []
    for place in known.pushes:
        address = Address(pipeline_of(known.pipeline), *place.split("/"))
        newest = itertools.islice(store.newest(address), _LOOKED_AT)
        found += [next((a.created for a in newest if a.properties.get("pushed") and a.created), None)]
    return max((moment for moment in found if moment is not None), default=None)


def progress(store: Store, run: Run, home: Path) -> tuple[int, int, int]:
    """What grows as long as a run does something: the executions begun and ended, and the letters it has printed."""
    executions = store.executions(run)
    printed = 0
    for log in (run_dir(home, run) / "logs").glob("*"):
        with contextlib.suppress(OSError):
            printed += log.stat().st_size
    return len(executions), sum(execution.state.ended for execution in executions), printed
