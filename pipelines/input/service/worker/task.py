"""A task on a worker: one pass over a graph, ahead of those who ask for its elements."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from spanwise.orchestrator.errors import FunctionFailed, ServiceError, SpanwiseError
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.element import UNKNOWN, Spec
from spanwise.pipelines.input.graph.rewrite import optimized
from spanwise.pipelines.input.iterator import DatasetIterator
from spanwise.pipelines.input.op import Op, Options, seeded
from spanwise.pipelines.input.rows import in_rows
from spanwise.pipelines.input.service.dispatcher import sharding
from spanwise.pipelines.input.service.wire.connection import Connection, UnknownTask, Unreachable
from spanwise.pipelines.input.service.wire.elements import Reply
from spanwise.pipelines.input.service.wire.load import Meter
from spanwise.pipelines.input.service.wire.requests import Fetch
from spanwise.pipelines.input.service.wire.runs import in_runs
from spanwise.pipelines.input.service.worker.buffers import Buffer
from spanwise.pipelines.input.snapshot.encoding import encoding_of

WAIT_S: Final = 1.0
"""How long an answer waits for the first element."""

_RETRY_S: Final = 0.1

_log = logging.getLogger(__name__)


class Stopped(Exception):
    """The task is over before its pass is."""


class Task:
    """A pass, in a thread of its own, and what it has ready."""

    def __init__(self, make: Callable[[], Work], buffer: Buffer, meter: Meter) -> None:
        self._make = make
        self._meter = meter
        self._buffer = buffer
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # for those who ask
        self._room = threading.Condition(lock)  # for the pass
        self._ended = False
        self._stopped = False
        self._replies: dict[int, tuple[Reply, float]] = {}  # the last one to each client, and when it was given
        self._numbers: dict[int, int] = {}  # of these, and of those that were dropped since
        self._work: Work | None = None
        self.spec: Spec = UNKNOWN  #: of its elements, once there are some
        self.began = self.touched = time.monotonic()  #: and when somebody last asked
        threading.Thread(target=self._run, name="service-task", daemon=True).start()

    @property
    def is_drained(self) -> bool:
        """Whether all that it gives was taken."""
        with self._changed:
            return self._ended and self._buffer.is_empty

    @property
    def held_bytes(self) -> int:
        """What is ready."""
        with self._changed:
            return self._buffer.held_bytes

    @property
    def is_fresh(self) -> bool:
        """Whether nobody has got more than its first answer."""
        with self._changed:
            return all(number == 0 for number in self._numbers.values())

    def drop_replies(self, before: float) -> None:
        """Forgets what was answered before that moment: a client that has not asked since then is gone, or has it."""
        with self._changed:
            for client in [client for client, (_, at) in self._replies.items() if at < before]:
                del self._replies[client]

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._room.notify_all()
            work = self._work
        if work is not None:
            work.stop()

    def _run(self) -> None:
        try:
            work = self._made()
            with work.open() as elements:
                self._pass(work, elements)
        except Stopped:
            return
        except SpanwiseError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001  whatever it is, the consumers have to hear of it
            _log.exception("service-task-failed")
            self._end(ServiceError(f"a worker's pass failed: {type(error).__name__}: {error}"))
        else:
            self._end(None)

    def _end(self, error: SpanwiseError | None) -> None:
        with self._changed:
            self._buffer.end(error)
            self._ended = True
            self._changed.notify_all()

    def _made(self) -> Work:
        work = self._make()
        with self._changed:
            if self._stopped:
                raise Stopped
            self._work, self.spec = work, work.op.spec
        return work

    def _pass(self, work: Work, elements: DatasetIterator) -> None:
        encoding = encoding_of(work.op.spec)
        while True:
            begun = time.monotonic()
            try:
                piece = next(elements)
            except StopIteration:
                return
            except FunctionFailed as error:  # this element is lost, and the next one can be made
                self._put(partial(self._buffer.fail, error))
            else:
                self._meter.worked(time.monotonic() - begun)
                self._put(partial(self._buffer.put, piece, encoding))

    def _put(self, put: Callable[[], None]) -> None:
        with self._changed:
            self._room.wait_for(lambda: self._stopped or self._buffer.has_room)
            if self._stopped:
                raise Stopped
            put()
            if self._buffer.is_shared:
                self._changed.notify()  # to wake them all for what one takes would be a stampede
            else:
                self._changed.notify_all()

    def reply(self, request: Fetch, wait_s: float = WAIT_S) -> Reply:
        """What is ready, about `limit_bytes` of it at most; the answer of before if the request is made again.

        If nothing is, it waits so long.

        Raises:
            UnknownTask: the request goes on with answers that this task has not given, or it is over.
        """
        self.touched = time.monotonic()
        with self._changed:
            last, _ = self._replies.get(request.client, (None, 0.0))
            if last is not None and last.number == request.number:
                return last
            if request.number != self._numbers.get(request.client, -1) + 1:
                raise UnknownTask("the request goes on with answers of another life of this task.")
            self._changed.wait_for(lambda: self._buffer.has(request) or self._ended or self._stopped, wait_s)
            if self._stopped:
                raise UnknownTask("the task is over.")
            pieces, error = self._buffer.take(request)
            ended = self._ended and not self._buffer.has(request)
            reply = Reply(request.number, pieces, error, ended)
            self._replies[request.client] = reply, self.touched
            self._numbers[request.client] = reply.number
            self._room.notify()
            if self._buffer.is_shared and not self._buffer.is_empty:
                self._changed.notify()
        return reply


@dataclass(frozen=True)
class Work:
    """What a task runs."""

    op: Op
    options: Options
    deal: Splits | None = None
    runs: bool = True  #: whether batches may come as runs

    def open(self) -> DatasetIterator:
        seed = secrets.randbits(63) if self.options.seed is None else self.options.seed
        graph = optimized(seeded(self.op, seed), self.options).op
        options = replace(self.options, seed=seed, optimize=False)
        graph = in_runs(graph) if self.runs else graph
        return DatasetIterator(graph, options, 0, blocks=in_rows(self.op), dataset=Dataset)

    def stop(self) -> None:
        if self.deal is not None:
            self.deal.stop()


class Splits(sharding.Deal):
    """The splits that the dispatcher deals to a task; asks until it is answered."""

    def __init__(self, task: int, dispatcher: Connection) -> None:
        self._task = task
        self._dispatcher = dispatcher
        self._lock = threading.Lock()
        self._number = secrets.randbits(40)  # another life of this worker has other tasks
        self._ready: dict[tuple[int, int], deque[int]] = {}
        self._below: dict[int, int] = {}
        self._stopped = threading.Event()

    def next(self, source: int, repetition: int) -> int | None:
        with self._lock:
            ready = self._ready.setdefault((source, repetition), deque())
            if not ready and repetition >= self._below.get(source, 0):
                ready.extend(self._ask(source, repetition))
            if ready:
                return ready.popleft()
            del self._ready[source, repetition]
            return None

    def _ask(self, source: int, repetition: int) -> range:
        self._number += 1
        request = {"task": self._task, "number": self._number, "source": source, "repetition": repetition}
        while True:
            try:
                answer, _ = self._dispatcher.call("deal", request)
            except Unreachable:
                if self._stopped.wait(_RETRY_S):
                    raise Stopped from None
            except UnknownTask:  # it is over: the dispatcher has taken this worker for lost
                raise Stopped from None
            else:
                self._below[source] = answer["below"]
                return range(answer["first"], answer["first"] + answer["count"])

    def stop(self) -> None:
        self._stopped.set()
