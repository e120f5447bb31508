"""One pipeline as a scheduler looks after it: its open ticks, and the ticks that come.

`step` may be called at any time and any number of times. `ScheduleObserver` observes, `open_tick`, `due_tick` and
`arrival` decide, and here the actions are performed; each is a claim, so that doing it twice, or in two processes, does
it once.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from spanwise.orchestrator import process
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert
from spanwise.scheduler.daemon import due_tick, open_tick
from spanwise.scheduler.daemon.arrival import ArrivalQueue
from spanwise.scheduler.daemon.condition_alerts import MEASURES, ConditionAlerts
from spanwise.scheduler.daemon.description import ScheduleDescription
from spanwise.scheduler.daemon.due_tick import (
    DueAction,
    EndSuperseded,
    RecordMissed,
    RecordSkipped,
    ReportClock,
    TakeTick,
    WaitForRun,
    WaitForSpans,
)
from spanwise.scheduler.daemon.exiting_children import ExitingChildren
from spanwise.scheduler.daemon.open_tick import (
    BeginAttempt,
    CloseRun,
    EndTick,
    ForgetAttempt,
    KeepWaiting,
    LeaveIt,
    Observation,
    OpenTick,
    RetryLater,
    WaitForPipeline,
    WatchProgress,
)
from spanwise.scheduler.daemon.schedule_observer import NewestTick, ScheduleObserver
from spanwise.scheduler.daemon.scheduled_run import ScheduledJob
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.daemon.tick_alerts import alerts_of, collect_facts
from spanwise.scheduler.ledger.heartbeat import HeartbeatWatch, read_scheduler
from spanwise.scheduler.ledger.holder import find_holder, newest_run
from spanwise.scheduler.ledger.pauses import current_pause, format_pause
from spanwise.scheduler.ledger.schedules import ScheduleRecord
from spanwise.scheduler.ledger.ticks import (
    TickRecord,
    adopt_tick,
    claim_ended_ticks,
    claim_tick,
    end_tick,
    list_open,
    list_unsettled,
    mark_alerted,
    read_tick,
    settle_ticks,
)
from spanwise.scheduler.schedule.due import DueTicks
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.overrun import describe_overrun
from spanwise.scheduler.schedule.schedule_key import DATA, part_of, pipeline_of
from spanwise.scheduler.schedule.ticks import Tick, source_spans, starts

log = logging.getLogger("spanwise.scheduler")

POLL_S = 1.0
"""Between two looks at what does not announce itself: a run that is not our child, a lease that others hold."""

FRESHNESS_S = 60.0
"""Between two looks whether the model in service is stale."""


class PipelineScheduler:
    """A scheduled pipeline, or a part of one."""

    def __init__(
        self,
        description: ScheduleDescription,
        record: ScheduleRecord,
        services: SchedulerServices,
        watch: HeartbeatWatch,
    ) -> None:
        self.exiting = ExitingChildren()
        self.due_at: datetime | None = None  #: when the next tick comes
        self.look_s = 0.0  #: monotonic: when to look again, whatever comes
        self.adopting = True  #: ticks of dead schedulers may be there to take over
        self.retired = False  #: its file has it no longer
        self.failures = 0  #: in a row, of looking after it
        self.looked_at = False  #: at least once
        self.arrivals = ArrivalQueue(description.ready)
        self._services = services
        self._observer = ScheduleObserver(description, record, services, watch)
        self._unsettled = False  # ticks have ended since the last look up to where all have
        self._waiting = False  # ticks have come, and something has to end before they run
        self._reported: set[str] = set()  # ticks whose end was counted, and is still to be alerted
        self._freshness_s = 0.0  # monotonic: not before
        self._conditions = ConditionAlerts(description.pipeline, services)

    @property
    def description(self) -> ScheduleDescription:
        """What its file says."""
        return self._observer.description

    @property
    def record(self) -> ScheduleRecord:
        """What the ledger knows of its schedule."""
        return self._observer.record

    @property
    def open(self) -> dict[str, OpenTick]:
        """The open ticks that this scheduler looks after, by name."""
        return self._observer.open

    @property
    def key(self) -> str:
        """The schedule key."""
        return self.description.pipeline

    @property
    def _seen(self) -> int:
        """The number of a tick that is known to exist."""
        return 0 if self._observer.newest is None else self._observer.newest.number

    @property
    def _has_freshness(self) -> bool:
        """Whether it is to be alerted when the model in service is too old."""
        return self.description.timetable.freshness is not None and not self.retired

    @property
    def busy(self) -> bool:
        """Whether something of it is still to be waited for, other than the end of a pause."""
        asking = self._observer.spans.is_asking or self.arrivals.pending
        working = any(not tick.awaits_resume for tick in self.open.values())
        return working or bool(self.exiting) or self._waiting or asking

    @property
    def has_runs(self) -> bool:
        """Whether a run of it goes on, or has ended and nothing has followed from that yet."""
        return bool(self.exiting) or any(tick.has_run for tick in self.open.values())

    def stop(self, why: str) -> None:
        """Asks its runs to end; those that it has adopted at the next step."""
        self._observer.stopping, self.look_s = why, 0.0
        for tick in self.open.values():
            if tick.child is not None and tick.child.poll() is None:
                tick.stopped = why
                tick.child.terminate()
        self.exiting.terminate()

    def kill(self, store: Store) -> None:
        """Ends its runs, those that would not when they were asked; their children see to it."""
        self.exiting.kill()
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
        self._observer.spans.clear()
        self._observer.description, self._observer.record = description, record
        self._observer.newest = None  # a schedule that was brought back counts from then
        self.retired, self.look_s = False, 0.0
        self.arrivals.update(description.ready)
        self._conditions.look_again()

    def ready(self, now: datetime, monotonic: float) -> bool:
        """Whether there is something to look at."""
        if self.due_at is not None and now >= self.due_at and not self.retired:
            return True
        children = [tick.child for tick in self.open.values() if tick.child is not None]
        exited = self.exiting.has_news() or any(child.poll() is not None for child in children)
        return exited or monotonic >= self.look_s

    # --- a step

    def step(self, store: Store, me: int, now: datetime, monotonic: float, *, until: datetime | None) -> None:
        """Looks at everything there is to look at, and takes ticks that have come by `until`; None: begins nothing."""
        try:
            self._step(store, me, now, monotonic, until=until)
        except Exception:
            self.adopting = True  # what it has left half done is looked for, as if another had left it
            raise

    def _step(self, store: Store, me: int, now: datetime, monotonic: float, *, until: datetime | None) -> None:
        self.exiting.reap(self.key, monotonic)
        if self.adopting:
            self._adopt(store, me, now)
        for tick in list(self.open.values()):
            if self._observer.has_run_ended(tick, store, monotonic, due=self.due_at is None or now >= self.due_at):
                self._leave_child(tick, monotonic)
            seen = self._observer.observe(tick, store, now, monotonic, begins=until is not None)
            self._perform(tick, seen, store, now, monotonic)
        self.due_at, self._waiting = None, False
        if until is not None and not self.retired:
            if part_of(self.key) == DATA:
                self._take_arrival(store, me, now, monotonic)
            else:
                due = self._observer.observe_due(store, now, monotonic, until)
                if until == now and due.due.next is not None:
                    self.due_at = starts(self.description.timetable, due.due.next)
                for action in due_tick.decide_due(due, self.description.timetable):
                    self._perform_due(action, store, me, now, monotonic)
        if monotonic >= self._freshness_s and self._has_freshness:
            self._freshness_s = monotonic + FRESHNESS_S
            self._conditions.check_freshness(store, self._observer.record, now)
        if self._unsettled:
            settle_ticks(store, self.key)
            self._unsettled = False
        self.look_s = self._next_look(monotonic)
        self.looked_at = True

    def _next_look(self, monotonic: float) -> float:
        timetable = self.description.timetable
        moments = [self._freshness_s] if self._has_freshness else []
        moments += [max(until_s, monotonic + POLL_S) for until_s in self.exiting.deadlines()]
        for tick in self.open.values():
            if tick.child is None:
                moments.append(max(tick.again_s, monotonic + POLL_S))
                continue
            moments.append(tick.record_s)
            if timetable.stall_after is not None:
                moments.append(monotonic + max(POLL_S, timetable.stall_after.total_seconds() / MEASURES))
        if self._observer.spans.is_asking:
            moments.append(monotonic + POLL_S / 10)
        if self._waiting:
            moments.append(monotonic + POLL_S)
        if self.adopting:
            moments.append(monotonic + FRESHNESS_S)
        return min(moments, default=float("inf"))

    def _leave_child(self, tick: OpenTick, monotonic: float) -> None:
        """Lets a process exit whose run has ended."""
        if tick.child is not None and tick.child.poll() is None:
            self.exiting.add(tick.child, monotonic)
        tick.child = None

    def _adopt(self, store: Store, me: int, now: datetime) -> None:
        """Takes over what dead schedulers have left open, and sends the alerts that they could not send any more."""
        self.adopting = False
        for record in list_unsettled(store, self.key):
            if not (record.holder == me or _is_gone(store, record.holder)):
                continue
            if record.end is not None:
                self._announce_end(store, record, record.end, now)
                continue
            if record.tick.name in self.open:
                continue
            adopted = record if record.holder == me else adopt_tick(store, record, holder=me)
            if adopted is not None:
                log.info("tick-adopted", extra=self._facts(record.tick, before=record.holder))
                self.open[record.tick.name] = OpenTick(adopted)

    # --- open ticks

    def _start_closing(
        self, tick: OpenTick, run: Run, attempt: int, *, keep_job: bool = False, spare_living: bool = False
    ) -> subprocess.Popen[bytes]:
        """Starts a process that stops a run, or closes its records where its controller is dead."""
        closed_by = f"the scheduler: {tick.stopped}" if tick.stopped else "the scheduler"
        job = replace(
            self._job(tick), attempt=attempt, close=run.number, closed_by=closed_by, spare_living=spare_living
        )
        if not keep_job:
            tick.job = job
        return self._services.start(job)

    def _perform(self, tick: OpenTick, seen: Observation, store: Store, now: datetime, monotonic: float) -> None:
        timetable = self.description.timetable
        match open_tick.decide(seen, timetable.overrun, timetable.retry):
            case KeepWaiting() | ForgetAttempt():
                pass
            case LeaveIt():
                self._leave_child(tick, monotonic)
                del self.open[tick.record.tick.name]
            case WatchProgress():
                self._conditions.watch_progress(tick, store, timetable.stall_after, now, monotonic)
            case CloseRun(run, why):
                self._conditions.watch_progress(tick, store, timetable.stall_after, now, monotonic)
                log.info("run-stopping" if why else "run-died", extra=self._facts(tick.record.tick, run=run.name))
                tick.stopped = why
                tick.child = self._start_closing(tick, run, tick.record.attempts, spare_living=not why)
            case RetryLater(retry):
                tick.again_s, tick.base = monotonic + retry.wait_s, retry.base
                tick.end_others = False  # what the tick had overrun is gone; what has begun since is waited for
                log.info("tick-retried", extra=self._facts(tick.record.tick, wait_s=retry.wait_s))
            case EndTick(end, running):
                if end.outcome is TickOutcome.SKIPPED:
                    log.info("tick-skipped", extra=self._facts(tick.record.tick, reason=end.why))
                self._end(tick.record, end, store, now, running=running)
            case WaitForPipeline(paused):
                self._wait_for_pipeline(tick, paused, monotonic)
            case BeginAttempt(end_others):
                tick.end_others, tick.awaits_resume = end_others, False
                tick.job = self._job(tick)
                tick.child = self._services.start(tick.job)
                started = {"attempt": tick.job.attempt, "pid": tick.child.pid, "base": tick.base}
                log.info("run-launched", extra=self._facts(tick.record.tick, **started))

    def _wait_for_pipeline(self, tick: OpenTick, paused: str, monotonic: float) -> None:
        if paused and not tick.awaits_resume:
            log.warning("run-awaits", extra=self._facts(tick.record.tick, reason=f"the end of a pause: {paused}"))
        tick.again_s, tick.awaits_resume = monotonic + POLL_S, bool(paused)

    def _begin(self, record: TickRecord, store: Store, now: datetime, monotonic: float, *, end_others: bool) -> None:
        tick = self.open[record.tick.name] = OpenTick(record, end_others=end_others)
        seen = self._observer.observe_pipeline(tick, store, now, monotonic)
        self._perform(tick, seen, store, now, monotonic)

    def _job(self, tick: OpenTick) -> ScheduledJob:
        timetable, wanted = self.description.timetable, tick.record.tick
        wait = timetable.wait_for_input
        return ScheduledJob(
            source=self.description.source,
            pipeline=self.key,
            tick=wanted.name,
            span=wanted.span,
            by_node=source_spans(timetable, wanted),
            attempt=tick.record.attempts + 1,
            root=self._services.place,
            taken=tick.record.taken.isoformat(),
            config=None if self._services.config is None else str(self._services.config),
            part=wanted.part,
            division=tuple((each.name, each.at) for each in timetable.division),
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
        if end.outcome is TickOutcome.RAN and not self.retired:
            self._conditions.check_forecast(store, self.description.timetable, now)
        return True

    # --- ticks that have come

    def _perform_due(self, action: DueAction, store: Store, me: int, now: datetime, monotonic: float) -> None:
        match action:
            case WaitForSpans():
                self._waiting = True
            case ReportClock(set_back):
                self._conditions.report_clock(set_back, now)
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
                    self._announce_end(store, skipped, end, now, running=running.run if running.has_begun else None)
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
        run = newest_run(store, record)
        begun = "its run" if run is None else f"its attempt {record.attempts + 1}"
        why = f"ended for {describe_overrun(by.name)} before {begun} had begun"
        end = TickEnd(outcome=TickOutcome.KILLED, why=why, run=None if run is None else run.number)
        if self._end(record, end, store, now) and mine is not None and mine.child is not None:
            mine.child.kill()  # it has done nothing yet, and may begin nothing any more
            mine.child.wait()

    def _claim(self, tick: Tick, store: Store, me: int, now: datetime, end: TickEnd | None = None) -> TickRecord | None:
        """Takes a tick; None when another scheduler has it."""
        record = claim_tick(store, self.key, tick, holder=me, now=now, end=end, seen=self._seen)
        self._note_claimed([tick], [] if record is None else [record], store)
        return record

    def _note_claimed(self, wanted: Sequence[Tick], records: Sequence[TickRecord], store: Store) -> None:
        """Remembers the newest tick; those that are not ours may be: taken by a write whose answer was lost."""
        if records:
            self._observer.newest = NewestTick(records[-1].tick.at, records[-1].number)
        ours = {record.tick.name for record in records}
        lost = [tick for tick in wanted if tick.name not in ours]
        if lost:
            self._observer.read_newest(store)
            self.adopting = True
            for tick in lost:
                log.info("tick-lost", extra=self._facts(tick))

    def _record_missed(self, due: DueTicks, store: Store, me: int, now: datetime) -> None:
        ends = due_tick.end_missed(due, self.description.timetable)
        records = claim_ended_ticks(store, self.key, ends, holder=me, now=now, seen=self._seen)
        self._note_claimed([tick for tick, _ in ends], records, store)
        self._unsettled = True
        reasons = {tick.name: end.why for tick, end in ends}
        for record in records:
            log.info("tick-missed", extra=self._facts(record.tick, reason=reasons[record.tick.name]))
            self._report_end(store, record)
        loud = [record for record in records if not record.alerted]
        if not loud:
            return
        names = [record.tick.name for record in loud]
        about = {older.last: older.about for older in due.older}
        more = sum(about[record.tick.at] - 1 for record in loud if record.tick.at in about)  # it stands for them
        why, site = reasons[names[0]], self._services.site
        if self._services.record(alert.missed_alert(self.key, at=now, site=site, ticks=names, why=why, more=more)):
            for record in loud:
                mark_alerted(store, record)
            self._reported -= {record.tick.name for record in records}
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
            self.arrivals.wait_for(f"the end of a pause: {format_pause(pause)}", self.key)
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
        ended = replace(record, end=end, ended=now)
        self._report_end(store, ended)
        calendar = Calendar.from_name(self.description.calendar)
        facts = collect_facts(store, ended, end, log=self._observer.log(record), calendar=calendar, running=running)
        sent = [self._services.record(message) for message in alerts_of(facts, now, self._services.site)]
        if not all(sent):
            self.adopting = True  # the outbox could not store it: look for it again, as if another had left it
            return
        if end.outcome.abnormal:
            mark_alerted(store, record)
        self._reported.discard(record.tick.name)
        self._unsettled = True

    def _report_end(self, store: Store, record: TickRecord) -> None:
        """Counts the end of a tick, once, however often its alert is tried."""
        if record.tick.name not in self._reported:
            self._reported.add(record.tick.name)
            self._services.on_ended(record)
            self._services.measure(store, record)

    def _facts(self, tick: Tick, **facts: object) -> Mapping[str, object]:
        return {"pipeline": self.key, "tick": tick.name, "span": tick.span, **facts}


def _is_gone(store: Store, number: int) -> bool:
    """Whether a scheduler has left or is seen to be dead; of one elsewhere that died, its watcher will know."""
    holder = read_scheduler(store, number)
    return holder is None or holder.ended or process.is_alive(holder.who) is False
