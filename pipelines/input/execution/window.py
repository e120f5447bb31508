"""The window: how elements are taken ahead of their consumer, and what it takes to give the same rest again.

One thread takes elements from the input, callers may work on them, and the consumer finds the results in a window of
slots. The threads know the window and never the stream, so that a stream that nobody holds any more is closed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Final

from spanwise.pipelines.input.execution.callers import CallerTeam, thread_mark
from spanwise.pipelines.input.execution.slot import AheadSlot, Origin
from spanwise.pipelines.input.op import Element, Knob, PassLimits, State, Stream
from spanwise.pipelines.input.rows import weigh
from spanwise.pipelines.input.tuning.reading import CallTimes

logger = logging.getLogger("spanwise.input.execution")

CHECKPOINT_ELEMENTS: Final = 32
"""Consecutive elements that share one state of the input; those between two states are taken again on restore."""

CLOSING_S: Final = 5.0
"""How long closing waits for a function that is still running."""


class Permits:
    """How many of several threads may take an element from their inputs at once: as many as a knob says."""

    def __init__(self, knob: Knob) -> None:
        self._knob = knob
        self._taken = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            while self._taken >= self._knob.value:
                self._changed.wait()
            self._taken += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify()


class SlotWindow:
    """What the consumer and the threads of an `AheadStream` share: the slots of elements on their way or ready.

    The last slot is the one whose element is being taken from the input; those before it are on their way or ready.
    Python's own queues and deques need no further lock; a slot's lock is held until its element is there.
    """

    name = ""
    team: CallerTeam | None = None
    permits: Permits | None = None
    on_ready: Callable[[], None] | None = None

    def __init__(
        self,
        source: Stream,
        *,
        rows: bool,
        size: Callable[[], int],
        limit_bytes: float,
        ordered: bool,
        budget: PassLimits | None = None,
    ) -> None:
        self._budget = budget
        self._leave: Callable[[], None] = (lambda: None) if budget is None else budget.join(self)
        self.stopped = False
        self.element_bytes = 0.0
        self._source = source
        self._rows = rows
        self._size = size
        self._limit_bytes = limit_bytes
        self._ready: SimpleQueue[AheadSlot] | None = None if ordered else SimpleQueue()
        self._slots: deque[AheadSlot] = deque()
        self._room = threading.Lock()  # released when the consumer has made room
        self._room.acquire()
        self._origin: Origin | None = None
        self._at = 0  # rows or elements of the input that were taken
        self._given: tuple[tuple[int, int], ...] = ()  # of them, those that the stream gave before it was restored
        self._done: tuple[tuple[int, int], ...] = ()  # the same, until the last of them has been passed
        self._pieces: deque[tuple[Element, int, int]] = deque()  # of a block part of which was given
        self._runner: threading.Thread | None = None
        self.pulled = CallTimes()
        self._weighed = 0
        self._taken_bytes = 0.0  # of an element as it comes from the input
        self._last: AheadSlot | None = None  # the end, if it came before others that are still worked on
        self._ended = False

    # The consumer's side

    def take(self) -> AheadSlot:
        while not (self._ended or self.stopped):
            if self._runner is None and not self._size():
                slot = self._make_here()
            else:
                self.start()
                slot = self._first_in_order() if self._ready is None else self._first_ready(self._ready)
            if not slot.paused:
                self._ended = slot.end
                if not slot.end:
                    return slot
                self.close()
                if slot.error is not None:
                    return slot
            else:
                self._pause()
        raise StopIteration

    def _make_here(self) -> AheadSlot:
        slot = AheadSlot(None, self._at)
        self._fill(slot)
        if self.team is not None and not slot.end and slot.error is None:
            self.team.call(slot)
        if not slot.end and slot.error is None:
            self._weigh(slot.element)
        return slot

    def _first_in_order(self) -> AheadSlot:
        slot = self._slots[0]
        slot.ready.acquire()
        self._slots.popleft()
        self._make_room()
        return slot

    def _first_ready(self, ready: SimpleQueue[AheadSlot]) -> AheadSlot:
        while self._last is None or len(self._slots) > 1:
            slot = ready.get()
            if slot.end or slot.paused:  # others may still be worked on
                self._last = slot
                continue
            slot.given = True
            while self._slots[0].given:
                self._slots.popleft()
            self._make_room()
            return slot
        return self._last

    @property
    def held_bytes(self) -> float:
        """About how much the elements on their way hold."""
        return max(0, len(self._slots) - 1) * self.element_bytes

    def _make_room(self) -> None:
        if self._room.locked():
            with contextlib.suppress(RuntimeError):  # close() was faster
                self._room.release()

    def state(self) -> State:
        slots = list(self._slots)
        if self._ended:
            return {"at": self._at, "done": [], "input": None}
        if not slots and not self._replays:
            return {"at": self._at, "done": [], "input": self._source.state()}
        head = next((slot for slot in slots if not slot.given), None)
        origin = self._origin if head is None else head.origin
        next_ = self._next if head is None else head.at
        assert origin is not None
        done = [(origin.at, next_)]
        done += [(slot.at, slot.stop) for slot in slots if slot.given and slot.at >= next_]
        done += [(max(first, next_), stop) for first, stop in self._given if stop > next_]
        return {
            "at": origin.at,
            "done": [[first - origin.at, stop - origin.at] for first, stop in sorted(done) if stop > first],
            "input": origin.state,
        }

    def restore(self, state: State) -> None:
        self._at = state["at"]
        if state["input"] is None:
            self._ended = True
            return
        self._source.restore(state["input"])
        self._origin = Origin(state["input"], self._at)
        self._given = self._done = tuple((self._at + first, self._at + stop) for first, stop in state["done"])

    @property
    def _replays(self) -> bool:
        """Whether elements that the stream gave before it was restored still lie ahead."""
        return bool(self._done or self._pieces)

    @property
    def _next(self) -> int:
        """Which row or element comes next; only while no thread takes any."""
        return self._pieces[0][1] if self._pieces else self._at

    def start(self) -> None:
        if self._runner is not None:
            return
        if self._origin is None or not self._replays:
            self._origin = Origin(self._source.state(), self._at)
        self._slots.append(AheadSlot(self._origin, self._next))
        self._runner = threading.Thread(target=self._run, name=f"{self.name}: input", daemon=True)
        self._runner.start()

    def _pause(self) -> None:
        """Goes back to the state before the start: the thread has ended, and the consumer does the work."""
        assert self._runner is not None
        self._runner.join()
        self._runner, self._last = None, None
        self._slots.clear()

    def close(self) -> None:
        """Stops the threads and closes the input; waits for them, but not in a thread of ours."""
        self.stopped = True
        self._leave()
        self._make_room()
        if self._runner is None:
            self._source.close()
            return
        if self.team is not None:
            self.team.stop()
        for slot in list(self._slots):  # they stay, for `state()`; of those that are still worked on, see `finish`
            slot.element = None
        threads = [self._runner, *(self.team.threads() if self.team is not None else [])]
        if getattr(thread_mark, "is_ours", False):
            return
        deadline = time.monotonic() + CLOSING_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            logger.warning("stream-close-timed-out", extra={"op": self.name, "reason": "a function is still running"})

    # The threads' side

    def _run(self) -> None:
        thread_mark.is_ours = True
        try:
            while self._wait_for_room():
                slot = self._slots[-1]
                if not self._size():
                    slot.paused = True
                    self.finish(slot)
                    break
                self._fill(slot)
                if not slot.end:
                    self._append(slot)
                ended = slot.end  # the slot may be the consumer's, once it is finished
                if ended or slot.error is not None or self.team is None:
                    self.finish(slot)
                else:
                    self.team.submit(slot)
                del slot  # which may be the last to hold the element
                if ended:
                    break
        finally:
            if self.stopped or not self._slots or not self._slots[-1].paused:
                self._source.close()
            if self.team is not None:
                self.team.end()

    def _wait_for_room(self) -> bool:
        while not self.stopped:
            waiting = len(self._slots) - 1  # those given out of turn count too, which keeps the state small
            if waiting <= 0 or (waiting < self._size() and self._may_hold(waiting + 1)):
                return True
            self._room.acquire()
        return False

    def _may_hold(self, count: int) -> bool:
        wanted_bytes = count * self.element_bytes
        if wanted_bytes > self._limit_bytes:
            return False
        if self._budget is None:
            return True
        if not self._weighed and count > self._budget.untried:
            return False
        return self._budget.has_room(self, wanted_bytes)

    def _fill(self, slot: AheadSlot) -> None:
        """Takes the slot's element from the input, or what comes instead of it."""
        try:
            if self.permits is None:
                started = time.perf_counter()
                slot.element, slot.at, slot.stop = self._pull()
                self.pulled.add(time.perf_counter() - started)
                if self.team is not None and self.pulled.calls % 64 == 1:  # it is held until the call has ended
                    self._taken_bytes = weigh(slot.element)
                    self.element_bytes = max(self.element_bytes, self._taken_bytes)
            else:
                with self.permits:
                    started, cpu = time.perf_counter(), time.thread_time()
                    slot.element, slot.at, slot.stop = self._pull()
                    slot.took_s, slot.cpu_s = time.perf_counter() - started, time.thread_time() - cpu
        except StopIteration:
            slot.end = True
        except BaseException as error:  # noqa: BLE001  it is the consumer's
            slot.error = error
            slot.at, slot.stop = self._at - (not self._rows), self._at

    def _append(self, slot: AheadSlot) -> None:
        """Adds the slot of the next element as soon as this one's has been taken, for the consumer to wait for."""
        try:
            assert self._origin is not None
            step = 1 if self._rows else CHECKPOINT_ELEMENTS
            if not self._pieces and (self._at - self._origin.at >= step or slot.error is not None):
                self._origin = Origin(self._source.state(), self._at)
            self._slots.append(AheadSlot(self._origin, self._at))
        except Exception as error:  # noqa: BLE001  or the consumer would wait for ever
            slot.error, slot.end = error, True

    def _pull(self) -> tuple[Element, int, int]:
        while True:
            if self._pieces:
                return self._pieces.popleft()
            first = self._at
            try:
                element = next(self._source)
            except StopIteration:
                raise
            except Exception:
                self._at += not self._rows  # it has used up an element
                if any(start <= first < stop for start, stop in self._done):
                    continue
                raise
            self._at += element.num_rows if self._rows else 1
            if not self._done:
                return element, first, self._at
            self._pieces.extend(_pieces(element, first, self._at, self._done, rows=self._rows))
            if self._at >= max(stop for _, stop in self._done):
                self._done = ()

    def finish(self, slot: AheadSlot) -> None:
        """Hands it to the consumer; nobody takes the element once the stream is closed."""
        if self.stopped:
            slot.element = None
        elif not slot.end and slot.error is None:
            self._weigh(slot.element)
        if self._ready is None:
            slot.ready.release()
        else:
            self._ready.put(slot)
        if self.on_ready is not None:
            self.on_ready()

    def _weigh(self, element: Element) -> None:
        self._weighed += 1
        if self._weighed % 64 == 1:  # weighing takes longer than passing on
            self.element_bytes = max(weigh(element), self._taken_bytes)
        if self._weighed == 1:
            self._make_room()  # now it is known how many may be held


def _pieces(
    element: Element, first: int, last: int, done: Sequence[tuple[int, int]], *, rows: bool
) -> Iterator[tuple[Element, int, int]]:
    """What is left of an element, or of a block of rows, of which some intervals have been given."""
    at = first
    for start, stop in [*sorted(done), (last, last)]:
        if start > at and at < last:
            end = min(start, last)
            yield (element.slice(at - first, end - at) if rows else element), at, end
        at = max(at, stop)
