"""Stops a run from outside: signals it, waits, kills it when it does not end, and closes its records."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from spanwise.orchestrator import lease, process, publisher
from spanwise.orchestrator.errors import Held, RunError
from spanwise.orchestrator.lease import Holder, Lease
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.publisher import GoneEngine
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.run_dir import remove_working_files
from spanwise.orchestrator.stop_request import request_stop
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import format_duration

POLL_S = 0.1
SLACK_S = 5.0
"""How long a run may take to end itself, in addition to the grace period of its nodes."""

How = Literal["already ended", "ended", "killed", "closed", "given up"]


@dataclass(frozen=True, kw_only=True)
class StopResult:
    """How a run was stopped."""

    run: Run
    how: How
    took_s: float
    pid: int | None = None  #: its controller, when it was on this machine

    @property
    def closed(self) -> bool:
        """Whether the run was closed by whoever stopped it, rather than by its own controller."""
        return self.how in ("killed", "closed")

    def __str__(self) -> str:
        run, took, pid = self.run, format_duration(self.took_s), f" (pid {self.pid})" if self.pid else ""
        match self.how:
            case "already ended":
                return f"Run {run.name} has already ended: {run.state.value}. Nothing was done."
            case "ended":
                return f"Run {run.name} ended {took} after it was asked to stop: {run.state.value}."
            case "killed":
                return (
                    f"Run {run.name} did not end within {took}, so its controller{pid} and all of its "
                    f"processes were killed; it is recorded as {run.state.value}."
                )
            case "given up":
                return f"Run {run.name} has ended: {run.state.value}. No engine is waited for any more."
            case "closed":
                return f"Run {run.name} had already died{pid}; it is now recorded as {run.state.value}."


def stop(store: Store, run: Run, root: Path, *, grace_s: float, by: str) -> StopResult:
    """Stops a run, and returns when it has ended and its lease is free. The run records that it was stopped by `by`.

    On this machine no process of the run is left then, not even one that has detached itself. The records of a run on
    another machine whose heartbeat has stopped are closed, as its successor would close them.

    Raises:
        RunError: it is on another machine and goes on there, or some of its processes could not be killed.
    """
    began = time.monotonic()
    if (closed := close_if_gone(store, run, root)) is not None:
        return closed
    holder = lease.read(store, run.pipeline, run.token)
    assert holder is not None
    request_stop(store, run, by)
    here = holder.who.machine == process.machine()
    # The controller may have children that are not workers, such as those started when its pipeline was imported.
    below = [process.identity(pid) for pid in process.descendants(holder.who.pid)] if here else []
    if here:
        process.send([holder.who.pid], signal.SIGTERM)
    ended_in_time = _wait_until_ended(store, run, holder, began + grace_s + SLACK_S)
    if here:
        _kill(store, run, holder, *below)
    if ended_in_time:
        ended = store.run(run.pipeline, run.number)
        if ended.state.ended:
            how: How = "ended"
        else:  # the signal killed it before it could record anything
            ended, how = _close(store, run, root), "killed"
        return StopResult(run=ended, how=how, took_s=time.monotonic() - began, pid=holder.who.pid if here else None)
    if not here and (closed := close_if_gone(store, run, root)) is not None:
        return replace(closed, took_s=time.monotonic() - began, pid=None)
    if not here:
        raise RunError(
            f"Run {run.name} is on {holder.who.host} (pid {holder.who.pid}) and was asked to stop, but did not end "
            f"within {grace_s + SLACK_S:g} s. Kill it there:  kill -KILL {holder.who.pid}"
        )
    return StopResult(run=_close(store, run, root), how="killed", took_s=time.monotonic() - began, pid=holder.who.pid)


def close_if_gone(store: Store, run: Run, root: Path) -> StopResult | None:
    """Closes the records of a run whose controller is gone; None, and nothing is done, where that goes on.

    Raises:
        RunError: some of its processes could not be killed.
    """
    began = time.monotonic()
    if run.state.ended:
        return StopResult(run=run, how="already ended", took_s=0.0)
    holder = lease.current(store, run.pipeline)
    over = holder is None or holder.released or holder.token != run.token
    if holder is not None and not over and not _is_gone(store, holder):
        return None
    closed = _close(store, run, root)
    now = lease.current(store, run.pipeline)
    if not over and not closed.state.ended and now is not None and now.token == run.token:
        return None  # its machine came back while it was watched
    return StopResult(run=closed, how="closed", took_s=time.monotonic() - began, pid=run.pid)


def give_up_engine(store: Store, run: Run, root: Path, gone: GoneEngine) -> StopResult:
    """Closes a dead run, and those before it, although the engine of its nodes cannot say that nothing of it is left.

    Raises:
        Held: the run goes on, or another one does.
        RunError: the engine answers, or some processes elsewhere could not be killed.
    """
    began = time.monotonic()
    mine = lease.acquire(store, run.pipeline, "a stop")
    closed = _close_with(mine, store, run, root, gone)
    how: How = "given up" if run.state.ended else "closed"  # one that had failed may have left nodes there, too
    return StopResult(run=closed, how=how, took_s=time.monotonic() - began)


def _is_gone(store: Store, holder: Holder) -> bool:
    """Whether a controller has ended; elsewhere, a heartbeat that has stopped is watched for a while."""
    alive = process.is_alive(holder.who)
    return alive is False or (alive is None and lease.is_dead(store, holder, lease.Clock()))


def _wait_until_ended(store: Store, run: Run, holder: Holder, deadline: float) -> bool:
    """Waits until the record is closed and the lease released, or the controller is gone; False at the deadline."""
    while time.monotonic() < deadline:
        if process.is_alive(holder.who) is False:
            return True
        now = lease.read(store, holder.pipeline, holder.token)
        if now is not None and now.released and process.is_alive(holder.who) is None:
            return store.run(run.pipeline, run.number).state.ended
        time.sleep(POLL_S)
    return False


def _kill(store: Store, run: Run, holder: Holder, *below: Identity) -> None:
    """Kills the controller and all of its processes, and verifies that none is left."""
    now = lease.read(store, holder.pipeline, holder.token) or holder  # the mark is recorded after the lease is acquired
    if left := process.kill(now.mark, holder.who, *below):
        raise RunError(
            f"Run {run.name} was killed, but some of its processes could not be: {process.format_survivors(left)}"
        )


def _close(store: Store, run: Run, root: Path) -> Run:
    """Records the end of a run whose controller is gone.

    Raises:
        RunError: processes of it, or of an earlier run, could not be killed.
    """
    try:
        mine = lease.acquire(store, run.pipeline, "a stop")
    except Held:
        return store.run(run.pipeline, run.number)  # the next run has begun and has closed the records
    return _close_with(mine, store, run, root)


def _close_with(mine: Lease, store: Store, run: Run, root: Path, gone: GoneEngine | None = None) -> Run:
    try:
        publisher.close_abandoned_runs(store, mine, root, gone)
    except Held as left:
        raise RunError(str(left)) from left
    finally:
        mine.release()
    remove_working_files(root, run, store.archive)
    return store.run(run.pipeline, run.number)
