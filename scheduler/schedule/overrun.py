"""Overruns: what to do when a tick comes and the last run has not ended. Pure; starts and stops nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from spanwise.scheduler.schedule.timetable import OverrunPolicy

Running = TypeVar("Running")
"""Whatever the caller knows a running run by."""


@dataclass(frozen=True)
class StartRun:
    """Nothing runs: start the tick's run."""


@dataclass(frozen=True)
class SkipTick(Generic[Running]):
    """Leave the run alone and start none; the tick is recorded as skipped."""

    running: Running


@dataclass(frozen=True)
class KillThenStart(Generic[Running]):
    """End the run, record it as killed, and start the tick's run once the old one is certainly gone."""

    running: Running


def describe_overrun(tick: str) -> str:
    """For what a run is ended by policy; completes the sentence "ended for …"."""
    return f"the tick {tick} (overrun policy {OverrunPolicy.KILL_AND_RUN.value})"


def decide_overrun(
    policy: OverrunPolicy, running: Running | None
) -> StartRun | SkipTick[Running] | KillThenStart[Running]:
    """What to do at a tick. Anything but StartRun is abnormal, and reported to the owner (RFC, Concurrent Runs)."""
    if running is None:
        return StartRun()
    return KillThenStart(running) if policy is OverrunPolicy.KILL_AND_RUN else SkipTick(running)
