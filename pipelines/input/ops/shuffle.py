"""Elements in another order: windows of `buffer` elements, each put into an order that follows from the seed.

While a window is given the next one is read, as many elements of it as are given: of elements no more than `buffer`
and one are held at any time, of rows up to twice as many. A state holds no elements: the window's place in the input
and how much of it was given. To restore reads the window again. Within a window the order is perfect; no element leaves
its window, so shuffle files or row groups first where the input is sorted.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from spanwise.pipelines.input.op import (
    Element,
    Op,
    Opening,
    Restorable,
    SingleInputStream,
    State,
    Stream,
    check_whole,
    mix_seed,
)
from spanwise.pipelines.input.rows import RowCursor, in_rows, join_batches
from spanwise.pipelines.input.selection import check_selectable, take_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Shuffle(Op):
    input: Op
    buffer: int | None = None  #: elements held; None for all there are
    seed: int | None = None  #: None for another order in each iteration, unless the options name one
    reshuffle_each_iteration: bool = True

    def __post_init__(self) -> None:
        check_selectable("shuffle", self.input.spec)
        if self.buffer is not None:
            check_whole("shuffle", "buffer", self.buffer)
        if self.seed is not None:
            check_whole("shuffle", "seed", self.seed, at_least=0)

    @property
    def needs_all(self) -> str:
        return ""

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        epoch = opening.epoch if self.reshuffle_each_iteration else ()
        if in_rows(self.input):
            return RowShuffleStream(source, self, epoch, opening)
        return ShuffleStream(source, self, epoch)


class ShuffleStream(SingleInputStream):
    """Gives one window while it reads the next: an element for each that it gives, so that it never stalls."""

    def __init__(self, source: Stream, op: Shuffle, epoch: tuple[int, ...], place: Restorable | None = None) -> None:
        super().__init__(source, place)
        self._size = op.buffer or sys.maxsize
        self._seed = mix_seed(op.seed or 0, *epoch)
        self._number = 0  # of windows so far
        self._before: State | None = None  # the source's, before the window
        self._window: Any = []
        self._order: Any = []
        self._at = 0  # how much of the window was given
        self._next: list[Any] = []  # what was read of the next window
        self._read = 0  # how many elements that is
        self._before_next: State | None = None  # the source's, before the next window
        self._ended = False  # whether the source is
        self._failure: Exception | None = None  # ends the next window; raised after it

    def __next__(self) -> Element:
        if self._at == len(self._order):
            self._turn()
        place = self._order[self._at]
        self._at += 1
        element, self._window[place] = self._window[place], None
        self._read_ahead(self._at)
        return element

    def _turn(self) -> None:
        """Completes the next window, and begins to give it.

        Raises:
            StopIteration: there is none.
        """
        self._window, self._order, self._at = [], [], 0
        self._read_ahead(self._size)
        if not self._read:
            failure, self._failure = self._failure, None
            if failure is not None:
                self._before_next = None
                raise failure
            raise StopIteration
        self._window, self._before = self._gather(self._next), self._before_next
        self._order = self._permutation(self._read)
        self._next, self._read, self._before_next = [], 0, None
        self._number += 1

    def _permutation(self, count: int) -> Any:
        import numpy as np

        generator = np.random.Generator(np.random.PCG64(mix_seed(self._seed, self._number)))
        # small numbers, since Arrow takes rows by 16 bits in half the time that it takes them by 64
        return generator.permutation(count).astype(np.min_scalar_type(count))

    def _read_ahead(self, count: int) -> None:
        """Reads until there are `count` elements of the next window, or all that it will have."""
        if self._ended or self._failure is not None:
            return
        count = min(count, self._size)
        if self._before_next is None and count:
            self._before_next = self._place.state()
        while self._read < count:
            try:
                self._read += self._take(count - self._read)
            except StopIteration:
                self._ended = True
                return
            except Exception as error:  # noqa: BLE001  raised when its turn comes
                self._failure = error
                return

    def _take(self, most: int) -> int:
        """Adds to the next window, and returns how many elements."""
        self._next.append(next(self._source))
        return 1

    def _gather(self, pieces: list[Any]) -> Any:
        return pieces

    def state(self) -> State:
        # an error is due after the window that it has cut short: only from the window's start it will come again
        due = self._failure is not None and not self._read and len(self._order) > 0
        if self._at < len(self._order) or due:
            return {"input": self._before, "number": self._number - 1, "given": self._at}
        before = self._before_next if self._read or self._failure is not None else None
        return {"input": before or self._place.state(), "number": self._number, "given": 0}

    def restore(self, state: State) -> None:
        self._place.restore(state["input"])
        self._number = state["number"]
        if state["given"]:
            self._turn()
            self._at = state["given"]


class RowShuffleStream(ShuffleStream):
    """Takes the rows of a window by the permutation, a block at a time."""

    def __init__(self, source: Stream, op: Shuffle, epoch: tuple[int, ...], opening: Opening) -> None:
        self._rows = RowCursor(source)
        super().__init__(source, op, epoch, self._rows)
        self._block = opening.block

    def __next__(self) -> Element:
        if self._at == len(self._order):
            self._turn()
        taken = take_rows(self._window, self._order[self._at : self._at + self._block.value])
        self._at += taken.num_rows
        self._read_ahead(self._at)
        return taken

    def _take(self, most: int) -> int:
        piece = self._rows.take(most)
        self._next.append(piece)
        return int(piece.num_rows)

    def _gather(self, pieces: list[Any]) -> Any:
        return join_batches(pieces)
