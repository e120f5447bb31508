"""Windows: datasets of consecutive elements, as elements; windows may overlap or leave gaps."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spanwise.orchestrator.errors import FunctionFailed
from spanwise.pipelines.input.element import DatasetSpec, Spec
from spanwise.pipelines.input.op import (
    Count,
    Element,
    Op,
    Opening,
    SingleInputStream,
    State,
    Stream,
    check_whole,
    needs_full_groups,
)
from spanwise.pipelines.input.ops.arrow import Arrow
from spanwise.pipelines.input.ops.tensors import Elements
from spanwise.pipelines.input.rows import RowCursor, in_rows, join_batches
from spanwise.pipelines.input.selection import check_selectable, take_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Window(Op):
    input: Op
    size: int
    shift: int | None = None  #: from the start of a window to that of the next; None for `size`
    stride: int = 1  #: from an element of a window to the next of it
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        if self.stride > 1:
            check_selectable("window", self.input.spec)
        check_whole("window", "size", self.size)
        check_whole("window", "stride", self.stride)
        if self.shift is not None:
            check_whole("window", "shift", self.shift)

    @property
    def needs_all(self) -> str:
        if self.step != self.size or self.stride != 1:
            return "window reaches across the ends of parts"
        return needs_full_groups(self, drop_remainder=self.drop_remainder)

    @property
    def step(self) -> int:
        return self.shift or self.size

    @property
    def reach(self) -> int:
        """How many elements of the input a full window spans."""
        return (self.size - 1) * self.stride + 1

    @property
    def spec(self) -> Spec:
        return DatasetSpec(self.input.spec)

    @property
    def cardinality(self) -> Count:
        below = self.input.cardinality
        if not isinstance(below, int):
            return below
        return max(0, (below - self.reach) // self.step + 1) if self.drop_remainder else -(-below // self.step)

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        pieces = RowWindowReader(source) if in_rows(self.input) else WindowReader(source)
        return WindowStream(source, self, pieces, opening.nested)


class WindowReader:
    """Reads up to `count` elements at a time, as a list."""

    def __init__(self, source: Stream) -> None:
        self._source = source

    def read(self, count: int) -> Any:
        return list(itertools.islice(self._source, count))

    def state(self) -> State:
        return self._source.state()

    def restore(self, state: State) -> None:
        self._source.restore(state)

    def op(self, pieces: Sequence[Any], op: Window) -> Op:
        """The window that begins with the first piece."""
        return Elements(values=tuple([element for piece in pieces for element in piece][: op.reach : op.stride]))


class RowWindowReader(WindowReader):
    """Reads up to `count` rows at a time, as a RecordBatch."""

    def __init__(self, source: Stream) -> None:
        super().__init__(source)
        self._rows = RowCursor(source)

    def read(self, count: int) -> Any:
        return self._rows.gather(count) or ()

    def state(self) -> State:
        return self._rows.state()

    def restore(self, state: State) -> None:
        self._rows.restore(state)

    def op(self, pieces: Sequence[Any], op: Window) -> Op:
        import numpy as np
        import pyarrow as pa

        rows = join_batches(pieces).slice(0, op.reach)
        chosen = rows if op.stride == 1 else take_rows(rows, np.arange(0, rows.num_rows, op.stride))
        return Arrow(table=pa.Table.from_batches([chosen]))


class WindowStream(SingleInputStream):
    """Reads in steps from the start of a window to that of the next, and knows the state before each."""

    def __init__(self, source: Stream, op: Window, pieces: WindowReader, dataset: Any) -> None:
        super().__init__(source)
        self._op = op
        self._pieces = pieces
        self._dataset = dataset
        self._steps: deque[tuple[State, Any]] = deque()  # what was read, and the state before it
        self._failed: deque[int] = deque()  # how many errors came behind each of these
        self._again = 0  # errors to come that were raised before the stream was restored
        self._ended = False

    def __next__(self) -> Element:
        op = self._op
        while not self._ended and sum(len(step) for _, step in self._steps) < op.reach:
            before = self._pieces.state()
            try:
                step = self._pieces.read(op.step)
            except FunctionFailed:
                if self._failed:
                    self._failed[-1] += 1
                if not self._again:
                    raise
                self._again -= 1
                continue
            self._ended = len(step) < op.step
            if len(step):
                self._steps.append((before, step))
                self._failed.append(0)
        read = sum(len(step) for _, step in self._steps)
        if not read or (op.drop_remainder and read < op.reach):
            raise StopIteration
        window = self._pieces.op([step for _, step in self._steps], op)
        self._steps.popleft()
        self._failed.popleft()
        return self._dataset(window)

    def state(self) -> State:
        before = self._steps[0][0] if self._steps else self._pieces.state()
        return {"input": before, "failed": sum(self._failed)}

    def restore(self, state: State) -> None:
        self._pieces.restore(state["input"])
        self._again = state["failed"]
