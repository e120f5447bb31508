"""The elements of datasets that a function makes of elements: several of these datasets at a time, in turns.

`flat_map` is the interleave of one at a time. A state says where the input stood before each dataset that is open, so
that a restored stream makes it again by the same function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.call import Format, caller, failed, format_of
from spanwise.pipelines.input.element import UNKNOWN, Spec, Table
from spanwise.pipelines.input.op import Element, Op, Opening, State, Stream, callable_, mixed, seeded, whole
from spanwise.pipelines.input.rows import Rows, elements, in_rows

if TYPE_CHECKING:
    import pyarrow as pa


@runtime_checkable
class HasOp(Protocol):
    """What a function gives that makes datasets."""

    @property
    def op(self) -> Op: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Interleave(Op):
    input: Op
    function: Callable[..., Any]  #: of an element: a dataset
    cycle: int = 1  #: how many datasets are open at a time
    block: int = 1  #: how many elements of one before the turn of the next
    result: Spec = UNKNOWN  #: what the elements of these datasets are; a `Table` lets them travel in blocks
    num_parallel: int | None = None
    deterministic: bool | None = None
    format: Format | None = None

    def __post_init__(self) -> None:
        callable_(self.word, "function", self.function)
        format_of(self.function, self.format)
        whole(self.word, "cycle_length", self.cycle)
        whole(self.word, "block_length", self.block)
        if self.num_parallel is not None:
            whole(self.word, "num_parallel", self.num_parallel, autotune=True)

    @property
    def word(self) -> str:
        return "flat_map" if self.cycle == 1 else "interleave"

    @property
    def name(self) -> str:
        return "FlatMap" if self.cycle == 1 else "Interleave" if self.num_parallel is None else "ParallelInterleave"

    @property
    def spec(self) -> Spec:
        return self.result

    @property
    def cardinality(self) -> None:
        return None

    def open(self, opening: Opening) -> Stream:
        if self.num_parallel is not None:
            from spanwise.pipelines.input.execution.parallel import open_interleave

            return open_interleave(self, opening)
        return InterleaveStream(self, opening)

    def made(self, element: Element, number: int) -> Op:
        """The dataset that the function makes of an element, the input's `number`th.

        Raises:
            FunctionFailed: the function raised, or made no dataset of the kind that was promised.
        """
        try:
            dataset = caller(self.function, self.format)(element)
            if not isinstance(dataset, HasOp):
                raise DatasetError(f"wants a dataset back, not {type(dataset).__name__}.")  # noqa: TRY301
            if isinstance(self.result, Table) and not in_rows(dataset.op):
                raise DatasetError("wants a dataset of rows back, as spec= says.")  # noqa: TRY301
        except Exception as error:
            raise failed(self.word, self.function, f"element {number}", error) from error
        return dataset.op

    def opened(self, element: Element, number: int, opening: Opening) -> Stream:
        """The stream of that dataset: one element at a time, or blocks if rows are promised."""
        op = seeded(self.made(element, number), mixed(opening.seed, number))
        return opening.open(op) if in_rows(self) else elements(opening, op)


class Slot:
    """One of the datasets that are open."""

    def __init__(self, stream: Stream, before: State, number: int, *, rows: bool) -> None:
        self.stream = stream
        self.before = before  #: the input's state before the element that it was made of
        self.number = number  #: of that element
        self.rows = Rows(stream) if rows else None

    def take(self, limit: int) -> tuple[Element, int]:
        """One element, or up to `limit` rows, and how many these are."""
        if self.rows is None:
            return next(self.stream), 1
        block: pa.RecordBatch = self.rows.take(limit)
        return block, block.num_rows

    def state(self) -> State:
        inside = self.stream.state() if self.rows is None else self.rows.state()
        return {"before": self.before, "number": self.number, "inside": inside}

    def restore(self, inside: State) -> None:
        (self.stream if self.rows is None else self.rows).restore(inside)


class InterleaveStream(Stream):
    def __init__(self, op: Interleave, opening: Opening) -> None:
        self._op = op
        self._opening = opening
        self._source = elements(opening, op.input)
        self._number = 0  # elements of the input so far
        self._slots: list[Slot | None] = [None] * op.cycle
        self._turn = 0  # the slot whose turn it is
        self._left = op.block  # elements until the next turn
        self._ended = False  # whether the input is

    def __next__(self) -> Element:
        while not (self._ended and not any(self._slots)):
            slot = self._slots[self._turn] or self._filled()
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
        self._turn = (self._turn + 1) % self._op.cycle
        self._left = self._op.block

    def _filled(self) -> Slot | None:
        """Opens the next dataset in the slot whose turn it is, if there is one."""
        if self._ended:
            return None
        before = self._source.state()
        try:
            element = next(self._source)
        except StopIteration:
            self._ended = True
            return None
        self._number += 1
        stream = self._opened(element, self._number - 1)
        slot = Slot(stream, before, self._number - 1, rows=in_rows(self._op))
        self._slots[self._turn] = slot
        return slot

    def _opened(self, element: Element, number: int) -> Stream:
        return self._op.opened(element, number, self._opening)

    def state(self) -> State:
        return {
            "input": self._source.state(),
            "number": self._number,
            "turn": self._turn,
            "left": self._left,
            "slots": [slot and slot.state() for slot in self._slots],
        }

    def restore(self, state: State) -> None:
        self._source.restore(state["input"])
        self._number, self._turn, self._left = state["number"], state["turn"], state["left"]
        for place, kept in enumerate(state["slots"]):
            if kept is not None:
                self._slots[place] = self._again(kept)

    def _again(self, kept: State) -> Slot:
        """A slot as it was: its dataset made once more of the same element."""
        source = elements(self._opening, self._op.input)
        try:
            source.restore(kept["before"])
            element = next(source)
        finally:
            source.close()
        stream = self._opened(element, kept["number"])
        slot = Slot(stream, kept["before"], kept["number"], rows=in_rows(self._op))
        slot.restore(kept["inside"])
        return slot

    def close(self) -> None:
        self._source.close()
        for slot in self._slots:
            if slot is not None:
                slot.stream.close()
