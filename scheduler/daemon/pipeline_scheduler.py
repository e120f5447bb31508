"""One pipeline as a scheduler looks after it: its open ticks, and the ticks that come.

`step` may be called at any time and any number of times. It observes what the ledger knows, has `open_tick`, `due_tick`
and `arrival` decide, and performs the actions; each action is a claim, so that doing it twice, or in two processes,
does it once.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.run import Run, State, Trigger
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert, outbox
from spanwise.scheduler.alerts.alert import Alert, Site
from spanwise.scheduler.daemon import due_tick, open_tick, scheduled_run
from spanwise.scheduler.daemon.arrival import ArrivalQueue
from spanwise.scheduler.daemon.description import ScheduleDescription
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
    has_settled,
)
from spanwise.scheduler.daemon.open_tick import (
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
    OpenTick,
    ReadyToBegin,
    RetryLater,
    RunningWork,
    RunWithoutChild,
    WaitForPipeline,
    WatchProgress,
)
from spanwise.scheduler.daemon.scheduled_run import ScheduledJob
from spanwise.scheduler.daemon.span_lookup import SpanLookup
from spanwise.scheduler.daemon.tick_alerts import EndedTickFacts, alerts_of
from spanwise.scheduler.formatting import format_count
from spanwise.scheduler.ledger.heartbeat import HeartbeatWatch, read_scheduler
from spanwise.scheduler.ledger.holder import find_holder, find_run, is_ending, is_of_another_key
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.overdue import find_stale, measure_progress
from spanwise.scheduler.ledger.past_runs import list_past_runs
from spanwise.scheduler.ledger.pauses import SchedulePause, current_pause, list_pauses
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_keys
from spanwise.scheduler.ledger.ticks import (
    TickRecord,
    adopt_tick,
    claim_tick,
    end_tick,
    list_open,
    list_unsettled,
    mark_alerted,
    newest_tick,
    read_overrun,
    read_tick,
)
from spanwise.scheduler.project.settings import FORECAST_LOAD
from spanwise.scheduler.schedule.due import DueTicks, MissedTick, find_due
from spanwise.scheduler.schedule.forecast import Forecast, format_forecast, make_forecast
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.overrun import describe_overrun
from spanwise.scheduler.schedule.schedule_key import DATA, format_cause, part_of, pipeline_of
from spanwise.scheduler.schedule.ticks import Tick, latest, starts, ticks

log = logging.getLogger("spanwise.scheduler")

POLL_S = 1.0
"""Between two looks at what does not announce itself: a run that is not our child, a lease that others hold."""

RECORD_S = 10.0
"""Between two looks whether the run of a child has ended that has not: it may be slow to exit."""

EXIT_S = 60.0
"""How long a process may live after the end of its run."""

FRESHNESS_S = 60.0
"""Between two looks whether the model in service is stale."""

PAUSED = "paused by "


def _alarm(forecast: Forecast) -> str:
    return forecast.alarm(FORECAST_LOAD)


@dataclass(frozen=True, kw_only=True)
class SchedulerServices:
    """What a scheduler provides to each of its pipelines."""

    root: Path
    config: Path | None
    site: Site
    settle_s: float = 0.0  #: how long arrived data must not have changed before a run is started for it
    start: Callable[[ScheduledJob], subprocess.Popen[bytes]] = scheduled_run.start
    on_ended: Callable[[TickRecord], object] = lambda _record: None  #: gets each tick that this scheduler ends
    measure: Callable[[Store, TickRecord], object] = lambda _store, _record: None  #: the same, for metrics
    alarm: Callable[[Forecast], str] = _alarm  #: why an alert about a forecast is sent; empty: none is

    def send(self, message: Alert) -> bool:
        """Puts an alert into the outbox."""
        return outbox.put(self.root, message)


@dataclass(frozen=True)
class ExitingChild:
    """A process whose run has ended. What becomes of it changes no outcome."""

    process: subprocess.Popen[bytes]
    until_s: float  #: monotonic: when it is killed


@dataclass(frozen=True)
class NewestTick:
    """The newest tick that was taken: no tick at or before it is due."""

    at: datetime
    number: int  #: 0: there is none


class PipelineScheduler:
    """A scheduled pipeline, or a part of one."""

    def __init__(
        self,
        description: ScheduleDescription,
        record: ScheduleRecord,
        services: SchedulerServices,
        watch: HeartbeatWatch,
    ) -> None:
        self.description = description
        self.record = record
        self.open: dict[str, OpenTick] = {}
        self.exiting: list[ExitingChild] = []
        self.due_at: datetime | None = None  #: when the next tick comes
        self.look_s = 0.0  #: monotonic: when to look again, whatever comes
        self.adopting = True  #: ticks of dead schedulers may be there to take over
        self.retired = False  #: its file has it no longer
        self.failures = 0  #: in a row, of looking after it
        self.looked_at = False  #: at least once
        self.arrivals = ArrivalQueue(description.ready)
        self._services = services
        self._watch = watch
        self._newest: NewestTick | None = None
        self._spans = SpanLookup(services.config)
        self._stopping = ""  # why all runs are to end
        self._waiting = False  # ticks have come, and something has to end before they run
        self._freshness_s = 0.0  # monotonic: not before
        self._alerted: set[str] = set()  # conditions that hold and were alerted: stale, overrun-ahead, clock-set-back

    @property
    def key(self) -> str:
        """The schedule key."""
        return self.description.pipeline

    @property
    def busy(self) -> bool:
        """Whether something of it is still to be waited for."""
        return bool(self.open or self.exiting) or self._waiting or self._spans.is_asking or self.arrivals.pending

    @property
    def has_runs(self) -> bool:
        """Whether a run of it goes on, or has ended and nothing has followed from that yet."""
        return bool(self.exiting) or any(tick.has_run for tick in self.open.values())

    def stop(self, why: str) -> None:
        """Asks its runs to end; those that it has adopted at the next step."""
        self._stopping, self.look_s = why, 0.0
        for tick in self.open.values():
            if tick.child is not None and tick.child.poll() is None:
                tick.stopped = why
                tick.child.terminate()
        for each in self.exiting:
            each.process.terminate()

    def kill(self, store: Store) -> None:
        """Ends its runs, those that would not when they were asked; their children see to it."""
        for each in self.exiting:
            each.process.kill()
        for tick in self.open.values():
            if tick.child is None or tick.closer is not None:
                continue
            record = read_tick(store, self.key, tick.record.tick.name) or tick.record
            run = newest_run(store, record)
            if run is None or run.state.ended:
                tick.child.kill()
            else:
                tick.closer = self._start_closing(tick, run, record.attempts, keep_job=True)

    def update(self, description: ScheduleDescription, record: ScheduleRecord) -> None:
        """Goes on with what the file says now."""
        before = self.description
        if (description.timetable, description.source) != (before.timetable, before.source):
            self._spans.clear()
        self.description, self.record, self.retired, self.look_s = description, record, False, 0.0
        self.arrivals.update(description.ready)

    def ready(self, now: datetime, monotonic: float) -> bool:
        """Whether there is something to look at."""
        if self.due_at is not None and now >= self.due_at and not self.retired:
            return True
        children = [tick.child for tick in self.open.values() if tick.child is not None]
        children += [each.process for each in self.exiting]
        return monotonic >= self.look_s or any(child.poll() is not None for child in children)

    # --- a step

    def step(self, store: Store, me: int, now: datetime, monotonic: float, *, until: datetime | None) -> None:
        """Looks at everything there is to look at, and takes ticks that have come by `until`; None: begins nothing."""
        self._reap(monotonic)
        if self.adopting:
            self._adopt(store, me, now)
        for tick in list(self.open.values()):
            seen = self._observe(tick, store, now, monotonic, begins=until is not None)
            self._perform(tick, seen, store, now, monotonic)
        self.due_at, self._waiting = None, False
        if until is not None and not self.retired:
            if part_of(self.key) == DATA:
                self._take_arrival(store, me, now, monotonic)
            else:
                due = self._observe_due(store, now, until)
                if until == now and due.due.next is not None:
                    self.due_at = starts(self.description.timetable, due.due.next)
                for action in due_tick.decide_due(due, self.description.timetable):
                    self._perform_due(action, store, me, now, monotonic)
        if monotonic >= self._freshness_s and self.description.timetable.freshness is not None:
            self._freshness_s = monotonic + FRESHNESS_S
            self._check_freshness(store, now)
        self.look_s = self._next_look(monotonic)
        self.looked_at = True

    def _next_look(self, monotonic: float) -> float:
        timetable = self.description.timetable
        moments = [self._freshness_s] if timetable.freshness is not None else []
        moments += [max(each.until_s, monotonic + POLL_S) for each in self.exiting]
        for tick in self.open.values():
            if tick.child is None:
                moments.append(max(tick.again_s, monotonic + POLL_S))
                continue
            moments.append(tick.record_s)
            if timetable.stall_after is not None:
                moments.append(monotonic + max(POLL_S, timetable.stall_after.total_seconds() / 10))
        if self._spans.is_asking:
            moments.append(monotonic + POLL_S / 10)
        if self._waiting:
            moments.append(monotonic + POLL_S)
        if self.adopting:
            moments.append(monotonic + FRESHNESS_S)
        return min(moments, default=float("inf"))

    def _reap(self, monotonic: float) -> None:
        """Forgets processes that have exited, and kills those that take too long."""
        for each in self.exiting:
            if each.process.poll() is None and monotonic >= each.until_s:
                log.warning("exit-forced", extra={"pipeline": self.key, "pid": each.process.pid})
                each.process.kill()
        self.exiting = [each for each in self.exiting if each.process.poll() is None]

    def _leave_child(self, tick: OpenTick, monotonic: float) -> None:
        """Lets a process exit whose run has ended."""
        if tick.child is not None and tick.child.poll() is None:
            self.exiting.append(ExitingChild(tick.child, monotonic + EXIT_S))
        tick.child = None

    def _adopt(self, store: Store, me: int, now: datetime) -> None:
        """Takes over what dead schedulers have left open, and sends the alerts that they could not send any more."""
        self.adopting = False
        for record in list_unsettled(store, self.key):
            if record.tick.name in self.open or not (record.holder == me or _is_gone(store, record.holder)):
                continue
            if record.end is not None:
                self._announce_end(store, record, record.end, now)
                continue
            adopted = record if record.holder == me else adopt_tick(store, record, holder=me)
            if adopted is not None:
                log.info("tick-adopted", extra=self._facts(record.tick, before=record.holder))
                self.open[record.tick.name] = OpenTick(adopted)

    # --- open ticks

    def _observe(self, tick: OpenTick, store: Store, now: datetime, monotonic: float, *, begins: bool) -> Observation:
        if tick.child is not None:
            if tick.child.poll() is None:
                if not self._has_run_ended(tick, store, now, monotonic):
                    return ChildRunning()
                self._leave_child(tick, monotonic)
            else:
                tick.code, tick.child = tick.child.returncode, None
        if monotonic < tick.again_s:
            return NotYet()
        record = read_tick(store, self.key, tick.record.tick.name)
        assert record is not None, "a tick that was taken stays taken"
        if record.end is not None:
            return EndedElsewhere()
        tick.record = record
        if tick.code == scheduled_run.INGESTED:
            return IngestedElsewhere()
        return self._observe_work(tick, store, now, monotonic, begins=begins)

    def _has_run_ended(self, tick: OpenTick, store: Store, now: datetime, monotonic: float) -> bool:
        """Whether the run of a living child has ended by its record; asked now and then, and when a tick is due."""
        if monotonic < tick.record_s and (self.due_at is None or now < self.due_at):
            return False
        tick.record_s = monotonic + RECORD_S
        record = read_tick(store, self.key, tick.record.tick.name) or tick.record
        run = newest_run(store, record)
        return tick.has_made(record.attempts) and run is not None and run.state.ended

    def _observe_work(
        self, tick: OpenTick, store: Store, now: datetime, monotonic: float, *, begins: bool
    ) -> Observation:
        run = newest_run(store, tick.record)
        if run is not None and not run.state.ended:
            return self._observe_run(tick, run, store, monotonic)
        if open_tick.came_to_nothing(tick.code):
            tick.code = None
        if tick.code is not None or (run is not None and tick.base != run.number):  # or nobody was there when it ended
            return self._observe_attempt(tick, run, store)
        return self._observe_pipeline(tick, store, now) if begins else NotYet()

    def _observe_run(self, tick: OpenTick, run: Run, store: Store, monotonic: float) -> Observation:
        close_error = None
        if tick.job is not None and tick.job.close == run.number and tick.code:
            close_error = scheduled_run.last_error(self._log(tick.record))
        tick.code = None
        holder = lease.read(store, run.pipeline, run.token)
        dead = holder is None or holder.released
        if holder is not None and not dead:
            dead = self._watch.is_dead(f"lease {holder.name}", holder.who, holder.beat, monotonic)
            if dead and process.is_alive(holder.who):
                dead = False  # it is here and stands still; the stall is alerted, and whoever comes next may end it
        if close_error is not None and not self._stopping:
            dead = True
        return RunWithoutChild(run=run, controller_dead=dead, close_error=close_error, stopping=self._stopping)

    def _start_closing(
        self, tick: OpenTick, run: Run, attempt: int, *, keep_job: bool = False
    ) -> subprocess.Popen[bytes]:
        """Starts a process that stops a run, or closes its records where its controller is dead."""
        closed_by = f"the scheduler: {tick.stopped}" if tick.stopped else "the scheduler"
        job = replace(self._job(tick), attempt=attempt, close=run.number, closed_by=closed_by)
        if not keep_job:
            tick.job = job
        return self._services.start(job)

    def _observe_attempt(self, tick: OpenTick, run: Run | None, store: Store) -> Observation:
        number = tick.job.attempt if tick.job is not None else tick.record.attempts
        begun = number <= tick.record.attempts
        tick.code = None
        tick.unbegun += not begun
        return AttemptOver(
            run=run,
            begun=begun,
            tries=tick.record.attempts + tick.unbegun,
            overrun_by=self._read_overrun(store, tick.record),
            error="" if begun else scheduled_run.last_error(self._log(tick.record, number)),
            stopped=tick.stopped,
        )

    def _read_overrun(self, store: Store, record: TickRecord) -> str | None:
        cause = read_overrun(store, self.key, record.tick.name)
        return None if cause is None else cause.by

    def _observe_pipeline(self, tick: OpenTick, store: Store, now: datetime) -> Observation:
        running = self._observe_holder(store, now)
        return ReadyToBegin(
            running=running,
            due=starts(self.description.timetable, tick.record.tick),
            attempts=tick.record.attempts,
            waits_for=running is not None and running.run is not None and self._waits_for(store, running.run),
            end_others=tick.end_others,
        )

    def _observe_holder(self, store: Store, now: datetime) -> RunningWork | None:
        holder = find_holder(store, pipeline_of(self.key), now)
        if holder is None:
            return None
        run = find_run(store, holder)
        ending = run is None and is_ending(store, holder, now)
        return RunningWork(began=holder.acquired, run=run, purpose=holder.purpose, ending=ending)

    def _waits_for(self, store: Store, run: Run | None) -> bool:
        """Whether what holds the pipeline is of another part of it: that is waited for, and is no overrun.

        Without a run yet, it is where one of another part is about to begin. What runs for data waits for all.
        """
        if part_of(self.key) == DATA:
            return True
        if run is not None:
            return is_of_another_key(run, self.key)
        return any(key != self.key and list_open(store, key) for key in list_keys(store, pipeline_of(self.key)))

    def _perform(self, tick: OpenTick, seen: Observation, store: Store, now: datetime, monotonic: float) -> None:
        timetable = self.description.timetable
        match open_tick.decide(seen, timetable.overrun, timetable.retry):
            case KeepWaiting() | ForgetAttempt():
                pass
            case LeaveIt():
                self._leave_child(tick, monotonic)
                del self.open[tick.record.tick.name]
            case WatchProgress():
                self._watch_progress(tick, store, now, monotonic)
            case CloseRun(run, why):
                self._watch_progress(tick, store, now, monotonic)
                log.info("run-stopping" if why else "run-died", extra=self._facts(tick.record.tick, run=run.name))
                tick.stopped = why
                tick.child = self._start_closing(tick, run, tick.record.attempts)
            case RetryLater(retry):
                tick.again_s, tick.base = monotonic + retry.wait_s, retry.base
                tick.end_others = False  # what the tick had overrun is gone; what has begun since is waited for
                log.info("tick-retried", extra=self._facts(tick.record.tick, wait_s=retry.wait_s))
            case EndTick(end, running):
                if end.outcome is TickOutcome.SKIPPED:
                    log.info("tick-skipped", extra=self._facts(tick.record.tick, reason=end.why))
                self._end(tick.record, end, store, now, running=running)
            case WaitForPipeline():
                tick.again_s = monotonic + POLL_S
            case BeginAttempt(end_others):
                tick.end_others = end_others
                tick.job = self._job(tick)
                tick.child = self._services.start(tick.job)
                started = {"attempt": tick.job.attempt, "pid": tick.child.pid, "base": tick.base}
                log.info("run-launched", extra=self._facts(tick.record.tick, **started))

    def _begin(self, record: TickRecord, store: Store, now: datetime, monotonic: float, *, end_others: bool) -> None:
        tick = self.open[record.tick.name] = OpenTick(record, end_others=end_others)
        self._perform(tick, self._observe_pipeline(tick, store, now), store, now, monotonic)

    def _job(self, tick: OpenTick) -> ScheduledJob:
        timetable, wanted = self.description.timetable, tick.record.tick
        wait = timetable.wait_for_input
        return ScheduledJob(
            source=self.description.source,
            pipeline=self.key,
            tick=wanted.name,
            span=wanted.span,
            attempt=tick.record.attempts + 1,
            root=str(self._services.root),
            config=None if self._services.config is None else str(self._services.config),
            part=wanted.part,
            from_scratch=wanted.from_scratch,
            base=tick.base,
            end_others=tick.end_others,
            wait_until=None if wait is None else (wanted.at + wait).isoformat(),
            poll_s=timetable.poll_s,
        )

    def _end(
        self, record: TickRecord, end: TickEnd, store: Store, now: datetime, *, running: Run | None = None
    ) -> bool:
        """Ends a tick; False when it has gone on meanwhile, without us: it is looked at again."""
        if not end_tick(store, record, end, now=now):
            return False
        self.open.pop(record.tick.name, None)
        self.arrivals.wants_look = part_of(self.key) == DATA
        log.info("tick-ended", extra=self._facts(record.tick, outcome=end.outcome.value, reason=end.why))
        self._announce_end(store, replace(record, end=end, ended=now), end, now, running=running)
        if end.outcome is TickOutcome.RAN:
            self._check_forecast(store, now)
        return True

    # --- ticks that have come

    def _observe_due(self, store: Store, now: datetime, until: datetime) -> DueObservation:
        pause = current_pause(store, self.key, now)
        due = self._find_due(store, until, "" if pause is None else _format_pause(pause))
        wanted = [*(missed.tick for missed in due.missed), *due.run]
        since = self.record.since if self._newest is None else self._newest.at
        if not self._spans.ask(wanted, due.next, self.description, since):
            return DueObservation(due=due, spans_known=False)
        due = replace(
            due,
            run=tuple(self._spans.fill(tick, self.description) for tick in due.run),
            missed=tuple(replace(m, tick=self._spans.fill(m.tick, self.description)) for m in due.missed),
        )
        if not due.run:
            return DueObservation(due=due)
        superseded, running = self._observe_running(store, now)
        return DueObservation(
            due=due,
            superseded=superseded,
            running=running,
            # It is ours to wait for; to another scheduler's, that one sees.
            running_is_ours=running is None or running.record is None or running.record.tick.name in self.open,
            span_missing=self._spans.missing(due.run[0], self.description),
        )

    def _find_due(self, store: Store, until: datetime, paused: str) -> DueTicks:
        """What is due; a tick that fell into a pause is missed, also when the pause has ended since."""
        newest = self._newest or self._read_newest(store)
        due = find_due(self.description.timetable, newest.at, until, paused=paused)
        if paused or not due.run:
            return due
        pauses = list_pauses(store, self.key, since=due.run[0].at)
        lost: list[MissedTick] = []
        for tick in due.run:
            held = next((pause for pause in pauses if pause.holds(tick.at)), None)
            if held is None:
                break  # those after it are looked at once it is taken
            lost.append(MissedTick(tick=tick, why=_format_pause(held)))
        return replace(due, run=due.run[len(lost) :], missed=(*due.missed, *lost))

    def _read_newest(self, store: Store) -> NewestTick:
        seen = 0 if self._newest is None else self._newest.number
        newest, since = newest_tick(store, self.key, seen=seen), self.record.since
        self._newest = NewestTick(since, 0) if newest is None else NewestTick(max(newest.tick.at, since), newest.number)
        return self._newest

    def _observe_running(self, store: Store, now: datetime) -> tuple[tuple[EndedAttempt, ...], RunningWork | None]:
        """What a tick that comes now would overrun, and the ticks before it that wait for a retry."""
        superseded: list[EndedAttempt] = []
        for record in reversed(list_open(store, self.key)):
            run = newest_run(store, record)
            if not self._is_over(record, run):
                purpose = f"the tick {record.tick.name}"
                return tuple(superseded), RunningWork(began=record.taken, run=run, record=record, purpose=purpose)
            superseded.append(EndedAttempt(record=record, run=run, overrun_by=self._read_overrun(store, record)))
        running = self._observe_holder(store, now)
        return tuple(superseded), None if running is None or self._waits_for(store, running.run) else running

    def _is_over(self, record: TickRecord, run: Run | None) -> bool:
        """Whether nothing of an open tick runs any more: its run has ended, or it waits for its retry.

        A run that has failed may be followed by an attempt that another scheduler is about to begin.
        """
        mine = self.open.get(record.tick.name)
        if run is None:
            return mine is not None and mine.awaits_retry
        if mine is not None and not mine.has_made(record.attempts) and mine.child is not None:
            return False
        return run.state.ended and (
            mine is not None or has_settled(run, record.attempts, self.description.timetable.retry)
        )

    def _perform_due(self, action: DueAction, store: Store, me: int, now: datetime, monotonic: float) -> None:
        match action:
            case WaitForSpans():
                self._waiting = True
            case ReportClock(set_back):
                self._report_clock(set_back, now)
            case RecordMissed(due):
                self._record_missed(due, store, me, now)
            case EndSuperseded(record, end):
                mine = self.open.get(record.tick.name)
                if mine is not None:
                    self._leave_child(mine, monotonic)
                self._end(record, end, store, now)
            case WaitForRun(is_ours):
                self._waiting = is_ours
                self.due_at = None if is_ours else now + timedelta(seconds=POLL_S)
            case RecordSkipped(tick, running):
                log.info("tick-skipped", extra=self._facts(tick, running=running.name))
                end = open_tick.skipped_for(running)
                skipped = self._claim(tick, store, me, now, end)
                if skipped is not None:
                    self._announce_end(store, skipped, end, now, running=running.run)
            case TakeTick():
                self._take(action, store, me, now, monotonic)

    def _take(self, action: TakeTick, store: Store, me: int, now: datetime, monotonic: float) -> None:
        tick = action.tick
        record = self._claim(tick, store, me, now)
        if record is None:
            return
        self.open[tick.name] = OpenTick(record, end_others=action.end_others)
        log.info("tick-taken", extra=self._facts(tick, end_others=action.end_others, reason=tick.note))
        if action.unbegun is not None:
            self._end_unbegun(action.unbegun, tick, store, now)
        if action.failure:
            why = f"its span is not known: {action.failure}"
            self._end(record, TickEnd(outcome=TickOutcome.FAILED, why=why), store, now)
            return
        self._begin(record, store, now, monotonic, end_others=action.end_others)

    def _end_unbegun(self, record: TickRecord, by: Tick, store: Store, now: datetime) -> None:
        """Ends an earlier tick whose run has not begun, or waits for its retry: there is no run to be ended."""
        mine = self.open.get(record.tick.name)
        end = TickEnd(outcome=TickOutcome.KILLED, why=f"ended for {describe_overrun(by.name)} before its run had begun")
        if self._end(record, end, store, now) and mine is not None and mine.child is not None:
            mine.child.kill()  # it has done nothing yet, and may begin nothing any more
            mine.child.wait()

    def _claim(self, tick: Tick, store: Store, me: int, now: datetime, end: TickEnd | None = None) -> TickRecord | None:
        """Takes a tick; None when another scheduler has it."""
        seen = 0 if self._newest is None else self._newest.number
        record = claim_tick(store, self.key, tick, holder=me, now=now, end=end, seen=seen)
        if record is None:
            self._read_newest(store)
            self.adopting = True  # it may be ours: taken by a write whose answer was lost
            log.info("tick-lost", extra=self._facts(tick))
            return None
        self._newest = NewestTick(tick.at, record.number)
        return record

    def _record_missed(self, due: DueTicks, store: Store, me: int, now: datetime) -> None:
        recorded: list[TickRecord] = []
        why, more = "", 0
        if due.older is not None:
            tick = latest(self.description.timetable, due.older.last)
            assert tick is not None, "it came"
            count = format_count(due.older.about, "tick")
            why = f"about {count} from {due.older.first:%Y-%m-%d %H:%M}Z up to this one passed without a run"
            first = next(ticks(self.description.timetable, due.older.first - timedelta(seconds=1)), tick)
            end = TickEnd(outcome=TickOutcome.MISSED, why=why, first_span=first.span)
            record = self._claim(tick, store, me, now, end)
            if record is not None:
                self._services.on_ended(record)
                recorded.append(record)
                more = due.older.about - 1
        for missed in due.missed:
            end = TickEnd(outcome=TickOutcome.MISSED, why=missed.why, quiet=missed.why.startswith(PAUSED))
            record = self._claim(missed.tick, store, me, now, end)
            if record is not None:
                log.info("tick-missed", extra=self._facts(missed.tick, reason=missed.why))
                self._services.on_ended(record)
                if not end.quiet:
                    recorded.append(record)
                    why = why or missed.why
        if recorded:
            names = [record.tick.name for record in recorded]
            message = alert.missed_alert(self.key, at=now, site=self._services.site, ticks=names, why=why, more=more)
            if self._services.send(message):
                for record in recorded:
                    mark_alerted(store, record)
            else:
                self.adopting = True

    # --- data that has arrived

    def _take_arrival(self, store: Store, me: int, now: datetime, monotonic: float) -> None:
        """Takes the tick of data that has arrived and settled, once nothing holds the pipeline."""
        if self.arrivals.unread is None:
            return
        start = self.arrivals.decide(store, self.key, self.description.calendar, self._services.settle_s, monotonic)
        pause = current_pause(store, self.key, now)
        if pause is not None:
            self.arrivals.settling = False
            self.arrivals.wait_for(f"the end of a pause: {_format_pause(pause)}", self.key)
            return
        if start is None or list_open(store, self.key):
            return
        holder = find_holder(store, pipeline_of(self.key), now)
        if holder is not None:
            self.arrivals.wait_for(f"the end of {holder.purpose}", self.key)
            return
        tick = Tick(
            at=now, name=start.name, wall=now, span=start.span, part=start.part, from_scratch=start.from_scratch
        )
        record = self._claim(tick, store, me, now)
        if record is not None:
            log.info("data-arrived", extra=self._facts(tick, part=tick.part, from_scratch=tick.from_scratch))
            self._begin(record, store, now, monotonic, end_others=False)

    # --- alerts

    def _announce_end(
        self, store: Store, record: TickRecord, end: TickEnd, now: datetime, *, running: Run | None = None
    ) -> None:
        """Sends the alerts about the end of a tick, then records that: after a death in between they are sent again."""
        run = None if end.run is None else store.run(pipeline_of(self.key), end.run)
        ended = replace(record, end=end, ended=now)
        self._services.on_ended(ended)
        self._services.measure(store, ended)
        killed = end.outcome is TickOutcome.KILLED and run is not None
        failed = end.outcome is TickOutcome.FAILED and run is not None
        by = read_overrun(store, self.key, record.tick.name) if killed else None
        facts = EndedTickFacts(
            record=record,
            end=end,
            run=run,
            running=running,
            killed_for="" if by is None else by.by,
            overrun_by=None if by is None or not by.tick else read_tick(store, self.key, by.tick),
            failed=[e for e in store.executions(run) if e.state is State.FAILED] if failed and run is not None else [],
            missing=any(list_missed(store, key) for key in list_keys(store, pipeline_of(self.key))),
            log=self._log(record),
            calendar=Calendar.from_name(self.description.calendar),
        )
        sent = [self._services.send(message) for message in alerts_of(facts, now, self._services.site)]
        if not all(sent):
            self.adopting = True  # the outbox could not store it: look for it again, as if another had left it
        elif end.outcome.abnormal:
            mark_alerted(store, record)

    def _report_clock(self, set_back: timedelta, now: datetime) -> None:
        """Alerts once when the clock was set back behind the newest tick."""
        if set_back and "clock-set-back" not in self._alerted:
            error = f"The clock is {set_back} behind the last tick that was taken; nothing is due until then."
            what, site = "the clock was set back", self._services.site
            self._services.send(alert.trouble_alert(what, at=now, site=site, error=error, pipeline=self.key))
        self._note_condition("clock-set-back", holds=bool(set_back))

    def _watch_progress(self, tick: OpenTick, store: Store, now: datetime, monotonic: float) -> None:
        """Alerts once when a run makes no progress for longer than its schedule allows."""
        limit = self.description.timetable.stall_after
        if limit is None:
            return
        tick.record = read_tick(store, self.key, tick.record.tick.name) or tick.record
        run = newest_run(store, tick.record)
        if run is None or run.state.ended:
            return
        progress = (run.number, *measure_progress(store, run, self._services.root))
        if progress != tick.progress:
            tick.progress, tick.progress_s, tick.stalled = progress, monotonic, False
        elif monotonic - tick.progress_s >= limit.total_seconds() and not tick.stalled:
            tick.stalled = True
            quiet, name = timedelta(seconds=monotonic - tick.progress_s), tick.record.tick.name
            log.warning("run-stalled", extra=self._facts(tick.record.tick, run=run.name, quiet_s=quiet.total_seconds()))
            self._services.send(alert.stall_alert(run, at=now, site=self._services.site, quiet=quiet, tick=name))

    def _check_freshness(self, store: Store, now: datetime) -> None:
        """Alerts once when the model in service becomes stale, and once when a model was pushed again."""
        stale = find_stale(store, self.record, now)
        site, cause = self._services.site, f"freshness {self.key}"
        if stale is not None and "stale" not in self._alerted:
            log.warning("model-outdated", extra={"pipeline": self.key, "pushed": str(stale.pushed)})
            pushed, allowed = stale.pushed, stale.allowed
            self._services.send(alert.freshness_alert(self.key, at=now, site=site, pushed=pushed, allowed=allowed))
        elif stale is None and "stale" in self._alerted:
            self._services.send(
                alert.recovery_alert(self.key, at=now, site=site, cause=cause, summary="a model was pushed")
            )
        self._note_condition("stale", holds=stale is not None)

    def _check_forecast(self, store: Store, now: datetime) -> None:
        """Alerts once when runs come to take too much of the time between two ticks, and once when they do not."""
        forecast = make_forecast(self.description.timetable, list_past_runs(store, self.key, nodes=False), now)
        site, cause = self._services.site, f"forecast {self.key}"
        why = self._services.alarm(forecast)
        if not why:
            self._services.send(
                alert.recovery_alert(self.key, at=now, site=site, cause=cause, summary="runs end in time")
            )
        elif "overrun-ahead" not in self._alerted and not outbox.was_alerted(self._services.root, cause):
            log.warning("overrun-forecast", extra={"pipeline": self.key, "reason": why})
            facts = format_forecast(forecast)
            self._services.send(alert.forecast_alert(self.key, at=now, site=site, forecast=why, facts=facts))
        self._note_condition("overrun-ahead", holds=bool(why))

    def _note_condition(self, condition: str, *, holds: bool) -> None:
        (self._alerted.add if holds else self._alerted.discard)(condition)

    def _log(self, record: TickRecord, number: int | None = None) -> Path:
        """The log of an attempt; of the last that began, if no number is given."""
        return scheduled_run.log_path(
            self._services.root, self.key, record.tick.name, number or max(1, record.attempts)
        )

    def _facts(self, tick: Tick, **facts: object) -> Mapping[str, object]:
        return {"pipeline": self.key, "tick": tick.name, "span": tick.span, **facts}


def _is_gone(store: Store, number: int) -> bool:
    """Whether a scheduler has left or is seen to be dead; of one elsewhere that died, its watcher will know."""
    holder = read_scheduler(store, number)
    return holder is None or holder.ended or process.is_alive(holder.who) is False


def _format_pause(pause: SchedulePause) -> str:
    return f"{PAUSED}{pause.who}: {pause.why}"


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
