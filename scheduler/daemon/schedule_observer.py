"""The observer of a schedule: what is seen of its open ticks, of the ticks that come, and of what holds the pipeline.

It asks the ledger, the leases and the processes, and decides nothing: `open_tick` and `due_tick` do.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.lease import Holder
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.daemon import open_tick, scheduled_run
from spanwise.scheduler.daemon.description import ScheduleDescription
from spanwise.scheduler.daemon.due_tick import DueObservation, EndedAttempt, has_settled
from spanwise.scheduler.daemon.open_tick import (
    AttemptOver,
    ChildRunning,
    EndedElsewhere,
    IngestedElsewhere,
    NotYet,
    Observation,
    OpenTick,
    ReadyToBegin,
    RunningWork,
    RunWithoutChild,
    SchedulePaused,
)
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.daemon.span_lookup import SpanLookup
from spanwise.scheduler.ledger.heartbeat import HeartbeatWatch
from spanwise.scheduler.ledger.holder import (
    find_holder,
    find_run,
    find_unreleased,
    is_ending,
    is_of_another_key,
    newest_run,
)
from spanwise.scheduler.ledger.pauses import SchedulePause, current_pause, format_pause, list_pauses
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_keys
from spanwise.scheduler.ledger.ticks import (
    TickRecord,
    drop_taken,
    list_open,
    list_untaken,
    newest_tick,
    read_overrun,
    read_tick,
)
from spanwise.scheduler.schedule.due import DueTicks, MissedTick, OlderTicks, find_due, list_older
from spanwise.scheduler.schedule.schedule_key import DATA, part_of, pipeline_of
from spanwise.scheduler.schedule.ticks import Tick, latest, starts, ticks
from spanwise.scheduler.schedule.timetable import Timetable

RECORD_S = 10.0
"""Between two looks whether the run of a child has ended that has not: it may be slow to exit."""


@dataclass(frozen=True)
class NewestTick:
    """The newest tick that was taken: no tick at or before it is due."""

    at: datetime
    number: int  #: 0: there is none


class ScheduleObserver:
    """Looks at one schedule."""

    def __init__(
        self,
        description: ScheduleDescription,
        record: ScheduleRecord,
        services: SchedulerServices,
        watch: HeartbeatWatch,
    ) -> None:
        self.description = description
        self.record = record
        self.open: dict[str, OpenTick] = {}  #: the open ticks that this scheduler looks after, by name
        self.stopping = ""  #: why all runs are to end; empty when they are not
        self.newest: NewestTick | None = None  #: as this scheduler knows it
        self.spans = SpanLookup(services.config)
        self._services = services
        self._watch = watch
        self._walked: tuple[Timetable, OlderTicks, tuple[Tick, ...]] | None = (
            None  # the older ticks that were walked last
        )

    @property
    def key(self) -> str:
        """The schedule key."""
        return self.description.pipeline

    # --- open ticks

    def observe(self, tick: OpenTick, store: Store, now: datetime, monotonic: float, *, begins: bool) -> Observation:
        """What is seen of an open tick."""
        if tick.child is not None:
            if tick.child.poll() is None:
                return ChildRunning()
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

    def has_run_ended(self, tick: OpenTick, store: Store, monotonic: float, *, due: bool) -> bool:
        """Whether the run of a living child has ended by its record; asked now and then, and when a tick is due."""
        if tick.child is None or tick.child.poll() is not None or (monotonic < tick.record_s and not due):
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
        if not begins:
            return NotYet()
        pause = current_pause(store, self.key, now)
        return self.observe_pipeline(tick, store, now, monotonic) if pause is None else SchedulePaused(pause)

    def _observe_run(self, tick: OpenTick, run: Run, store: Store, monotonic: float) -> Observation:
        close_error = None
        if _take_outage(tick):
            tick.outage = tick.outage or tick.job is None or tick.job.close is None
        elif tick.job is not None and tick.job.close == run.number and tick.code:
            close_error = scheduled_run.last_error(self.log(tick.record))
        tick.code = None
        holder = lease.read(store, run.pipeline, run.token)
        dead = holder is None or holder.released
        if holder is not None and not dead:
            dead = self._watch.is_dead(f"lease {holder.name}", holder.who, holder.beat, monotonic)
            if dead and process.is_alive(holder.who):
                dead = False  # it is here and stands still; the stall is alerted, and whoever comes next may end it
        if close_error is not None and not self.stopping:
            dead = True
        return RunWithoutChild(run=run, controller_dead=dead, close_error=close_error, stopping=self.stopping)

    def _observe_attempt(self, tick: OpenTick, run: Run | None, store: Store) -> Observation:
        number = tick.job.attempt if tick.job is not None else tick.record.attempts
        begun = number <= tick.record.attempts
        outage = tick.outage or _take_outage(tick)
        tick.code, tick.outage = None, False
        tick.unbegun += not begun
        tries = tick.record.attempts + tick.unbegun - tick.uncounted
        tick.uncounted += outage
        return AttemptOver(
            run=run,
            begun=begun,
            outage=outage,
            tries=tries,
            overrun_by=self._read_overrun(store, tick.record),
            error="" if begun else scheduled_run.last_error(self.log(tick.record, number)),
            stopped=tick.stopped,
        )

    def observe_pipeline(self, tick: OpenTick, store: Store, now: datetime, monotonic: float) -> Observation:
        """What is seen of an open tick whose next attempt may begin, since its schedule is not paused."""
        running = self._observe_holder(store, now, monotonic)
        return ReadyToBegin(
            running=running,
            due=starts(self.description.timetable, tick.record.tick),
            attempts=tick.record.attempts,
            waits_for=running is not None and running.run is not None and self._waits_for(store, running.run),
            end_others=tick.end_others,
        )

    # --- ticks that have come

    def observe_due(self, store: Store, now: datetime, monotonic: float, until: datetime) -> DueObservation:
        """What is seen of the ticks that have come by `until`."""
        pause = current_pause(store, self.key, now)
        due = self._find_due(store, until, pause)
        older = [tick for each in due.older for tick in each.ticks]
        wanted = [*older, *(missed.tick for missed in due.missed), *due.run]
        since = self.record.since if self.newest is None else self.newest.at
        if not self.spans.ask(wanted, due.next, self.description, since):
            return DueObservation(due=due, spans_known=False)
        due = replace(
            due,
            run=tuple(self.spans.fill(tick, self.description) for tick in due.run),
            missed=tuple(replace(m, tick=self.spans.fill(m.tick, self.description)) for m in due.missed),
            older=tuple(
                replace(each, ticks=tuple(self.spans.fill(tick, self.description) for tick in each.ticks))
                for each in due.older
            ),
        )
        if not due.run:
            return DueObservation(due=due)
        superseded, running = self._observe_running(store, now, monotonic)
        return DueObservation(
            due=due,
            superseded=superseded,
            running=running,
            # It is ours to wait for; to another scheduler's, that one sees.
            running_is_ours=running is None or running.record is None or running.record.tick.name in self.open,
            span_missing=self.spans.missing(due.run[0], self.description),
        )

    def _find_due(self, store: Store, until: datetime, pause: SchedulePause | None) -> DueTicks:
        """What is due; a tick that fell into a pause is missed, also when the pause has ended since."""
        newest = self.newest or self.read_newest(store)
        timetable = self.description.timetable
        due = find_due(timetable, newest.at, until, paused="" if pause is None else format_pause(pause))
        if due.next is not None:
            coming = ticks(timetable, due.next.at - timedelta(seconds=1))
            due = replace(due, next=next(list_untaken(store, self.key, coming), None))
        come = drop_taken(store, self.key, [*(missed.tick for missed in due.missed), *due.run])
        if not come:
            return replace(due, run=(), missed=())
        free = {tick.name for tick in come}
        pauses = list_pauses(store, self.key, since=due.older[0].first if due.older else come[0].at)
        missed = [
            replace(each, why=_explain_missed(each.tick, each.why, timetable, pauses, pause))
            for each in due.missed
            if each.tick.name in free
        ]
        run = [tick for tick in due.run if tick.name in free]
        while run and (held := _find_pause(run[0], timetable, pauses)) is not None:
            missed.append(MissedTick(tick=run.pop(0), why=format_pause(held)))
        # Those after the first that is left are looked at once it is taken.
        older = tuple(part for each in due.older for part in self._divide(each, pauses, pause))
        return replace(due, run=tuple(run), missed=tuple(missed), older=older)

    def _divide(
        self, older: OlderTicks, pauses: Sequence[SchedulePause], pause: SchedulePause | None
    ) -> Iterator[OlderTicks]:
        """Older ticks by the pauses that they fell into; those that are too many to be walked through as one."""
        timetable = self.description.timetable
        if self._walked is None or self._walked[:2] != (timetable, older):  # they are asked for until they are recorded
            self._walked = timetable, older, list_older(timetable, older)
        explain = functools.partial(_explain_missed, why="", timetable=timetable, pauses=pauses, pause=pause)
        if not (walked := self._walked[2]):
            first, last = (explain(tick) for at in (older.first, older.last) if (tick := latest(timetable, at)))
            yield replace(older, why=first if first == last else "")
        for why, group in itertools.groupby(walked, explain):
            same = tuple(group)
            yield OlderTicks(first=same[0].at, last=same[-1].at, about=len(same), ticks=same, why=why)

    def _observe_running(
        self, store: Store, now: datetime, monotonic: float
    ) -> tuple[tuple[EndedAttempt, ...], RunningWork | None]:
        """What a tick that comes now would overrun, and the ticks before it that wait for a retry."""
        superseded: list[EndedAttempt] = []
        for record in reversed(list_open(store, self.key)):
            run = newest_run(store, record)
            if not self._is_over(record, run):
                mine = self.open.get(record.tick.name)
                work = RunningWork(
                    began=record.taken,
                    run=run,
                    record=record,
                    purpose=f"the tick {record.tick.name}",
                    ending=mine is not None and mine.closes_dead_run,
                )
                return tuple(superseded), work
            superseded.append(EndedAttempt(record=record, run=run, overrun_by=self._read_overrun(store, record)))
        running = self._observe_holder(store, now, monotonic)
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

    def _observe_holder(self, store: Store, now: datetime, monotonic: float) -> RunningWork | None:
        holder = find_holder(store, pipeline_of(self.key), now) or self._find_beating(store, monotonic)
        if holder is None:
            return None
        run = find_run(store, holder)
        ending = run is None and is_ending(store, holder, now)
        return RunningWork(began=holder.acquired, run=run, purpose=holder.purpose, ending=ending)

    def _find_beating(self, store: Store, monotonic: float) -> Holder | None:
        """The holder on a host with another clock, so that nothing but its beats tells that it lives."""
        holder = find_unreleased(store, pipeline_of(self.key))
        if holder is None:
            return None
        beats = self._watch.is_beating(f"lease {holder.name}", holder.who, holder.beat, monotonic)
        return holder if beats else None

    def _waits_for(self, store: Store, run: Run | None) -> bool:
        """Whether what holds the pipeline is of another part of it: that is waited for, and is no overrun.

        Without a run yet, it is where one of another part is about to begin. What runs for data waits for all.
        """
        if part_of(self.key) == DATA:
            return True
        if run is not None:
            return is_of_another_key(store, run, self.key)
        return any(key != self.key and list_open(store, key) for key in list_keys(store, pipeline_of(self.key)))

    def _read_overrun(self, store: Store, record: TickRecord) -> str | None:
        cause = read_overrun(store, self.key, record.tick.name)
        return None if cause is None else cause.by

    def read_newest(self, store: Store) -> NewestTick:
        """Looks again which tick was taken last."""
        seen = 0 if self.newest is None else self.newest.number
        newest, since = newest_tick(store, self.key, seen=seen), self.record.since
        self.newest = NewestTick(since, 0) if newest is None else NewestTick(max(newest.tick.at, since), newest.number)
        return self.newest

    def log(self, record: TickRecord, number: int | None = None) -> Path:
        """The log of an attempt; of the last that began, if no number is given."""
        return scheduled_run.log_path(
            self._services.root, self.key, record.tick.name, number or max(1, record.attempts)
        )


def _take_outage(tick: OpenTick) -> bool:
    """Whether its child has ended because the metadata were away, which is forgiven a limited number of times."""
    outage = tick.code == scheduled_run.UNAVAILABLE and tick.outages < open_tick.MOST_OUTAGES
    tick.outages += outage
    return outage


def _find_pause(tick: Tick, timetable: Timetable, pauses: Sequence[SchedulePause]) -> SchedulePause | None:
    """The pause that a tick fell into, by its moment or by the one at which its run was to start."""
    moments = tick.at, starts(timetable, tick)
    return next((pause for pause in pauses if any(map(pause.holds, moments))), None)


def _explain_missed(
    tick: Tick, why: str, timetable: Timetable, pauses: Sequence[SchedulePause], pause: SchedulePause | None
) -> str:
    """Why a tick was missed; one that came before the pause that holds now was not missed for that alone."""
    held = _find_pause(tick, timetable, pauses)
    if held is not None:
        return format_pause(held)
    return why if pause is None else f"it had not run when the schedule was {format_pause(pause)}"
