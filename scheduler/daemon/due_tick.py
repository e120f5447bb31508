"""Due ticks: what a scheduler does about ticks that have come. Decides; does nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeAlias

from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.run import Run, State
from spanwise.scheduler.daemon.open_tick import RunningWork
from spanwise.scheduler.formatting import format_count
from spanwise.scheduler.ledger.pauses import PAUSED
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.schedule.due import DueTicks, OlderTicks, must_wait
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome, join_spans
from spanwise.scheduler.schedule.overrun import KillThenStart, SkipTick, decide_overrun
from spanwise.scheduler.schedule.retry import RetryRun, decide_retry
from spanwise.scheduler.schedule.ticks import Tick, latest, ticks
from spanwise.scheduler.schedule.timetable import Timetable


@dataclass(frozen=True, kw_only=True)
class EndedAttempt:
    """An earlier open tick of which nothing runs any more, now that the next tick has come.

    Its last run has ended, whether or not the process of that run has, or no attempt at it has begun one.
    """

    record: TickRecord
    run: Run | None
    overrun_by: str | None = None  #: that for which the run was ended


@dataclass(frozen=True, kw_only=True)
class DueObservation:
    """What is seen when ticks have come."""

    due: DueTicks
    spans_known: bool = True  #: the pipeline file has said which spans its own rule gives
    superseded: tuple[EndedAttempt, ...] = ()
    running: RunningWork | None = None  #: what the first due tick would overrun
    running_is_ours: bool = True  #: this scheduler will see it end
    span_missing: str = ""  #: why the first due tick has no span, where its schedule has a rule


@dataclass(frozen=True)
class WaitForSpans:
    """Wait for the answer of the pipeline file."""


@dataclass(frozen=True)
class ReportClock:
    """Report whether the clock stands before the newest tick."""

    set_back: timedelta


@dataclass(frozen=True)
class RecordMissed:
    """Record the ticks that were missed."""

    due: DueTicks


@dataclass(frozen=True)
class EndSuperseded:
    """End an earlier tick: as its run ended, or as failed if it waited for its retry."""

    record: TickRecord
    end: TickEnd


@dataclass(frozen=True)
class WaitForRun:
    """Wait for the end of a run that is not overrun."""

    is_ours: bool


@dataclass(frozen=True)
class RecordSkipped:
    """Take the tick and end it at once as skipped."""

    tick: Tick
    running: RunningWork


@dataclass(frozen=True, kw_only=True)
class TakeTick:
    """Take the tick and start its run."""

    tick: Tick
    end_others: bool = False  #: whatever holds the pipeline is ended first
    unbegun: TickRecord | None = None  #: an earlier tick to end, whose run has not begun
    failure: str = ""  #: why it fails at once


DueAction: TypeAlias = WaitForSpans | ReportClock | RecordMissed | EndSuperseded | WaitForRun | RecordSkipped | TakeTick


def decide_due(seen: DueObservation, timetable: Timetable) -> list[DueAction]:
    """What to do, in this order. Missed ticks are recorded first: a tick is recorded after those before it."""
    due = seen.due
    if not seen.spans_known:
        return [WaitForSpans()]
    actions: list[DueAction] = [ReportClock(due.set_back)]
    if due.older or due.missed:
        actions.append(RecordMissed(due))
    if not due.run:
        return actions
    awaited = [each for each in seen.superseded if _awaits_retry(each, due, timetable)]
    ended = [each for each in seen.superseded if each not in awaited]
    actions += [EndSuperseded(each.record, _decide_end(each, timetable.retry)) for each in ended]
    if awaited:
        return [*actions, WaitForRun(is_ours=True)]
    if seen.running is not None and (seen.running.ending or must_wait(due, timetable, seen.running.began)):
        return [*actions, WaitForRun(seen.running_is_ours and not seen.running.ending)]
    tick, decision = due.run[0], decide_overrun(timetable.overrun, seen.running)
    if isinstance(decision, SkipTick):
        return [*actions, RecordSkipped(tick, decision.running)]
    kills = isinstance(decision, KillThenStart)
    unbegun = seen.running.record if kills and seen.running is not None and not seen.running.has_begun else None
    return [*actions, TakeTick(tick=tick, end_others=kills, unbegun=unbegun, failure=seen.span_missing)]


def has_settled(run: Run | None, attempts: int, retry: Retry) -> bool:
    """Whether a run has decided its tick, so that no further attempt follows whoever looks after it."""
    return run is not None and run.state.ended and (run.state is not State.FAILED or attempts > retry.times)


def _awaits_retry(earlier: EndedAttempt, due: DueTicks, timetable: Timetable) -> bool:
    """Whether what is due came before the tick was taken, as in a catch-up, and so waits for its retries too."""
    tries = max(1, earlier.record.attempts)
    verdict = decide_retry(earlier.run, tries, timetable.retry, overrun_by=earlier.overrun_by, error="")
    return isinstance(verdict, RetryRun) and must_wait(due, timetable, earlier.record.taken)


def _decide_end(earlier: EndedAttempt, retry: Retry) -> TickEnd:
    """The record of its run decides; a retry is given up, since the next tick has come."""
    run, tries = earlier.run, max(1, earlier.record.attempts)
    verdict = decide_retry(run, tries, retry, overrun_by=earlier.overrun_by, error="")
    if run is not None and isinstance(verdict, TickEnd):
        return verdict
    why = f"{(run and run.error) or 'it could not begin'}; not retried, since the next tick has come"
    return TickEnd(outcome=TickOutcome.FAILED, why=why, run=None if run is None else run.number)


def end_missed(due: DueTicks, timetable: Timetable) -> list[tuple[Tick, TickEnd]]:
    """The ticks that are recorded as missed, oldest first, with their ends; the last of older ones stands for all."""
    ends = [_end_older(older, timetable) for older in due.older]
    for missed in due.missed:
        quiet = missed.why.startswith(PAUSED)
        ends.append((missed.tick, TickEnd(outcome=TickOutcome.MISSED, why=missed.why, quiet=quiet)))
    return ends


def _end_older(older: OlderTicks, timetable: Timetable) -> tuple[Tick, TickEnd]:
    """The tick that stands for older ones. Where the span of one is not known, none is: no run recovers them all."""
    walked = older.ticks
    tick = walked[-1] if walked else latest(timetable, older.last)
    assert tick is not None, "it came"
    first = walked[0] if walked else next(ticks(timetable, older.first - timedelta(seconds=1)), tick)
    spans = sorted({each.span for each in walked if each.span is not None})
    if any(each.span_unknown for each in walked):
        tick, spans = replace(tick, span=None), []
    count = format_count(older.about, "tick")
    passed = (
        f"{'' if walked else 'about '}{count} from {older.first:%Y-%m-%d %H:%M}Z up to this one passed without a run"
    )
    end = TickEnd(
        outcome=TickOutcome.MISSED,
        why=f"{older.why}; {passed}" if older.why else passed,
        quiet=older.why.startswith(PAUSED),
        first_at=older.first,
        first_span=first.span,
        spans=join_spans(spans),
    )
    return tick, end
