"""The dispatcher: a server round the state, which answers only what its journal holds."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from spanwise.orchestrator import durable
from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.dispatcher import rounds
from spanwise.pipelines.input.service.dispatcher import state as dispatch
from spanwise.pipelines.input.service.dispatcher.journal import Journal
from spanwise.pipelines.input.service.dispatcher.rounds import Report
from spanwise.pipelines.input.service.dispatcher.state import (
    CreateJob,
    FinishTask,
    Record,
    RegisterDataset,
    RegisterWorker,
    State,
)
from spanwise.pipelines.input.service.saves.handler import Saving
from spanwise.pipelines.input.service.wire import requests as ask
from spanwise.pipelines.input.service.wire.config import DispatcherConfig
from spanwise.pipelines.input.service.wire.connection import UnknownTask, Unreachable
from spanwise.pipelines.input.service.wire.load import Lately, Load, Meter, wanted
from spanwise.pipelines.input.service.wire.server import Server, Serving, Waiting

Answer: TypeAlias = tuple[dict[str, Any], bytes]

_SWEEP_S = 0.25
_LOOKS_PER_S = 500
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Reading:
    """What a consumer says of itself."""

    waited_s: float = 0.0
    given: int = 0
    at: float = 0.0
    starved: float = 0.0  #: the share of its time that it waited, lately
    rate: float = 0.0  #: elements and blocks a second, lately


class DispatchServer(Serving):
    """A dispatcher in this process; `target` is its address."""

    def __init__(self, config: DispatcherConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or DispatcherConfig()
        self._lock = threading.Condition()
        self._journal: Journal | None = None
        self._folder: Path | None = None
        if config.fault_tolerant_mode and config.work_dir is not None:
            self._folder = Path(config.work_dir) / "datasets"
            self._folder.mkdir(parents=True, exist_ok=True)
            self._journal = Journal(Path(config.work_dir))
        self._state = State() if self._journal is None else self._journal.state
        self._graphs: dict[str, bytes] = {}
        now = time.monotonic()
        self._workers_seen = dict.fromkeys(self._state.workers, now)
        self._clients_seen = dict.fromkeys(self._state.clients, now)
        self._idle_since: dict[int, float] = {}  # jobs without clients
        self._readings: dict[int, Reading] = {}
        self._loads: dict[str, Lately] = {}  # of workers
        self._meter = Meter()
        self._splits_dealt = 0  # and leased, since it began
        self._waiting = Waiting()
        self._reports: dict[int, Report] = {}  # of consumers of coordinated reads
        try:
            self._server = Server(
                config.host,
                config.port,
                config.security,
                actions={
                    "put_dataset": (ask.PutDataset, self._put_dataset),
                    "get_dataset": (ask.GetDataset, self._get_dataset),
                    "heartbeat": (ask.Heartbeat, self._heartbeat),
                    "join": (ask.Join, self._join),
                    "look": (ask.Look, self._look),
                    "leave": (ask.Leave, self._leave),
                    "deal": (ask.Deal, self._deal),
                    "lease": (ask.Lease, self._lease),
                    "status": (ask.Status, self._status),
                    **Saving(self._change).actions,
                },
                limit_bytes=config.max_message_bytes,
                meter=self._meter,
            )
        except BaseException:
            if self._journal is not None:
                self._journal.close()
            raise
        self.target = self._server.target
        self._sweeper = threading.Thread(target=self._sweep, name="dispatcher", daemon=True)
        self._sweeper.start()

    def stop(self) -> None:
        """Answers nobody any more. What the journal holds stays."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._lock:
            self._lock.notify_all()
        self._server.shutdown()
        self._sweeper.join()
        if self._journal is not None:
            self._journal.close()

    # Every change goes this way.

    def _change(self, decide: Callable[[State], Sequence[Record]], *, news: bool = True) -> Any:
        """Decides, notes and does; comes back when it is on disk, and all before it that it may have seen.

        `news` wakes those who wait for changes.
        """
        with self._lock:
            records = decide(self._state)
            number = self._do(records, news=news)
        if self._journal is not None:
            self._journal.sync(number)
        return records

    def _do(self, records: Sequence[Record], *, news: bool) -> int:
        """Notes and does, under the lock; what it gives is to be synced before anybody hears of it."""
        number = self._noted(records)
        for record in records:
            self._state.apply(record)
            match record:
                case dispatch.ProduceSplits(count=count):
                    self._splits_dealt += count
                case dispatch.LeaseSplits(taken=taken):
                    self._splits_dealt += len(taken)
        if news and records:
            self._lock.notify_all()
        if self._journal is not None and self._journal.is_long:
            self._journal.compact(dispatch.records_of(self._state))
        return number

    def _noted(self, records: Sequence[Record]) -> int:
        if self._closed.is_set():
            raise Unreachable("the dispatcher is being stopped.")
        return 0 if self._journal is None else self._journal.write(records)

    # Datasets.

    def _put_dataset(self, request: ask.PutDataset, graph: bytes) -> Answer:
        wanted = RegisterDataset(**request.model_dump())

        def decide(state: State) -> list[Record]:
            records = dispatch.register(state, wanted)
            if records:
                self._keep(wanted.dataset, graph)
            return records

        self._change(decide)
        return {"dataset": wanted.dataset}, b""

    def _keep(self, dataset: str, graph: bytes) -> None:
        if self._folder is None:
            self._graphs[dataset] = graph
            return
        durable.put(self._path(dataset), [graph])

    def _path(self, dataset: str) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(dataset.encode()).hexdigest()[:32]

    def _get_dataset(self, request: ask.GetDataset, _: bytes) -> Answer:
        with self._lock:
            if request.dataset not in self._state.datasets:
                raise ServiceError(
                    f"dataset {request.dataset!r} is not registered with this dispatcher; register_dataset does that."
                )
            graph = self._graphs.get(request.dataset)
        return {}, self._path(request.dataset).read_bytes() if graph is None else graph

    # Workers.

    def _heartbeat(self, request: ask.Heartbeat, _: bytes) -> Answer:
        worker = RegisterWorker(
            worker=request.worker, address=request.address, process=request.process, shard=self._shard(request.address)
        )

        def decide(state: State) -> list[Record]:
            self._workers_seen[request.worker] = time.monotonic()
            done = [each for each in request.finished if each in state.tasks and not state.tasks[each].finished]
            return [*dispatch.arrive(state, worker), *(FinishTask(task=each) for each in done)]

        self._change(decide)
        known = set(request.tasks)
        now, load = time.monotonic(), Load(**request.load.model_dump())
        with self._lock:
            self._loads.setdefault(request.worker, Lately(load, now)).note(load, now)
            going = set(self._state.saves.going)
            self._lock.wait_for(
                lambda: (
                    self._closed.is_set()
                    or self._tasks_of(request.worker).keys() != known
                    or self._state.saves.going.keys() - going
                ),
                min(request.wait_s, self.config.worker_timeout_s / 3),
            )
            self._workers_seen[request.worker] = time.monotonic()
            saves = [asdict(save.made) for save in self._state.saves.going.values()]
            return {"tasks": list(self._tasks_of(request.worker).values()), "saves": saves}, b""

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

    def _tasks_of(self, worker: str) -> dict[int, dict[str, Any]]:
        state = self._state
        shard = state.workers[worker].shard if worker in state.workers else None
        found = {}
        for number, task in state.tasks.items():
            if task.worker == worker and not task.finished:
                made = state.jobs[task.job].made
                found[number] = {
                    "task": number,
                    "dataset": made.dataset,
                    "mode": made.mode,
                    "seed": made.seed,
                    "shards": made.shards,
                    "index": shard or 0,
                    "consumers": made.consumers,
                    "cached": made.cached,
                }
        return found

    def _deal(self, request: ask.Deal, _: bytes) -> Answer:
        dealt: dispatch.ProduceSplits | None = None
        below = 0

        def decide(state: State) -> list[Record]:
            nonlocal dealt, below
            task = state.tasks.get(request.task)
            if task is None or request.source >= len(state.jobs[task.job].sources):
                raise UnknownTask(f"task {request.task} is over, or has no source {request.source}.")
            dealt = dispatch.deal(state, request.task, request.number, request.source, request.repetition)
            below = state.jobs[task.job].sources[request.source].below
            return [] if dealt is None or dealt == task.last else [dealt]

        self._change(decide, news=False)
        if dealt is None:
            return {"first": 0, "count": 0, "below": below}, b""
        return {"first": dealt.first, "count": dealt.count, "below": below}, b""

    # Consumers.

    def _join(self, request: ask.Join, _: bytes) -> Answer:
        wanted = CreateJob(
            job=0,
            dataset=request.dataset,
            mode=request.mode,
            name=request.name,
            epoch=request.epoch,
            shards=len(self.config.worker_addresses) if request.mode.is_static else 0,
            seed=secrets.randbits(53),
            consumers=request.consumers,
            cached=request.cached,
        )
        client = 0

        def decide(state: State) -> list[Record]:
            nonlocal client
            found = state.names.get((request.name, request.dataset, request.epoch))
            reached = 0 if found is None else self._agreed(found) or 0
            records = dispatch.join(state, wanted, request.index, request.key, reached)
            client = next(each.client for each in records if isinstance(each, dispatch.AcquireClient))
            self._clients_seen[client] = time.monotonic()
            return records

        self._change(decide)
        with self._lock:
            self._known(client)
            return {"client": client, "seed": self._state.jobs[self._state.clients[client]].made.seed}, b""

    def _look(self, request: ask.Look, _: bytes) -> Answer:
        known = set(request.tasks)
        with self._waiting.place() as waits, self._lock:
            deadline = time.monotonic() + min(request.wait_s if waits else 0.0, self.config.client_timeout_s / 3)
            self._note(request)
            while True:
                noted = self._planned(request.client)
                seen = self._view(request)
                left = deadline - time.monotonic()
                if (
                    seen["finished"]
                    or {each[0] for each in seen["tasks"]} != known
                    or (request.rounds is not None and self._has_turned(request.rounds, seen))
                    or left <= 0
                    or self._closed.is_set()
                ):
                    self._clients_seen[request.client] = time.monotonic()
                    break
                self._lock.wait(left)
            crowd = 0 if waits else len(self._state.clients)
        if self._journal is not None:
            self._journal.sync(noted)
        # of many consumers most wait where they are: a thread for each would be too much
        again_s = max(request.wait_s, min(crowd / _LOOKS_PER_S, self.config.client_timeout_s / 4)) if crowd else 0.0
        return {**seen, "again_s": 0.0 if seen["finished"] else again_s}, b""

    def _view(self, request: ask.Look) -> dict[str, Any]:
        """What a consumer can read from, and whether there will be nothing more."""
        state = self._state
        self._known(request.client)
        number = state.clients[request.client]
        job = state.jobs[number]
        chosen = [worker for worker in state.workers.values() if _is_target(worker, request)]
        ids = {worker.worker: worker.address for worker in chosen}
        some = None if request.targets == "any" else ids
        tasks = [(each, state.tasks[each]) for each in sorted(job.tasks)]
        seen = {
            "tasks": [[each, ids[task.worker]] for each, task in tasks if task.worker in ids],
            "workers": list(ids.values()) if job.made.mode.is_leased else [],
            "finished": not job.made.consumers and dispatch.is_finished(state, number, some),
        }
        if request.rounds is not None:
            seen["plans"] = [[plan.first, plan.tasks] for plan in job.plans[request.rounds.plans :]]
            seen["agreed"] = self._agreed(number) or 0
            seen["gone"] = job.gone
        return seen

    # Coordinated reads.

    def _agreed(self, number: int) -> int | None:
        """Rounds below are in the hands of all consumers of a job, as far as they were heard of."""
        job = self._state.jobs[number]
        if not job.made.consumers:
            return None
        seats = [job.seats.get(index) for index in range(job.made.consumers)]
        return rounds.agreed(job.plans, [self._reports.get(seat.client) if seat else None for seat in seats])

    def _planned(self, client: int) -> int:
        """Plans the rounds of the client's job anew if its workers are others, and says what is to be on disk."""
        self._known(client)
        number = self._state.clients[client]
        if not self._state.jobs[number].made.consumers:
            return 0
        return self._do(dispatch.plan(self._state, number, self._agreed(number)), news=True)

    def _has_turned(self, told: ask.Rounds, seen: dict[str, Any]) -> bool:
        return bool(seen["plans"]) or seen["agreed"] > told.agreed or seen["gone"] is not None

    def _note(self, request: ask.Look) -> None:
        self._known(request.client)
        now = time.monotonic()
        self._clients_seen[request.client] = now
        before = self._readings.setdefault(request.client, Reading(at=now))
        if now - before.at > _SWEEP_S:
            span = now - before.at
            before.starved = min(1.0, max(0.0, (request.waited_s - before.waited_s) / span))
            before.rate = max(0.0, (request.given - before.given) / span)
            before.waited_s, before.given, before.at = request.waited_s, request.given, now
        if request.rounds is not None:
            self._hear(request.client, Report(**request.rounds.model_dump()))

    def _hear(self, client: int, report: Report) -> None:
        """Notes how far a consumer has come, and wakes the others if they agree upon more."""
        number = self._state.clients[client]
        before = self._agreed(number)
        self._reports[client] = rounds.later(self._reports.get(client), report)
        if self._agreed(number) != before:
            self._lock.notify_all()

    def _known(self, client: int) -> None:
        if client not in self._state.clients:
            raise ServiceError(
                f"the dispatcher does not know client {client} and its job: it was silent for more than "
                f"{self.config.client_timeout_s:g} s, or the dispatcher was restarted without fault_tolerant_mode. "
                f"Begin the pass again."
            )

    def _leave(self, request: ask.Leave, _: bytes) -> Answer:
        self._change(
            lambda state: [dispatch.ReleaseClient(client=request.client)] if request.client in state.clients else []
        )
        return {}, b""

    def _lease(self, request: ask.Lease, _: bytes) -> Answer:
        held: list[int] = []
        finished = False

        def decide(state: State) -> list[Record]:
            self._known(request.client)
            if not state.jobs[state.clients[request.client]].made.mode.is_leased:
                raise ServiceError(f"client {request.client} reads a job that is not leased.")
            self._clients_seen[request.client] = time.monotonic()
            change = dispatch.lease(state, request.client, request.done, request.want)
            return [change] if change.done or change.taken else []

        self._change(decide, news=False)
        with self._lock:
            self._known(request.client)
            held = dispatch.held_by(self._state, request.client)
            finished = dispatch.is_finished(self._state, self._state.clients[request.client])
        return {"held": held, "finished": finished}, b""

    # What is there.

    def _status(self, request: ask.Status, _: bytes) -> Answer:  # noqa: ARG002  it asks for everything
        with self._lock:
            state = self._state
            workers = [self._of_worker(each) for each in state.workers.values()]
            jobs = [self._of_job(number) for number in state.jobs]
            datasets, dealt = len(state.datasets), self._splits_dealt
        busy = sum(worker["busy"] for worker in workers) / max(1, len(workers))
        starved = max((job["starved"] for job in jobs if not job["finished"]), default=0.0)
        found = {
            "target": self.target,
            "workers": workers,
            "wanted": wanted(len(workers), busy, starved),
            "jobs": jobs,
            "datasets": datasets,
            "splits_dealt": dealt,
        }
        return {**found, **self._meter.counts()}, b""

    def status(self) -> dict[str, Any]:
        """What it knows of workers, jobs and consumers, in plain numbers."""
        return self._status(ask.Status(), b"")[0]

    def _of_worker(self, worker: RegisterWorker) -> dict[str, Any]:
        lately = self._loads.get(worker.worker) or Lately(Load(), 0.0)
        tasks = sum(task.worker == worker.worker and not task.finished for task in self._state.tasks.values())
        return {"address": worker.address, "worker": worker.worker, "tasks": tasks, **lately.facts()}

    def _of_job(self, number: int) -> dict[str, Any]:
        state = self._state
        job = state.jobs[number]
        readings = [self._readings.get(client, Reading()) for client in job.clients]
        return {
            "job": number,
            "name": job.made.name,
            "dataset": job.made.dataset,
            "mode": job.made.mode,
            "tasks": len(job.tasks),
            "tasks_finished": sum(state.tasks[each].finished for each in job.tasks),
            "consumers": len(job.clients),
            "starved": sum(each.starved for each in readings) / max(1, len(readings)),
            "rate": sum(each.rate for each in readings),
            "given": sum(each.given for each in readings),
            "splits_leased": len(job.leased),
            "finished": dispatch.is_finished(state, number),
        }

    # Who is gone.

    def _sweep(self) -> None:
        while not self._closed.wait(_SWEEP_S):
            with suppress(ServiceError):  # it is being stopped
                self._change(self._silent)
                self._change(self._unread)

    def _silent(self, state: State) -> list[Record]:
        """Workers and clients that have not been heard of for too long."""
        now = time.monotonic()
        workers = _older(self._workers_seen, state.workers, now - self.config.worker_timeout_s)
        clients = _older(self._clients_seen, state.clients, now - self.config.client_timeout_s)
        for worker in workers:
            _log.warning("service-worker-lost", extra={"worker": state.workers[worker].address})
        return [
            *(dispatch.RemoveWorker(worker=each) for each in workers),
            *(dispatch.ReleaseClient(client=each) for each in clients),
        ]

    def _unread(self, state: State) -> list[Record]:
        """Jobs that nobody has read for too long."""
        now = time.monotonic()
        for client in self._readings.keys() - state.clients.keys():
            del self._readings[client]
        for gone in self._loads.keys() - state.workers.keys():
            del self._loads[gone]
        seated = {seat.client for job in state.jobs.values() for seat in job.seats.values()}
        for client in self._reports.keys() - seated:
            del self._reports[client]
        idle = {number for number, job in state.jobs.items() if not job.clients}
        self._idle_since = {number: self._idle_since.get(number, now) for number in idle}
        due = [
            number
            for number, since in self._idle_since.items()
            if not state.jobs[number].made.name
            or state.jobs[number].seats
            or since <= now - self.config.job_gc_timeout_s
        ]
        return dispatch.collect(state, due, dynamic=self.config.gc_dynamic_sharding_jobs)


def _older(seen: dict[Any, float], there: dict[Any, Any], moment: float) -> list[Any]:
    """Those who were last seen before a moment; what is not there any more is forgotten."""
    for gone in seen.keys() - there.keys():
        del seen[gone]
    return [each for each in there if seen.setdefault(each, time.monotonic()) < moment]


def _is_target(worker: RegisterWorker, request: ask.Look) -> bool:
    if request.targets == "any":
        return True
    if request.targets == "local":
        return worker.process == request.process
    return worker.address in request.targets
