"""One pipeline as a scheduler looks after it: its open ticks, and what to do about them and about the next.

`step` may be called at any time and as often as one likes: it reads what the ledger knows, decides, and acts, and what
it does is a claim, so that doing it twice, or in two processes, does it once.
"""

from __future__ import annotations

import itertools
import logging
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.errors import SpanwiseError
from spanwise.orchestrator.run import Run, State, Trigger
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert as words
from spanwise.scheduler.alerts import outbox
from spanwise.scheduler.alerts.alert import Alert, Site
from spanwise.scheduler.daemon import arrival, scheduled_run
from spanwise.scheduler.daemon.arrival import ArrivalWatch, ReadyData, find_owed
from spanwise.scheduler.daemon.description import DescriptionRequest, ScheduleDescription
from spanwise.scheduler.daemon.scheduled_run import Job
from spanwise.scheduler.ledger.heartbeat import HeartbeatWatch, read_scheduler
from spanwise.scheduler.ledger.holder import find_holder, find_run, is_of_another_key
from spanwise.scheduler.ledger.overdue import find_stale, measure_progress
from spanwise.scheduler.ledger.past_runs import list_past_runs
from spanwise.scheduler.ledger.pauses import SchedulePause, current_pause, list_pauses
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_keys
from spanwise.scheduler.ledger.ticks import (
    TickRecord,
    adopt_tick,
    claim_name,
    claim_tick,
    end_tick,
    list_open,
    list_ticks,
    list_unsettled,
    mark_alerted,
    newest_tick,
    read_overrun,
    read_tick,
)
from spanwise.scheduler.project.settings import FORECAST_LOAD
from spanwise.scheduler.schedule.due import DueTicks, MissedTick, find_due, must_wait
from spanwise.scheduler.schedule.forecast import Forecast, format_forecast, make_forecast
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.overrun import KillThenStart, SkipTick, decide_overrun
from spanwise.scheduler.schedule.retry import RetryRun, decide_retry
from spanwise.scheduler.schedule.schedule_key import DATA, format_cause, part_of, pipeline_of
from spanwise.scheduler.schedule.span_rule import CustomSpanRule
from spanwise.scheduler.schedule.ticks import Tick, latest, starts, ticks

log = logging.getLogger("spanwise.schedule")


def _alarm(found: Forecast) -> str:
    return found.alarm(FORECAST_LOAD)


POLL_S = 1.0
"""Between two looks at what does not announce itself: a run that is not our child, a lease that others hold."""

GUARD_S = 60.0
"""Between two looks at what should be fresh."""

OWED = 1000
"""So many ticks back it is looked whether something was ingested and not trained on."""

AHEAD = 8
"""So many ticks' spans are asked for at once where the pipeline file has the rule."""

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What every pipeline of a scheduler is looked after with."""

    root: Path
    config: Path | None
    site: Site
    settle_s: float = 0.0  #: so long, what has come must not have changed before a run is started for it
    start: Callable[[Job], subprocess.Popen[bytes]] = scheduled_run.start
    note: Callable[[TickRecord], object] = lambda _entry: None  #: gets each tick that was ended here
    measure: Callable[[Store, TickRecord], object] = lambda _store, _entry: None  #: the same, for metrics
    alarming: Callable[[Forecast], str] = _alarm  #: why people are told of a forecast; empty: they are not

    def tell(self, alert: Alert) -> bool:
        """Puts an alert into the outbox."""
        return outbox.put(self.root, alert)


@dataclass
class Open:
    """An open tick that this scheduler looks after."""

    entry: TickRecord
    child: subprocess.Popen[bytes] | None = None
    job: Job | None = None  #: of the last child
    closer: subprocess.Popen[bytes] | None = None  #: ends the child, which would not end
    code: int | None = None  #: its exit code, until it was seen what to do about it
    stillborn: int = 0  #: attempts that ended before a run of them began
    again_s: float = 0.0  #: monotonic: no attempt before
    base: int | None = None  #: the run that the next attempt takes up
    end_others: bool = False  #: the next attempt ends whatever run holds the pipeline
    stopped: str = ""  #: why its run was asked to end by us
    seen: tuple[int, ...] = ()  #: how far its run was when it last did something
    seen_s: float = 0.0  #: monotonic: when that was
    stalled: bool = False  #: it was told that it stands still

    @property
    def failed_before(self) -> bool:
        """Whether an attempt at it has failed, so that the next is one more chance."""
        return self.base is not None or self.stillborn > 0


@dataclass(frozen=True, kw_only=True)
class Running:
    """What holds a pipeline."""

    began: datetime
    run: Run | None = None  #: None: it has begun none yet, or is between two
    entry: TickRecord | None = None  #: the open tick that it is for; None for a run that was started otherwise
    doing: str = ""


class PipelineScheduler:
    """A scheduled pipeline."""

    def __init__(
        self, described: ScheduleDescription, known: ScheduleRecord, tools: Tools, watch: HeartbeatWatch
    ) -> None:
        self.described = described
        self.known = known
        self.open: dict[str, Open] = {}
        self.due_at: datetime | None = None  #: when the next tick comes
        self.look_s = 0.0  #: monotonic: when to look again, whatever comes
        self.adopting = True  #: ticks of dead schedulers may be there to take over
        self.retired = False  #: its file has it no longer
        self.failures = 0  #: in a row, of looking after it
        self.looked_at = False  #: at least once
        self._tools = tools
        self._watch = watch  # of heartbeats
        self._since: datetime | None = None  # the newest tick that was taken
        self._number = 0  # its number
        self._spans: dict[datetime, int] = {}
        self._refused: set[datetime] = set()  # moments for which the span rule gave nothing
        self._asking: DescriptionRequest | None = None
        self._asked: list[datetime] = []
        self._waiting = False  # ticks have come, and something has to end before they run
        self._guarded_s = 0.0
        self._stale = False
        self._alarmed = False
        self._set_back = False
        self.wants_look = False  #: what lies ready may have become other, by what was done here
        self._settling = ArrivalWatch()
        self._settles = False  # something has come that is not settled yet, or waits for its turn
        self._unread = described.ready  # what was found ready, until it was looked at
        self._outside: frozenset[str] = frozenset()  # what was said to be outside every window

    @property
    def pipeline(self) -> str:
        return self.described.pipeline

    @property
    def busy(self) -> bool:
        """Whether something of it is still to be waited for."""
        return bool(self.open) or self._waiting or self._asking is not None or self._settles or self.wants_look

    @property
    def at_work(self) -> bool:
        """Whether a process of it is there, or has ended and nothing was made of that yet."""
        return any(one.child is not None for one in self.open.values())

    def stop(self, why: str) -> None:
        """Asks its runs to end."""
        for one in self.open.values():
            if one.child is not None and one.child.poll() is None:
                one.stopped = why
                one.child.terminate()

    def kill(self, store: Store) -> None:
        """Ends its runs, those that would not when they were asked; their children see to it."""
        for one in self.open.values():
            if one.child is None or one.closer is not None:
                continue
            entry = read_tick(store, self.pipeline, one.entry.tick.name) or one.entry
            run = newest_run(store, entry)
            if run is None or run.state.ended:
                one.child.kill()
            else:
                one.closer = self._tools.start(replace(self._job(one), attempt=entry.attempts, close=run.number))

    def describe(self, described: ScheduleDescription, known: ScheduleRecord) -> None:
        """Goes on with what the file says now."""
        if (described.timetable, described.source) != (self.described.timetable, self.described.source):
            self._spans.clear()
            self._refused.clear()
        self.described, self.known, self.retired, self.look_s = described, known, False, 0.0
        self._unread, self.wants_look = described.ready, False

    def ready(self, now: datetime, monotonic: float) -> bool:
        """Whether there is something to look at."""
        if self.due_at is not None and now >= self.due_at and not self.retired:
            return True
        return monotonic >= self.look_s or any(
            one.child is not None and one.child.poll() is not None for one in self.open.values()
        )

    # --- a step

    def step(self, store: Store, me: int, now: datetime, monotonic: float, *, until: datetime | None) -> None:
        """Looks at everything there is to look at, and takes ticks that have come by `until`; None: begins nothing."""
        if self.adopting:
            self._adopt(store, me, now)
        for one in list(self.open.values()):
            self._advance(one, store, now, monotonic, beginning=until is not None)
        self.due_at, self._waiting = None, False
        if until is not None and not self.retired and part_of(self.pipeline) == DATA:
            self._take_arrivals(store, me, now, monotonic)
        elif until is not None and not self.retired:
            self._take(store, me, now, monotonic, until)
        if monotonic >= self._guarded_s and self.described.timetable.freshness is not None:
            self._guarded_s = monotonic + GUARD_S
            self._guard(store, now)
        self.look_s = self._next_look(monotonic)
        self.looked_at = True

    def _next_look(self, monotonic: float) -> float:
        timetable = self.described.timetable
        moments = [self._guarded_s] if timetable.freshness is not None else []
        for one in self.open.values():
            if one.child is None:
                moments.append(max(one.again_s, monotonic + POLL_S))
            elif timetable.stall_after is not None:
                moments.append(monotonic + max(POLL_S, timetable.stall_after.total_seconds() / 10))
        if self._asking is not None:
            moments.append(monotonic + POLL_S / 10)
        if self._waiting:
            moments.append(monotonic + POLL_S)
        if self.adopting:
            moments.append(monotonic + GUARD_S)
        return min(moments, default=float("inf"))

    # --- open ticks

    def _adopt(self, store: Store, me: int, now: datetime) -> None:
        """Takes over what dead schedulers have left open, and tells what they could not tell any more."""
        self.adopting = False
        for entry in list_unsettled(store, self.pipeline):
            if entry.tick.name in self.open or not (entry.holder == me or self._gone(store, entry.holder)):
                continue
            if entry.end is not None:
                self._tell_end(store, entry, entry.end, now)
                continue
            adopted = entry if entry.holder == me else adopt_tick(store, entry, holder=me)
            if adopted is not None:
                log.info("tick-adopted", extra=self._facts(entry.tick, before=entry.holder))
                self.open[entry.tick.name] = Open(adopted)

    def _gone(self, store: Store, number: int) -> bool:
        """Whether a scheduler has left or is seen to be dead; of one elsewhere that died, its watcher will know."""
        holder = read_scheduler(store, number)
        return holder is None or holder.ended or process.alive(holder.who) is False

    def _advance(self, one: Open, store: Store, now: datetime, monotonic: float, *, beginning: bool) -> None:
        if one.child is not None:
            if one.child.poll() is None:
                self._look_for_stall(one, store, now, monotonic)
                return
            one.code, one.child = one.child.returncode, None
        if monotonic < one.again_s:
            return
        entry = read_tick(store, self.pipeline, one.entry.tick.name)
        assert entry is not None, "a tick that was taken stays taken"
        if entry.end is not None:  # somebody else has ended it
            del self.open[entry.tick.name]
            return
        one.entry = entry
        if one.code == scheduled_run.INGESTED:
            self._end(entry, TickEnd(outcome=TickOutcome.RAN, why="another run had ingested it"), store, now)
            return
        run = newest_run(store, entry)
        if run is not None and not run.state.ended:
            self._follow(one, run, store, now, monotonic)
        elif self._is_over(one, run):
            self._judge(one, run, store, now, monotonic)
        elif beginning:
            self._begin(one, store, now, monotonic)

    def _follow(self, one: Open, run: Run, store: Store, now: datetime, monotonic: float) -> None:
        """A run that goes on, as it seems, and is no child of ours any more, or never was: does its controller live?"""
        if one.job is not None and one.job.close == run.number and one.code:
            why = (
                f"{run.name} died, and what it left could not be put right: {scheduled_run.said(self._log(one.entry))}"
            )
            self._end(one.entry, TickEnd(outcome=TickOutcome.FAILED, why=why, run=run.number), store, now)
            return
        one.code = None
        self._look_for_stall(one, store, now, monotonic)
        holder = lease.read(store, run.pipeline, run.token)
        gone = holder is None or holder.released
        if holder is not None and not gone:
            name = f"lease {holder.name}"
            gone = self._watch.is_dead(name, holder.who, holder.beat, monotonic)
            if gone and process.alive(holder.who):
                gone = False  # it is here and stands still; the stall is told, and whoever comes next may end it
        if gone:
            log.info("run-died", extra=self._facts(one.entry.tick, run=run.name))
            one.job = replace(self._job(one), attempt=one.entry.attempts, close=run.number)
            one.child = self._tools.start(one.job)

    def _is_over(self, one: Open, run: Run | None) -> bool:
        """Whether an attempt has come to an end that nothing was made of yet."""
        if one.code in (scheduled_run.HELD, scheduled_run.TAKEN):
            one.code = None  # nothing came of the child
        if one.code is not None:
            return True
        return run is not None and one.base != run.number  # nobody was there when it ended

    def _judge(self, one: Open, run: Run | None, store: Store, now: datetime, monotonic: float) -> None:
        number = one.job.attempt if one.job is not None else one.entry.attempts
        begun = number <= one.entry.attempts
        one.code = None
        if not begun:
            one.stillborn += 1
        if one.stopped and not begun:
            return  # nothing has begun: the next scheduler may
        error = "" if begun else scheduled_run.said(self._log(one.entry, number))
        tries = one.entry.attempts + one.stillborn
        by = read_overrun(store, self.pipeline, one.entry.tick.name)
        verdict = decide_retry(run if begun else None, tries, self._retry(one), overrun_by=by, error=error)
        if isinstance(verdict, RetryRun):
            one.again_s = monotonic + verdict.wait_s
            one.base = None if run is None else run.number
            one.end_others = False  # what the tick had overrun is gone; what has begun since is waited for
            log.info("tick-tried-again", extra=self._facts(one.entry.tick, wait_s=verdict.wait_s, attempt=tries + 1))
            return
        if one.stopped and verdict.outcome is TickOutcome.FAILED:
            verdict = replace(verdict, why=one.stopped)
        self._end(one.entry, verdict, store, now)

    def _retry(self, one: Open) -> Retry:
        return Retry() if one.stopped else self.described.timetable.retry

    def _begin(self, one: Open, store: Store, now: datetime, monotonic: float) -> None:
        """Starts the next attempt, unless something else holds the pipeline."""
        holder = find_holder(store, pipeline_of(self.pipeline), now)
        if holder is not None and not one.end_others:
            running = Running(began=holder.acquired, run=find_run(store, holder), doing=holder.purpose)
            came_after = one.entry.attempts or holder.acquired >= starts(self.described.timetable, one.entry.tick)
            if came_after or running.run is None or self._of_another_line(store, running.run):
                one.again_s = monotonic + POLL_S  # it is waited for
                return
            if isinstance(decide_overrun(self.described.timetable.overrun, running), SkipTick):
                self._end(one.entry, self._skipped(one.entry.tick, running), store, now, running=running.run)
                return
            one.end_others = True
        one.job = self._job(one)
        one.child = self._tools.start(one.job)
        log.info(
            "run-launched", extra=self._facts(one.entry.tick, attempt=one.job.attempt, pid=one.child.pid, base=one.base)
        )

    def _job(self, one: Open) -> Job:
        timetable, tick = self.described.timetable, one.entry.tick
        wait = timetable.wait_for_input
        return Job(
            source=self.described.source,
            pipeline=self.pipeline,
            tick=tick.name,
            span=tick.span,
            attempt=one.entry.attempts + 1,
            root=str(self._tools.root),
            config=None if self._tools.config is None else str(self._tools.config),
            part=tick.part,
            from_scratch=tick.from_scratch,
            base=one.base,
            end_others=one.end_others,
            wait_until=None if wait is None else (tick.at + wait).isoformat(),
            poll_s=timetable.poll_s,
        )

    def _end(
        self, entry: TickRecord, ending: TickEnd, store: Store, now: datetime, *, running: Run | None = None
    ) -> bool:
        """Ends a tick; False when it has gone on meanwhile, without us: it is looked at again."""
        if not end_tick(store, entry, ending, now=now):
            return False
        self.open.pop(entry.tick.name, None)
        self.wants_look = part_of(self.pipeline) == DATA
        log.info("tick-ended", extra=self._facts(entry.tick, outcome=ending.outcome.value, reason=ending.why))
        self._tell_end(store, replace(entry, end=ending, ended=now), ending, now, running=running)
        if ending.outcome is TickOutcome.RAN:
            self._look_ahead(store, now)
        return True

    # --- ticks that have come

    def _take(self, store: Store, me: int, now: datetime, monotonic: float, until: datetime) -> None:
        paused = current_pause(store, self.pipeline, now)
        found = self._due(store, until, "" if paused is None else _told(paused))
        if until == now and found.next is not None:
            self.due_at = starts(self.described.timetable, found.next)
        if not self._spans_known([*(missed.tick for missed in found.missed), *found.run], found.next):
            self._waiting = True
            return
        if found.set_back and not self._set_back:
            self._tell_set_back(found, now)
        self._set_back = bool(found.set_back)
        self._record_missed(found, store, me, now)
        if not found.run:
            return
        first = self._with_span(found.run[0])
        running = self._running(store, now)
        if running is not None and must_wait(found, self.described.timetable, running.began):
            # It is ours to wait for; to another scheduler's, that one sees.
            self._waiting = running.entry is None or running.entry.tick.name in self.open
            self.due_at = None if self._waiting else now + timedelta(seconds=POLL_S)
            return
        self._decide(first, running, store, me, now, monotonic)

    def _decide(
        self, tick: Tick, running: Running | None, store: Store, me: int, now: datetime, monotonic: float
    ) -> None:
        """Does with a tick what the overrun policy says."""
        decision = decide_overrun(self.described.timetable.overrun, running)
        if isinstance(decision, SkipTick):
            ending = self._skipped(tick, decision.running)
            skipped = self._claimed(tick, store, me, now, ending)
            if skipped is not None:
                self._tell_end(store, skipped, ending, now, running=decision.running.run)
            return
        entry = self._claimed(tick, store, me, now)
        if entry is None:
            return
        one = self.open[tick.name] = Open(entry, end_others=isinstance(decision, KillThenStart))
        log.info("tick-taken", extra=self._facts(tick, decision=type(decision).__name__, reason=tick.note))
        if isinstance(decision, KillThenStart):
            self._end_unbegun(decision.running, tick, store, now)
        if self._custom and tick.span is None:
            why = f"its span is not known: {self.described.trouble or 'the span rule gave none'}"
            self._end(one.entry, TickEnd(outcome=TickOutcome.FAILED, why=why), store, now)
            return
        self._begin(one, store, now, monotonic)

    def _due(self, store: Store, now: datetime, paused: str) -> DueTicks:
        """What is due; a tick that fell into a pause is missed, also when the pause has ended since."""
        if self._since is None:
            self._note_newest(store)
        assert self._since is not None
        found = find_due(self.described.timetable, self._since, now, paused=paused)
        if paused or not found.run:
            return found
        pauses = list_pauses(store, self.pipeline, since=found.run[0].at)
        lost: list[MissedTick] = []
        for tick in found.run:
            held = next((pause for pause in pauses if pause.holds(tick.at)), None)
            if held is None:
                break  # those after it are looked at once it is taken
            lost.append(MissedTick(tick=tick, why=_told(held)))
        return replace(found, run=found.run[len(lost) :], missed=(*found.missed, *lost))

    def _note_newest(self, store: Store) -> None:
        newest = newest_tick(store, self.pipeline, seen=self._number)
        self._since = self.known.since if newest is None else max(newest.tick.at, self.known.since)
        self._number = 0 if newest is None else newest.number

    def _claimed(
        self, tick: Tick, store: Store, me: int, now: datetime, ending: TickEnd | None = None
    ) -> TickRecord | None:
        """Takes a tick; None when another scheduler has it."""
        entry = claim_tick(store, self.pipeline, tick, holder=me, now=now, end=ending, seen=self._number)
        if entry is None:
            self._note_newest(store)
            self.adopting = True  # it may be ours: taken by a write whose answer was lost
            log.info("tick-taken-by-another", extra=self._facts(tick))
            return None
        self._since, self._number = tick.at, entry.number
        return entry

    def _record_missed(self, found: DueTicks, store: Store, me: int, now: datetime) -> None:
        recorded: list[TickRecord] = []
        why, more = "", 0
        if found.older is not None:
            tick = latest(self.described.timetable, found.older.last)
            assert tick is not None, "it came"
            why = f"about {found.older.about} ticks from {found.older.first:%Y-%m-%d %H:%M}Z up to it were missed"
            entry = self._claimed(tick, store, me, now, TickEnd(outcome=TickOutcome.MISSED, why=why))
            if entry is not None:
                self._tools.note(entry)
                recorded.append(entry)
                more = found.older.about - 1
        for missed in found.missed:
            ending = TickEnd(outcome=TickOutcome.MISSED, why=missed.why, quiet=missed.why.startswith(PAUSED))
            entry = self._claimed(self._with_span(missed.tick), store, me, now, ending)
            if entry is not None:
                log.info("tick-missed", extra=self._facts(missed.tick, reason=missed.why))
                self._tools.note(entry)
                if not ending.quiet:
                    recorded.append(entry)
                    why = why or missed.why
        if recorded:
            names = [entry.tick.name for entry in recorded]
            told = words.missed_alert(self.pipeline, at=now, site=self._tools.site, ticks=names, why=why, more=more)
            if self._tools.tell(told):
                for entry in recorded:
                    mark_alerted(store, entry)
            else:
                self.adopting = True

    def _skipped(self, tick: Tick, running: Running) -> TickEnd:
        what = running.run.name if running.run is not None else running.doing
        log.info("tick-skipped", extra=self._facts(tick, running=what))
        return TickEnd(outcome=TickOutcome.SKIPPED, why=f"{what} had not ended")

    def _end_unbegun(self, running: Running, by: Tick, store: Store, now: datetime) -> None:
        """Ends an earlier tick whose run has not begun, or waits to be tried again: there is no run to be ended."""
        if running.entry is None or (running.run is not None and not running.run.state.ended):
            return
        own = self.open.get(running.entry.tick.name)
        ending = TickEnd(outcome=TickOutcome.KILLED, why=f"ended for the tick {by.name} before its run had begun")
        if self._end(running.entry, ending, store, now) and own is not None and own.child is not None:
            own.child.kill()  # it has done nothing yet, and may begin nothing any more
            own.child.wait()

    def _running(self, store: Store, now: datetime) -> Running | None:
        """What a tick that comes now would overrun."""
        for entry in reversed(list_open(store, self.pipeline)):
            run = newest_run(store, entry)
            one = self.open.get(entry.tick.name)
            if one is not None and one.child is None and one.failed_before and (run is None or run.state.ended):
                # It waits to be tried again; now that the next tick has come, it has had its time.
                why = f"{(run and run.error) or 'it failed'}; not tried again, since the next tick has come"
                number = None if run is None else run.number
                self._end(one.entry, TickEnd(outcome=TickOutcome.FAILED, why=why, run=number), store, now)
                continue
            return Running(began=entry.taken, run=run, entry=entry, doing=f"the tick {entry.tick.name}")
        holder = find_holder(store, pipeline_of(self.pipeline), now)
        if holder is None:
            return None
        run = find_run(store, holder)
        return (
            None if self._of_another_line(store, run) else Running(began=holder.acquired, run=run, doing=holder.purpose)
        )

    def _of_another_line(self, store: Store, run: Run | None) -> bool:
        """Whether what holds the pipeline is another cadence of it: that is waited for, and is no overrun.

        Without a run yet, it is where one of another cadence is about to begin. What runs for data waits for all.
        """
        if part_of(self.pipeline) == DATA:
            return True
        if run is not None:
            return is_of_another_key(run, self.pipeline)
        lines = list_keys(store, pipeline_of(self.pipeline))
        return any(line != self.pipeline and list_open(store, line) for line in lines)

    # --- data that has come

    def _take_arrivals(self, store: Store, me: int, now: datetime, monotonic: float) -> None:
        """Takes the tick of what has come and settled, once nothing holds the pipeline.

        Each look is used once: what is found while the pipeline is held may have been ingested when it no longer is.
        """
        ready, self._unread = self._unread, None
        if ready is None:
            return
        self._tell_outside(ready)
        read = [each for each in ready.arrivals if each.read]
        settled = self._settling.settled(read, self._tools.settle_s, monotonic)
        new = {each.name for each in read if store.claimed("tick", claim_name(self.pipeline, each.name)) is None}
        due = [each for each in settled if each.name in new]
        left = find_owed(list_ticks(store, self.pipeline, limit=OWED), {each.span for each in read})
        start = arrival.decide_arrival(due, ready, left)
        self._settles = start is not None or bool(new)
        if current_pause(store, self.pipeline, now) is not None:
            self._settles = False
            return
        held = find_holder(store, pipeline_of(self.pipeline), now) or list_open(store, self.pipeline)
        if start is None or held:
            return
        tick = Tick(
            at=now, name=start.name, wall=now, span=start.span, part=start.part, from_scratch=start.from_scratch
        )
        entry = self._claimed(tick, store, me, now)
        if entry is not None:
            log.info("data-came", extra=self._facts(tick, part=tick.part, from_scratch=tick.from_scratch))
            self.open[tick.name] = Open(entry)
            self._begin(self.open[tick.name], store, now, monotonic)

    def _tell_outside(self, ready: ReadyData) -> None:
        outside = [each for each in ready.arrivals if not each.read]
        if any(each.name not in self._outside for each in outside):
            spans = format_versions(
                ((each.span, None) for each in outside), Calendar.from_name(self.described.calendar)
            )
            log.warning(
                "spans-outside", extra={"pipeline": self.pipeline, "spans": spans, "reason": "no window reads them"}
            )
        self._outside = frozenset(each.name for each in outside)

    # --- spans that only the pipeline file knows

    @property
    def _custom(self) -> bool:
        return isinstance(self.described.timetable.span, CustomSpanRule)

    def _with_span(self, tick: Tick) -> Tick:
        return replace(tick, span=self._spans.get(tick.at)) if self._custom else tick

    def _spans_known(self, wanted: Sequence[Tick], following: Tick | None) -> bool:
        """Whether all is known of these spans that there is to know; asks for them, and for some that come."""
        if not self._custom:
            return True
        self._hear_spans()
        if self._asking is not None:
            return all(tick.at in self._spans for tick in wanted)
        unknown = [tick.at for tick in wanted if not self._asked_for(tick)]
        if following is not None and not self._asked_for(following):
            ahead = ticks(self.described.timetable, following.at - _SECOND)
            unknown += [tick.at for tick in itertools.islice(ahead, AHEAD)]
        if unknown:
            self._asked = unknown
            self._asking = DescriptionRequest(self.described.source, self._tools.config, unknown)
        return all(self._asked_for(tick) for tick in wanted)

    def _asked_for(self, tick: Tick) -> bool:
        return tick.at in self._spans or tick.at in self._refused

    def _hear_spans(self) -> None:
        answer: list[ScheduleDescription] | None = []
        trouble = "its file has no schedule of it any more"
        if self._asking is None:
            return
        try:
            answer = self._asking.answer()
        except SpanwiseError as error:
            trouble = str(error)
        if answer is None:
            return
        mine = next((each for each in answer if each.pipeline == self.pipeline), None)
        if mine is not None:
            since = self._since or self.known.since
            self._spans = {at: span for at, span in {**self._spans, **mine.spans}.items() if at > since}
            trouble = mine.trouble
        self.described = replace(self.described, trouble=trouble)
        self._refused = {at for at in self._asked if at not in self._spans}
        self._asking = None

    # --- what is told

    def _tell_end(
        self, store: Store, entry: TickRecord, ending: TickEnd, now: datetime, *, running: Run | None = None
    ) -> None:
        """Tells of the end of a tick, then notes that it was told: after a death in between it is told again."""
        run = None if ending.run is None else store.run(pipeline_of(self.pipeline), ending.run)
        ended = replace(entry, end=ending, ended=now)
        self._tools.note(ended)
        self._tools.measure(store, ended)
        told = [self._tools.tell(each) for each in self._alerts(store, entry, ending, run, running, now)]
        if not all(told):
            self.adopting = True  # the outbox could not keep it: look for it again, as if another had left it
        elif ending.outcome.abnormal:
            mark_alerted(store, entry)

    def _alerts(
        self, store: Store, entry: TickRecord, ending: TickEnd, run: Run | None, running: Run | None, now: datetime
    ) -> Iterable[Alert]:
        site, tick, span = self._tools.site, entry.tick, self.label(entry.tick.span)
        match ending.outcome:
            case TickOutcome.RAN:
                if run is not None:  # else another run has done it
                    yield from words.recovery_alerts(run, at=now, site=site, tick=tick.name)
            case TickOutcome.KILLED if run is not None:
                by = read_tick(store, self.pipeline, read_overrun(store, self.pipeline, tick.name) or "")
                yield words.overrun_alert(
                    self.pipeline,
                    at=now,
                    site=site,
                    tick="" if by is None else by.tick.name,
                    span="" if by is None else self.label(by.tick.span),
                    running=run,
                    killed=True,
                    lost=span,
                )
            case TickOutcome.SKIPPED if running is not None:
                yield words.overrun_alert(
                    self.pipeline,
                    at=now,
                    site=site,
                    tick=tick.name,
                    span=span,
                    running=running,
                    killed=False,
                    lost=span,
                )
            case TickOutcome.FAILED:
                yield words.failure_alert(
                    self.pipeline,
                    at=now,
                    site=site,
                    error=ending.why,
                    tick=tick.name,
                    span=span if tick.span is not None else "",
                    run=run,
                    failed=[] if run is None else [e for e in store.executions(run) if e.state is State.FAILED],
                    attempts=max(1, entry.attempts),
                    log=self._log(entry),
                    resume=site.command("resume", run.name) if run is not None else "",
                )
            case _:
                yield words.missed_alert(self.pipeline, at=now, site=site, ticks=[tick.name], why=ending.why)

    def _tell_set_back(self, found: DueTicks, now: datetime) -> None:
        error = f"The clock stands {found.set_back} before the last tick that was taken; nothing is due until then."
        self._tools.tell(
            words.trouble_alert(
                "the clock was set back", at=now, site=self._tools.site, error=error, pipeline=self.pipeline
            )
        )

    def _look_for_stall(self, one: Open, store: Store, now: datetime, monotonic: float) -> None:
        limit = self.described.timetable.stall_after
        if limit is None:
            return
        one.entry = read_tick(store, self.pipeline, one.entry.tick.name) or one.entry
        run = newest_run(store, one.entry)
        if run is None or run.state.ended:
            return
        reached = (run.number, *measure_progress(store, run, self._tools.root))
        if reached != one.seen:
            one.seen, one.seen_s, one.stalled = reached, monotonic, False
        elif monotonic - one.seen_s >= limit.total_seconds() and not one.stalled:
            one.stalled = True
            quiet = timedelta(seconds=monotonic - one.seen_s)
            log.warning("run-stalled", extra=self._facts(one.entry.tick, run=run.name, quiet_s=quiet.total_seconds()))
            self._tools.tell(
                words.stall_alert(run, at=now, site=self._tools.site, quiet=quiet, tick=one.entry.tick.name)
            )

    def _guard(self, store: Store, now: datetime) -> None:
        stale = find_stale(store, self.known, now)
        site = self._tools.site
        if stale is not None and not self._stale:
            log.warning("model-stale", extra={"pipeline": self.pipeline, "pushed": str(stale.pushed)})
            self._tools.tell(
                words.freshness_alert(self.pipeline, at=now, site=site, pushed=stale.pushed, allowed=stale.allowed)
            )
        elif stale is None and self._stale:
            good = words.recovery_alert(
                self.pipeline, at=now, site=site, cause=f"freshness {self.pipeline}", words="a model was pushed"
            )
            self._tools.tell(good)
        self._stale = stale is not None

    def _look_ahead(self, store: Store, now: datetime) -> None:
        """Tells when runs come to take too much of the time between two ticks, and when they no longer do."""
        runs = list_past_runs(store, self.pipeline, nodes=False)
        found = make_forecast(self.described.timetable, runs, now)
        site, about = self._tools.site, f"forecast {self.pipeline}"
        why = self._tools.alarming(found)
        if not why:
            good = words.recovery_alert(self.pipeline, at=now, site=site, cause=about, words="runs end in time")
            self._tools.tell(good)
        elif not (self._alarmed or outbox.complained(self._tools.root, about)):
            log.warning("overrun-ahead", extra={"pipeline": self.pipeline, "reason": why})
            self._tools.tell(
                words.forecast_alert(self.pipeline, at=now, site=site, words=why, facts=format_forecast(found))
            )
        self._alarmed = bool(why)

    def label(self, span: int | None) -> str:
        """A span as people write it."""
        return "the newest" if span is None else Calendar.from_name(self.described.calendar).label(span)

    def _log(self, entry: TickRecord, number: int | None = None) -> Path:
        """What an attempt has printed; the last that began, if no number is given."""
        return scheduled_run.log_of(self._tools.root, self.pipeline, entry.tick.name, number or max(1, entry.attempts))

    def _facts(self, tick: Tick, **facts: object) -> Mapping[str, object]:
        return {"pipeline": self.pipeline, "tick": tick.name, "span": tick.span, **facts}


PAUSED = "paused by "


def _told(pause: SchedulePause) -> str:
    return f"{PAUSED}{pause.who}: {pause.why}"


def newest_run(store: Store, entry: TickRecord) -> Run | None:
    """The last run of a tick; None when it has had none."""
    if not entry.attempts:
        return None
    for run in store.runs(pipeline_of(entry.key)):
        if run.number <= entry.after_run:
            return None
        if run.cause == format_cause(entry.key, entry.tick.name) and run.trigger is Trigger.SCHEDULE:
            return run
    return None
