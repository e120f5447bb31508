"""A consumer's reading of a job: asks the dispatcher what there is, fetches it from workers, and keeps it ready."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from spanwise.orchestrator.errors import ServiceError, SpanwiseError
from spanwise.pipelines.input.op import Element
from spanwise.pipelines.input.service.client.leases import Leases
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.wire import elements
from spanwise.pipelines.input.service.wire.connection import Connection, UnknownTask, Unreachable, this_process
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.shipped_graph import registered
from spanwise.pipelines.input.snapshot.encoding import Piece, encoding_of
from spanwise.pipelines.input.snapshot.source import with_sources

if TYPE_CHECKING:
    from spanwise.pipelines.input.service.client.consumer import Distribute

BUFFER_BYTES: Final = 64 << 20
"""How much a consumer holds that was not taken yet."""

_REPLY_BYTES: Final = 8 << 20
_LOOK_S: Final = 0.5
_RETRY_S: Final = 0.05
_FETCH_TIMEOUT_S: Final = 30.0
_LEASES: Final = 4
"""How many splits a consumer holds for each worker."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Item:
    """Something to give: a piece or an error; the last one of a split tells of which."""

    piece: Piece | SpanwiseError | None
    size_bytes: int
    ends: int | None = None  #: the split that is done when this was given


class Reader:
    """One consumer of one job: a thread that looks what there is to read, and one for each worker that reads it."""

    def __init__(self, op: Distribute, epoch: str) -> None:
        self._op = op
        self._epoch = epoch
        self._encoding = encoding_of(op.spec)
        self._security = op.security or Security.from_environment()
        self._dispatcher = Connection(op.service, self._security)
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._error: SpanwiseError | None = None  # that ends the pass
        self._finished = False
        self._closed = threading.Event()
        self._requests = threading.Semaphore(op.max_outstanding_requests or 1_024)
        self._dataset = ""
        self._key = secrets.token_hex(16)  # by which the dispatcher knows it when it joins again
        self._client = self._seed = 0
        self._joined = False
        self._reading: dict[str, threading.Event] = {}  # by task or worker; set when it is over
        self._ended: set[int] = set()  # tasks that have no more
        self._waited_s = 0.0
        self._given = 0
        self._leases = Leases(exact=op.mode is ShardingPolicy.EXACTLY_ONCE)
        self._done: int | None = None  # a split whose last element was given, and not yet acknowledged
        threading.Thread(target=self._run, name="service-consumer", daemon=True).start()

    def next(self) -> Element:
        """The next element or block; waits for it."""
        self._acknowledge()
        while True:
            with self._changed:
                start = time.monotonic()
                self._changed.wait_for(lambda: self._items or self._finished or self._error or self._closed.is_set())
                self._waited_s += time.monotonic() - start
                if not self._items:
                    if self._error is not None and not self._closed.is_set():
                        raise self._error
                    raise StopIteration
                item = self._items.popleft()
                self._bytes -= item.size_bytes
                self._changed.notify_all()
            self._done = item.ends
            if item.piece is None:
                self._acknowledge()
                continue
            if isinstance(item.piece, SpanwiseError):
                raise item.piece
            self._given += 1
            return item.piece

    def _acknowledge(self) -> None:
        """Whoever asks for the next element has done with the one before."""
        if self._done is not None:
            self._leases.acknowledge(self._done)
            self._done = None

    def close(self) -> None:
        """Leaves the job; what it holds goes to others."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._changed:
            self._items.clear()
            self._changed.notify_all()
        if self._joined:
            try:
                self._dispatcher.call("leave", {"client": self._client})
            except ServiceError as error:
                _log.info("service-leave-failed", extra={"reason": str(error)})

    # What there is to read.

    def _run(self) -> None:
        try:
            self._persistently(self._join)
            while not (self._closed.is_set() or self._finished or self._error):
                self._persistently(self._look)
        except SpanwiseError as error:
            self._end(error)

    def _end(self, error: SpanwiseError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _persistently(self, act: Any) -> None:
        """Does it; as long as the dispatcher does not answer, again."""
        warned = time.monotonic()
        while not self._closed.is_set():
            try:
                act()
            except Unreachable as error:
                if time.monotonic() - warned > 10.0:  # noqa: PLR2004  once in a while
                    warned = time.monotonic()
                    _log.warning("service-unreachable", extra={"reason": str(error)})
                self._closed.wait(_RETRY_S)
            else:
                return

    def _join(self) -> None:
        op = self._op
        if op.given is not None:
            by_splits = op.mode is ShardingPolicy.DYNAMIC or op.mode.is_leased
            given = replace(op.given, op=with_sources(op.given.op)) if by_splits else op.given
            self._dataset = registered(self._dispatcher, given, op.dataset_id)
        else:
            self._dataset = op.dataset_id or ""
        request = {
            "dataset": self._dataset,
            "mode": op.mode,
            "name": op.job_name or "",
            "epoch": self._epoch,
            "key": self._key,
            "cached": op.cross_trainer_cache is not None,
            "index": op.consumer_index,
            "consumers": op.num_consumers or 0,
        }
        answer, _ = self._dispatcher.call("join", request)
        self._client, self._seed = answer["client"], answer["seed"]
        self._joined = True
        if self._closed.is_set():  # meanwhile
            self._dispatcher.call("leave", {"client": self._client})

    def _look(self) -> None:
        with self._changed:
            quiet = all(int(name) in self._ended for name in self._reading if name.isdigit())
        answer = self._seen(0.02 if quiet or self._op.mode.is_leased else _LOOK_S)
        if self._op.mode.is_leased:
            self._lease(answer["workers"])
        else:
            self._follow({str(task): address for task, address in answer["tasks"]})
            there = {int(task) for task, _ in answer["tasks"]}
            with self._changed:
                self._finished = answer["finished"] and there <= self._ended
                self._changed.notify_all()
            if answer["finished"] and not self._finished:
                self._closed.wait(0.005)

    def _seen(self, wait_s: float, **more: Any) -> Any:
        """What the dispatcher says there is to read."""
        request = {
            "client": self._client,
            "targets": self._op.target_workers,
            "process": this_process(),
            "tasks": sorted(int(name) for name in list(self._reading) if name.isdigit()),
            "waited_s": self._waited_s,
            "given": self._given,
            "wait_s": wait_s,
            **more,
        }
        answer, _ = self._dispatcher.call("look", request)
        self._closed.wait(answer["again_s"])  # the dispatcher has too many to let each wait there
        return answer

    def _follow(self, there: dict[str, str]) -> None:
        """Reads what is new, and stops to read what is gone."""
        for name in self._reading.keys() - there.keys():
            self._reading.pop(name).set()
        for name in there.keys() - self._reading.keys():
            over = self._reading[name] = threading.Event()
            read = self._read_splits if self._op.mode.is_leased else self._read_task
            thread = threading.Thread(
                target=self._guarded, args=(read, name, there[name], over), name="service-read", daemon=True
            )
            thread.start()

    def _guarded(self, read: Any, name: str, address: str, over: threading.Event) -> None:
        try:
            read(name, elements.Feed(Connection(address, self._security), self._op.compression), over)
        except SpanwiseError as error:
            self._end(error)

    # Reading.

    def _read_task(self, name: str, worker: elements.Feed, over: threading.Event) -> None:
        cache = self._op.cross_trainer_cache
        ticket = {
            "task": int(name),
            "client": self._client,
            "index": self._op.consumer_index,
            "trainer": "" if cache is None else cache.trainer_id,
        }
        for number in range(1 << 62):
            answer = self._fetched(worker, {**ticket, "number": number}, over)
            if answer is None:
                return
            pieces, error, ended = answer
            if not self._keep(int(name), [*pieces, *([error] if error else [])]):
                return
            if ended:
                with self._changed:
                    self._ended.add(int(name))
                return

    def _fetched(
        self, worker: elements.Feed, ticket: dict[str, Any], over: threading.Event
    ) -> tuple[list[Piece], SpanwiseError | None, bool] | None:
        """An answer of a worker; None when the consumer or the task is over. Waits until there is room for it.

        Raises:
            UnknownTask: the worker does not know the split.
        """
        while not (self._closed.is_set() or over.is_set()):
            with self._changed:
                if not self._changed.wait_for(lambda: self._closed.is_set() or self._has_room(ticket), _LOOK_S):
                    continue
            try:
                with self._requests:
                    return worker.ask(ticket, _REPLY_BYTES, _FETCH_TIMEOUT_S)
            except UnknownTask:  # it will know it soon, or the dispatcher takes it back
                if "split" in ticket:
                    raise
                over.wait(_RETRY_S)
            except Unreachable:
                if "split" in ticket:
                    raise
                over.wait(_RETRY_S)
        return None

    def _has_room(self, ticket: dict[str, Any]) -> bool:  # noqa: ARG002  whatever comes goes into one buffer
        return self._bytes < BUFFER_BYTES

    def _keep(self, task: int, pieces: Sequence[Piece | SpanwiseError]) -> bool:  # noqa: ARG002  as above
        """Adds what came of a task; False if nobody wants it any more."""
        return self._put(pieces)

    def _put(self, pieces: Sequence[Piece | SpanwiseError], ends: int | None = None) -> bool:
        """Adds what came; False if nobody wants it any more."""
        items = [Item(piece, self._size_bytes(piece)) for piece in pieces]
        if ends is not None:
            items.append(Item(None, 0, ends))
        with self._changed:
            if self._closed.is_set():
                return False
            self._items.extend(items)
            self._bytes += sum(item.size_bytes for item in items)
            self._changed.notify_all()
        return True

    def _size_bytes(self, piece: Piece | SpanwiseError) -> int:
        return 0 if isinstance(piece, SpanwiseError) else self._encoding.size_bytes(piece)

    # Leased splits.

    def _lease(self, workers: Sequence[str]) -> None:
        done, want = self._leases.wanted(_LEASES * len(workers))
        answer, _ = self._dispatcher.call("lease", {"client": self._client, "done": done, "want": want})
        self._leases.take(answer["held"], done)
        self._follow({address: address for address in workers})
        with self._changed:
            self._finished = answer["finished"] and not self._items
            self._changed.notify_all()

    def _read_splits(self, name: str, worker: elements.Feed, over: threading.Event) -> None:  # noqa: ARG002  as `_read_task`
        while not (self._closed.is_set() or over.is_set()):
            split = self._leases.begin(_RETRY_S)
            if split is not None:
                try:
                    self._read_split(split, worker, over)
                except (UnknownTask, Unreachable) as error:
                    _log.info("service-split-again", extra={"split": split, "reason": str(error)})
                    over.wait(_RETRY_S)
                finally:
                    self._leases.leave(split)

    def _read_split(self, split: int, worker: elements.Feed, over: threading.Event) -> None:
        ticket = {"split": split, "dataset": self._dataset, "seed": self._seed, "client": self._client}
        skip = self._leases.given(split)
        for number in range(1 << 62):
            answer = self._fetched(worker, {**ticket, "number": number}, over)
            if answer is None:
                return
            pieces, error, ended = answer
            some: list[Piece | SpanwiseError] = []
            for piece in pieces:
                count = self._encoding.count(piece)
                if skip < count:
                    some.append(self._encoding.cut(piece, skip, count) if skip else piece)
                    self._leases.note(split, count - skip)
                skip = max(0, skip - count)
            if error is not None:
                some.append(error)
            if ended:
                self._leases.end(split)
            if not self._put(some, split if ended else None) or ended:
                return
