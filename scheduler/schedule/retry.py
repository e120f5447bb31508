"""Retries: what follows when one run of a tick is over. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.run import Run, State
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome


@dataclass(frozen=True)
class RetryRun:
    """The tick gets another attempt."""

    wait_s: float
    base: int | None  #: the run that it takes up where that one stopped; None begins anew


def decide_retry(
    run: Run | None, tries: int, retry: Retry, *, overrun_by: str | None, error: str
) -> RetryRun | TickEnd:
    """What follows the last of `tries` attempts.

    `run` is its run, None when none began; `overrun_by` is that for which it was ended; `error` its last error.
    A run that somebody stopped is not tried again: they had a reason.
    """
    number = None if run is None else run.number
    if run is not None and run.state is State.COMPLETE:
        return TickEnd(outcome=TickOutcome.RAN, run=number)
    if overrun_by is not None:
        return TickEnd(outcome=TickOutcome.KILLED, why=f"ended for {overrun_by}", run=number)
    stopped = run is not None and run.state is State.CANCELED
    if not stopped and tries <= retry.times:
        return RetryRun(retry.wait_s(tries), number)
    why = (run.error if run is not None else error) or "it ended without saying why"
    return TickEnd(
        outcome=TickOutcome.FAILED, why=why if tries == 1 else f"{why} (attempt {tries} of {tries})", run=number
    )
