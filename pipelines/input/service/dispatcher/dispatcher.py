"""The dispatcher's server: it answers workers itself, and passes consumers and saves on to their handlers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from spanwise.orchestrator.errors import ServiceError
from spanwise.orchestrator.storage import is_object_url, parse_url
from spanwise.pipelines.input.service.dispatcher import decisions
from spanwise.pipelines.input.service.dispatcher.activity import Activity
from spanwise.pipelines.input.service.dispatcher.folder_journal import FolderJournal
from spanwise.pipelines.input.service.dispatcher.graphs import FolderGraphs, GraphStore, MemoryGraphs, early_name
from spanwise.pipelines.input.service.dispatcher.jobs import JobHandler
from spanwise.pipelines.input.service.dispatcher.journal import Journal
from spanwise.pipelines.input.service.dispatcher.keeper import StateKeeper
from spanwise.pipelines.input.service.dispatcher.records import (
    FinishTask,
    ProduceSplits,
    Record,
    RegisterWorker,
    RemoveWorker,
    StoreGraph,
)
from spanwise.pipelines.input.service.dispatcher.state import ServiceState
from spanwise.pipelines.input.service.dispatcher.status import status_of
from spanwise.pipelines.input.service.dispatcher.stored_journal import StoredJournal
from spanwise.pipelines.input.service.saves.handler import SaveHandler
from spanwise.pipelines.input.service.wire.config import DispatcherConfig
from spanwise.pipelines.input.service.wire.connection import UnknownTask
from spanwise.pipelines.input.service.wire.meter import ServerMeter
from spanwise.pipelines.input.service.wire.requests import (
    Assignments,
    Done,
    GetDataset,
    GetStatus,
    Heartbeat,
    RegisterDataset,
    Request,
    ServiceStatus,
    SplitRange,
    TakeSplits,
    TaskAssignment,
)
from spanwise.pipelines.input.service.wire.server import Action, Answer, FlightServer, Serving

_SWEEP_S: Final = 0.25
_SWEEP_RETRY_S: Final = 5.0
_LATE_S: Final = 2.0
"""A dispatcher that has not come to look for the silent for so long was paused, or without its journal."""

_log = logging.getLogger("spanwise.service.dispatcher")


class DispatchServer(Serving):
    """A dispatcher in this process; `target` is its address."""

    def __init__(
        self, config: DispatcherConfig | None = None, *, on_standby: Callable[[str], None] | None = None
    ) -> None:
        """With a journal at a URL, waits until no other dispatcher has it; `on_standby` hears for whom it waits."""
        super().__init__()
        self.config = config = config or DispatcherConfig()
        config.security.check_bind(config.host)  # not only when it takes over
        journal, self._graphs = _open_journal(config, on_standby or _log_standby)
        self._keeper = StateKeeper(journal)
        self._activity = Activity()
        self._activity.forget_gone(self._keeper.state, time.monotonic())
        self._meter = ServerMeter()
        handlers: dict[type[Request[Any]], Callable[[Any, bytes], Answer]] = {
            RegisterDataset: self._register_dataset,
            GetDataset: self._get_dataset,
            Heartbeat: self._heartbeat,
            TakeSplits: self._take_splits,
            GetStatus: self._get_status,
        }
        actions: dict[str, Action] = {kind.kind: (kind, handler) for kind, handler in handlers.items()}
        actions |= JobHandler(self._keeper, self._activity, config).actions
        actions |= SaveHandler(self._keeper.change).actions
        actions = {name: (kind, self._confirmed(answer)) for name, (kind, answer) in actions.items()}
        try:
            self._server = FlightServer(
                config.host,
                config.port,
                config.security,
                actions=actions,
                limit_bytes=config.max_message_bytes,
                meter=self._meter,
            )
            self.target = self._server.target
            scheme, _, _ = self.target.partition("://")
            self._keeper.announce(f"{scheme}://{config.address_at(self._server.listens_at)}")
        except BaseException:
            self._keeper.close()
            raise
        self._sweeper = threading.Thread(target=self._sweep, name="dispatcher", daemon=True)
        self._sweeper.start()

    def stop(self) -> None:
        """Stops answering. The journal keeps its content."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._keeper.refuse_changes()
        self._server.shutdown()
        self._sweeper.join()
        self._keeper.close()

    def join(self) -> None:
        """Waits until it is stopped, or has lost its journal.

        Raises:
            ServiceError: another dispatcher has taken over.
        """
        while not self._closed.wait(_SWEEP_S):
            if (lost := self._keeper.lost) is not None:
                self.stop()
                raise lost

    def _confirmed(self, answer: Callable[[Any, bytes], Answer]) -> Callable[[Any, bytes], Answer]:
        """Answers only what is stored, and only while no other dispatcher can answer."""

        def confirmed(request: Any, blob: bytes) -> Answer:
            self._keeper.check()
            found = answer(request, blob)
            self._keeper.confirm()
            return found

        return confirmed

    # Datasets.

    def _register_dataset(self, request: RegisterDataset, graph: bytes) -> Answer:
        with self._keeper.changed:
            is_new = bool(decisions.register(self._keeper.state, request))
        if is_new:
            stored = StoreGraph(dataset=request.dataset, name=self._graphs.put(graph))
            self._keeper.change(
                lambda state: [*wanted, stored] if (wanted := decisions.register(state, request)) else []
            )
        return Done(), b""

    def _get_dataset(self, request: GetDataset, _: bytes) -> Answer:
        with self._keeper.changed:
            if request.dataset not in self._keeper.state.datasets:
                raise ServiceError(
                    f"dataset {request.dataset!r} is not registered with this dispatcher; use register_dataset."
                )
            name = self._keeper.state.graphs.get(request.dataset) or early_name(request.dataset)
        return Done(), self._graphs.get(name)

    # Workers.

    def _heartbeat(self, request: Heartbeat, _: bytes) -> Answer:
        worker = RegisterWorker(
            worker=request.worker, address=request.address, process=request.process, shard=self._shard(request.address)
        )

        def decide(state: ServiceState) -> list[Record]:
            self._activity.workers_seen[request.worker] = time.monotonic()
            finished = [each for each in request.finished if each in state.tasks and not state.tasks[each].finished]
            failed = {each.task: each for each in request.failed}
            ends = [FinishTask(task=each, failure=failed.get(each)) for each in finished]
            return [*decisions.arrive(state, worker), *ends]

        self._keeper.change(decide)
        known = set(request.tasks)
        with self._keeper.changed:
            self._activity.note_load(request.worker, request.load, time.monotonic())
            saves = self._keeper.state.saves.by_id
            running = set(saves)
            self._keeper.changed.wait_for(
                lambda: (
                    self._keeper.is_closed
                    or self._task_numbers(request.worker) != known
                    or saves.keys() - running
                    or self._gone(request)
                ),
                min(request.wait_s, self.config.worker_timeout_s / 3),
            )
            self._activity.workers_seen[request.worker] = time.monotonic()
            tasks = tuple(self._assignment(each, request.worker) for each in sorted(self._task_numbers(request.worker)))
            starts = tuple(save.start for save in saves.values())
            over = tuple(each for each in request.drained if each not in self._keeper.state.tasks)
            return Assignments(tasks=tasks, saves=starts, gone=self._gone(request), over=over), b""

    def _gone(self, request: Heartbeat) -> tuple[int, ...]:
        """Of the clients that a worker waits for, those that have left, or were silent for too long."""
        return tuple(client for client in request.awaited if client not in self._keeper.state.clients)

    def _shard(self, address: str) -> int | None:
        listed = self.config.worker_addresses
        if not listed:
            return None
        if address not in listed:
            raise ServiceError(
                f"The worker's address is not configured: {address} is not among the dispatcher's worker_addresses, "
                f"{', '.join(listed)}."
            )
        return listed.index(address)

    def _task_numbers(self, worker: str) -> set[int]:
        tasks = self._keeper.state.tasks
        return {number for number, task in tasks.items() if task.worker == worker and not task.finished}

    def _assignment(self, number: int, worker: str) -> TaskAssignment:
        state = self._keeper.state
        create = state.jobs[state.tasks[number].job].create
        shard = state.workers[worker].shard or 0 if worker in state.workers else 0
        return TaskAssignment(
            task=number,
            dataset=create.dataset,
            mode=create.mode,
            seed=create.seed,
            shards=create.shards,
            index=shard if create.mode.is_static else number - create.job,  # a worker may come back for other splits
            consumers=create.consumers,
            cached=create.cached,
            epoch=create.epoch,
        )

    def _take_splits(self, request: TakeSplits, _: bytes) -> Answer:
        taken: ProduceSplits | None = None
        below = 0

        def decide(state: ServiceState) -> list[Record]:
            nonlocal taken, below
            task = state.tasks.get(request.task)
            if task is None or request.source >= len(state.jobs[task.job].sources):
                raise UnknownTask(f"task {request.task} is over, or has no source {request.source}.")
            taken = decisions.next_splits(state, request.task, request.number, request.source, request.repetition)
            below = state.jobs[task.job].sources[request.source].below
            return [] if taken is None or taken == task.last else [taken]

        self._keeper.change(decide, news=False)
        if taken is None:
            return SplitRange(first=0, count=0, below=below), b""
        return SplitRange(first=taken.first, count=taken.count, below=below), b""

    # Status.

    def _get_status(self, request: GetStatus, _: bytes) -> Answer:  # noqa: ARG002  a handler's signature
        return self._status(), b""

    def _status(self) -> ServiceStatus:
        with self._keeper.changed:
            return status_of(
                self._keeper.state, self._activity, self.target, self._keeper.splits_dealt, self._meter.counts()
            )

    def status(self) -> dict[str, Any]:
        """What it knows of workers, jobs and consumers, as plain data."""
        return self._status().model_dump(mode="json")

    # Removing who is gone.

    def _sweep(self) -> None:
        swept = time.monotonic()
        while not self._closed.wait(_SWEEP_S):
            try:
                self._excuse_all(time.monotonic() - swept)
                self._keeper.change(self._remove_silent)
                self._keeper.change(self._collect_idle)
                swept = time.monotonic()
            except Exception as error:  # noqa: BLE001  a full disk, for example: without it, lost workers stay for ever
                if not self._closed.is_set():
                    _log.warning("sweep-failed", extra={"reason": f"{type(error).__name__}: {error}"})
                    self._closed.wait(_SWEEP_RETRY_S)

    def _excuse_all(self, since_s: float) -> None:
        """This process was paused, or could not write its journal, so it has answered nobody."""
        if since_s > _LATE_S:
            self._keeper.check()
            with self._keeper.changed:
                self._activity.excuse_all(since_s, time.monotonic())

    def _remove_silent(self, state: ServiceState) -> list[Record]:
        now = time.monotonic()
        self._activity.forget_gone(state, now)
        records = self._activity.silent_members(self.config, now)
        for record in records:
            if isinstance(record, RemoveWorker):
                _log.warning("worker-lost", extra={"worker": state.workers[record.worker].address})
        return records

    def _collect_idle(self, state: ServiceState) -> list[Record]:
        now = time.monotonic()
        self._activity.forget_gone(state, now)
        return self._activity.idle_jobs(state, self.config, now)


def _log_standby(reason: str) -> None:
    _log.warning("dispatcher-waits", extra={"reason": reason})


def _open_journal(config: DispatcherConfig, on_standby: Callable[[str], None]) -> tuple[Journal | None, GraphStore]:
    """The journal of a dispatcher and its place for graphs."""
    if not config.fault_tolerant_mode or config.work_dir is None:
        return None, MemoryGraphs()
    if is_object_url(config.work_dir):
        stored = StoredJournal(parse_url(config.work_dir), config.takeover_after_s, on_standby)
        return stored, stored
    folder = Path(config.work_dir)
    return FolderJournal(folder), FolderGraphs(folder / "datasets")
