"""Holders: which process holds a pipeline's lease, and which run it is doing. Reads only."""

from __future__ import annotations

from datetime import UTC, datetime

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.lease import Holder
from spanwise.orchestrator.run import Run, Trigger
from spanwise.orchestrator.store import Store
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.schedule.schedule_key import format_cause, parse_cause, pipeline_of


def find_holder(store: Store, pipeline: str, now: datetime | None = None) -> Holder | None:
    """The holder of a pipeline, unless it is known to be dead.

    A holder elsewhere whose heartbeat is old does not count: whoever acquires its lease watches it first. Nor does a
    garbage collection: whoever acquires the lease waits for that second.
    """
    holder = lease.current(store, pipeline)
    if holder is None or holder.released or holder.purpose == lease.COLLECTING:
        return None
    lives = process.is_alive(holder.who)
    if lives is None:
        lives = abs((now or datetime.now(UTC)) - holder.last_beat).total_seconds() < lease.TTL_S
    return holder if lives else None


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


def is_of_another_key(run: Run, key: str) -> bool:
    """Whether a run is one of another schedule key of its pipeline, which is no overrun of this one."""
    return run.trigger is Trigger.SCHEDULE and parse_cause(run.pipeline, run.cause)[0] != key


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
