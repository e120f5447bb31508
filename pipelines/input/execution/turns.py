"""Turns: how an interleave takes elements of several open datasets.

A state says where the input stood before each dataset that is open. A restored stream reads the input again from the
oldest of these places, and opens the same datasets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import FunctionFailed, StateMismatch
from spanwise.pipelines.input.op import Element, InputSeries, PassLimits, State, Stream
from spanwise.pipelines.input.rows import RowCursor

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Turns:
    """The datasets that take turns, and in which way."""

    name: str  #: of the op
    cycle: int  #: how many datasets are open at a time
    block: int  #: how many elements of one before the turn of the next
    rows: bool  #: whether the datasets give blocks of rows
    source: Stream  #: of elements that name the datasets
    series: InputSeries  #: the datasets, by the numbers of these elements
    open_dataset: Callable[[Element, int, int], Stream]  #: of an element, its number, and the same with errors counted
    budget: PassLimits | None = None  #: what the pass may hold


class DatasetSlot:
    """One of the datasets that are open."""

    def __init__(self, stream: Stream, before: State, number: int, at: int, *, rows: bool) -> None:
        self.stream = stream
        self.before = before  #: the input's state before the element that it was made of
        self.number = number  #: of that element
        self.at = at  #: the same, errors counted too
        self.rows = RowCursor(stream) if rows else None

    def take(self, limit: int) -> tuple[Element, int]:
        """One element, or up to `limit` rows, and how many these are."""
        if self.rows is None:
            return next(self.stream), 1
        block: pa.RecordBatch = self.rows.take(limit)
        return block, block.num_rows

    def state(self) -> State:
        inside = self.stream.state() if self.rows is None else self.rows.state()
        return {"before": self.before, "number": self.number, "at": self.at, "inside": inside}

    def restore(self, inside: State) -> None:
        (self.stream if self.rows is None else self.rows).restore(inside)


class InterleaveStream(Stream):
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._source = turns.source
        self._number = 0  # elements of the input so far
        self._read = 0  # the same, and errors
        self._slots: list[DatasetSlot | None] = [None] * turns.cycle
        self._turn = 0  # the slot whose turn it is
        self._left = turns.block  # elements until the next turn
        self._ended = False  # whether the input is

    def __next__(self) -> Element:
        while not (self._ended and not any(self._slots)):
            slot = self._slots[self._turn] or self._open_next()
            if slot is not None:
                try:
                    taken, count = slot.take(self._left)
                except StopIteration:
                    slot.stream.close()
                    self._slots[self._turn] = None
                else:
                    self._left -= count
                    if not self._left:
                        self._next_turn()
                    return taken
            self._next_turn()
        raise StopIteration

    def _next_turn(self) -> None:
        self._turn = (self._turn + 1) % self._turns.cycle
        self._left = self._turns.block

    def _open_next(self) -> DatasetSlot | None:
        """Opens the next dataset in the slot whose turn it is, if there is one."""
        if self._ended:
            return None
        before = self._source.state()
        try:
            element = next(self._source)
        except StopIteration:
            self._ended = True
            return None
        except Exception:
            self._read += 1
            raise
        number, at = self._number, self._read
        self._number, self._read = number + 1, at + 1
        stream = self._open_stream(element, number, at)
        slot = DatasetSlot(stream, before, number, at, rows=self._turns.rows)
        self._slots[self._turn] = slot
        return slot

    def _open_stream(self, element: Element, number: int, at: int) -> Stream:
        return self._turns.open_dataset(element, number, at)

    def state(self) -> State:
        return {
            "input": self._source.state(),
            "number": self._number,
            "read": self._read,
            "turn": self._turn,
            "left": self._left,
            "slots": [slot and slot.state() for slot in self._slots],
            **self._turns.series.unopened(self._number),
        }

    def restore(self, state: State) -> None:
        if "read" not in state:
            raise StateMismatch(
                f"the state of {self._turns.name} is of an older spanwise. Start the pass again, without the state."
            )
        kept = {slot["at"]: (place, slot) for place, slot in enumerate(state["slots"]) if slot is not None}
        at = min(kept, default=state["read"])
        self._source.restore(kept[at][1]["before"] if kept else state["input"])
        for each in range(at, state["read"]):
            try:
                element = next(self._source)
            except FunctionFailed:  # raised before the state was taken
                continue
            except StopIteration:
                raise StateMismatch(
                    f"{self._turns.name}: its input has ended after {each} elements, but {state['read']} had been "
                    f"read when the state was taken: it has changed, or differs each time. Start the pass again."
                ) from None
            if each in kept:
                place, slot = kept[each]
                self._slots[place] = self._reopen(element, slot)
        self._number, self._read = state["number"], state["read"]
        self._turn, self._left = state["turn"], state["left"]

    def _reopen(self, element: Element, kept: State) -> DatasetSlot:
        """A slot as it was: its dataset opened again from the same element."""
        stream = self._open_stream(element, kept["number"], kept["at"])
        slot = DatasetSlot(stream, kept["before"], kept["number"], kept["at"], rows=self._turns.rows)
        slot.restore(kept["inside"])
        return slot

    def close(self) -> None:
        self._source.close()
        for slot in self._slots:
            if slot is not None:
                slot.stream.close()
