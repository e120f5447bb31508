"""The pipeline files of a scheduler: loads each again when it changes, without importing it here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.orchestrator.store import Store
from spanwise.scheduler.daemon.description import DescriptionRequest, ScheduleDescription
from spanwise.scheduler.daemon.scheduler_alerts import SchedulerAlerts
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_schedules, read_schedule
from spanwise.scheduler.project.load import split
from spanwise.scheduler.schedule.schedule_key import DATA, part_of

log = logging.getLogger("spanwise.scheduler")

FILES_S = 2.0
"""The interval at which files are checked for changes."""

RETRY_S = 30.0
"""After this a file that could not be loaded is loaded again: what it imports may have been fixed."""


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
    loaded: bool = False  #: it could be, since this scheduler began
    latest: Sequence[ScheduleDescription] = ()  #: its schedules as they are in the metadata, and those of `ignored`
    pipelines: frozenset[str] = frozenset()  #: the schedule keys that run by it
    ignored: frozenset[str] = frozenset()  #: the pipelines that it defines too, and that run by another file

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


class PipelineFiles:
    """The pipeline files of a scheduler. With `watch`, they are asked for the data that is ready, not for schedules."""

    def __init__(
        self,
        references: Sequence[str],
        *,
        config: Path | None,
        root: str,
        alerts: SchedulerAlerts,
        watch: DataWatch | None = None,
    ) -> None:
        self.all = [PipelineFile(_absolute(reference)) for reference in references]
        self.next_s = 0.0  #: monotonic: when to check them for changes
        self._config = config
        self._root = root
        self._alerts = alerts
        self._watch = watch

    @property
    def described(self) -> list[PipelineFile]:
        """Those whose schedules are to be recorded."""
        return [file for file in self.all if file.descriptions is not None]

    @property
    def loading(self) -> bool:
        """Whether processes work on some of them."""
        return any(file.request is not None for file in self.all)

    @property
    def settled(self) -> bool:
        """Whether the schedules of all, as far as they could be loaded, are in the metadata."""
        return all(f.request is None and f.descriptions is None and f.stamp is not None for f in self.all)

    def receive(self, now: datetime, monotonic: float) -> None:
        """Takes the answers of the files that were being loaded."""
        for file in self.all:
            if file.request is not None:
                self._receive(file, file.request, now, monotonic)

    def load_changed(self, now: datetime, monotonic: float, wants_look: Callable[[PipelineFile], bool]) -> None:
        """Begins to load the files that have changed, or of which `wants_look` says that their data is needed."""
        if monotonic < self.next_s:
            return
        self.next_s = monotonic + (FILES_S if self._watch is None else min(FILES_S, self._watch.poll_s))
        for file in self.all:
            stamp = file.read_stamp()
            if file.request is None and (stamp != file.stamp or monotonic >= file.reload_s or wants_look(file)):
                file.stamp, file.reload_s = stamp, float("inf")
                home = None if self._watch is None else self._root
                try:
                    file.request = DescriptionRequest(file.reference, self._config, root=home)
                except OSError as error:  # no process, no space
                    self._handle_error(file, error, now, monotonic)

    def reload(self) -> None:
        """Has all of them loaded at the next turn."""
        for file in self.all:
            file.stamp = None
        self.next_s = 0.0

    def read(self, file: PipelineFile, store: Store) -> list[ScheduleDescription]:
        """The schedules of a file; while it cannot be loaded, those that were last recorded."""
        return file.descriptions or _read_recorded(store, file, data=self._watch is not None)

    def list_removed(self, store: Store) -> list[ScheduleRecord]:
        """The schedules that were recorded from these files, and that they no longer have.

        Nothing is known of a file that could not be loaded, nor of the others in one of which a schedule was named.
        """
        if self._watch is not None:
            return []
        kept = {key for file in self.all for key in file.pipelines}
        loaded = [file for file in self.all if file.loaded and not file.error]
        whole = {file.path for file in loaded if not split(file.reference)[1]}
        named = {file.reference for file in loaded}
        return [
            known
            for key in list_schedules(store)
            if key not in kept and part_of(key) != DATA
            for known in [read_schedule(store, key)]
            if known is not None and not known.replaced
            if known.source in named or split(known.source)[0] in whole
        ]

    def close(self) -> None:
        """Ends the processes that load files."""
        for file in self.all:
            if file.request is not None:
                file.request.end()

    def _receive(self, file: PipelineFile, request: DescriptionRequest, now: datetime, monotonic: float) -> None:
        try:
            descriptions = request.answer()
        except SpanwiseError as error:
            file.request = None
            self._handle_error(file, error, now, monotonic)
            return
        if descriptions is not None:
            file.request, file.descriptions = None, descriptions
            if self._watch is not None:
                file.reload_s = monotonic + self._watch.poll_s
            trouble, ended = f"could not load {file.path.name}", "it was loaded"
            if file.error:
                self._alerts.send_recovery(trouble, ended, now)
            elif not file.loaded:
                self._alerts.end_earlier(trouble, ended, now)
            file.error, file.loaded = "", True

    def _handle_error(self, file: PipelineFile, error: Exception, now: datetime, monotonic: float) -> None:
        """Alerts once; the pipelines go on by their last timetables."""
        file.reload_s = monotonic + RETRY_S
        log.error("file-load-failed", extra={"file": file.reference, "reason": str(error)})
        if str(error) != file.error:
            file.error = str(error)
            self._alerts.send_trouble(f"could not load {file.path.name}", error, now)
        if not file.pipelines:
            file.descriptions = []  # then the recorded schedules are used


def _read_recorded(store: Store, file: PipelineFile, *, data: bool) -> list[ScheduleDescription]:
    """The schedules of a file as they were last recorded, perhaps by another scheduler."""
    descriptions = []
    for pipeline in list_schedules(store) if file.error else []:
        known = read_schedule(store, pipeline)
        if known is None or known.replaced:
            continue
        if (part_of(pipeline) == DATA) == data and split(known.source)[0] == file.path:
            descriptions.append(describe_recorded(known))
    return descriptions


def describe_recorded(known: ScheduleRecord) -> ScheduleDescription:
    """A schedule as it was last loaded."""
    return ScheduleDescription(
        timetable=known.timetable,
        source=known.source,
        calendar=known.calendar,
        calendars=known.calendars,
        pushes=known.pushes,
        nodes=known.nodes,
        ingests=known.ingests,
    )


def _absolute(reference: str) -> str:
    path, name = split(reference)
    return f"{path.absolute()}:{name}" if name else str(path.absolute())
