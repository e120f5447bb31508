"""Open ticks: what is seen of a tick that was taken and has not ended, and what follows from it. Decides; does nothing.

Each step of a scheduler observes every open tick, decides here, and performs the action. An observation holds what its
case needs and nothing else, since each fact is a question to the metadata store.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.run import Run
from spanwise.scheduler.daemon import scheduled_run
from spanwise.scheduler.daemon.scheduled_run import ScheduledJob
from spanwise.scheduler.ledger.pauses import SchedulePause, format_pause
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.overrun import SkipTick, decide_overrun
from spanwise.scheduler.schedule.retry import RetryRun, decide_retry
from spanwise.scheduler.schedule.timetable import OverrunPolicy

MOST_OUTAGES = 20
"""After so many attempts to which the metadata were away, but not to their scheduler, the next ones count."""

OUTAGE_S = 10.0
"""The wait after one that does not count."""


@dataclass
class OpenTick:
    """An open tick that this scheduler looks after, with the process that runs it."""

    record: TickRecord
    child: subprocess.Popen[bytes] | None = None
    job: ScheduledJob | None = None  #: of the last child
    closer: subprocess.Popen[bytes] | None = None  #: ends the child, which would not end
    code: int | None = None  #: exit code of the last child, until it was decided what follows
    unbegun: int = 0  #: attempts that ended before their run began
    outages: int = 0  #: children that ended because the metadata were away
    outage: bool = False  #: that of its run, whose end is not recorded yet, was one of them
    uncounted: int = 0  #: attempts that ended so
    again_s: float = 0.0  #: monotonic: no attempt before
    record_s: float = 0.0  #: monotonic: when to see in the metadata whether the run of its child has ended
    base: int | None = None  #: the run that the next attempt resumes
    end_others: bool = False  #: the next attempt ends whatever run holds the pipeline
    awaits_resume: bool = False  #: its next attempt waits for the end of a pause
    stopped: str = ""  #: why this scheduler asked its run to end
    progress: tuple[int, ...] = ()  #: of its run, when it last changed
    progress_s: float = 0.0  #: monotonic: when that was
    measure_s: float = 0.0  #: monotonic: not measured again before
    stalled: bool = False  #: an alert said that it makes no progress

    def has_made(self, attempts: int) -> bool:
        """Whether the last of so many attempts is the work of its child, and none that is about to begin."""
        return self.job is None or self.job.attempt <= attempts

    @property
    def has_run(self) -> bool:
        """Whether a run of it may go on: its child's, or one that an earlier scheduler began."""
        return self.child is not None or (self.record.attempts > 0 and not self.awaits_retry)

    @property
    def closes_dead_run(self) -> bool:
        """Whether its child records the end of a run whose controller died."""
        return self.child is not None and self.job is not None and self.job.close is not None and not self.stopped

    @property
    def awaits_retry(self) -> bool:
        """Whether an attempt at it has failed and the next has not started."""
        return self.child is None and (self.base is not None or self.unbegun > 0)


@dataclass(frozen=True, kw_only=True)
class RunningWork:
    """What holds a pipeline."""

    began: datetime
    run: Run | None = None  #: None: it has begun none yet, or is between two
    record: TickRecord | None = None  #: the open tick that it is for; None for a run that was started otherwise
    purpose: str = ""
    ending: bool = False  #: its run has just ended, or is dead, and the pipeline is about to be free

    @property
    def name(self) -> str:
        """The run that goes on, or what it is for."""
        return self.run.name if self.run is not None and self.has_begun else self.purpose

    @property
    def has_begun(self) -> bool:
        """Whether it is a run that goes on."""
        return self.run is not None and not self.run.state.ended


# --- what is seen


@dataclass(frozen=True)
class ChildRunning:
    """Its process runs."""


@dataclass(frozen=True)
class NotYet:
    """It waits for the time of its next attempt, or this scheduler begins nothing any more."""


@dataclass(frozen=True)
class SchedulePaused:
    """Its next attempt may start once the pause has ended."""

    pause: SchedulePause


@dataclass(frozen=True)
class EndedElsewhere:
    """Somebody else has ended it."""


@dataclass(frozen=True)
class IngestedElsewhere:
    """Another run has ingested the data that it was for."""


@dataclass(frozen=True, kw_only=True)
class RunWithoutChild:
    """Its run goes on, as it seems, and is not, or no longer, the work of a child of this scheduler."""

    run: Run
    controller_dead: bool
    stopping: str = ""  #: why this scheduler ends all runs; empty when it does not
    close_error: str | None = None  #: why the records of the dead run could not be closed; None: nobody has failed to


@dataclass(frozen=True, kw_only=True)
class AttemptOver:
    """An attempt has ended, and nothing has followed from it yet."""

    run: Run | None  #: None: no run began
    begun: bool  #: the last attempt has begun a run
    outage: bool = False  #: it ended because the metadata were away, which does not count
    tries: int
    overrun_by: str | None
    error: str  #: of an attempt that did not begin
    stopped: str  #: why this scheduler asked it to end


@dataclass(frozen=True, kw_only=True)
class ReadyToBegin:
    """Its next attempt may start, unless something holds the pipeline."""

    running: RunningWork | None
    due: datetime  #: when its run was to start
    attempts: int
    waits_for: bool  #: what holds the pipeline is of another part of it, which is never overrun
    end_others: bool


Observation: TypeAlias = (
    ChildRunning
    | NotYet
    | SchedulePaused
    | EndedElsewhere
    | IngestedElsewhere
    | RunWithoutChild
    | AttemptOver
    | ReadyToBegin
)


# --- what to do


@dataclass(frozen=True)
class KeepWaiting:
    """Nothing."""


@dataclass(frozen=True)
class LeaveIt:
    """No longer look after it."""


@dataclass(frozen=True)
class WatchProgress:
    """See whether its run makes progress."""


@dataclass(frozen=True)
class CloseRun:
    """Start a process that stops a run, or closes the records of one whose controller died."""

    run: Run
    why: str = ""  #: why this scheduler stops it; empty for one that died


@dataclass(frozen=True)
class EndTick:
    """End it."""

    end: TickEnd
    running: Run | None = None  #: the run for which it was skipped


@dataclass(frozen=True)
class RetryLater:
    """Start another attempt after a wait."""

    retry: RetryRun


@dataclass(frozen=True)
class ForgetAttempt:
    """The attempt came to nothing: the next scheduler may start one."""


@dataclass(frozen=True)
class WaitForPipeline:
    """Look again in a moment whether the pipeline is free, and its schedule goes on."""

    paused: str = ""  #: by whom and why it is paused; empty when it is not


@dataclass(frozen=True)
class BeginAttempt:
    """Start the next attempt."""

    end_others: bool


Action: TypeAlias = (
    KeepWaiting
    | LeaveIt
    | WatchProgress
    | CloseRun
    | EndTick
    | RetryLater
    | ForgetAttempt
    | WaitForPipeline
    | BeginAttempt
)


def decide(seen: Observation, policy: OverrunPolicy, retry: Retry) -> Action:
    """What to do about an open tick."""
    action: Action
    match seen:
        case ChildRunning():
            action = WatchProgress()
        case NotYet():
            action = KeepWaiting()
        case SchedulePaused():
            action = WaitForPipeline(format_pause(seen.pause))
        case EndedElsewhere():
            action = LeaveIt()
        case IngestedElsewhere():
            action = EndTick(TickEnd(outcome=TickOutcome.RAN, why="another run had ingested it"))
        case RunWithoutChild():
            action = _decide_without_child(seen)
        case AttemptOver():
            action = _decide_after(seen, retry)
        case ReadyToBegin():
            action = _decide_begin(seen, policy)
    return action


def _decide_without_child(seen: RunWithoutChild) -> Action:
    if seen.stopping and not seen.controller_dead:
        # One that would not be stopped, because it is elsewhere, is left to the next scheduler.
        return CloseRun(seen.run, seen.stopping) if seen.close_error is None else LeaveIt()
    if seen.close_error is not None:
        why = f"{seen.run.name} died, and its records could not be closed: {seen.close_error}"
        return EndTick(TickEnd(outcome=TickOutcome.FAILED, why=why, run=seen.run.number))
    return CloseRun(seen.run) if seen.controller_dead else WatchProgress()


def _decide_after(seen: AttemptOver, retry: Retry) -> Action:
    if seen.stopped and not seen.begun:
        return ForgetAttempt()
    if seen.outage and not seen.stopped:
        retry = Retry(times=seen.tries, backoff_s=OUTAGE_S, factor=1.0)
    verdict = decide_retry(
        seen.run if seen.begun else None,
        seen.tries,
        Retry() if seen.stopped else retry,
        overrun_by=seen.overrun_by,
        error=seen.error,
    )
    if isinstance(verdict, RetryRun):
        # Of an attempt that did not begin, the next resumes what the one before it would have resumed.
        return RetryLater(replace(verdict, base=None if seen.run is None else seen.run.number))
    if seen.stopped and verdict.outcome is TickOutcome.FAILED:
        verdict = replace(verdict, why=seen.stopped)
    return EndTick(verdict)


def _decide_begin(seen: ReadyToBegin, policy: OverrunPolicy) -> Action:
    """What began after the tick is waited for; what began before it is overrun, as the policy says."""
    if seen.running is None or seen.end_others:
        return BeginAttempt(seen.end_others)
    came_after = seen.attempts or seen.running.began >= seen.due
    if came_after or seen.running.run is None or seen.running.ending or seen.waits_for:
        return WaitForPipeline()
    if isinstance(decide_overrun(policy, seen.running), SkipTick):
        return EndTick(skipped_for(seen.running), seen.running.run)
    return BeginAttempt(end_others=True)


def skipped_for(running: RunningWork) -> TickEnd:
    """The end of a tick that is skipped for what runs."""
    return TickEnd(outcome=TickOutcome.SKIPPED, why=f"{running.name} had not ended")


def came_to_nothing(code: int | None) -> bool:
    """Whether a child ended because another has the pipeline, or the attempt, or because its schedule is paused."""
    return code in (scheduled_run.HELD, scheduled_run.TAKEN, scheduled_run.PAUSED)
