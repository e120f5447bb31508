"""What follows from what is seen of an open tick; nothing runs."""

from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.run import Run, State
from spanwise.scheduler.daemon.open_tick import (
    Action,
    AttemptOver,
    BeginAttempt,
    ChildRunning,
    CloseRun,
    EndedElsewhere,
    EndTick,
    ForgetAttempt,
    IngestedElsewhere,
    KeepWaiting,
    LeaveIt,
    NotYet,
    Observation,
    ReadyToBegin,
    RetryLater,
    RunningWork,
    RunWithoutChild,
    SchedulePaused,
    WaitForPipeline,
    WatchProgress,
    decide,
)
from spanwise.scheduler.ledger.pauses import SchedulePause
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.retry import RetryRun
from spanwise.scheduler.schedule.timetable import OverrunPolicy

KILL, ALLOW = OverrunPolicy.KILL_AND_RUN, OverrunPolicy.ALLOW_TO_COMPLETE
DUE = datetime(2026, 3, 1, 3, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ONCE = Retry(times=1, backoff_s=30.0)
RUNNING = Run(pipeline="p", number=7)
FAILED = Run(pipeline="p", number=7, state=State.FAILED, error="Trainer failed")
COMPLETE = Run(pipeline="p", number=7, state=State.COMPLETE)
PAUSE = SchedulePause(number=1, who="ann", why="disks", since=DUE)


def over(run: Run | None = FAILED, **facts: object) -> AttemptOver:
    usual = {"begun": run is not None, "tries": 1, "overrun_by": None, "error": "", "stopped": ""}
    return AttemptOver(run=run, **{**usual, **facts})  # type: ignore[arg-type]


def ready(running: RunningWork | None = None, **facts: object) -> ReadyToBegin:
    usual = {"due": DUE, "attempts": 0, "waits_for": False, "end_others": False}
    return ReadyToBegin(running=running, **{**usual, **facts})  # type: ignore[arg-type]


def ended(outcome: TickOutcome, why: str = "", run: int | None = 7) -> TickEnd:
    return TickEnd(outcome=outcome, why=why, run=run)


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        (ChildRunning(), WatchProgress()),
        (NotYet(), KeepWaiting()),
        (SchedulePaused(PAUSE), WaitForPipeline("paused by ann: disks")),
        (EndedElsewhere(), LeaveIt()),
        (IngestedElsewhere(), EndTick(ended(TickOutcome.RAN, "another run had ingested it", None))),
        (RunWithoutChild(run=RUNNING, controller_dead=False), WatchProgress()),
        (RunWithoutChild(run=RUNNING, controller_dead=True), CloseRun(RUNNING)),
        (RunWithoutChild(run=RUNNING, controller_dead=False, stopping="asked"), CloseRun(RUNNING, "asked")),
        (RunWithoutChild(run=RUNNING, controller_dead=True, stopping="asked"), CloseRun(RUNNING)),
        (RunWithoutChild(run=RUNNING, controller_dead=False, close_error="elsewhere", stopping="asked"), LeaveIt()),
        (
            RunWithoutChild(run=RUNNING, controller_dead=True, close_error="disk full"),
            EndTick(ended(TickOutcome.FAILED, "p/7 died, and its records could not be closed: disk full")),
        ),
    ],
)
def test_a_tick_with_a_run_is_followed_to_its_end(seen: Observation, action: Action) -> None:
    """As a child, as the run of a dead scheduler, or as one whose controller has died."""
    assert decide(seen, ALLOW, ONCE) == action


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        (over(COMPLETE), EndTick(ended(TickOutcome.RAN))),
        (over(), RetryLater(RetryRun(30.0, 7))),
        (over(tries=2), EndTick(ended(TickOutcome.FAILED, "Trainer failed (attempt 2 of 2)"))),
        (over(overrun_by="the tick 04:00"), EndTick(ended(TickOutcome.KILLED, "ended for the tick 04:00"))),
        (over(stopped="the scheduler was stopped"), EndTick(ended(TickOutcome.FAILED, "the scheduler was stopped"))),
        (over(COMPLETE, stopped="the scheduler was stopped"), EndTick(ended(TickOutcome.RAN))),
        (over(None, error="no file p.py"), RetryLater(RetryRun(30.0, None))),
        (over(FAILED, begun=False, error="no file p.py"), RetryLater(RetryRun(30.0, 7))),
        (over(None, stopped="the scheduler was stopped"), ForgetAttempt()),
    ],
)
def test_an_attempt_that_is_over_ends_its_tick_or_is_retried(seen: Observation, action: Action) -> None:
    """One that was stopped is not retried; one that did not begin is left to the next scheduler when it was stopped."""
    assert decide(seen, ALLOW, ONCE) == action


BEFORE = RunningWork(began=DUE - MINUTE, run=RUNNING)
AFTER = RunningWork(began=DUE + MINUTE, run=RUNNING)
SKIPPED = EndTick(ended(TickOutcome.SKIPPED, "p/7 had not ended", None), RUNNING)


@pytest.mark.parametrize(
    ("seen", "policy", "action"),
    [
        (ready(), ALLOW, BeginAttempt(end_others=False)),
        (ready(BEFORE), ALLOW, SKIPPED),
        (ready(BEFORE), KILL, BeginAttempt(end_others=True)),
        (ready(BEFORE, end_others=True), ALLOW, BeginAttempt(end_others=True)),
        (ready(BEFORE, attempts=1), ALLOW, WaitForPipeline()),
        (ready(BEFORE, waits_for=True), KILL, WaitForPipeline()),
        (ready(AFTER), KILL, WaitForPipeline()),
        (ready(RunningWork(began=DUE - MINUTE, purpose="backfill 3")), KILL, WaitForPipeline()),
    ],
)
def test_an_attempt_begins_when_nothing_holds_the_pipeline(
    seen: Observation, policy: OverrunPolicy, action: Action
) -> None:
    """What began after the tick, or for another part, is waited for; what began before it is overrun by policy."""
    assert decide(seen, policy, ONCE) == action
