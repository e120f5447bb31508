"""Elements in another order: windows of `buffer` elements, each put into an order that follows from the seed.

A state holds no elements: the window's place in the input and how much of it was given. To restore reads the window
again. Within a window the order is perfect; no element leaves its window, so shuffle files or row groups first where
the input is sorted.
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
    def __init__(self, source: Stream, op: Shuffle, epoch: tuple[int, ...], place: Restorable | None = None) -> None:
        super().__init__(source, place)
        self._size = op.buffer or sys.maxsize
        self._seed = mix_seed(op.seed or 0, *epoch)
        self._number = 0  # of windows so far
        self._before: State | None = None  # the source's, before the window
        self._window: Any = []
        self._order: Any = []
        self._at = 0  # how much of the window was given
        self._failure: Exception | None = None  # raised while the window was filled; passed on after it

    def __next__(self) -> Element:
        if self._at == len(self._order):
            self._fill()
        self._at += 1
        return self._window[self._order[self._at - 1]]

    def _fill(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._at, self._order = 0, []
        self._before = self._place.state()
        try:
            count = self._read()
        except Exception:
            self._before = None
            raise
        self._order = self._permutation(count)
        self._number += 1

    def _permutation(self, count: int) -> Any:
        import numpy as np

        generator = np.random.Generator(np.random.PCG64(mix_seed(self._seed, self._number)))
        # small numbers, since Arrow takes rows by 16 bits in half the time that it takes them by 64
        return generator.permutation(count).astype(np.min_scalar_type(count))

    def _read(self) -> int:
        """Fills the window, and returns how many elements it has."""
        self._window = []
        while len(self._window) < self._size:
            try:
                self._window.append(next(self._source))
            except StopIteration:
                break
            except Exception as error:
                if not self._window:
                    raise
                self._failure = error
                break
        if not self._window:
            raise StopIteration
        return len(self._window)

    def state(self) -> State:
        if self._at == len(self._order) or self._before is None:
            return {"input": self._place.state(), "number": self._number, "given": 0}
        return {"input": self._before, "number": self._number - 1, "given": self._at}

    def restore(self, state: State) -> None:
        self._place.restore(state["input"])
        self._number = state["number"]
        if state["given"]:
            self._fill()
            self._at = state["given"]


class RowShuffleStream(ShuffleStream):
    """Takes the rows of a window by the permutation, a block at a time."""

    def __init__(self, source: Stream, op: Shuffle, epoch: tuple[int, ...], opening: Opening) -> None:
        self._rows = RowCursor(source)
        super().__init__(source, op, epoch, self._rows)
        self._block = opening.block

    def __next__(self) -> Element:
        if self._at == len(self._order):
            self._fill()
        taken = take_rows(self._window, self._order[self._at : self._at + self._block.value])
        self._at += taken.num_rows
        return taken

    def _read(self) -> int:
        pieces, missing = [], self._size
        while missing:
            try:
                pieces.append(self._rows.take(missing))
            except StopIteration:
                break
            except Exception as error:
                if not pieces:
                    raise
                self._failure = error
                break
            missing -= pieces[-1].num_rows
        if not pieces:
            raise StopIteration
        self._window = join_batches(pieces)
        return self._size - missing
