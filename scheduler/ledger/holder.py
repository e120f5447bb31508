"""Holders: which process holds a pipeline's lease, and which run it is doing. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.continuation import find_origin
from spanwise.orchestrator.lease import Holder
from spanwise.orchestrator.run import Run, Trigger
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import format_duration
from spanwise.scheduler.ledger import heartbeat
from spanwise.scheduler.ledger.schedules import read_schedule
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.schedule.schedule_key import format_cause, parse_cause, pipeline_of

LEFT_OPEN = "its controller is gone; the next run closes it"


def find_holder(store: Store, pipeline: str, now: datetime | None = None) -> Holder | None:
    """The holder of a pipeline, unless it is known to be dead.

    A holder elsewhere whose heartbeat is old does not count: whoever acquires its lease watches it first. Nor does a
    garbage collection: whoever acquires the lease waits for that second.
    """
    holder = find_unreleased(store, pipeline)
    return holder if holder is not None and _lives(holder, now or datetime.now(UTC)) else None


def find_heard(store: Store, pipeline: str, now: datetime | None = None) -> Holder | None:
    """The holder of a pipeline, unless it is dead or silent: one elsewhere with an old heartbeat is listened to."""
    holder = find_unreleased(store, pipeline)
    return holder if holder is not None and is_heard(store, holder, now) else None


def find_unreleased(store: Store, pipeline: str) -> Holder | None:
    """The newest holder of a pipeline, dead or alive, unless it has released it or collects garbage."""
    holder = lease.current(store, pipeline)
    return None if holder is None or holder.released or holder.purpose == lease.COLLECTING else holder


def find_living(store: Store, pipeline: str) -> Holder | None:
    """The holder of a pipeline, whatever its clock says: one elsewhere with an old heartbeat is watched for a while."""
    holder = find_unreleased(store, pipeline)
    return None if holder is None or lease.is_dead(store, holder, lease.Clock()) else holder


def _lives(holder: Holder, now: datetime) -> bool:
    lives = process.is_alive(holder.who)
    return abs(now - holder.last_beat).total_seconds() < lease.TTL_S if lives is None else lives


def is_heard(store: Store, holder: Holder, now: datetime | None = None) -> bool:
    """Whether a holder lives, whatever its clock says: one elsewhere with an old heartbeat is listened to."""
    now = now or datetime.now(UTC)
    return heartbeat.is_heard(store, *_beats(store, holder)) if _looks_silent(holder, now) else _lives(holder, now)


def listen(store: Store, pipelines: Iterable[str]) -> None:
    """Listens at once to the holders of these pipelines that look silent, so that no question about one waits."""
    now = datetime.now(UTC)
    holders = [holder for pipeline in pipelines if (holder := find_unreleased(store, pipeline)) is not None]
    heartbeat.listen(store, dict(_beats(store, holder) for holder in holders if _looks_silent(holder, now)))


def _looks_silent(holder: Holder, now: datetime) -> bool:
    return process.is_alive(holder.who) is None and not _lives(holder, now)


def _beats(store: Store, holder: Holder) -> tuple[str, Callable[[], int]]:
    """The name of its lease, and what reads the last beat."""

    def read_beat() -> int:
        found = lease.read(store, holder.pipeline, holder.token)
        return holder.beat if found is None else found.beat

    return f"lease {holder.name}", read_beat


def is_left_open(store: Store, run: Run) -> bool:
    """Whether a run is recorded as running although its controller has ended; the next run closes it."""
    if run.state.ended:
        return False
    holder = _holder_of(store, run)
    gone = holder is None or process.is_alive(holder.who) is False
    return gone and not store.run(run.pipeline, run.number).state.ended  # it may have ended since it was read


def note_left_open(store: Store, run: Run, now: datetime | None = None) -> Run:
    """The run, to be shown: the error of one that is recorded as running says what is known of its controller."""
    if is_left_open(store, run):
        return replace(run, error=LEFT_OPEN)
    holder = None if run.state.ended else _holder_of(store, run)
    if holder is None or is_heard(store, holder, now):
        return run
    silent_s = abs((now or datetime.now(UTC)) - holder.last_beat).total_seconds()
    return replace(run, error=f"no heartbeat from {holder.who.host} for {format_duration(silent_s)}")


def _holder_of(store: Store, run: Run) -> Holder | None:
    """The holder of a run's lease while it has not released it; None when it has, or another has taken over."""
    holder = lease.current(store, run.pipeline)
    return holder if holder is not None and not holder.released and holder.token == run.token else None


def find_run(store: Store, holder: Holder) -> Run | None:
    """The current run of a lease's holder; None before its first, or between two."""
    for run in store.runs(holder.pipeline):
        if run.token < holder.token:
            return None
        if run.token == holder.token and not run.state.ended:
            return run
    return None


def is_ending(store: Store, holder: Holder, now: datetime) -> bool:
    """Whether a holder without a current run has just ended one, and is about to release the lease."""
    newest = next(iter(store.runs(holder.pipeline)), None)
    if newest is None or newest.token != holder.token or newest.ended is None:
        return False
    return abs((now - newest.ended).total_seconds()) < lease.TTL_S


def is_of_another_key(store: Store, run: Run, key: str) -> bool:
    """Whether a run is one of another schedule key of its pipeline, which is no overrun of this one.

    A resumed run is of the key of the one that it resumes. A run that nothing scheduled is of another key if it does
    none of the nodes of this one. A backfill is of all keys: it takes one run after another.
    """
    origin = find_origin(store, run)
    if origin.trigger is Trigger.SCHEDULE:
        return parse_cause(origin.pipeline, origin.cause)[0] != key
    schedule = None if run.trigger is Trigger.BACKFILL else read_schedule(store, key)
    return schedule is not None and bool(schedule.nodes and run.nodes) and set(schedule.nodes).isdisjoint(run.nodes)


def newest_run(store: Store, record: TickRecord) -> Run | None:
    """The last run of a tick; None when it has had none."""
    if not record.attempts:
        return None
    for run in store.runs(pipeline_of(record.key)):
        if run.number <= record.after_run:
            return None
        if run.cause == format_cause(record.key, record.tick.name) and run.trigger is Trigger.SCHEDULE:
            return run
    return None
