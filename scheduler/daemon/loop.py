"""The loop: reads the clock, steps the scheduler of each pipeline that has something to do, and waits.

Each `PipelineScheduler` observes, decides and acts for itself. The loop handles the pipeline files, the other
schedulers and the signals. Whatever fails is alerted and retried, so that neither one pipeline nor the metadata store
stops the others.
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import LoadError, SpanwiseError, StoreUnavailable, UsageError
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert, channel, outbox
from spanwise.scheduler.daemon.description import DescriptionRequest, ScheduleDescription
from spanwise.scheduler.daemon.pipeline_scheduler import PipelineScheduler
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.heartbeat import (
    BEATS,
    HeartbeatWatch,
    SchedulerRecord,
    beat,
    list_living,
    mark_ended,
    read_scheduler,
    register,
)
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_schedules, put_schedule, read_schedule
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.project import root, settings
from spanwise.scheduler.project.load import split
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.stop import SLACK_S
from spanwise.scheduler.schedule.forecast import Forecast
from spanwise.scheduler.schedule.schedule_key import DATA, part_of
from spanwise.scheduler.schedule.ticks import latest
from spanwise.scheduler.schedule.timetable import Timetable

if TYPE_CHECKING:
    from spanwise.scheduler.daemon.metrics import SchedulerMetrics

log = logging.getLogger("spanwise.scheduler")

TURN_S = 1.0
"""The longest sleep, so that a changed clock or file is noticed soon."""

FILES_S = 2.0
"""The interval at which files are checked for changes."""

DELIVER_S = 5.0
"""The interval at which the outbox is checked."""

LONGEST_WAIT_S = 30.0
"""The longest wait between two attempts at what keeps failing."""

JUMP_S = 30.0
"""The wall clock was changed when it differs by more than this from the time that has passed."""

LOOK_BACK = timedelta(minutes=5)
"""How old the tick may be that a one-shot takes of a new schedule: starting the process takes a while."""

UNKILLABLE_S = 60.0
"""How long a stopped scheduler waits for processes that cannot be killed."""

DELIVERY_S = 15.0
"""How long the last delivery of alerts may take."""

STOPPED = "the scheduler was stopped"
METADATA_UNAVAILABLE = "metadata store unavailable"
PIPELINE_NOT_SCHEDULED = "a pipeline is not scheduled"
INVALID_ALERT_SETTINGS = "invalid alert settings"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORTEST_S = 0.2  # the shortest wait while something fails


@dataclass(frozen=True, kw_only=True)
class DataWatch:
    """How new data is detected."""

    settle_s: float  #: how long data must not have changed
    poll_s: float  #: how often to look for new data


@dataclass
class PipelineFile:
    """A pipeline file whose schedules are run."""

    reference: str
    request: DescriptionRequest | None = None
    descriptions: list[ScheduleDescription] | None = None  #: its schedules, until they are in the metadata
    stamp: tuple[int, ...] | None = None  #: of the file when it was last loaded; None: never
    reload_s: float = float("inf")  #: monotonic: when to load it again, although it has not changed
    error: str = ""  #: why it could not be loaded the last time
    pipelines: frozenset[str] = frozenset()  #: the pipelines that it schedules

    @property
    def path(self) -> Path:
        return split(self.reference)[0]

    def read_stamp(self) -> tuple[int, ...]:
        """A value that changes when the file does."""
        try:
            stat = self.path.stat()
        except OSError:
            return ()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


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
        self.files = [PipelineFile(_absolute(reference)) for reference in references]
        self._settings = known
        self._let_finish = let_finish
        self._clock = clock or Clock()
        self._once = self._clock.now() if once else None
        self._services = services or SchedulerServices(
            root=known.root,
            config=known.file,
            site=alert.local_site(options),
            on_ended=on_ended,
            alarm=self._explain_forecast,
        )
        self._metrics = metrics
        if metrics is not None:
            metrics.watch(self.schedulers)
            self._services = replace(self._services, measure=metrics.tick_ended)
        self._watching = watch
        if watch is not None:
            self._services = replace(self._services, settle_s=watch.settle_s)
        self._alerts = known.alerts
        self._watch = HeartbeatWatch(self._clock.ttl_s)
        self._routes = channel.read_routes(known.alerts)
        self._me: SchedulerRecord | None = None
        self._peers: frozenset[int] = frozenset()
        self._beat_s = self._files_s = self._deliver_s = self._look_s = 0.0  # monotonic: when to do it next
        self._failures = 0  # of the metadata store, in a row
        self._signals: list[int] = []
        self._stopping_s: float | None = None  # monotonic: since when
        self._killing = False
        self._drift: timedelta | None = None
        self._delivery: threading.Thread | None = None
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
                    channel.check_channels(self._routes)  # takes a second, which a one-shot does not spend
                while not self.turn():
                    self._wait()
            finally:
                self.close()

    def turn(self) -> bool:
        """Does once whatever there is to do; returns whether nothing is left to wait for."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        self._handle_signals(monotonic)
        self._detect_clock_change(now, monotonic)
        self._load_files(now, monotonic)
        if monotonic >= self._look_s:
            self._step_pipelines(now, monotonic)
        self._deliver(monotonic)
        if self._metrics is not None:
            self._metrics.turned(self._clock.monotonic() - monotonic)
        return self._is_done(monotonic)

    # --- the metadata

    def _step_pipelines(self, now: datetime, monotonic: float) -> None:
        """Does what needs the metadata; while it is unavailable, that is postponed, alerted and retried."""
        described = [file for file in self.files if file.descriptions is not None]
        due = any(one.ready(now, monotonic) for one in self.schedulers.values())
        if not (described or due or self._killing or monotonic >= self._beat_s):
            return
        try:
            with root.open_for_writing(self._settings) as store:
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
            self._look_s = monotonic + _wait_s(self._failures)
            log.exception("metadata-failed", extra={"failures": self._failures, "reason": str(error)})
            self._count_failure()
            if self._failures == 1:
                self._send_trouble(METADATA_UNAVAILABLE, error, now)
            return
        if self._failures:
            self._failures = 0
            self._send_recovery(METADATA_UNAVAILABLE, "it is available again", now)

    def _step(self, one: PipelineScheduler, store: Store, now: datetime, monotonic: float) -> None:
        """Steps one pipeline; its failure stops no other."""
        assert self._me is not None, "it is registered"
        until = None if self._stopping_s is not None else self._once or now
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
                self._send_trouble(PIPELINE_NOT_SCHEDULED, error, now, one.key)
            return
        if one.failures:
            one.failures = 0
            self._send_recovery(PIPELINE_NOT_SCHEDULED, "it is scheduled again", now, one.key)
        if one.retired and not one.busy:
            del self.schedulers[one.key]

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
        for one in list_living(store, seen=self._me.number):
            if one.number == self._me.number:
                continue
            if self._watch.is_dead(f"scheduler#{one.number}", one.who, one.beat, monotonic):
                log.warning("scheduler-died", extra={"scheduler": one.number, "host": one.who.host})
                mark_ended(store, one)
            else:
                living.add(one.number)
        if self._peers - living:
            for each in self.schedulers.values():
                each.adopting, each.look_s = True, 0.0
        self._peers = frozenset(living)

    # --- pipeline files

    def _load_files(self, now: datetime, monotonic: float) -> None:
        for file in self.files:
            if file.request is not None:
                self._receive_descriptions(file, now, monotonic)
        if monotonic < self._files_s or self._stopping_s is not None:
            return
        self._files_s = monotonic + (FILES_S if self._watching is None else min(FILES_S, self._watching.poll_s))
        for file in self.files:
            stamp = file.read_stamp()
            if file.request is None and (stamp != file.stamp or monotonic >= file.reload_s or self._wants_look(file)):
                file.stamp, file.reload_s = stamp, float("inf")
                home = None if self._watching is None else self._services.root
                try:
                    file.request = DescriptionRequest(file.reference, self._services.config, root=home)
                except OSError as error:  # no process, no space
                    self._handle_load_error(file, error, now, monotonic)

    def _wants_look(self, file: PipelineFile) -> bool:
        return any(name in self.schedulers and self.schedulers[name].arrivals.wants_look for name in file.pipelines)

    def _receive_descriptions(self, file: PipelineFile, now: datetime, monotonic: float) -> None:
        assert file.request is not None, "it was requested"
        try:
            descriptions = file.request.answer()
        except SpanwiseError as error:
            file.request = None
            self._handle_load_error(file, error, now, monotonic)
            return
        if descriptions is not None:
            file.request, file.descriptions = None, descriptions
            if self._watching is not None:
                file.reload_s = monotonic + self._watching.poll_s
            if file.error:
                file.error = ""
                self._send_recovery(f"could not load {file.path.name}", "it was loaded", now)

    def _handle_load_error(self, file: PipelineFile, error: Exception, now: datetime, monotonic: float) -> None:
        """Alerts once; the pipelines go on by their last timetables."""
        file.reload_s = monotonic + LONGEST_WAIT_S  # what it imports may be fixed
        log.error("file-load-failed", extra={"file": file.reference, "reason": str(error)})
        if str(error) != file.error:
            file.error = str(error)
            self._send_trouble(f"could not load {file.path.name}", error, now)
        if not file.pipelines:
            file.descriptions = []  # then the recorded schedules are used

    def _apply_descriptions(self, files: Sequence[PipelineFile], store: Store, now: datetime) -> None:
        """Records the schedules of these files, and runs them from now on."""
        for file in files:
            descriptions = file.descriptions or _read_recorded(store, file, data=self._watching is not None)
            taken = {name for other in self.files if other is not file for name in other.pipelines}
            for described in descriptions:
                if described.pipeline in taken:
                    error = UsageError(f"{described.pipeline!r} is also defined in another file; this one is ignored.")
                    self._send_trouble(f"{file.path.name} defines a pipeline of another file", error, now)
                else:
                    self._add_schedule(described, store, now)
            named = frozenset(described.pipeline for described in descriptions) - taken
            for gone in file.pipelines - named:
                self.schedulers[gone].retired, self.schedulers[gone].look_s = True, 0.0
                log.info("schedule-removed", extra={"pipeline": gone, "file": file.reference})
            file.pipelines, file.descriptions = named, None
        if files and not self.schedulers and all(file.error for file in self.files):
            raise NothingToSchedule(files[0].error)

    def _add_schedule(self, described: ScheduleDescription, store: Store, now: datetime) -> None:
        known = put_schedule(
            store,
            ScheduleRecord(
                timetable=described.timetable,
                since=self._first_moment(described.timetable, now),
                source=described.source,
                calendar=described.calendar,
                pushes=described.pushes,
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

    def _first_moment(self, timetable: Timetable, now: datetime) -> datetime:
        """When a new schedule begins: now; for a one-shot, with the tick that started it, however long loading took."""
        tick = latest(timetable, self._once) if self._once is not None else None
        if self._once is None or tick is None or self._once - tick.at > LOOK_BACK:
            return now
        return tick.at - timedelta(seconds=1)

    # --- stopping

    def _handle_signals(self, monotonic: float) -> None:
        """Acts on the signals that were received."""
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGHUP:
                self._reload()
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

    def _reload(self) -> None:
        for file in self.files:
            file.stamp = None
        self._files_s = 0.0
        threading.Thread(target=self._reload_alerts, name="settings", daemon=True).start()  # Apprise takes its time

    def _reload_alerts(self) -> None:
        """Uses the alert settings as they are now, if they are valid and every channel can be used."""
        now = self._clock.now()
        try:
            fresh = settings.read(config=self._settings.file, root=self._settings.root).alerts
            routes = channel.read_routes(fresh)
            channel.check_channels(routes)
        except SpanwiseError as error:
            log.error("alert-settings-rejected", extra={"reason": str(error)})  # noqa: TRY400  the reason is enough
            self._send_trouble(INVALID_ALERT_SETTINGS, error, now)
            return
        self._alerts, self._routes = fresh, routes
        log.info("alert-settings-loaded", extra={"channels": len(routes.channels)})
        self._send_recovery(INVALID_ALERT_SETTINGS, "they are valid now", now)

    def _is_done(self, monotonic: float) -> bool:
        if self._stopping_s is not None:
            late = self._killing and monotonic - self._stopping_s > self._settings.grace_s + SLACK_S + UNKILLABLE_S
            return late or not any(one.has_runs for one in self.schedulers.values())
        if self._once is None:
            return False
        if self._failures or any(
            file.request or file.descriptions is not None or file.stamp is None for file in self.files
        ):
            return False
        return not any(one.busy or not one.looked_at for one in self.schedulers.values())

    def close(self) -> None:
        """Records the end of this scheduler, and delivers its last alerts."""
        for file in self.files:
            if file.request is not None:
                file.request.end()
        if self._me is not None:
            try:
                with root.open_for_writing(self._settings) as store:
                    me = read_scheduler(store, self._me.number)
                    if me is not None:
                        mark_ended(store, me)
            except Exception as error:  # noqa: BLE001  its heartbeat will be missed
                log.warning("signoff-failed", extra={"reason": str(error)})
        if self._delivery is not None:
            self._delivery.join(DELIVERY_S)
        self._deliver_now()
        if self._delivery is not None:
            self._delivery.join(DELIVERY_S)
        self._woken.close()
        self._wake.close()

    # --- time and signals

    def _wait(self) -> None:
        now, monotonic = self._clock.now(), self._clock.monotonic()
        length_s = min(TURN_S, *(m - monotonic for m in (self._beat_s, self._files_s)))
        if any(file.request is not None for file in self.files):
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

    # --- alerts

    def _explain_forecast(self, forecast: Forecast) -> str:
        return forecast.alarm(self._alerts.of(forecast.pipeline).forecast_load)

    def _send_trouble(self, what: str, error: Exception, now: datetime, pipeline: str = "") -> None:
        text = str(error) if isinstance(error, SpanwiseError) else f"{type(error).__name__}: {error}"
        self._services.send(alert.trouble_alert(what, at=now, site=self._services.site, error=text, pipeline=pipeline))

    def _send_recovery(self, what: str, summary: str, now: datetime, pipeline: str = "") -> None:
        cause = f"scheduler {pipeline} {what}"
        self._services.send(
            alert.recovery_alert(pipeline, at=now, site=self._services.site, cause=cause, summary=summary)
        )

    def _deliver(self, monotonic: float) -> None:
        if monotonic >= self._deliver_s and (self._delivery is None or not self._delivery.is_alive()):
            self._deliver_s = monotonic + DELIVER_S
            self._deliver_now()

    def _deliver_now(self) -> None:
        if not outbox.list_waiting(self._settings.root):
            return

        def deliver() -> None:
            try:
                outbox.deliver(self._settings.root, self._routes, self._clock.now())
            except Exception as error:
                log.exception("alert-delivery-failed", extra={"reason": str(error)})

        self._delivery = threading.Thread(target=deliver, name="delivery", daemon=True)
        self._delivery.start()


class NothingToSchedule(LoadError):
    """No file has a schedule."""


def _read_recorded(store: Store, file: PipelineFile, *, data: bool) -> list[ScheduleDescription]:
    """The schedules of a file as they were last recorded, perhaps by another scheduler."""
    found = []
    for pipeline in list_schedules(store) if file.error else []:
        known = read_schedule(store, pipeline)
        if known is not None and (part_of(pipeline) == DATA) == data and split(known.source)[0] == file.path:
            timetable = known.timetable
            found.append(
                ScheduleDescription(
                    timetable=timetable,
                    source=known.source,
                    calendar=known.calendar,
                    pushes=known.pushes,
                    ingests=known.ingests,
                )
            )
    return found


def _absolute(reference: str) -> str:
    path, name = split(reference)
    return f"{path.absolute()}:{name}" if name else str(path.absolute())


def _wait_s(failures: int) -> float:
    """The wait before the next attempt, after `failures` in a row."""
    return float(min(LONGEST_WAIT_S, 2.0 ** (failures - 1)))
