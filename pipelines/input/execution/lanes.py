"""Lanes: an interleave that reads its datasets side by side, each ahead of its turn by a thread of its own."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from spanwise.pipelines.input.execution.ahead import AheadStream
from spanwise.pipelines.input.execution.turns import DatasetSlot, InterleaveStream, Turns
from spanwise.pipelines.input.execution.window import Permits
from spanwise.pipelines.input.op import Element, InputSeries, Knob, State, Stream
from spanwise.pipelines.input.tuning.reading import CallTimes

SlotOrNone = TypeVar("SlotOrNone", DatasetSlot, "DatasetSlot | None")


class LanesStream(InterleaveStream):
    """Gives what an interleave gives, in the same order; or, unordered, from whichever dataset is ready.

    A dataset is opened as soon as there is a place for it, by its thread. So one that cannot be opened has taken the
    place of another: its error comes in its turn, as if it were a dataset of nothing but an error. An error of the
    input comes in the turn of the dataset that it stands for, and no other is opened before.
    """

    watch: Callable[[int, int], None] | None = None  # its threads take elements, they call nothing

    def __init__(self, turns: Turns, num_parallel: Knob, *, ordered: bool) -> None:
        super().__init__(turns)
        self.work = CallTimes()
        self._num_parallel = num_parallel
        self._permits = Permits(num_parallel)
        self._ready: SimpleQueue[int] | None = None if ordered else SimpleQueue()  # numbers of slots
        self._begun = False
        self._failure: Exception | None = None  # of the input, until its turn
        self._before: State = {}  # the input's, before it

    @property
    def parallelism(self) -> int:
        return self._num_parallel.value

    @property
    def buffer(self) -> int:
        return sum(lane.buffer for lane in self._lanes())

    @property
    def pulled(self) -> CallTimes:
        return self.work

    @property
    def element_bytes(self) -> float:
        return max((lane.element_bytes for lane in self._lanes()), default=0.0)

    def __next__(self) -> Element:
        if not self._begun:
            self._begun = True
            self._open_ahead(self._turn)
        return super().__next__() if self._ready is None else self._first_ready(self._ready)

    def _first_ready(self, ready: SimpleQueue[int]) -> Element:
        while self._fill_slots():
            number = ready.get()
            place = next((at for at, slot in enumerate(self._slots) if slot and slot.number == number), None)
            slot = None if place is None else self._slots[place]
            if place is None or slot is None:  # it has ended
                continue
            try:
                return slot.take(sys.maxsize)[0]
            except StopIteration:
                slot.stream.close()
                self._slots[place] = None
        raise StopIteration

    def _fill_slots(self) -> bool:
        """Opens datasets wherever there is a place; whether any is open. An error of the input is raised."""
        while not self._ended and None in self._slots:
            self._turn = self._slots.index(None)
            self._open_next()
        return any(self._slots)

    def _next_turn(self) -> None:
        super()._next_turn()
        self._open_ahead(self._turn)  # now, not at their turns: until then their first elements can be read

    def _open_ahead(self, turn: int) -> None:
        """Opens datasets wherever there is a place, in the order of turns, until the input ends or fails."""
        while not self._ended and self._failure is None and None in self._slots:
            self._turn = next(
                at % self._turns.cycle for at in itertools.count(turn) if self._slots[at % self._turns.cycle] is None
            )
            before = self._source.state()
            try:
                self._open_next()
            except Exception as error:  # noqa: BLE001  raised when its turn comes
                self._failure, self._before = error, before
        self._turn = turn

    def _open_next(self) -> DatasetSlot | None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return _start_slot(super()._open_next())

    def state(self) -> State:
        state = super().state()
        return state if self._failure is None else {**state, "input": self._before, "read": self._read - 1}

    def _reopen(self, element: Element, kept: State) -> DatasetSlot:
        return _start_slot(super()._reopen(element, kept))

    def _open_stream(self, element: Element, number: int, at: int) -> Stream:
        turns, ready = self._turns, self._ready
        return AheadStream(
            DeferredStream(lambda: turns.open_dataset(element, number, at), turns.series, number),
            name=turns.name,
            rows=turns.rows,
            window=lambda: 2 if turns.rows else 2 * turns.block,
            permits=self._permits,
            work=self.work,
            budget=turns.budget,
            on_ready=None if ready is None else lambda: ready.put(number),
        )

    def _lanes(self) -> list[AheadStream]:
        return [slot.stream for slot in tuple(self._slots) if slot is not None and isinstance(slot.stream, AheadStream)]


def _start_slot(slot: SlotOrNone) -> SlotOrNone:
    if slot is not None and isinstance(slot.stream, AheadStream):
        slot.stream.start()
    return slot


class DeferredStream(Stream):
    """A stream that is opened by whoever takes its first element; without any, if that fails."""

    def __init__(self, opening: Callable[[], Stream], series: InputSeries, number: int) -> None:
        self._opening: Callable[[], Stream] | None = opening
        self._unopened = series.unopened(number, 0)
        self._stream: Stream | None = None

    def __next__(self) -> Element:
        if self._stream is None:
            if self._opening is None:
                raise StopIteration
            opening, self._opening = self._opening, None
            self._stream = opening()
        return next(self._stream)

    def state(self) -> State:
        if self._stream is not None:
            return {"inside": self._stream.state(), "failed": False}
        return {"inside": None, "failed": self._has_failed, **self._unopened}

    def restore(self, state: State) -> None:
        if state["inside"] is not None:
            assert self._opening is not None
            self._stream = self._opening()
            self._stream.restore(state["inside"])
        elif state["failed"]:
            self._opening = None

    @property
    def _has_failed(self) -> bool:
        return self._stream is None and self._opening is None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
