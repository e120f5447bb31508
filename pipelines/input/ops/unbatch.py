"""The elements of batches; RecordBatches become rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spanwise.pipelines.input.element import BatchSpec, Spec, unbatch_spec
from spanwise.pipelines.input.op import Count, Element, Op, Opening, SingleInputStream, State, Stream
from spanwise.pipelines.input.stacking import unstack


@dataclass(frozen=True, kw_only=True, eq=False)
class Unbatch(Op):
    by_element = True

    input: Op

    @property
    def spec(self) -> Spec:
        return unbatch_spec(self.input.spec)

    @property
    def cardinality(self) -> Count:
        below = self.input.cardinality
        if isinstance(self.input.spec, BatchSpec) and self.input.spec.rows is not None and below is not None:
            return below * self.input.spec.rows
        return None

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        return UnbatchRowsStream(source) if isinstance(self.input.spec, BatchSpec) else UnbatchStream(source)


class UnbatchRowsStream(SingleInputStream):
    """RecordBatches as blocks of rows: unchanged, without empty ones."""

    def __next__(self) -> Element:
        for batch in self._source:
            if batch.num_rows:
                return batch
        raise StopIteration


class UnbatchStream(SingleInputStream):
    def __init__(self, source: Stream) -> None:
        super().__init__(source)
        self._elements: Iterator[Element] = iter(())
        self._used = 0  # of the batch
        self._before: State | None = None  # the source's, before the batch; None at its end

    def __next__(self) -> Element:
        while True:
            for element in self._elements:
                self._used += 1
                return element
            self._before, before = None, self._source.state()
            self._elements = unstack(next(self._source))
            self._before, self._used = before, 0

    def state(self) -> State:
        if self._before is None:
            return {"input": self._source.state(), "used": 0}
        return {"input": self._before, "used": self._used}

    def restore(self, state: State) -> None:
        super().restore(state)
        for _ in range(state["used"]):
            next(self)
