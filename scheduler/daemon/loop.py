"""The loop: reads the clock, looks at each pipeline for which there is something to do, and waits.

What to do is decided elsewhere: each `PipelineScheduler` observes, decides and acts. The loop keeps them going: it
knows the pipeline files, the other schedulers and the signals. Whatever fails is alerted and retried, so that neither
one pipeline nor the metadata store takes the others down.
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
from spanwise.scheduler.alerts import alert as words
from spanwise.scheduler.alerts import channel, outbox
from spanwise.scheduler.daemon.description import DescriptionRequest, ScheduleDescription
from spanwise.scheduler.daemon.pipeline_scheduler import PipelineScheduler, Tools
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
"""The longest sleep, so that a clock that was put forward, or a changed file, is noticed soon."""

FILES_S = 2.0
"""Between two looks whether a file has changed."""

DELIVER_S = 5.0
"""Between two looks into the outbox."""

LONGEST_WAIT_S = 30.0
"""Between two tries at what keeps failing."""

JUMP_S = 30.0
"""The wall clock was set when it has moved so much more or less than time has passed."""

LOOK_BACK = timedelta(minutes=5)
"""How late the tick may be that a one-shot takes of a schedule which was never known: to be started takes a while."""

UNKILLABLE_S = 60.0
"""How long processes that would not die are waited for when the scheduler is stopped."""

DELIVERY_S = 15.0
"""How long the last delivery of alerts may take."""

STOPPED = "the scheduler was stopped"
TROUBLE_METADATA = "metadata store unavailable"
TROUBLE_PIPELINE = "a pipeline is not scheduled"
TROUBLE_ALERTS = "invalid alert settings"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORTEST_S = 0.2  # between two turns while something fails


@dataclass(frozen=True, kw_only=True)
class DataWatch:
    """How it is seen that data has come."""

    settle_s: float  #: so long, it must not have changed
    poll_s: float  #: so often, it is looked at


@dataclass
class PipelineFile:
    """A pipeline file that is looked after."""

    reference: str
    asking: DescriptionRequest | None = None
    answer: list[ScheduleDescription] | None = None  #: what it said, until that is in the metadata
    stamp: tuple[int, ...] | None = None  #: of the file when it was last asked about; None: never
    again_s: float = float("inf")  #: monotonic: when to ask again, although it has not changed
    trouble: str = ""  #: why it could not be loaded the last time
    pipelines: frozenset[str] = frozenset()  #: that it has schedules of

    @property
    def path(self) -> Path:
        return split(self.reference)[0]

    def looks(self) -> tuple[int, ...]:
        """What changes when the file does."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


class SchedulerLoop:
    """A scheduler: several pipeline files, looked after until it is stopped, or once."""

    def __init__(
        self,
        references: Sequence[str],
        known: Settings,
        *,
        once: bool = False,
        let_finish: bool = False,
        watch: DataWatch | None = None,
        options: Sequence[str] = (),
        note: Callable[[TickRecord], object] = lambda _entry: None,
        metrics: SchedulerMetrics | None = None,
        clock: Clock | None = None,
        tools: Tools | None = None,
    ) -> None:
        """`once`: do what is due, wait for its runs, and end. `let_finish`: when stopped, wait for the runs.

        With `watch`, what is due is data that has come, for the pipelines of the files, whatever their schedules say.

        `options` are --root and --config as they were typed, for the commands in alerts. `note` gets each tick that
        is ended here.

        Raises:
            SettingsError: a channel for alerts names a variable that is not there.
        """
        self.watched: dict[str, PipelineScheduler] = {}
        self.files = [PipelineFile(_absolute(reference)) for reference in references]
        self._settings = known
        self._let_finish = let_finish
        self._clock = clock or Clock()
        self._once = self._clock.now() if once else None
        self._tools = tools or Tools(
            root=known.root, config=known.file, site=words.local_site(options), note=note, alarm=self._alarm
        )
        self._metrics = metrics
        if metrics is not None:
            metrics.watch(self.watched)
            self._tools = replace(self._tools, measure=metrics.tick_ended)
        self._watching = watch
        if watch is not None:
            self._tools = replace(self._tools, settle_s=watch.settle_s)
        self._alerts = known.alerts
        self._watch = HeartbeatWatch(self._clock.ttl_s)
        self._routes = channel.read_routes(known.alerts)
        self._me: SchedulerRecord | None = None
        self._peers: frozenset[int] = frozenset()
        self._beat_s = self._files_s = self._deliver_s = self._look_s = 0.0  # monotonic: not before
        self._failures = 0  # in a row, of looking at the metadata
        self._signals: list[int] = []
        self._stopping_s: float | None = None  # monotonic: since when
        self._killing = False
        self._drift: timedelta | None = None
        self._delivery: threading.Thread | None = None
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)

    def run(self) -> None:
        """Goes on until it is stopped or, once, until nothing is left to wait for.

        Raises:
            LoadError: none of the files can be loaded.
            SettingsError: a channel for alerts cannot be used.
        """
        with self._signals_taken():
            try:
                if self._once is None:
                    channel.check_channels(
                        self._routes
                    )  # now that somebody looks; a one-shot has no second to spare for it
                while not self.turn():
                    self._wait()
            finally:
                self.leave()

    def turn(self) -> bool:
        """Looks once at everything; whether there is nothing left to wait for."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        self._obey(monotonic)
        self._notice_jump(now, monotonic)
        self._ask_files(now, monotonic)
        if monotonic >= self._look_s:
            self._look(now, monotonic)
        self._deliver(monotonic)
        if self._metrics is not None:
            self._metrics.turned(self._clock.monotonic() - monotonic)
        return self._over(monotonic)

    # --- the metadata

    def _look(self, now: datetime, monotonic: float) -> None:
        """What needs the metadata; where they cannot be had, it is put off, told, and tried again."""
        answered = [file for file in self.files if file.answer is not None]
        due = any(one.ready(now, monotonic) for one in self.watched.values())
        if not (answered or due or self._killing or monotonic >= self._beat_s):
            return
        try:
            with root.opened(self._settings) as store:
                self._beat(store, now, monotonic)
                self._take_up(answered, store, now)
                for one in [one for one in self.watched.values() if one.ready(now, monotonic)]:
                    self._step(one, store, now, monotonic)
                    if self._clock.monotonic() >= self._beat_s:
                        break  # a thousand at once take a while: the heart has to beat, and then it goes on
                self._kill(store)
        except NothingToSchedule:
            raise
        except Exception as error:  # whatever it is, the loop goes on
            self._failures += 1
            self._look_s = monotonic + _wait_s(self._failures)
            log.exception("metadata-failed", extra={"failures": self._failures, "reason": str(error)})
            self._count_failure()
            if self._failures == 1:
                self._trouble(TROUBLE_METADATA, error, now)
            return
        if self._failures:
            self._failures = 0
            self._good_again(TROUBLE_METADATA, "it is available again", now)

    def _step(self, one: PipelineScheduler, store: Store, now: datetime, monotonic: float) -> None:
        """A step of one pipeline; what is wrong with it stops no other."""
        assert self._me is not None, "it has entered"
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
                self._trouble(TROUBLE_PIPELINE, error, now, one.key)
            return
        if one.failures:
            one.failures = 0
            self._good_again(TROUBLE_PIPELINE, "it is scheduled again", now, one.key)
        if one.retired and not one.busy:
            del self.watched[one.key]

    def _count_failure(self, pipeline: str = "") -> None:
        if self._metrics is not None:
            self._metrics.failed(pipeline)

    def _beat(self, store: Store, now: datetime, monotonic: float) -> None:
        """Shows that this scheduler lives, and looks which others do; what a dead one has left open is taken over."""
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
            for each in self.watched.values():
                each.adopting, each.look_s = True, 0.0
        self._peers = frozenset(living)

    # --- pipeline files

    def _ask_files(self, now: datetime, monotonic: float) -> None:
        for file in self.files:
            if file.asking is not None:
                self._hear(file, now, monotonic)
        if monotonic < self._files_s or self._stopping_s is not None:
            return
        self._files_s = monotonic + (FILES_S if self._watching is None else min(FILES_S, self._watching.poll_s))
        for file in self.files:
            looks = file.looks()
            if file.asking is None and (looks != file.stamp or monotonic >= file.again_s or self._wanted(file)):
                file.stamp, file.again_s = looks, float("inf")
                home = None if self._watching is None else self._tools.root
                try:
                    file.asking = DescriptionRequest(file.reference, self._tools.config, root=home)
                except OSError as error:  # no process, no space
                    self._not_loaded(file, error, now, monotonic)

    def _wanted(self, file: PipelineFile) -> bool:
        return any(name in self.watched and self.watched[name].arrivals.wants_look for name in file.pipelines)

    def _hear(self, file: PipelineFile, now: datetime, monotonic: float) -> None:
        assert file.asking is not None, "it was asked"
        try:
            answer = file.asking.answer()
        except SpanwiseError as error:
            file.asking = None
            self._not_loaded(file, error, now, monotonic)
            return
        if answer is not None:
            file.asking, file.answer = None, answer
            if self._watching is not None:
                file.again_s = monotonic + self._watching.poll_s
            if file.trouble:
                file.trouble = ""
                self._good_again(f"could not load {file.path.name}", "it loads", now)

    def _not_loaded(self, file: PipelineFile, error: Exception, now: datetime, monotonic: float) -> None:
        """Tells it once; the pipelines go on by the last timetable, and their runs will tell too."""
        file.again_s = monotonic + LONGEST_WAIT_S  # what it imports may be mended
        log.error("file-load-failed", extra={"file": file.reference, "reason": str(error)})
        if str(error) != file.trouble:
            file.trouble = str(error)
            self._trouble(f"could not load {file.path.name}", error, now)
        if not file.pipelines:
            file.answer = []  # what the metadata know of it

    def _take_up(self, files: Sequence[PipelineFile], store: Store, now: datetime) -> None:
        """Notes what the files say, and looks after it from now on."""
        for file in files:
            found = file.answer or _last_known(store, file, data=self._watching is not None)
            taken = {name for other in self.files if other is not file for name in other.pipelines}
            for described in found:
                if described.pipeline in taken:
                    error = UsageError(f"{described.pipeline!r} is in another file too; this one is left out.")
                    self._trouble(f"{file.path.name} has a pipeline twice", error, now)
                else:
                    self._watch_over(described, store, now)
            named = frozenset(described.pipeline for described in found) - taken
            for gone in file.pipelines - named:
                self.watched[gone].retired, self.watched[gone].look_s = True, 0.0
                log.info("schedule-removed", extra={"pipeline": gone, "file": file.reference})
            file.pipelines, file.answer = named, None
        if files and not self.watched and all(file.trouble for file in self.files):
            raise NothingToSchedule(files[0].trouble)

    def _watch_over(self, described: ScheduleDescription, store: Store, now: datetime) -> None:
        known = put_schedule(
            store,
            ScheduleRecord(
                timetable=described.timetable,
                since=self._counts_from(described.timetable, now),
                source=described.source,
                calendar=described.calendar,
                pushes=described.pushes,
            ),
        )
        watched = self.watched.get(described.pipeline)
        if watched is not None:
            changed = (watched.description.timetable, watched.description.source) != (
                described.timetable,
                described.source,
            )
            watched.update(described, known)
            if not changed and described.ready is not None:
                return
        else:
            self.watched[described.pipeline] = PipelineScheduler(described, known, self._tools, self._watch)
        log.info("schedule-loaded", extra={"pipeline": described.pipeline, "cron": described.timetable.cron})
        for doubt in described.timetable.warnings:
            log.warning("schedule-questioned", extra={"pipeline": described.pipeline, "reason": doubt})

    def _counts_from(self, timetable: Timetable, now: datetime) -> datetime:
        """When a schedule begins to count that was never known: now; for a one-shot, with the tick that started it."""
        tick = latest(timetable, now) if self._once is not None else None
        return now if tick is None or now - tick.at > LOOK_BACK else tick.at - timedelta(seconds=1)

    # --- stopping

    def _obey(self, monotonic: float) -> None:
        """Does what signals have asked for."""
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
        for one in self.watched.values():
            one.stop(STOPPED)

    def _kill(self, store: Store) -> None:
        if self._killing:
            for one in self.watched.values():
                one.kill(store)

    def _reload(self) -> None:
        for file in self.files:
            file.stamp = None
        self._files_s = 0.0
        threading.Thread(target=self._take_alerts, name="settings", daemon=True).start()  # Apprise takes its time

    def _take_alerts(self) -> None:
        """Alerts by the settings as they are now, if these can be read and every channel can be used."""
        now = self._clock.now()
        try:
            fresh = settings.read(config=self._settings.file, root=self._settings.root).alerts
            routes = channel.read_routes(fresh)
            channel.check_channels(routes)
        except SpanwiseError as error:
            log.error("alert-settings-rejected", extra={"reason": str(error)})  # noqa: TRY400  the reason says it all
            self._trouble(TROUBLE_ALERTS, error, now)
            return
        self._alerts, self._routes = fresh, routes
        log.info("alert-settings-loaded", extra={"channels": len(routes.channels)})
        self._good_again(TROUBLE_ALERTS, "they are valid now", now)

    def _over(self, monotonic: float) -> bool:
        if self._stopping_s is not None:
            late = self._killing and monotonic - self._stopping_s > self._settings.grace_s + SLACK_S + UNKILLABLE_S
            return late or not any(one.has_children for one in self.watched.values())
        if self._once is None:
            return False
        if self._failures or any(file.asking or file.answer is not None or file.stamp is None for file in self.files):
            return False
        return not any(one.busy or not one.looked_at for one in self.watched.values())

    def leave(self) -> None:
        """Says that this scheduler is gone, and sends what is to be sent."""
        for file in self.files:
            if file.asking is not None:
                file.asking.end()
        if self._me is not None:
            try:
                with root.opened(self._settings) as store:
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
        if any(file.asking is not None for file in self.files):
            length_s = min(length_s, 0.05)
        for one in self.watched.values():
            if one.due_at is not None:
                length_s = min(length_s, (one.due_at - now).total_seconds())
            length_s = min(length_s, one.look_s - monotonic)
        select.select([self._woken], [], [], max(length_s, 0.0 if not self._failures else _SHORTEST_S))
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _notice_jump(self, now: datetime, monotonic: float) -> None:
        """Looks at everything anew when the wall clock was set."""
        drift = now - EPOCH - timedelta(seconds=monotonic)
        if self._drift is not None and abs((drift - self._drift).total_seconds()) > JUMP_S:
            log.warning("clock-changed", extra={"by_s": (drift - self._drift).total_seconds()})
            for one in self.watched.values():
                one.look_s = 0.0
        self._drift = drift

    @contextlib.contextmanager
    def _signals_taken(self) -> Iterator[None]:
        """Notes signals, and wakes up for them and for every child that ends."""
        with process.catch_end_signals(self._signals.append):
            before = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
            woken_before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(woken_before)
                signal.signal(signal.SIGCHLD, before)

    # --- alerts

    def _alarm(self, found: Forecast) -> str:
        return found.alarm(self._alerts.of(found.pipeline).forecast_load)

    def _trouble(self, what: str, error: Exception, now: datetime, pipeline: str = "") -> None:
        text = str(error) if isinstance(error, SpanwiseError) else f"{type(error).__name__}: {error}"
        self._tools.send(words.trouble_alert(what, at=now, site=self._tools.site, error=text, pipeline=pipeline))

    def _good_again(self, what: str, how: str, now: datetime, pipeline: str = "") -> None:
        cause = f"scheduler {pipeline} {what}"
        self._tools.send(words.recovery_alert(pipeline, at=now, site=self._tools.site, cause=cause, words=how))

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
    """There is nothing to look after."""


def _last_known(store: Store, file: PipelineFile, *, data: bool) -> list[ScheduleDescription]:
    """The schedules of a file as they were when it could be loaded, perhaps by another scheduler."""
    found = []
    for pipeline in list_schedules(store) if file.trouble else []:
        known = read_schedule(store, pipeline)
        if known is not None and (part_of(pipeline) == DATA) == data and split(known.source)[0] == file.path:
            timetable = known.timetable
            found.append(
                ScheduleDescription(
                    timetable=timetable, source=known.source, calendar=known.calendar, pushes=known.pushes
                )
            )
    return found


def _absolute(reference: str) -> str:
    path, name = split(reference)
    return f"{path.absolute()}:{name}" if name else str(path.absolute())


def _wait_s(failures: int) -> float:
    """Before the next try, after so many that failed in a row."""
    return float(min(LONGEST_WAIT_S, 2.0 ** (failures - 1)))
