"""The reader of leased splits: it yields one after another in the order of their leases, and commits what was used."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from spanwise.orchestrator.errors import ServiceError, SpanwiseError, StateMismatch
from spanwise.pipelines.input.op import Element, State
from spanwise.pipelines.input.service.client.feed import WorkerFeed
from spanwise.pipelines.input.service.client.job import JobSettings
from spanwise.pipelines.input.service.client.lease_session import LeaseSession
from spanwise.pipelines.input.service.client.leases import LEASES, LeasedSplit, Place, size_leases
from spanwise.pipelines.input.service.client.losses import ATTEMPTS
from spanwise.pipelines.input.service.client.reader import BUFFER_BYTES, POLL_S, REPLY_BYTES, RETRY_S, Item, JobReader
from spanwise.pipelines.input.service.wire.connection import (
    Disconnected,
    JobGone,
    UnknownTask,
    Unreachable,
    refusing_malformed,
)
from spanwise.pipelines.input.service.wire.requests import Fetch

_TOGETHER_S: Final = 0.02
"""How long a commit waits for others that can travel with it."""

_QUIET_S: Final = 0.5
"""After how long the dispatcher hears of a consumer that has nothing to say, and is asked for new workers."""

_COMMIT_S: Final = 60.0
"""How long a commit waits for a dispatcher that is being restarted."""

_LEAVE_S: Final = 5.0
"""How long a pass that was restored at its end waits to say so."""

_log = logging.getLogger("spanwise.service.consumer")


class LeaseReader(JobReader):
    """Leases splits, reads them from any worker, and commits them when all that was made of them is used."""

    def __init__(self, job: JobSettings, epoch: str, restored: State | None = None, place: Place | None = None) -> None:
        self._restored = restored
        name = job.job_name or job.private_name if restored is None else restored["job"]
        with refusing_malformed("state"):
            self._session = LeaseSession[Item](restored, place)
        self._course = self._session.course
        self._waits = False  # whether the consumer waits for an element
        self._workers: tuple[str, ...] = ()
        self._is_starved = False  # whether nothing can be read before the dispatcher has news
        self._is_dealt = False  # whether the dispatcher has no more splits, so that others may wait for the end
        self._leases = LEASES  # for each worker
        self._leased: tuple[float, float] | None = None  # when, and how long it had waited for elements by then
        self._look_at = time.monotonic()
        lock = threading.RLock()
        self._to_say = threading.Condition(lock)  # wakes the thread that speaks to the dispatcher
        self._exchanging = threading.Lock()
        self._poison: SpanwiseError | None = None  # for an element that no worker could produce
        self._holder, self._resumes = self._session.holder, restored is not None
        self._is_spent = self._session.is_spent
        super().__init__(job, epoch, name, lock)

    # The consumer.

    def next(self) -> Element:
        with self._changed:
            if self._poison is not None and self._error is self._poison:
                raise self._poison
            start = time.monotonic()
            while not self._course.is_ready:
                if self._closed.is_set() or self._finished:
                    raise StopIteration
                if self._error is not None:
                    raise self._error
                self._waits = True
                self._speak_if_needed()
                self._changed.wait()
            item = self._course.pop()
            self._waits = False
            self._waited_s += time.monotonic() - start
            self._speak_if_needed()
            self._changed.notify_all()
        if isinstance(item, SpanwiseError):
            if item is self._poison:  # nothing follows
                self._error = item
            raise item
        self._yielded += 1
        return item

    @property
    def place(self) -> Place:
        with self._changed:
            return self._course.place

    def describe(self) -> State:
        """What a restored pass needs to read the same elements in the same order."""
        with self._changed:
            # one that was restored at its end yields nothing, and may not have joined yet
            dataset = self._dataset if self._restored is None else self._restored["dataset"]
            return {"job": self._name, "dataset": dataset, **self._session.describe()}

    def keep_state(self) -> None:
        """The consumer stores its state, and may come back to the job."""
        self._session.keeps = True

    def commit(self, place: Place | None, *, wait: bool) -> None:
        """All before a place was used; with `wait`, the dispatcher knows when this returns."""
        with self._changed:
            self._course.commit(place or self._course.place)
            self._speak_if_needed()
        if wait:
            self._await_commit(_COMMIT_S)

    def _await_commit(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not self._closed.is_set():
            with self._changed:
                if self._error is not None:
                    raise self._error
            try:
                if self._joined and self._exchange():
                    return
                error = Unreachable(f"{self._dispatcher.address} did not answer within {patience_s:g} s.")
            except Unreachable as unreachable:
                error = unreachable
            if time.monotonic() > deadline:
                raise error
            self._closed.wait(RETRY_S)

    def end_reading(self) -> None:
        """Nothing more is yielded; what it has yielded is still to be committed."""
        with self._changed:
            self._finished = True
            self._to_say.notify()
            self._changed.notify_all()

    def close(self) -> None:
        """Commits what is used, and leaves the job; the rest goes to others."""
        if (self._joined or self._is_spent) and not self._closed.is_set() and self._error is None:
            try:
                self._await_commit(_LEAVE_S)
            except ServiceError as error:
                _log.info("commit-failed", extra={"job": self._name, "reason": str(error)})
        super().close()
        with self._changed:
            self._to_say.notify()

    # The dispatcher.

    def _check_dataset(self) -> None:
        if self._restored is not None and self._restored["dataset"] != self._dataset:
            raise StateMismatch(
                f"the state belongs to a pass over dataset {self._restored['dataset']} of the service, but this is "
                f"{self._dataset}: ops, options or functions have changed. Start the pass again, without the state."
            )

    def _join(self) -> None:
        try:
            super()._join()
        except JobGone:
            if not self._is_spent:
                raise
            self._closed.set()  # its last commit was recorded, or nobody is left to whom it matters

    def _is_done(self) -> bool:
        return False  # what it has yielded is not committed yet

    def _poll(self) -> None:
        if self._is_starved or time.monotonic() >= self._look_at:
            self._workers = self._ask(POLL_S if self._is_starved else 0.0).workers
            self._look_at = time.monotonic() + _QUIET_S
        self._size_leases()
        self._exchange(want=0 if self._finished else self._most)
        self._follow({} if self._finished else {address: address for address in self._workers})
        with self._changed:
            self._is_starved = self._is_at_end or not (self._workers or self._finished)
            if not self._is_starved:
                self._to_say.wait_for(self._has_to_say, max(0.0, self._look_at - time.monotonic()))
            is_urgent = self._is_at_end or not self._is_dealt
        if not is_urgent:
            self._closed.wait(_TOGETHER_S)

    @property
    def _most(self) -> int:
        """How many splits it wants to hold that it has not yielded."""
        return self._leases * len(self._workers)

    def _size_leases(self) -> None:
        """Sees how many splits it needs, if it is about to lease some."""
        with self._changed:
            if self._is_dealt or not self._workers or self._course.ahead > self._most // 2:
                return
            now, before = (time.monotonic(), self._waited_s), self._leased
        if before is not None:
            self._leases = size_leases(self._leases, now[0] - before[0], now[1] - before[1])
        self._leased = now

    @property
    def _is_at_end(self) -> bool:
        """Whether the consumer waits, and has yielded all that it holds."""
        return self._waits and not self._finished and self._course.is_spent

    def _has_to_say(self) -> bool:
        """Whether the dispatcher is to learn something at once, or to lease more."""
        if self._closed.is_set() or (self._finished and self._sources):
            return True
        if self._finished or self._is_dealt:
            return self._is_at_end or bool(self._course.unacknowledged())
        return self._course.ahead <= self._most // 2

    def _speak_if_needed(self) -> None:
        if self._has_to_say():
            self._to_say.notify()

    def _exchange(self, want: int = 0) -> bool:
        """Reports what is committed, and learns what it holds; False if it has reported what it was restored with."""
        with self._exchanging:
            with self._changed:
                request = self._session.request(self._client, want, waits=self._waits, key=self._key)
            answer, _ = self._dispatcher.ask(request)
            with self._changed:
                self._finished = self._session.receive(request, answer) or self._finished
                self._is_dealt = not answer.more
                self._changed.notify_all()
        return request.resumed is None

    # Workers.

    def _has_room(self, task: int | None) -> bool:  # noqa: ARG002  a split asks by itself
        return True

    def _may_read(self, split: LeasedSplit[Item]) -> bool:
        """The split that is being yielded has room whatever those behind it hold."""
        if split is self._course.current:
            return split.size_bytes < BUFFER_BYTES
        return self._course.held_bytes() < BUFFER_BYTES

    def _keep(self, task: int, items: Sequence[Item]) -> bool:
        raise NotImplementedError  # it reads splits, not tasks

    def _count_failure(self, split: LeasedSplit[Item], worker: str, error: ServiceError) -> None:
        """A worker has ended while it produced the next element; the last attempt gives the consumer an error."""
        with self._changed:
            split.failures += 1
            if split.failures < ATTEMPTS:
                return
            place = self._place_of(0, split.number)
            poison = ServiceError(
                f"{split.failures} workers, the last at {worker}, ended while they produced element {split.fetched} "
                f"(the first is 0), or one soon behind it, of {place}. All before it was yielded. The last word of the "
                f"last one: {error}. A function may have killed its process, or memory has run out: look at the log of "
                f"that worker, and run the dataset on these elements by itself."
            )
            self._course.add(split, [(poison, 0, 0)])
            split.is_complete = True
            self._poison = poison
            self._changed.notify_all()

    def _read(self, source: str, feed: WorkerFeed, over: threading.Event) -> None:
        while not (self._closed.is_set() or over.is_set()):
            with self._changed:
                split = self._course.begin_read()
                if split is None:
                    self._changed.wait(RETRY_S)
                    continue
            try:
                self._read_split(split, feed, over)
            except (UnknownTask, Unreachable) as error:
                _log.info("split-retried", extra={"split": split.number, "reason": str(error)})
                if isinstance(error, Disconnected):
                    self._count_failure(split, source, error)
                over.wait(RETRY_S)
            finally:
                with self._changed:
                    split.is_read = False
                    self._changed.notify_all()

    def _read_split(self, split: LeasedSplit[Item], feed: WorkerFeed, over: threading.Event) -> None:
        ticket = Fetch(
            split=split.number,
            dataset=self._dataset,
            seed=self._seed,
            epoch=self._epoch,
            client=self._client,
            limit_bytes=REPLY_BYTES,
        )
        skip = split.fetched  # an earlier worker has sent them, or an earlier consumer has committed them
        may_read = partial(self._may_read, split)
        while True:
            delivery = self._fetch(feed, ticket, over, may_read)
            if delivery is None:
                return
            items: list[tuple[Item, int, int]] = []
            for piece in delivery.items:
                count = self._count(piece)
                if skip < count:
                    rest = self._encoding.cut(piece, skip, count) if skip else piece
                    items.append((rest, self._size_bytes(rest), count - skip))
                skip = max(0, skip - count)
            with self._changed:
                if self._closed.is_set():
                    return
                self._course.add(split, items)
                split.is_complete = delivery.ended
                self._changed.notify_all()
            if delivery.ended:
                return
            ticket = ticket.model_copy(update={"number": ticket.number + 1})
