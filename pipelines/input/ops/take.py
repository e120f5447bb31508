"""The first n elements."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.pipelines.input.op import Count, Element, Op, Opening, SingleInputStream, Stream, check_whole
from spanwise.pipelines.input.rows import in_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Take(Op):
    passes_through = True

    input: Op
    count: int  #: -1 for all of them

    def __post_init__(self) -> None:
        check_whole("take", "count", self.count, at_least=-1)

    @property
    def cardinality(self) -> Count:
        below = self.input.cardinality
        return below if self.count < 0 or below is None else min(self.count, below)

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        if self.count < 0:
            return source
        return RowTakeStream(source, self.count) if in_rows(self.input) else TakeStream(source, self.count)


class TakeStream(SingleInputStream):
    state_fields = ("left",)

    def __init__(self, source: Stream, count: int) -> None:
        super().__init__(source)
        self.left = count
        self._take = source.__next__

    def __next__(self) -> Element:
        if self.left == 0:
            raise StopIteration
        self.left -= 1  # before an error can use the element up
        return self._take()


class RowTakeStream(TakeStream):
    """Cuts the block in which the last row is; the rest of it is past the end and in no state."""

    def __next__(self) -> Element:
        if self.left == 0:
            raise StopIteration
        block = self._take()
        if block.num_rows > self.left:
            block = block.slice(0, self.left)
        self.left -= block.num_rows
        return block
