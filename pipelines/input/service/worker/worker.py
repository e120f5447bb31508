"""The worker: runs the graphs of jobs ahead of the consumers, and answers these with what is ready."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from pyarrow import flight
from pydantic import ValidationError

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.op import Op, Options, mixed, seeded
from spanwise.pipelines.input.service.dispatcher import sharding
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.saves.saver import Saver
from spanwise.pipelines.input.service.saves.state import StartSave
from spanwise.pipelines.input.service.wire import elements
from spanwise.pipelines.input.service.wire.config import WorkerConfig
from spanwise.pipelines.input.service.wire.connection import (
    Connection,
    UnknownTask,
    Unreachable,
    this_process,
)
from spanwise.pipelines.input.service.wire.load import Load, Meter
from spanwise.pipelines.input.service.wire.memory import Lender
from spanwise.pipelines.input.service.wire.requests import Fetch
from spanwise.pipelines.input.service.wire.server import Server, Serving, Waiting
from spanwise.pipelines.input.service.wire.shipped_graph import unpacked_graph
from spanwise.pipelines.input.service.worker.buffers import Buffer, Lanes, Queue, Window
from spanwise.pipelines.input.service.worker.task import WAIT_S, Splits, Stopped, Task, Work

_RETRY_S: Final = 0.1
_AGAIN_S: Final = 0.5
"""After how long one asks again for whom there was no place to wait."""

_IDLE_S: Final = 30.0
"""After how long a split is given up that nobody asks about any more."""

_REPLY_S: Final = 120.0
"""How long an answer is kept, in case that it got lost and is asked for again."""

_log = logging.getLogger(__name__)


class WorkerServer(Serving):
    """A worker in this process; it stays with its dispatcher until it is stopped."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__()
        self.config = config
        self._lock = threading.Lock()
        self._tasks: dict[int, Task] = {}
        self._splits: dict[tuple[str, int, int], Task] = {}  # by dataset, split and client
        self._graphs: dict[str, tuple[Op, Options]] = {}
        self._savers: dict[str, Saver] = {}
        self._finished: set[int] = set()  # tasks, of which the dispatcher has heard
        self._waiting = Waiting()
        self._busy = threading.BoundedSemaphore(config.max_requests)
        self._lender = Lender(config.shared_bytes)
        self._meter = Meter()
        self._dispatcher = Connection(config.dispatcher_address, config.security)
        self._server = Server(
            config.host, config.port, config.security, actions={}, limit_bytes=0, get=self._get, meter=self._meter
        )
        self.address = config.worker_address or f"{config.host}:{self._server.port}"
        self._id = secrets.token_hex(8)
        try:
            self._beat(wait_s=0.0)
        except Unreachable:
            _log.warning("service-dispatcher-unreachable", extra={"dispatcher": config.dispatcher_address})
        except BaseException:
            self._server.shutdown()
            raise
        self._heart = threading.Thread(target=self._live, name="service-worker", daemon=True)
        self._heart.start()

    def stop(self) -> None:
        """Gives up its tasks and answers nobody any more."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._lock:
            tasks: list[Task | Saver] = [*self._tasks.values(), *self._splits.values(), *self._savers.values()]
        for task in tasks:
            task.stop()
        self._server.shutdown()
        self._heart.join()
        self._lender.close()

    # Its dispatcher.

    def _live(self) -> None:
        while not self._closed.is_set():
            try:
                self._beat(wait_s=self._patience_s())
            except Unreachable:
                self._closed.wait(_RETRY_S)
            except ServiceError as error:
                _log.warning("service-heartbeat-refused", extra={"reason": str(error)})
                self._closed.wait(self.config.heartbeat_s)
            except Exception:  # noqa: BLE001  a worker without a heart is lost
                _log.exception("service-heartbeat-failed")
                self._closed.wait(self.config.heartbeat_s)

    def _patience_s(self) -> float:
        """How long to wait for news: not long while there are tasks, whose end has to be told; longer for long ones."""
        with self._lock:
            youngest_s = min((time.monotonic() - task.began for task in self._tasks.values()), default=math.inf)
        return min(0.02 + youngest_s / 20, self.config.heartbeat_s)

    def _beat(self, *, wait_s: float) -> None:
        with self._lock:
            drained = [number for number, task in self._tasks.items() if task.is_drained]
            running = [number for number in self._tasks if number not in drained]
        answer, _ = self._dispatcher.call(
            "heartbeat",
            {
                "worker": self._id,
                "address": self.address,
                "process": this_process(),
                "tasks": running,
                "finished": [number for number in drained if number not in self._finished],
                "wait_s": wait_s,
                "load": asdict(self._load()),
            },
        )
        self._finished.update(drained)
        wanted = {each["task"]: each for each in answer["tasks"]}
        now = time.monotonic()
        with self._lock:
            over = [self._tasks.pop(number) for number in running if number not in wanted]
            over += [self._tasks.pop(each) for each in drained if now - self._tasks[each].touched > _IDLE_S]
            old = [key for key, task in self._splits.items() if now - task.touched > _IDLE_S]
            over += [self._splits.pop(key) for key in old]
            for number, each in wanted.items():
                if number not in self._tasks:
                    self._tasks[number] = Task(partial(self._work, each), self._buffer(each), self._meter)
            self._finished &= self._tasks.keys()
            answering = [*self._tasks.values(), *self._splits.values()]
        for task in answering:
            task.drop_replies(now - _REPLY_S)
        for task in over:
            task.stop()
        self._save([StartSave(**each) for each in answer["saves"]])
        self._lender.sweep(_IDLE_S)

    def _load(self) -> Load:
        with self._lock:
            tasks = [*self._tasks.values(), *self._splits.values()]
        return self._meter.load(buffered_bytes=sum(task.held_bytes for task in tasks), lent_bytes=self._lender.bytes)

    def status(self) -> dict[str, Any]:
        """What it has done and holds, in plain numbers."""
        with self._lock:
            tasks = {"tasks": len(self._tasks), "splits": len(self._splits), "saves": len(self._savers)}
        return {"address": self.address, **tasks, **asdict(self._load()), **self._meter.counts()}

    def _save(self, going: Sequence[StartSave]) -> None:
        """Takes part in the saves that go on."""
        with self._lock:
            self._savers = {
                each.save: self._savers.get(each.save) or Saver(each, self._id, self._dispatcher, self._graph)
                for each in going
                if not self._closed.is_set()
            }

    def _buffer(self, task: dict[str, Any]) -> Buffer:
        if task["consumers"]:
            return Lanes(task["consumers"], self.config.buffer_bytes)
        if task["cached"]:
            return Window(self.config.cross_trainer_cache_bytes, self.config.buffer_bytes)
        return Queue(self.config.buffer_bytes)

    def _graph(self, dataset: str) -> tuple[Op, Options]:
        """A registered dataset; asked for until the dispatcher answers.

        Raises:
            ServiceError: it was written in another environment.
        """
        while dataset not in self._graphs:
            try:
                _, content = self._dispatcher.call("get_dataset", {"dataset": dataset})
                self._graphs[dataset] = unpacked_graph(content, f"dataset {dataset!r}")
            except Unreachable:
                if self._closed.wait(_RETRY_S):
                    raise Stopped from None
        return self._graphs[dataset]

    def _work(self, task: dict[str, Any]) -> Work:
        """What a task is to run."""
        op, options = self._graph(task["dataset"])
        mode = ShardingPolicy(task["mode"])
        runs = not task["consumers"]  # of which each gets elements, one by one
        if mode is ShardingPolicy.OFF:
            return Work(op, options, runs=runs)
        options = replace(options, seed=task["seed"] if options.seed is None else options.seed)
        if mode.is_static:
            return Work(sharding.of_shard(op, mode, task["shards"], task["index"]), options, runs=runs)
        deal = Splits(task["task"], self._dispatcher)
        planned = sharding.planned(seeded(op, options.seed or 0), options)
        return Work(sharding.dealt(planned, deal), replace(options, optimize=False), deal, runs=runs)

    def _work_of_split(self, request: Fetch) -> Work:
        assert request.split is not None
        op, options = self._graph(request.dataset)
        seed = mixed(request.seed if options.seed is None else options.seed, request.split)
        part = sharding.of_split(sharding.planned(op, options), request.split)
        return Work(part, replace(options, seed=seed, optimize=False, autotune=False, deterministic=True))

    # Its consumers.

    def _get(self, ticket: bytes) -> flight.FlightDataStream:
        try:
            request = Fetch.model_validate_json(ticket[: 1 << 16])
        except ValidationError as error:
            raise ServiceError(f"a ticket was refused, since it is malformed: {error.errors()[0]['msg']}.") from error
        if not self._busy.acquire(blocking=False):
            raise Unreachable(f"the worker answers {self.config.max_requests} consumers already; ask again.")
        try:
            task = self._task(request)
            with self._waiting.place() as waits:
                reply = task.reply(request, WAIT_S if waits else 0.0)
        finally:
            self._busy.release()
        again_s = 0.0 if waits or reply.pieces or reply.ended else _AGAIN_S
        return elements.stream_of(reply, task.spec, request, self._lender, self._meter, again_s)

    def _task(self, request: Fetch) -> Task:
        if request.task is not None:
            with self._lock:
                task = self._tasks.get(request.task)
            if task is None:
                raise UnknownTask(f"task {request.task} is not one of this worker's.")
            return task
        if request.split is None:
            raise ServiceError("a ticket was refused, since it names neither a task nor a split.")
        key = (request.dataset, request.split, request.client)
        over: list[Task] = []
        with self._lock:
            found = self._splits.get(key)
            if request.number == 0 and (found is None or not found.is_fresh):
                read = [each for each, task in self._splits.items() if each[2] == key[2] and task.is_drained]
                over += [self._splits.pop(each) for each in read]
                if found is not None:
                    over.append(found)
                buffer = Queue(self.config.buffer_bytes)
                found = self._splits[key] = Task(partial(self._work_of_split, request), buffer, self._meter)
        for task in over:
            task.stop()
        if found is None:
            raise UnknownTask(f"split {request.split} is not being read here.")
        return found
