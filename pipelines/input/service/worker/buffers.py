"""Buffers: what a task has ready, and which consumer gets which of it. Pure; the holder serialises access."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from spanwise.orchestrator.errors import ServiceError, SpanwiseError
from spanwise.pipelines.input.service.wire.connection import error_bytes
from spanwise.pipelines.input.service.wire.requests import MAX_ROUNDS_AHEAD, Fetch
from spanwise.pipelines.input.service.worker.runs import BatchRun, count_elements, cut_every, size_bytes
from spanwise.pipelines.input.snapshot.encoding import Encoding, Piece

Ready: TypeAlias = Piece | BatchRun | SpanwiseError
"""A piece, or an error in the place of an element."""


class TaskBuffer(ABC):
    """Elements between the pass that produces them and the consumers that ask for them."""

    is_shared: ClassVar[bool] = False  #: whether its elements go to whoever asks first

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether the pass may continue."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether everything in it was taken."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Roughly how much memory it takes."""

    @abstractmethod
    def put(self, piece: Piece | BatchRun, encoding: Encoding) -> None:
        """Adds what the pass has produced."""

    @abstractmethod
    def fail(self, error: SpanwiseError) -> None:
        """Adds an error in the place of an element."""

    @abstractmethod
    def end(self, error: SpanwiseError | None) -> None:
        """The pass has ended, or has raised an error that ends it: each consumer gets it behind the last element."""

    @abstractmethod
    def has(self, request: Fetch) -> bool:
        """Whether there is something for the consumer that asks."""

    @abstractmethod
    def take(self, request: Fetch) -> tuple[list[Piece | BatchRun], SpanwiseError | None]:
        """Pieces, about `limit_bytes` of them; or an error, if that is next."""


@dataclass
class Failure:
    """The error that has ended a pass, once for each consumer: what is missing is missing from what all of them get."""

    error: SpanwiseError | None = None
    _given: set[int] = field(default_factory=set)  # clients

    @property
    def is_given(self) -> bool:
        """Whether there is none, or some consumer has it."""
        return self.error is None or bool(self._given)

    def is_for(self, client: int) -> bool:
        return self.error is not None and client not in self._given

    def give(self, client: int) -> SpanwiseError | None:
        if not self.is_for(client):
            return None
        self._given.add(client)
        return self.error


class SharedQueue(TaskBuffer):
    """For consumers that share elements: first come, first served."""

    is_shared = True

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._items: deque[tuple[Ready, int]] = deque()
        self._failure = Failure()
        self.size_bytes = 0  #: of its content

    @property
    def has_room(self) -> bool:
        return self.size_bytes < self._buffer_bytes

    @property
    def is_empty(self) -> bool:
        return not self._items and self._failure.is_given

    @property
    def held_bytes(self) -> int:
        return self.size_bytes

    def put(self, piece: Piece | BatchRun, encoding: Encoding) -> None:
        self.add(piece, size_bytes(encoding, piece))

    def add(self, item: Ready, size_bytes: int) -> None:
        self._items.append((item, size_bytes))
        self.size_bytes += size_bytes

    def fail(self, error: SpanwiseError) -> None:
        self.add(error, error_bytes(error))

    def end(self, error: SpanwiseError | None) -> None:
        self._failure.error = error

    def has(self, request: Fetch) -> bool:
        """Any consumer may take the next one."""
        return bool(self._items) or self._failure.is_for(request.client)

    def take(self, request: Fetch) -> tuple[list[Piece | BatchRun], SpanwiseError | None]:
        if not self._items:
            return [], self._failure.give(request.client)
        pieces, error = _take_first(self._items, request.limit_bytes)
        for _ in range(len(pieces) or (error is not None)):
            self.size_bytes -= self._items.popleft()[1]
        return pieces, error


class _Lane(SharedQueue):
    """What one consumer of a coordinated read has not taken yet."""

    def __init__(self, buffer_bytes: int) -> None:
        super().__init__(buffer_bytes)
        self._counts: deque[int] = deque()  # of the elements of each item
        self.rounds = 0  #: how many elements it holds

    def add_rounds(self, item: Ready, size_bytes: int, count: int) -> None:
        self.add(item, size_bytes)
        self._counts.append(count)
        self.rounds += count

    def take(self, request: Fetch) -> tuple[list[Piece | BatchRun], SpanwiseError | None]:
        pieces, error = super().take(request)
        for _ in range(len(pieces) or (error is not None)):
            self.rounds -= self._counts.popleft()
        return pieces, error


class RoundLanes(TaskBuffer):
    """For the consumers of a coordinated read: consumer `i` of `n` gets element `r * n + i` in round `r`.

    What comes in a block is dealt in blocks: one for each consumer, with its element of each round.
    """

    def __init__(self, consumers: int, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._lanes = [_Lane(buffer_bytes) for _ in range(consumers)]
        self._next = 0  # the consumer of the next element

    @property
    def has_room(self) -> bool:
        if self._next != 0:  # completes a round: consumers that have their part wait for the others
            return True
        taken_bytes = sum(lane.size_bytes for lane in self._lanes)
        return taken_bytes < self._buffer_bytes and max(lane.rounds for lane in self._lanes) < MAX_ROUNDS_AHEAD

    @property
    def is_empty(self) -> bool:
        return all(lane.is_empty for lane in self._lanes)

    @property
    def held_bytes(self) -> int:
        return sum(lane.size_bytes for lane in self._lanes)

    def put(self, piece: Piece | BatchRun, encoding: Encoding) -> None:
        count, consumers = count_elements(encoding, [piece]), len(self._lanes)
        for start in range(min(count, consumers)):
            lane = self._lanes[(self._next + start) % consumers]
            for part in cut_every(encoding, piece, start, consumers):
                lane.add_rounds(part, size_bytes(encoding, part), count_elements(encoding, [part]))
        self._next = (self._next + count) % consumers

    def fail(self, error: SpanwiseError) -> None:
        self._lanes[self._next].add_rounds(error, error_bytes(error), 1)
        self._next = (self._next + 1) % len(self._lanes)

    def end(self, error: SpanwiseError | None) -> None:
        """Ends the rounds for each consumer."""
        error = error or ServiceError("distribute: the dataset ended, which coordinated reads do not allow.")
        for lane in self._lanes:
            lane.add_rounds(error, 0, 1)

    def has(self, request: Fetch) -> bool:
        return self._lane(request).has(request)

    def take(self, request: Fetch) -> tuple[list[Piece | BatchRun], SpanwiseError | None]:
        return self._lane(request).take(request)

    def _lane(self, request: Fetch) -> _Lane:
        if request.index is None or request.index >= len(self._lanes):
            raise ServiceError(f"refused a ticket: there is no consumer {request.index} among {len(self._lanes)}.")
        return self._lanes[request.index]


class TrainerWindow(TaskBuffer):
    """For trainers that share a computation, each at its own place: new elements replace the oldest, read or not."""

    def __init__(self, cache_bytes: int, buffer_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._ahead_limit_bytes = max(1, min(buffer_bytes, cache_bytes // 2))
        self._items: dict[int, tuple[Ready, int]] = {}  # by consecutive numbers
        self._first = self._end = 0  # the numbers of the oldest and of the next one
        self._front = 0  # the first that no trainer has read
        self._bytes = self._ahead_bytes = 0  # of all, and of those that no trainer has read
        self._places: dict[str, int] = {}
        self._failure = Failure()

    @property
    def has_room(self) -> bool:
        return self._ahead_bytes < self._ahead_limit_bytes

    @property
    def is_empty(self) -> bool:
        return self._front == self._end and self._failure.is_given

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def put(self, piece: Piece | BatchRun, encoding: Encoding) -> None:
        self._add(piece, size_bytes(encoding, piece))

    def _add(self, item: Ready, size_bytes: int) -> None:
        self._items[self._end] = item, size_bytes
        self._end += 1
        self._bytes += size_bytes
        self._ahead_bytes += size_bytes
        while self._bytes > self._cache_bytes and self._first < self._front:
            self._bytes -= self._items.pop(self._first)[1]
            self._first += 1

    def fail(self, error: SpanwiseError) -> None:
        self._add(error, error_bytes(error))

    def end(self, error: SpanwiseError | None) -> None:
        self._failure.error = error

    def has(self, request: Fetch) -> bool:
        return self._place(request) < self._end or self._failure.is_for(request.client)

    def take(self, request: Fetch) -> tuple[list[Piece | BatchRun], SpanwiseError | None]:
        place = self._place(request)
        if place == self._end:
            return [], self._failure.give(request.client)
        pieces, error = _take_first((self._items[number] for number in range(place, self._end)), request.limit_bytes)
        after = self._places[request.trainer] = place + (len(pieces) or (error is not None))
        for number in range(self._front, after):
            self._ahead_bytes -= self._items[number][1]
        self._front = max(self._front, after)
        return pieces, error

    def _place(self, request: Fetch) -> int:
        """Where a trainer continues; it skips what has left the window meanwhile."""
        return max(self._first, self._places.get(request.trainer, 0))


def _take_first(
    items: Iterable[tuple[Ready, int]], limit_bytes: int
) -> tuple[list[Piece | BatchRun], SpanwiseError | None]:
    """Pieces from the beginning up to an error; or the error, if it is first."""
    pieces: list[Piece | BatchRun] = []
    taken = 0
    for item, size in items:
        if isinstance(item, SpanwiseError):
            return pieces, None if pieces else item
        pieces.append(item)
        taken += size
        if taken >= limit_bytes:
            break
    return pieces, None
