"""A task of a worker: one pass over a graph, which works ahead of the consumers that ask for its elements."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from spanwise.orchestrator.errors import FunctionFailed, ServiceError, SpanwiseError
from spanwise.pipelines.input.element import UNKNOWN, Spec
from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.graph.rewrite import optimize
from spanwise.pipelines.input.iterator import DatasetIterator
from spanwise.pipelines.input.op import Op, Options, assign_seeds
from spanwise.pipelines.input.rows import in_rows
from spanwise.pipelines.input.service.sharding.dealing import SplitQueue
from spanwise.pipelines.input.service.wire.connection import CallCanceled, UnknownTask
from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection
from spanwise.pipelines.input.service.wire.meter import ServerMeter
from spanwise.pipelines.input.service.wire.requests import Fetch, TakeSplits
from spanwise.pipelines.input.service.worker.buffers import TaskBuffer
from spanwise.pipelines.input.service.worker.reply import WorkerReply
from spanwise.pipelines.input.service.worker.runs import with_batch_runs
from spanwise.pipelines.input.snapshot.encoding import Encoding, encoding_of

WAIT_S: Final = 1.0
"""How long an answer waits for the first element."""

RECEIPT_S: Final = 30.0
"""A client that has not said for so long that an answer has come is gone, or slow: it would have asked again."""

_REFUSED: Final = 4
_PAUSE_S: Final = 0.02
"""How long a worker rests between its requests for splits when the last ones were in vain."""

_log = logging.getLogger("spanwise.service.worker")


class WorkerTask:
    """A pass in a thread of its own, and what it has ready."""

    def __init__(self, create_pass: Callable[[], TaskPass], buffer: TaskBuffer, meter: ServerMeter) -> None:
        self._create_pass = create_pass
        self._meter = meter
        self._buffer = buffer
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # wakes consumers
        self._room = threading.Condition(lock)  # wakes the pass
        self._ended = False
        self.failure: SpanwiseError | None = None  #: that has ended the pass
        self._stopped = False
        self._delivered = False
        self._replies: dict[int, tuple[WorkerReply, float]] = {}  # the last one to each client, and when it was sent
        self._numbers: dict[int, int] = {}  # of these, and of those that were dropped
        self._pass: TaskPass | None = None
        self.spec: Spec = UNKNOWN  #: of its elements, once the graph is known
        self.started = self.touched = time.monotonic()  #: and when a consumer last asked
        threading.Thread(target=self._run, name="service-task", daemon=True).start()

    @property
    def is_drained(self) -> bool:
        """Whether the pass has ended and everything was taken."""
        with self._changed:
            return self._ended and self._buffer.is_empty

    @property
    def is_delivered(self) -> bool:
        """Whether it is drained, and what was taken has arrived: an answer that is lost with its worker is not over.

        It stays so when another consumer comes, which gets nothing but the error that has ended the pass.
        """
        with self._changed:
            self._delivered = self._delivered or (self.is_drained and not self.awaited)
            return self._delivered

    @property
    def awaited(self) -> list[int]:
        """The clients that have not said that the last answer with something in it has arrived, once it is drained."""
        since = time.monotonic() - RECEIPT_S
        with self._changed:
            replies = self._replies.items() if self.is_drained else ()
            return [client for client, (reply, sent) in replies if sent > since and (reply.pieces or reply.error)]

    @property
    def held_bytes(self) -> int:
        with self._changed:
            return self._buffer.held_bytes

    @property
    def clients(self) -> int:
        """How many have asked for its elements."""
        return len(self._numbers)

    @property
    def is_fresh(self) -> bool:
        """Whether no client has got more than its first answer."""
        with self._changed:
            return all(number == 0 for number in self._numbers.values())

    def note_receipt(self, request: Fetch) -> WorkerReply:
        """The answer to the client has arrived; the answer to that is empty."""
        with self._changed:
            last, _ = self._replies.get(request.client, (None, 0.0))
            if last is not None and last.number == request.number:
                del self._replies[request.client]
            return WorkerReply(request.number, [], None, self._ended)

    def drop_replies(self, before: float) -> None:
        """Forgets answers from before that moment: a client that has not asked since is gone, or has received them."""
        with self._changed:
            for client in [client for client, (_, at) in self._replies.items() if at < before]:
                del self._replies[client]

    def forget(self, gone: Iterable[int]) -> None:
        """Waits for these clients no longer."""
        with self._changed:
            for client in gone:
                self._replies.pop(client, None)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._room.notify_all()
            running = self._pass
        if running is not None:
            running.stop()

    def _run(self) -> None:
        try:
            running = self._begin()
            with running.open() as elements:
                self._fill(elements, encoding_of(running.op.spec))
        except CallCanceled:
            return
        except SpanwiseError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001  any error must reach the consumers
            _log.exception("task-failed")
            self._end(ServiceError(f"a worker's pass failed: {type(error).__name__}: {error}"))
        else:
            self._end(None)

    def _end(self, error: SpanwiseError | None) -> None:
        with self._changed:
            self._buffer.end(error)
            self.failure, self._ended = error, True
            self._changed.notify_all()

    def _begin(self) -> TaskPass:
        running = self._create_pass()
        with self._changed:
            if self._stopped:
                raise CallCanceled
            self._pass, self.spec = running, running.op.spec
        return running

    def _fill(self, elements: DatasetIterator, encoding: Encoding) -> None:
        while True:
            started = time.monotonic()
            try:
                piece = next(elements)
            except StopIteration:
                return
            except FunctionFailed as error:  # this element is lost, but the next one may not be
                self._put(partial(self._buffer.fail, self._describe(error)))
            else:
                self._meter.add_work(time.monotonic() - started)
                self._put(partial(self._buffer.put, piece, encoding))

    def _describe(self, error: FunctionFailed) -> FunctionFailed:
        """The error without its traceback and cause, which hold elements, and with where those that it counts lie."""
        describe = None if self._pass is None else self._pass.describe_place
        return type(error)(f"{error} It counts from {describe()}" if describe else f"{error}")

    def _put(self, put: Callable[[], None]) -> None:
        with self._changed:
            self._room.wait_for(lambda: self._stopped or self._buffer.has_room)
            if self._stopped:
                raise CallCanceled
            put()
            if self._buffer.is_shared:
                self._changed.notify()  # waking them all for what one takes would be a stampede
            else:
                self._changed.notify_all()

    def reply(self, request: Fetch, wait_s: float = WAIT_S) -> WorkerReply:
        """About `limit_bytes` of what is ready; the same answer if the request is repeated.

        Waits up to `wait_s` for the first element.

        Raises:
            UnknownTask: the request continues answers that this task has not sent, or the task is over.
        """
        self.touched = time.monotonic()
        with self._changed:
            last, _ = self._replies.get(request.client, (None, 0.0))
            if last is not None and last.number == request.number:
                return last
            if request.number != self._numbers.get(request.client, -1) + 1:
                raise UnknownTask("the request continues answers of an earlier worker.")
            self._changed.wait_for(lambda: self._buffer.has(request) or self._ended or self._stopped, wait_s)
            if self._stopped:
                raise UnknownTask("the task is over.")
            pieces, error = self._buffer.take(request)
            ended = self._ended and not self._buffer.has(request)
            reply = WorkerReply(request.number, pieces, error, ended)
            self._replies[request.client] = reply, self.touched
            self._numbers[request.client] = reply.number
            self._room.notify()
            if self._buffer.is_shared and not self._buffer.is_empty:
                self._changed.notify()
        return reply


def parse_epoch(text: str) -> tuple[int, ...]:
    """The number of an iteration and of the rounds around it, from a job's record."""
    try:
        return tuple(map(int, text.split(".")))
    except ValueError:  # as another client names it
        return (0,)


@dataclass(frozen=True)
class TaskPass:
    """The graph that a task runs, and how."""

    op: Op
    options: Options
    flow: type[Flow]  #: the class in which users' functions get nested datasets
    queue: TakenSplits | None = None
    epoch: tuple[int, ...] = (0,)  #: the consumers' iteration: in each, shuffles differ
    describe_place: Callable[[], str] | None = None  #: where its elements lie in the dataset, for messages

    def open(self) -> DatasetIterator:
        seed = secrets.randbits(63) if self.options.seed is None else self.options.seed
        graph = optimize(assign_seeds(self.op, seed), self.options).op
        options = replace(self.options, seed=seed, optimize=False)
        return DatasetIterator(with_batch_runs(graph), options, self.epoch, blocks=in_rows(self.op), dataset=self.flow)

    def stop(self) -> None:
        if self.queue is not None:
            self.queue.stop()


class TakenSplits(SplitQueue):
    """The splits that the dispatcher hands to a task; asks until it is answered."""

    def __init__(self, task: int, dispatcher: DispatcherConnection) -> None:
        self._task = task
        self._dispatcher = dispatcher
        self._lock = threading.Lock()
        self._number = secrets.randbits(40)  # a restarted worker repeats no number
        self._ready: dict[tuple[int, int], deque[int]] = {}
        self._below: dict[int, int] = {}
        self._stopped = threading.Event()
        self._refused = 0  # answers, one after another, that held no split

    def next(self, source: int, repetition: int) -> int | None:
        with self._lock:
            ready = self._ready.setdefault((source, repetition), deque())
            if not ready and repetition >= self._below.get(source, 0):
                ready.extend(self._take(source, repetition))
            if ready:
                return ready.popleft()
            del self._ready[source, repetition]
            return None

    def _take(self, source: int, repetition: int) -> range:
        if self._refused > _REFUSED:  # others are faster; asking on and on would take their time
            self._stopped.wait(_PAUSE_S)
        self._number += 1
        request = TakeSplits(task=self._task, number=self._number, source=source, repetition=repetition)
        try:
            answer, _ = self._dispatcher.ask_until_answered(request, self._stopped)
        except UnknownTask:  # it is over: the dispatcher considers this worker lost
            raise CallCanceled from None
        self._below[source] = answer.below
        self._refused = 0 if answer.count else self._refused + 1
        return range(answer.first, answer.first + answer.count)

    def stop(self) -> None:
        self._stopped.set()
