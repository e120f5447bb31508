"""The worker's server: it keeps a task for each assignment of its dispatcher, and answers consumers from them."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from pyarrow import flight

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.op import Op, mix_seed
from spanwise.pipelines.input.ops.cache import with_own_caches
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.saves.saver import Saver
from spanwise.pipelines.input.service.sharding.dealing import read_from_queue
from spanwise.pipelines.input.service.sharding.splits import describe_split, plan_graph, share_seeds, splitter_of
from spanwise.pipelines.input.service.sharding.static import cut_to_shard, shares_files
from spanwise.pipelines.input.service.wire.config import WorkerConfig
from spanwise.pipelines.input.service.wire.connection import (
    UnknownTask,
    Unreachable,
    kind_of,
    refusing_malformed,
    this_process,
)
from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection
from spanwise.pipelines.input.service.wire.memory import Lender
from spanwise.pipelines.input.service.wire.meter import ServerMeter
from spanwise.pipelines.input.service.wire.requests import (
    Assignments,
    Fetch,
    GetDataset,
    Heartbeat,
    StartSave,
    TaskAssignment,
    TaskFailure,
    WorkerLoad,
)
from spanwise.pipelines.input.service.wire.server import FlightServer, Serving, WaitingPlaces
from spanwise.pipelines.input.service.wire.shipped_graph import ShippedGraph, unpack_graph
from spanwise.pipelines.input.service.worker.buffers import RoundLanes, SharedQueue, TaskBuffer, TrainerWindow
from spanwise.pipelines.input.service.worker.reply import stream_of
from spanwise.pipelines.input.service.worker.task import WAIT_S, TakenSplits, TaskPass, WorkerTask, parse_epoch

_RETRY_S: Final = 0.1
_AGAIN_S: Final = 0.5
FETCHES_PER_S: Final = 200
"""When a consumer that found no place to wait is to ask again, and how often all of them may together."""

_IDLE_S: Final = 30.0
"""After how long a split is dropped that no consumer asks for."""

_REPLY_S: Final = 120.0
"""How long an answer is kept in case it got lost and is asked for again."""

_log = logging.getLogger("spanwise.service.worker")


class WorkerServer(Serving):
    """A worker in this process, which serves its dispatcher until it is stopped."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__()
        self.config = config
        self._lock = threading.Lock()
        self._tasks: dict[int, WorkerTask] = {}
        self._splits: dict[tuple[str, int, int], WorkerTask] = {}  # by dataset, split and client
        self._graphs: dict[str, ShippedGraph] = {}
        self._splitter = lru_cache(maxsize=16)(self._splitter_with_seed)  # planning takes longer than a small split
        self._savers: dict[str, Saver] = {}
        self._finished: set[int] = set()  # tasks that the dispatcher knows to have finished
        self._waiting = WaitingPlaces()
        self._busy = threading.BoundedSemaphore(config.max_requests)
        self._lender = Lender(config.shared_bytes)
        self._meter = ServerMeter()
        self._dispatcher = DispatcherConnection(config.dispatcher_address, config.security)
        self._server = FlightServer(
            config.host, config.port, config.security, actions={}, limit_bytes=0, get=self._get, meter=self._meter
        )
        self.address = config.address_at(self._server.listens_at)
        self._id = secrets.token_hex(8)
        try:
            self._beat(wait_s=0.0)
        except Unreachable:
            _log.warning("dispatcher-unreachable", extra={"dispatcher": config.dispatcher_address})
        except BaseException:
            self._server.shutdown()
            raise
        self._heart = threading.Thread(target=self._beat_on, name="service-worker", daemon=True)
        self._heart.start()

    def stop(self) -> None:
        """Stops its tasks, and stops answering."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._lock:
            tasks: list[WorkerTask | Saver] = [*self._tasks.values(), *self._splits.values(), *self._savers.values()]
        for task in tasks:
            task.stop()
        self._server.shutdown()
        self._heart.join()
        self._lender.close()

    # The dispatcher.

    def _beat_on(self) -> None:
        while not self._closed.is_set():
            try:
                self._beat(wait_s=self._patience_s())
            except Unreachable:
                self._closed.wait(_RETRY_S)
            except ServiceError as error:
                _log.warning("heartbeat-refused", extra={"reason": str(error)})
                self._closed.wait(self.config.heartbeat_s)
            except Exception:  # noqa: BLE001  without heartbeats the worker is lost
                _log.exception("heartbeat-failed")
                self._closed.wait(self.config.heartbeat_s)

    def _patience_s(self) -> float:
        """How long a heartbeat may wait: briefly while there are young tasks, whose end must be reported soon."""
        with self._lock:
            youngest_s = min((time.monotonic() - task.started for task in self._tasks.values()), default=math.inf)
        return min(0.02 + youngest_s / 20, self.config.heartbeat_s)

    def _beat(self, *, wait_s: float) -> None:
        with self._lock:
            drained = [number for number, task in self._tasks.items() if task.is_delivered]
            running = [number for number in self._tasks if number not in drained]
            awaited = {client for task in self._tasks.values() for client in task.awaited}
            finished = [number for number in drained if number not in self._finished]
            ends = [(number, self._tasks[number].failure) for number in finished]
        request = Heartbeat(
            worker=self._id,
            address=self.address,
            process=this_process(),
            tasks=tuple(running),
            drained=tuple(drained),
            finished=tuple(finished),
            failed=tuple(
                TaskFailure(task=number, error=kind_of(error), text=str(error)[:10_000])
                for number, error in ends
                if error is not None
            ),
            awaited=tuple(awaited),
            wait_s=wait_s,
            load=self._load(),
        )
        assignments, _ = self._dispatcher.ask(request)
        self._finished.update(drained)
        self._follow(assignments, running)
        self._save(assignments.saves)
        self._lender.sweep(_IDLE_S)

    def _follow(self, assignments: Assignments, running: Sequence[int]) -> None:
        """Starts what is assigned, and drops what is not, or is no longer asked for.

        A task that was read to its end stays as long as its job: a consumer that was busy, or comes late, is yet to
        learn that nothing is left.
        """
        assigned = {each.task: each for each in assignments.tasks}
        now = time.monotonic()
        with self._lock:
            over = [self._tasks.pop(number) for number in running if number not in assigned]
            over += [self._tasks.pop(each) for each in assignments.over if now - self._tasks[each].touched > _IDLE_S]
            idle = [key for key, task in self._splits.items() if now - task.touched > _IDLE_S]
            over += [self._splits.pop(key) for key in idle]
            for number, each in assigned.items():
                if number not in self._tasks:
                    self._tasks[number] = WorkerTask(partial(self._pass_of, each), self._buffer_of(each), self._meter)
            self._finished &= self._tasks.keys()
            tasks = [*self._tasks.values(), *self._splits.values()]
        for task in tasks:
            task.forget(assignments.gone)
            task.drop_replies(now - _REPLY_S)
        for task in over:
            task.stop()

    def _save(self, starts: Sequence[StartSave]) -> None:
        """Takes part in the saves that are running."""
        with self._lock:
            self._savers = {
                each.save: self._savers.get(each.save) or Saver(each, self._id, self._dispatcher, self._graph)
                for each in starts
                if not self._closed.is_set()
            }

    def _load(self) -> WorkerLoad:
        with self._lock:
            tasks = [*self._tasks.values(), *self._splits.values()]
        return self._meter.load(buffered_bytes=sum(task.held_bytes for task in tasks), lent_bytes=self._lender.bytes)

    def status(self) -> dict[str, Any]:
        """What it has done and holds, as plain numbers."""
        with self._lock:
            tasks = {"tasks": len(self._tasks), "splits": len(self._splits), "saves": len(self._savers)}
        return {"address": self.address, **tasks, **self._load().model_dump(), **self._meter.counts()}

    # Passes.

    def _buffer_of(self, task: TaskAssignment) -> TaskBuffer:
        if task.consumers:
            return RoundLanes(task.consumers, self.config.buffer_bytes)
        if task.cached:
            return TrainerWindow(self.config.cross_trainer_cache_bytes, self.config.buffer_bytes)
        return SharedQueue(self.config.buffer_bytes)

    def _graph(self, dataset: str) -> ShippedGraph:
        """A registered dataset; asks until the dispatcher answers.

        Raises:
            ServiceError: it was pickled in another environment.
        """
        if dataset not in self._graphs:
            _, content = self._dispatcher.ask_until_answered(GetDataset(dataset=dataset), self._closed)
            self._graphs[dataset] = unpack_graph(content, f"dataset {dataset!r}")
        return self._graphs[dataset]

    def _pass_of(self, task: TaskAssignment) -> TaskPass:
        shipped = self._graph(task.dataset)
        op, options, flow = shipped.op, shipped.options, shipped.flow
        epoch = parse_epoch(task.epoch)
        if task.mode is ShardingPolicy.OFF:
            return TaskPass(op, options, flow, epoch=epoch)
        op = with_own_caches(op)
        shared = task.seed if options.seed is None else options.seed
        own = mix_seed(shared, task.index)
        if task.mode.is_static:
            by_file = shares_files(op, task.mode)  # else all workers compute the same elements, or hint says which
            op = cut_to_shard(share_seeds(op, shared) if by_file else op, task.mode, task.shards, task.index)
            in_order = task.mode is not ShardingPolicy.FILE
            return TaskPass(op, replace(options, seed=own if by_file else shared, in_order=in_order), flow, epoch=epoch)
        queue = TakenSplits(task.task, self._dispatcher)
        graph = read_from_queue(plan_graph(share_seeds(op, shared), options), queue)
        options = replace(options, seed=own, optimize=False)
        return TaskPass(
            graph, options, flow, queue, epoch, lambda: "the beginning of all splits that its worker has taken."
        )

    def _pass_of_split(self, request: Fetch) -> TaskPass:
        assert request.split is not None
        shipped = self._graph(request.dataset)
        options = shipped.options
        split = request.split
        shared = request.seed if options.seed is None else options.seed
        graph = with_own_caches(self._splitter(request.dataset, shared)(split))
        options = replace(options, seed=mix_seed(shared, split), optimize=False, autotune=False, in_order=True)

        def describe_place() -> str:
            return f"the beginning of {describe_split(plan_graph(shipped.op, options), split)}."

        return TaskPass(graph, options, shipped.flow, epoch=parse_epoch(request.epoch), describe_place=describe_place)

    def _splitter_with_seed(self, dataset: str, shared: int) -> Callable[[int], Op]:
        """Cuts splits of a graph, with the seeds that they share."""
        shipped = self._graph(dataset)
        return splitter_of(plan_graph(share_seeds(shipped.op, shared), shipped.options))

    # Consumers.

    def _get(self, ticket: bytes) -> flight.FlightDataStream:
        with refusing_malformed("ticket"):
            request = Fetch.model_validate_json(ticket[: 1 << 16])
        if not self._busy.acquire(blocking=False):
            raise Unreachable(f"the worker is already answering {self.config.max_requests} consumers; ask again.")
        try:
            task = self._task(request)
            with self._waiting.place() as waits:
                wait_s = WAIT_S if waits else 0.0
                reply = task.note_receipt(request) if request.received else task.reply(request, wait_s)
        finally:
            self._busy.release()
        is_crowd = not (waits or reply.pieces or reply.ended)
        again_s = max(_AGAIN_S, task.clients / FETCHES_PER_S) if is_crowd else 0.0
        return stream_of(reply, task.spec, request, self._lender, self._meter, again_s)

    def _task(self, request: Fetch) -> WorkerTask:
        if request.task is not None:
            with self._lock:
                task = self._tasks.get(request.task)
            if task is None:
                raise UnknownTask(f"this worker has no task {request.task}.")
            return task
        if request.split is None:
            raise ServiceError("refused a ticket that names neither a task nor a split.")
        key = (request.dataset, request.split, request.client)
        over: list[WorkerTask] = []
        with self._lock:
            found = self._splits.get(key)
            if request.number == 0 and (found is None or not found.is_fresh):
                read = [each for each, task in self._splits.items() if each[2] == key[2] and task.is_drained]
                over += [self._splits.pop(each) for each in read]
                if found is not None:
                    over.append(found)
                buffer = SharedQueue(self.config.buffer_bytes)
                found = self._splits[key] = WorkerTask(partial(self._pass_of_split, request), buffer, self._meter)
        for task in over:
            task.stop()
        if found is None:
            raise UnknownTask(f"this worker is not reading split {request.split}.")
        return found
