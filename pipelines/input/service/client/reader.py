"""Readers: one consumer's side of a job. They poll the dispatcher, fetch from workers, and buffer elements."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from spanwise.orchestrator import logs
from spanwise.orchestrator.errors import ServiceError, SpanwiseError
from spanwise.pipelines.input.op import Element
from spanwise.pipelines.input.service.client.feed import Delivery, WorkerFeed
from spanwise.pipelines.input.service.client.job import JobSettings
from spanwise.pipelines.input.service.client.losses import ATTEMPTS, TaskLosses
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.sharding.splits import describe_split, plan_graph, split_graph
from spanwise.pipelines.input.service.wire.connection import (
    Disconnected,
    ServiceConnection,
    UnknownTask,
    Unreachable,
    error_bytes,
    error_of,
    refusing_malformed,
    this_process,
)
from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection
from spanwise.pipelines.input.service.wire.requests import (
    Fetch,
    JobView,
    JoinJob,
    LeaveJob,
    PollJob,
    RoundReport,
)
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.shipped_graph import register
from spanwise.pipelines.input.snapshot.encoding import Piece, encoding_of
from spanwise.pipelines.input.snapshot.source import with_sources

BUFFER_BYTES: Final = 64 << 20
"""How much a consumer holds that was not taken yet."""

REPLY_BYTES: Final = 8 << 20
_LITTLE_BYTES: Final = 256 << 10
_REST_S: Final = 0.02
_LONGEST_REST_S: Final = 5.0
POLL_S: Final = 0.5
"""How long the dispatcher may wait for news for a consumer."""

RETRY_S: Final = 0.05
_FETCH_TIMEOUT_S: Final = 30.0
_WARN_S: Final = 10.0
Item: TypeAlias = Piece | SpanwiseError
"""A piece, or an error in the place of an element."""

_log = logging.getLogger("spanwise.service.consumer")


class JobReader(ABC):
    """One consumer of one job: a thread that polls the dispatcher, and one for each worker that it reads from."""

    _holder = ""
    """The same for a consumer and those that are restored from its states."""

    _resumes = False
    """Whether it was restored."""

    _is_spent = False
    """Whether it was restored, and nothing is left to yield."""

    def __init__(self, job: JobSettings, epoch: str, name: str = "", lock: threading.RLock | None = None) -> None:
        logs.show_facts("spanwise.service")
        self._job = job
        self._name = job.job_name or name
        self._epoch = epoch
        self._encoding = encoding_of(job.result)
        self._security = job.security or Security.from_environment()
        self._dispatcher = DispatcherConnection(job.service, self._security)
        self._changed = threading.Condition(lock)
        self._error: SpanwiseError | None = None  # that ends the pass
        self._finished = self._is_spent
        self._closed = threading.Event()
        self._requests = threading.Semaphore(job.max_outstanding_requests or 1_024)
        self._dataset = ""
        self._key = secrets.token_hex(16)  # by which the dispatcher recognises it when it joins again
        self._client = self._seed = 0
        self._joined = False
        self._sources: dict[str, threading.Event] = {}  # by task or worker address; set when it is over
        self._losses = TaskLosses()
        self._failed = set[int]()  # tasks whose failure it has got
        self._last_word = ""  # of the last worker that has ended
        self._given = Counter[int]()  # elements, by task
        self._waited_s = 0.0
        self._yielded = 0
        threading.Thread(target=self._run, name="service-consumer", daemon=True).start()

    @abstractmethod
    def next(self) -> Element:
        """The next element or block; waits for it."""

    @abstractmethod
    def _poll(self) -> None:
        """Asks the dispatcher what there is to read, and follows its answer."""

    @abstractmethod
    def _read(self, source: str, feed: WorkerFeed, over: threading.Event) -> None:
        """Reads from a task or worker until there is nothing left, or it is over."""

    @abstractmethod
    def _has_room(self, task: int | None) -> bool:
        """Whether more of a task is to be fetched."""

    @abstractmethod
    def _keep(self, task: int, items: Sequence[Item]) -> bool:
        """Takes what came of a task; False if the reader is closed."""

    def _rest(self, longest_s: float) -> bool:  # noqa: ARG002  a coordinated read cannot: others wait for what it gets
        """Waits before more is asked of a worker that had little; whether what is held was taken meanwhile."""
        return True

    def _count(self, item: Item) -> int:
        return 1 if isinstance(item, SpanwiseError) else self._encoding.count(item)

    def _size_bytes(self, item: Item) -> int:
        return error_bytes(item) if isinstance(item, SpanwiseError) else self._encoding.size_bytes(item)

    def close(self) -> None:
        """Leaves the job; the splits that it holds go to others."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        if self._joined:
            try:
                self._dispatcher.ask(LeaveJob(client=self._client, key=self._key))
            except ServiceError as error:
                _log.info("leave-failed", extra={"reason": str(error)})

    # The dispatcher.

    def _run(self) -> None:
        try:
            self._retry(self._join)
            while not (self._closed.is_set() or self._is_done() or self._error):
                self._retry(self._poll)
        except Exception as error:  # noqa: BLE001  a consumer whose thread has ended without a word waits for ever
            self._end(error)

    def _is_done(self) -> bool:
        """Whether the dispatcher has nothing more to say."""
        return self._finished

    def _end(self, error: Exception) -> None:
        """Has the consumer get this error."""
        if not isinstance(error, SpanwiseError):
            _log.exception("consumer-failed", exc_info=error)
            error = ServiceError(f"reading from the data service failed: {type(error).__name__}: {error}")
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _retry(self, act: Callable[[], object]) -> None:
        """Acts; tries again while the dispatcher does not answer."""
        warned = time.monotonic()
        while not self._closed.is_set():
            try:
                act()
            except Unreachable as error:
                if time.monotonic() - warned > _WARN_S:
                    warned = time.monotonic()
                    _log.warning("dispatcher-unreachable", extra={"reason": str(error)})
                self._closed.wait(RETRY_S)
            else:
                return

    def _join(self) -> None:
        job = self._job
        self._dataset = job.dataset_id or ""
        if job.graph is not None:
            by_splits = job.mode is ShardingPolicy.DYNAMIC or job.mode.is_leased
            graph = replace(job.graph, op=with_sources(job.graph.op)) if by_splits else job.graph
            self._dataset = register(self._dispatcher, graph, job.dataset_id)
        self._check_dataset()
        with refusing_malformed("request"):
            request = JoinJob(
                dataset=self._dataset,
                mode=job.mode,
                name=self._name,
                epoch=self._epoch,
                key=self._key,
                cached=job.cross_trainer_cache is not None,
                private=bool(self._name) and not job.job_name,
                holder=self._holder,
                resumes=self._resumes,
                index=job.consumer_index,
                consumers=job.num_consumers or 0,
            )
        membership, _ = self._dispatcher.ask(request)
        self._client, self._seed = membership.client, membership.seed
        self._joined = True
        if self._closed.is_set():  # meanwhile
            self._dispatcher.ask(LeaveJob(client=self._client, key=self._key))

    def _check_dataset(self) -> None:  # noqa: B027  most readers are not restored
        """Refuses a dataset that a restored consumer did not read before."""

    def _ask(self, wait_s: float, rounds: RoundReport | None = None) -> JobView:
        """What the dispatcher says there is to read; it may wait so long for news."""
        with refusing_malformed("request"):
            request = PollJob(
                client=self._client,
                key=self._key,
                targets=self._job.target_workers,  # type: ignore[arg-type]  # checked by `JobSettings`
                process=this_process(),
                tasks=tuple(sorted(int(source) for source in list(self._sources) if source.isdigit())),
                waited_s=self._waited_s,
                given=self._yielded,
                rounds=rounds,
                wait_s=wait_s,
            )
        view, _ = self._dispatcher.ask(request)
        if view.poisoned is not None:
            raise self._poison_error(f"they produced elements of {self._place_of(*view.poisoned)}")
        self._closed.wait(view.again_s)  # the dispatcher has too many consumers to let each of them wait there
        return view

    # Workers.

    def _follow(self, addresses: Mapping[str, str]) -> None:
        """Starts to read from new tasks or workers, and stops to read from those that are gone."""
        for source in self._sources.keys() - addresses.keys():
            self._sources.pop(source).set()
        for source in addresses.keys() - self._sources.keys():
            over = self._sources[source] = threading.Event()
            read = partial(self._read_guarded, source, addresses[source], over)
            threading.Thread(target=read, name="service-read", daemon=True).start()

    def _read_guarded(self, source: str, address: str, over: threading.Event) -> None:
        try:
            self._read(source, WorkerFeed(ServiceConnection(address, self._security), self._job.compression), over)
        except Exception as error:  # noqa: BLE001  as above
            self._end(error)

    def _fetch(
        self, feed: WorkerFeed, ticket: Fetch, over: threading.Event, has_room: Callable[[], bool] | None = None
    ) -> Delivery | None:
        """What a worker sends; None when the consumer or the source is over. Waits until there is room for it.

        Raises:
            UnknownTask: the worker does not know the split.
            Unreachable: it does not answer for the split.
        """
        has_room = has_room or partial(self._has_room, ticket.task)
        while not (self._closed.is_set() or over.is_set()):
            with self._changed:
                if not self._changed.wait_for(lambda: self._closed.is_set() or has_room(), POLL_S):
                    continue
            try:
                with self._requests:
                    return feed.fetch(ticket, _FETCH_TIMEOUT_S)
            except (UnknownTask, Unreachable) as error:
                if ticket.split is not None:
                    raise
                if isinstance(error, Disconnected) and ticket.task is not None:
                    self._count_loss(ticket.task, error)
                over.wait(RETRY_S)  # the worker will know the task soon, or the dispatcher takes it back
        return None

    def _count_loss(self, task: int, error: Disconnected) -> None:
        """A worker has ended while it ran a task.

        Raises:
            ServiceError: it was not the first one that did at this place.
        """
        with self._changed:
            self._last_word = f"{error}"
            given = self._given[task]
            count = self._losses.lose(task, [int(source) for source in self._sources])
        if count >= ATTEMPTS and self._job.mode is not ShardingPolicy.DYNAMIC:  # there each gets other splits
            what = "batch or element" if self._job.num_consumers else "element"
            raise self._poison_error(
                f"they produced {what} {given} (the first is 0), or one behind it that was not received, of "
                f"{'a shard of the dataset' if self._job.mode.is_static else 'the dataset'}"
            )

    def _poison_error(self, place: str) -> ServiceError:
        return ServiceError(
            f"{ATTEMPTS} workers, one after another, ended while {place}. The last word of the last one: "
            f"{self._last_word or 'none'}. A function may have killed its process, or memory has run out: look at the "
            f"log of that worker, and run the dataset on these elements by itself."
        )

    def _place_of(self, source: int, split: int) -> str:
        """Where a split lies in the dataset."""
        graph = self._job.graph
        if graph is None:
            return f"split {split} of source {source}"
        op = plan_graph(with_sources(graph.op), graph.options)
        return describe_split(op, sum(split_graph(op).splits[:source]) + split)

    def _read_task(self, task: int, feed: WorkerFeed, over: threading.Event) -> bool:
        """Reads a task; whether it has nothing left."""
        cache = self._job.cross_trainer_cache
        with refusing_malformed("ticket"):
            ticket = Fetch(
                task=task,
                client=self._client,
                index=self._job.consumer_index,
                trainer="" if cache is None else cache.trainer_id,
                limit_bytes=REPLY_BYTES,
            )
        rest_s = _REST_S
        while True:
            delivery = self._fetch(feed, ticket, over)
            if delivery is None:
                return False
            size_bytes = sum(map(self._size_bytes, delivery.items))
            is_kept = self._keep(task, delivery.items)
            with self._changed:
                asks_on = is_kept and not delivery.ended and self._has_room(task)
            if delivery.items and not asks_on:  # else the next request says that the answer has come
                with contextlib.suppress(ServiceError):
                    feed.fetch(ticket.model_copy(update={"received": True}), _FETCH_TIMEOUT_S)
            if not is_kept:
                return False
            with self._changed:
                self._given[task] += sum(map(self._count, delivery.items))
                if delivery.ended and delivery.error is not None:
                    self._failed.add(task)
                self._losses.receive(task, size_bytes)
            if delivery.ended:
                return True
            rest_s = _REST_S if size_bytes >= _LITTLE_BYTES or self._rest(rest_s) else min(2 * rest_s, _LONGEST_REST_S)
            ticket = ticket.model_copy(update={"number": ticket.number + 1})


class QueueReader(JobReader):
    """A reader whose workers all fill one queue."""

    def __init__(self, job: JobSettings, epoch: str, name: str = "") -> None:
        self._queue: deque[tuple[Item, int]] = deque()  # with its size
        self._bytes = 0
        self._taken = 0  # items
        self._wakes_at = math.inf  # how many items taken end the rest of a thread
        self._half_taken = threading.Condition(lock := threading.RLock())
        super().__init__(job, epoch, name, lock)

    def next(self) -> Element:
        with self._changed:
            start = time.monotonic()
            self._changed.wait_for(lambda: self._queue or self._finished or self._error or self._closed.is_set())
            self._waited_s += time.monotonic() - start
            if self._closed.is_set():
                raise StopIteration
            if not self._queue:
                if self._error is not None:
                    raise self._error
                raise StopIteration
            item, size_bytes = self._queue.popleft()
            self._bytes -= size_bytes
            self._taken += 1
            if self._taken >= self._wakes_at:
                self._wakes_at = math.inf
                self._half_taken.notify_all()
            self._changed.notify_all()
        if isinstance(item, SpanwiseError):
            raise item
        self._yielded += 1
        return item

    def close(self) -> None:
        super().close()
        with self._changed:
            self._queue.clear()
            self._half_taken.notify_all()

    def _rest(self, longest_s: float) -> bool:
        """Until half of what is held was taken: who is not in need leaves what there is to others, and asks seldom."""
        deadline = time.monotonic() + longest_s
        with self._changed:
            wanted = self._taken + len(self._queue) / 2
            while self._taken < wanted and not self._closed.is_set():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._wakes_at = min(self._wakes_at, wanted)
                self._half_taken.wait(left_s)
        return True

    def _has_room(self, task: int | None) -> bool:  # noqa: ARG002  all share one queue
        return self._bytes < BUFFER_BYTES

    def _keep(self, task: int, items: Sequence[Item]) -> bool:  # noqa: ARG002  as above
        sized = [(item, self._size_bytes(item)) for item in items]
        with self._changed:
            if self._closed.is_set():
                return False
            self._queue.extend(sized)
            self._bytes += sum(size_bytes for _, size_bytes in sized)
            self._changed.notify_all()
        return True


class TaskReader(QueueReader):
    """Reads the tasks of a job, each to its end."""

    def __init__(self, job: JobSettings, epoch: str, name: str = "") -> None:
        self._ended: set[int] = set()  # tasks that have nothing left
        super().__init__(job, epoch, name)

    def _poll(self) -> None:
        view = self._ask(POLL_S)
        self._follow({str(task): address for task, address in view.tasks})
        with self._changed:
            self._finished = view.finished and {task for task, _ in view.tasks} <= self._ended
            if self._finished:  # a worker may have ended before this consumer got its error
                failures = [each for each in view.failures if each.task not in self._failed]
                self._queue.extend((error_of(each.error, each.text), 0) for each in failures)
            self._changed.notify_all()
        if view.finished and not self._finished:
            self._closed.wait(0.005)

    def _read(self, source: str, feed: WorkerFeed, over: threading.Event) -> None:
        if self._read_task(int(source), feed, over):
            with self._changed:
                self._ended.add(int(source))
