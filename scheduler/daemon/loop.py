"""The loop: reads the clock, steps the scheduler of each pipeline that has something to do, and waits.

Each `PipelineScheduler` observes, decides and acts for itself. The loop handles the other schedulers and the signals;
`PipelineFiles` loads the files, and `SchedulerAlerts` delivers the alerts. Whatever fails is alerted and retried, so
that neither one pipeline nor the metadata store stops the others.
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import LoadError, SpanwiseError, StoreUnavailable, UsageError
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert
from spanwise.scheduler.daemon.description import ScheduleDescription
from spanwise.scheduler.daemon.pipeline_files import DataWatch, PipelineFile, PipelineFiles, describe_recorded
from spanwise.scheduler.daemon.pipeline_scheduler import PipelineScheduler
from spanwise.scheduler.daemon.scheduler_alerts import PIPELINE_NOT_SCHEDULED, SchedulerAlerts
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.heartbeat import (
    BEATS,
    HeartbeatWatch,
    SchedulerRecord,
    beat,
    list_unended,
    mark_ended,
    read_scheduler,
    register,
)
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_replaced, put_schedule, retire_schedule
from spanwise.scheduler.ledger.ticks import TickRecord, list_unsettled
from spanwise.scheduler.project import root
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.stop import SLACK_S
from spanwise.scheduler.schedule.schedule_key import pipeline_of
from spanwise.scheduler.schedule.ticks import latest
from spanwise.scheduler.schedule.timetable import Timetable

if TYPE_CHECKING:
    from spanwise.scheduler.daemon.metrics import SchedulerMetrics

log = logging.getLogger("spanwise.scheduler")

TURN_S = 1.0
"""The longest sleep, so that a changed clock or file is noticed soon."""

LONGEST_WAIT_S = 30.0
"""The longest wait between two attempts at what keeps failing."""

RESTART_S = 30.0
"""Metadata that are away for less are not alerted: a database server is restarted now and then, and commands wait."""

JUMP_S = 30.0
"""The wall clock was changed when it differs by more than this from the time that has passed."""

LOOK_BACK = timedelta(minutes=5)
"""How old the tick may be that a one-shot takes of a new schedule: starting the process takes a while."""

UNKILLABLE_S = 60.0
"""How long a stopped scheduler waits for processes that cannot be killed."""

STOPPED = "the scheduler was stopped"
AGE_UNLIMITED = "its schedule no longer limits the age of the model"
METADATA_UNAVAILABLE = "metadata store unavailable"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORTEST_S = 0.2  # the shortest wait while something fails


class SchedulerLoop:
    """A scheduler of several pipeline files; runs until it is stopped, or once."""

    def __init__(
        self,
        references: Sequence[str],
        known: Settings,
        *,
        once: bool = False,
        let_finish: bool = False,
        watch: DataWatch | None = None,
        options: Sequence[str] = (),
        on_ended: Callable[[TickRecord], object] = lambda _record: None,
        metrics: SchedulerMetrics | None = None,
        clock: Clock | None = None,
        services: SchedulerServices | None = None,
    ) -> None:
        """`once`: run what is due, wait for its runs, and end. `let_finish`: when stopped, wait for the runs.

        With `watch`, new data starts the runs, whatever the schedules of the files say.

        `options` are --root and --config as they were typed, for the commands in alerts. `on_ended` gets each
        tick that this scheduler ends.

        Raises:
            SettingsError: an alert channel names a variable that is not set.
        """
        self.schedulers: dict[str, PipelineScheduler] = {}
        self._settings = known
        self._let_finish = let_finish
        self._clock = clock or Clock()
        self._once = self._clock.now() if once else None
        services = services or SchedulerServices(
            root=known.root, url=known.url, config=known.file, site=alert.local_site(options), on_ended=on_ended
        )
        self._alerts = SchedulerAlerts(known, services, self._clock)
        self._services = replace(services, alarm=self._alerts.explain_forecast)
        self._metrics = metrics
        if metrics is not None:
            metrics.watch(self.schedulers)
            self._services = replace(self._services, measure=metrics.tick_ended)
        if watch is not None:
            self._services = replace(self._services, settle_s=watch.settle_s)
        self.files = PipelineFiles(
            references, config=services.config, root=services.place, alerts=self._alerts, watch=watch
        )
        self._watch = HeartbeatWatch(self._clock.ttl_s)
        self._me: SchedulerRecord | None = None
        self._peers: frozenset[int] = frozenset()
        self._beat_s = self._look_s = 0.0  # monotonic: when to do it next
        self._failures = 0  # of the metadata store, in a row
        self._failing_s = 0.0  # monotonic: when the first of them was
        self._alerted = False  # that it fails
        self._available = False  # it has answered this scheduler
        self._signals: list[int] = []
        self._stopping_s: float | None = None  # monotonic: since when
        self._killing = False
        self._drift: timedelta | None = None
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)

    def run(self) -> None:
        """Runs until it is stopped or, once, until nothing is left to wait for.

        Raises:
            LoadError: none of the files can be loaded.
            SettingsError: an alert channel cannot be used.
        """
        with self._catch_signals():
            try:
                if self._once is None:
                    self._alerts.check_channels()  # takes a second, which a one-shot does not spend
                while not self.turn():
                    self._wait()
            finally:
                self.close()

    def turn(self) -> bool:
        """Does once whatever there is to do; returns whether nothing is left to wait for."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        self._handle_signals(monotonic)
        self._detect_clock_change(now, monotonic)
        self.files.receive(now, monotonic)
        if self._stopping_s is None:
            self.files.load_changed(now, monotonic, self._wants_look)
        if monotonic >= self._look_s:
            self._step_pipelines(now, monotonic)
        self._alerts.deliver(monotonic)
        if self._metrics is not None:
            self._metrics.turned(self._clock.monotonic() - monotonic)
        return self._is_done(monotonic)

    # --- the metadata

    def _step_pipelines(self, now: datetime, monotonic: float) -> None:
        """Does what needs the metadata; while it is unavailable, that is postponed, alerted and retried."""
        described = self.files.described
        due = any(one.ready(now, monotonic) for one in self.schedulers.values())
        if not (described or due or self._killing or monotonic >= self._beat_s):
            return
        try:
            # A one-shot waits for a server that is restarted; the loop goes on, and asks again soon.
            awaits = self._once is not None
            with root.open_for_writing(self._settings, again=self._me is not None, awaits_server=awaits) as store:
                now, monotonic = self._clock.now(), self._clock.monotonic()  # it may have answered late
                self._beat(store, now, monotonic)
                self._apply_descriptions(described, store, now)
                for one in [one for one in self.schedulers.values() if one.ready(now, monotonic)]:
                    self._step(one, store, now, monotonic)
                    if self._clock.monotonic() >= self._beat_s:
                        break  # a thousand take a while, and the heartbeat comes first
                self._kill(store)
        except NothingToSchedule:
            raise
        except Exception as error:  # whatever it is, the loop goes on
            self._failures += 1
            self._failing_s = monotonic if self._failures == 1 else self._failing_s
            self._look_s = monotonic + _wait_s(self._failures)
            known = isinstance(error, SpanwiseError)  # its message is enough
            log.error("metadata-failed", extra={"failures": self._failures, "reason": str(error)}, exc_info=not known)  # noqa: TRY400
            self._count_failure()
            lasts = self._clock.monotonic() - self._failing_s >= RESTART_S or self._once is not None
            if not self._alerted and (lasts or not isinstance(error, StoreUnavailable)):
                self._alerts.send_trouble(METADATA_UNAVAILABLE, error, now)
                self._alerted = True
            if self._once is not None and not any(one.has_runs for one in self.schedulers.values()):
                raise  # the next call takes what is due; calls from cron that wait would become ever more
            return
        if self._alerted:
            self._alerts.send_recovery(METADATA_UNAVAILABLE, "it is available again", now)
        elif not self._available:
            self._alerts.end_earlier(METADATA_UNAVAILABLE, "it is available again", now)
        self._failures, self._alerted, self._available = 0, False, True

    def _step(self, one: PipelineScheduler, store: Store, now: datetime, monotonic: float) -> None:
        """Steps one pipeline; its failure stops no other."""
        assert self._me is not None, "it is registered"
        until = None if self._stopping_s is not None else self._once or now
        first = not one.looked_at
        try:
            one.step(store, self._me.number, now, monotonic, until=until)
            if self._metrics is not None:
                self._metrics.look(store, one, monotonic)
        except StoreUnavailable:
            raise
        except Exception as error:
            one.failures += 1
            one.due_at, one.look_s = None, monotonic + _wait_s(one.failures)
            log.exception("pipeline-failed", extra={"pipeline": one.key, "failures": one.failures})
            self._count_failure(one.key)
            if one.failures == 1:
                self._alerts.send_trouble(PIPELINE_NOT_SCHEDULED, error, now, one.key)
            return
        if one.failures:
            self._alerts.send_recovery(PIPELINE_NOT_SCHEDULED, "it is scheduled again", now, one.key)
        elif first:
            self._alerts.end_earlier(PIPELINE_NOT_SCHEDULED, "it is scheduled again", now, one.key)
        one.failures = 0
        if one.retired and not (one.busy or one.open):
            del self.schedulers[one.key]
            self._end_alerts([one.key], now)

    def _count_failure(self, pipeline: str = "") -> None:
        if self._metrics is not None:
            self._metrics.failed(pipeline)

    def _beat(self, store: Store, now: datetime, monotonic: float) -> None:
        """Records the heartbeat of this scheduler, and takes over the open ticks of dead ones."""
        if monotonic < self._beat_s:
            return
        self._me = register(store, now) if self._me is None else beat(store, self._me, now)
        self._beat_s = monotonic + self._clock.ttl_s / BEATS
        living = set()
        for one in list_unended(store, seen=self._me.number):
            if one.number == self._me.number:
                continue
            if self._watch.is_dead(f"scheduler#{one.number}", one.who, one.beat, monotonic):
                log.warning("scheduler-died", extra={"scheduler": one.number, "host": one.who.host})
                mark_ended(store, one)
            else:
                living.add(one.number)
        if self._peers - living:
            self._watch_replaced(store, now)
            for each in self.schedulers.values():
                each.adopting, each.look_s = True, 0.0
        self._peers = frozenset(living)

    # --- pipeline files

    def _wants_look(self, file: PipelineFile) -> bool:
        return any(name in self.schedulers and self.schedulers[name].arrivals.wants_look for name in file.pipelines)

    def _apply_descriptions(self, files: Sequence[PipelineFile], store: Store, now: datetime) -> None:
        """Records the schedules of these files, and runs them from now on."""
        for file in files:
            file.latest = self.files.read(file, store)
            # What it no longer has, another may have now, whichever is looked at first.
            file.pipelines &= {each.pipeline for each in file.latest}
        waiting = [file for file in self.files.all if files and file.ignored and file not in files]
        for file in (*files, *waiting):
            self._add_schedules(file, store, now)
        kept = {key for file in self.files.all for key in file.pipelines}
        for key, one in self.schedulers.items():
            if files and key not in kept and not one.retired:
                one.retired, one.look_s = True, 0.0
                log.info("schedule-removed", extra={"pipeline": key, "file": one.description.source})
        for file in files:
            file.descriptions = None
        if files and self.files.settled:
            self._retire_removed(store, now)
        if files:
            self._watch_replaced(store, now)
            self._end_freshness(now)
        if files and not self.schedulers and all(file.error for file in self.files.all):
            raise NothingToSchedule(files[0].error)

    def _add_schedules(self, file: PipelineFile, store: Store, now: datetime) -> None:
        """Runs the schedules of a file, but those of pipelines that another file has."""
        others = [key for other in self.files.all if other is not file for key in other.pipelines]
        taken = {pipeline_of(key) for key in others}  # by other parts too: a pipeline has one schedule
        mine = [each for each in file.latest if pipeline_of(each.pipeline) not in taken]
        for described in mine:
            self._add_schedule(described, store, now)
        file.pipelines = frozenset(each.pipeline for each in mine)
        before, file.ignored = file.ignored, frozenset(pipeline_of(each.pipeline) for each in file.latest) & taken
        what, ended = f"{file.path.name} defines a pipeline of another file", "none of its pipelines is of another file"
        for pipeline in sorted(file.ignored - before):
            error = UsageError(f"{pipeline!r} is also defined in another file; this one is ignored.")
            self._alerts.send_trouble(what, error, now)
        if before and not file.ignored:
            self._alerts.send_recovery(what, ended, now)
        elif not file.ignored:
            self._alerts.end_earlier(what, ended, now)

    def _add_schedule(self, described: ScheduleDescription, store: Store, now: datetime) -> None:
        known = put_schedule(
            store,
            ScheduleRecord(
                timetable=described.timetable,
                since=self._first_moment(described.timetable, now),
                source=described.source,
                folder=str(Path.cwd()),
                calendar=described.calendar,
                calendars=described.calendars,
                pushes=described.pushes,
                nodes=described.nodes,
                first=described.first,
                last=described.last,
                ingests=described.ingests,
            ),
        )
        scheduler = self.schedulers.get(described.pipeline)
        if scheduler is not None:
            changed = (scheduler.description.timetable, scheduler.description.source) != (
                described.timetable,
                described.source,
            )
            scheduler.update(described, known)
            if not changed and described.ready is not None:
                return
        else:
            self.schedulers[described.pipeline] = PipelineScheduler(described, known, self._services, self._watch)
        log.info("schedule-loaded", extra={"pipeline": described.pipeline, "cron": described.timetable.cron})
        for warning in described.timetable.warnings:
            log.warning("schedule-questioned", extra={"pipeline": described.pipeline, "reason": warning})

    def _retire_removed(self, store: Store, now: datetime) -> None:
        """Records which schedules are over, since their files no longer have them: none of their ticks is overdue."""
        removed = self.files.list_removed(store)
        for known in removed:
            self._watch_left(known, store)
        self._end_alerts([known.key for known in removed], now)
        for known in removed:
            retire_schedule(store, known.key)

    def _watch_left(self, known: ScheduleRecord, store: Store) -> None:
        if known.key not in self.schedulers and list_unsettled(store, known.key):
            left = PipelineScheduler(describe_recorded(known), known, self._services, self._watch)
            left.retired = True
            self.schedulers[known.key] = left

    def _watch_replaced(self, store: Store, now: datetime) -> None:
        """Looks after the ticks that schedules left open that have been replaced since, until they have ended."""
        pipelines = {pipeline_of(key) for key in self.schedulers}
        replaced = [known for pipeline in pipelines for known in list_replaced(store, pipeline)]
        for known in replaced:
            self._watch_left(known, store)
        self._end_alerts([known.key for known in replaced], now)

    def _end_alerts(self, over: Sequence[str], now: datetime) -> None:
        """Announces the end of what lasts for schedules that are over, of a stalled run once nothing of it is open."""
        pipelines = {pipeline_of(key) for key in self.schedulers}
        self._alerts.end_conditions(over, now, stalled={pipeline_of(key) for key in over} - pipelines)

    def _end_freshness(self, now: datetime) -> None:
        """Announces the end of what was alerted of models whose age is no longer limited: nobody looks any more."""
        ageless = [key for key, one in self.schedulers.items() if one.description.timetable.freshness is None]
        self._alerts.end_standing([(key, f"freshness {key}", AGE_UNLIMITED) for key in ageless], now)

    def _first_moment(self, timetable: Timetable, now: datetime) -> datetime:
        """When a new schedule begins: now.

        For a one-shot, with the tick that started it, or else when it was started, however long loading took.
        """
        if self._once is None:
            return now
        tick = latest(timetable, self._once)
        if tick is None or self._once - tick.at > LOOK_BACK:
            return self._once
        return tick.at - timedelta(seconds=1)

    # --- stopping

    def _handle_signals(self, monotonic: float) -> None:
        """Acts on the signals that were received."""
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGHUP:
                self.files.reload()
                self._alerts.start_reload()
            elif self._stopping_s is None:
                log.info("scheduler-stopping", extra={"signal": number, "let_finish": self._let_finish})
                self._stopping_s = monotonic
                if not self._let_finish:
                    self._stop()
            else:  # asked a second time
                self._let_finish = False
                self._killing = True
                self._stop()
        asked = self._stopping_s is not None and not self._let_finish
        if asked and monotonic - (self._stopping_s or 0.0) > self._settings.grace_s + SLACK_S:
            self._killing = True

    def _stop(self) -> None:
        for one in self.schedulers.values():
            one.stop(STOPPED)

    def _kill(self, store: Store) -> None:
        if self._killing:
            for one in self.schedulers.values():
                one.kill(store)

    def _is_done(self, monotonic: float) -> bool:
        if self._stopping_s is not None:
            late = self._killing and monotonic - self._stopping_s > self._settings.grace_s + SLACK_S + UNKILLABLE_S
            return late or not any(one.has_runs for one in self.schedulers.values())
        if self._once is None:
            return False
        if self._failures or not self.files.settled:
            return False
        return not any(one.busy or not one.looked_at for one in self.schedulers.values())

    def close(self) -> None:
        """Records the end of this scheduler, and delivers its last alerts."""
        self.files.close()
        if self._me is not None:
            try:
                with root.open_for_writing(self._settings, again=True, awaits_server=False) as store:
                    me = read_scheduler(store, self._me.number)
                    if me is not None:
                        mark_ended(store, me)
            except Exception as error:  # noqa: BLE001  its heartbeat will be missed
                log.warning("signoff-failed", extra={"reason": str(error)})
        self._alerts.close()
        self._woken.close()
        self._wake.close()

    # --- time and signals

    def _wait(self) -> None:
        now, monotonic = self._clock.now(), self._clock.monotonic()
        length_s = min(TURN_S, *(m - monotonic for m in (self._beat_s, self.files.next_s)))
        if self.files.loading:
            length_s = min(length_s, 0.05)
        for one in self.schedulers.values():
            if one.due_at is not None:
                length_s = min(length_s, (one.due_at - now).total_seconds())
            length_s = min(length_s, one.look_s - monotonic)
        select.select([self._woken], [], [], max(length_s, 0.0 if not self._failures else _SHORTEST_S))
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _detect_clock_change(self, now: datetime, monotonic: float) -> None:
        """Steps every pipeline again when the wall clock was changed."""
        drift = now - EPOCH - timedelta(seconds=monotonic)
        if self._drift is not None and abs((drift - self._drift).total_seconds()) > JUMP_S:
            log.warning("clock-changed", extra={"by_s": (drift - self._drift).total_seconds()})
            for one in self.schedulers.values():
                one.look_s = 0.0
        self._drift = drift

    @contextlib.contextmanager
    def _catch_signals(self) -> Iterator[None]:
        """Collects signals, and wakes up for them and for every child that ends."""
        with process.catch_end_signals(self._signals.append):
            before = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
            woken_before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(woken_before)
                signal.signal(signal.SIGCHLD, before)


class NothingToSchedule(LoadError):
    """No file has a schedule."""


def _wait_s(failures: int) -> float:
    """The wait before the next attempt, after `failures` in a row."""
    return float(min(LONGEST_WAIT_S, 2.0 ** (failures - 1)))
