"""Stopping a run from outside: ask it, wait, and where it will not end, end it and put its records right."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spanwise.orchestrator import lease, process, publisher
from spanwise.orchestrator.errors import Held, RunError
from spanwise.orchestrator.lease import Holder
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.run_dir import remove_working_files
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store

POLL_S = 0.1
SLACK_S = 5.0
"""What a run may take to end itself, beyond the grace of its nodes."""

How = Literal["was over", "ended", "killed", "closed"]


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """What stopping a run took."""

    run: Run
    how: How
    took_s: float
    pid: int | None = None  #: its controller, when it was on this machine

    def __str__(self) -> str:
        run, pid = self.run, f" (pid {self.pid})" if self.pid else ""
        match self.how:
            case "was over":
                return f"Run {run.name} was over already: {run.state.value}. Nothing was done."
            case "ended":
                return f"Run {run.name} was asked to stop and ended after {self.took_s:.1f} s: {run.state.value}."
            case "killed":
                return (
                    f"Run {run.name} did not end within {self.took_s:.1f} s, so its controller{pid} and all of its "
                    f"processes were killed; it is recorded as {run.state.value}."
                )
            case "closed":
                return f"Run {run.name} had died already{pid}; what it left open is recorded as {run.state.value}."


def stop(store: Store, run: Run, root: Path, *, grace_s: float) -> Stopped:
    """Ends a run, and returns when it has ended and its lease is free.

    On this machine that means: no process of it is left, not even one that has detached itself.

    Raises:
        RunError: it is on another machine and did not end in time, or processes of it would not die; they are named.
    """
    began = time.monotonic()
    if run.state.ended:
        return Stopped(run=run, how="was over", took_s=0.0)
    holder = lease.current(store, run.pipeline)
    if holder is None or holder.released or holder.token != run.token or process.alive(holder.who) is False:
        return Stopped(run=_close(store, run, root), how="closed", took_s=time.monotonic() - began, pid=run.pid)
    with contextlib.suppress(AlreadyClaimed):  # somebody has asked before us
        store.claim(Claim("stop", run.name))
    here = holder.who.machine == process.machine()
    # What the controller itself has started, while its pipeline was imported for one, is not among the workers.
    below = [process.identity(pid) for pid in process.descendants(holder.who.pid)] if here else []
    if here:
        process.send([holder.who.pid], signal.SIGTERM)
    waited = _waited(store, run, holder, began + grace_s + SLACK_S)
    if here:
        _end(store, run, holder, *below)
    if waited:
        ended = store.run(run.pipeline, run.number)
        if ended.state.ended:
            how: How = "ended"
        else:  # it died of the signal before it could record anything
            ended, how = _close(store, run, root), "killed"
        return Stopped(run=ended, how=how, took_s=time.monotonic() - began, pid=holder.who.pid if here else None)
    if not here:
        raise RunError(
            f"Run {run.name} is on {holder.who.host} (pid {holder.who.pid}) and was asked to stop, but has not ended "
            f"within {grace_s + SLACK_S:g} s. End it there:  kill -KILL {holder.who.pid}"
        )
    return Stopped(run=_close(store, run, root), how="killed", took_s=time.monotonic() - began, pid=holder.who.pid)


def _waited(store: Store, run: Run, holder: Holder, deadline: float) -> bool:
    """Whether the run ended in time: its record is closed and its lease given back, or its controller is gone."""
    while time.monotonic() < deadline:
        if process.alive(holder.who) is False:
            return True
        now = lease.read(store, holder.pipeline, holder.token)
        if now is not None and now.released and process.alive(holder.who) is None:
            return store.run(run.pipeline, run.number).state.ended
        time.sleep(POLL_S)
    return False


def _end(store: Store, run: Run, holder: Holder, *below: Identity) -> None:
    """Kills the controller and all that works for it, and proves that nothing is left."""
    now = lease.read(store, holder.pipeline, holder.token) or holder  # the mark is noted after the lease is taken
    if left := process.end(now.mark, holder.who, *below):
        raise RunError(f"Run {run.name} was killed, but processes of it would not die: {process.named(left)}")


def _close(store: Store, run: Run, root: Path) -> Run:
    """Records the end of a run whose controller is gone.

    Raises:
        RunError: processes of it, or of one before it, would not die.
    """
    try:
        mine = lease.acquire(store, run.pipeline, "a stop")
    except Held:
        return store.run(run.pipeline, run.number)  # the next run has begun; it has put the records right
    try:
        publisher.close_abandoned_runs(store, mine, root)
    except Held as left:
        raise RunError(str(left)) from left
    finally:
        mine.release()
    remove_working_files(root, run)
    return store.run(run.pipeline, run.number)
