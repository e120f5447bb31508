"""What follows when ticks have come; nothing runs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.run import Run, State
from spanwise.scheduler.daemon.due_tick import (
    DueAction,
    DueObservation,
    EndedAttempt,
    EndSuperseded,
    RecordMissed,
    RecordSkipped,
    ReportClock,
    TakeTick,
    WaitForRun,
    WaitForSpans,
    decide_due,
)
from spanwise.scheduler.daemon.open_tick import RunningWork
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.schedule.due import DueTicks, MissedTick
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import OverrunPolicy, Timetable

THREE = datetime(2026, 3, 1, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOURLY = Timetable("p", cron="0 * * * *")
KILLING = replace(HOURLY, overrun=OverrunPolicy.KILL_AND_RUN)
CLOCK = ReportClock(timedelta(0))


def tick(hour: int) -> Tick:
    at = THREE + (hour - 3) * HOUR
    return Tick(at=at, name=f"{at:%H:%M}", wall=at)


def record(hour: int) -> TickRecord:
    return TickRecord(key="p", tick=tick(hour), number=hour, taken=tick(hour).at, after_run=0, holder=1, attempts=0)


MISSED = MissedTick(tick=tick(2), why="noticed late")
GOING = RunningWork(began=THREE - HOUR, run=Run(pipeline="p", number=7), record=record(2))
UNBEGUN = replace(GOING, run=None)
LATER = replace(GOING, began=THREE + HOUR)


@pytest.mark.parametrize(
    ("seen", "actions"),
    [
        (DueObservation(due=DueTicks()), [CLOCK]),
        (DueObservation(due=DueTicks(set_back=HOUR)), [ReportClock(HOUR)]),
        (DueObservation(due=DueTicks(run=(tick(3),)), spans_known=False), [WaitForSpans()]),
        (DueObservation(due=DueTicks(missed=(MISSED,))), [CLOCK, RecordMissed(DueTicks(missed=(MISSED,)))]),
        (DueObservation(due=DueTicks(run=(tick(3),))), [CLOCK, TakeTick(tick=tick(3))]),
        (
            DueObservation(due=DueTicks(run=(tick(3),)), span_missing="the file is gone"),
            [CLOCK, TakeTick(tick=tick(3), failure="the file is gone")],
        ),
        (DueObservation(due=DueTicks(run=(tick(3),)), running=GOING), [CLOCK, RecordSkipped(tick(3), GOING)]),
        (DueObservation(due=DueTicks(run=(tick(3),)), running=LATER), [CLOCK, WaitForRun(is_ours=True)]),
        (DueObservation(due=DueTicks(run=(tick(2), tick(3))), running=GOING), [CLOCK, WaitForRun(is_ours=True)]),
    ],
)
def test_a_tick_that_comes_runs_is_skipped_or_waits(seen: DueObservation, actions: list[DueAction]) -> None:
    """It waits for a run that began after it, as does a catch-up of several; a run that it overruns goes on."""
    assert decide_due(seen, HOURLY) == actions


def test_missed_ticks_are_recorded_before_the_one_that_runs() -> None:
    """A tick is recorded after those before it."""
    due = DueTicks(run=(tick(3),), missed=(MISSED,))

    assert decide_due(DueObservation(due=due), HOURLY) == [CLOCK, RecordMissed(due), TakeTick(tick=tick(3))]


@pytest.mark.parametrize(("running", "unbegun"), [(GOING, None), (UNBEGUN, record(2))])
def test_with_killandrun_what_runs_is_ended_first(running: RunningWork, unbegun: TickRecord | None) -> None:
    """By the new run; a tick that has begun no run is ended at once."""
    seen = DueObservation(due=DueTicks(run=(tick(3),)), running=running)

    assert decide_due(seen, KILLING) == [CLOCK, TakeTick(tick=tick(3), end_others=True, unbegun=unbegun)]


def test_a_tick_that_waits_for_its_retry_ends_when_the_next_comes() -> None:
    """It has failed; nothing runs, so nothing is overrun."""
    failed = Run(pipeline="p", number=7, state=State.FAILED, error="Trainer failed")
    seen = DueObservation(due=DueTicks(run=(tick(3),)), superseded=(EndedAttempt(record=record(2), run=failed),))

    why = "Trainer failed; not retried, since the next tick has come"
    end = TickEnd(outcome=TickOutcome.FAILED, why=why, run=7)
    retrying = replace(HOURLY, retry=Retry(times=2))
    assert decide_due(seen, retrying) == [CLOCK, EndSuperseded(record(2), end), TakeTick(tick=tick(3))]


@pytest.mark.parametrize("due", [(tick(3), tick(4)), (tick(4),)], ids=["of several", "and its last"])
def test_a_tick_of_a_catch_up_is_retried_before_the_next_begins(due: tuple[Tick, ...]) -> None:
    """What is due has waited for it since before it was taken; each of a catch-up but the last lost its retries."""
    failed = Run(pipeline="p", number=7, state=State.FAILED, error="Trainer failed")
    attempt = EndedAttempt(record=replace(record(2), taken=tick(5).at, attempts=1), run=failed)
    seen = DueObservation(due=DueTicks(run=due), superseded=(attempt,))

    assert decide_due(seen, replace(HOURLY, retry=Retry(times=2))) == [CLOCK, WaitForRun(is_ours=True)]
    end = TickEnd(outcome=TickOutcome.FAILED, why="Trainer failed", run=7)
    assert decide_due(seen, HOURLY) == [CLOCK, EndSuperseded(attempt.record, end), TakeTick(tick=due[0])]


@pytest.mark.parametrize("timetable", [HOURLY, KILLING])
@pytest.mark.parametrize(
    ("run", "end"),
    [
        (Run(pipeline="p", number=7, state=State.COMPLETE), TickEnd(outcome=TickOutcome.RAN, run=7)),
        (
            Run(pipeline="p", number=7, state=State.FAILED, error="Trainer failed"),
            TickEnd(outcome=TickOutcome.FAILED, why="Trainer failed", run=7),
        ),
        (
            Run(pipeline="p", number=7, state=State.CANCELED, error="stopped by SIGTERM"),
            TickEnd(outcome=TickOutcome.FAILED, why="stopped by SIGTERM", run=7),
        ),
    ],
)
def test_an_earlier_tick_ends_as_its_run_has_ended(timetable: Timetable, run: Run, end: TickEnd) -> None:
    """Whatever the policy: what has ended is not overrun."""
    seen = DueObservation(due=DueTicks(run=(tick(3),)), superseded=(EndedAttempt(record=record(2), run=run),))

    assert decide_due(seen, timetable) == [CLOCK, EndSuperseded(record(2), end), TakeTick(tick=tick(3))]


@pytest.mark.parametrize("timetable", [HOURLY, KILLING])
def test_a_tick_waits_for_a_run_that_is_ending(timetable: Timetable) -> None:
    """Its end is recorded; the pipeline will be free in a moment."""
    seen = DueObservation(due=DueTicks(run=(tick(3),)), running=replace(UNBEGUN, record=None, ending=True))

    assert decide_due(seen, timetable) == [CLOCK, WaitForRun(is_ours=False)]
