"""All but the first n elements."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.pipelines.input.op import Count, Element, Op, Opening, SingleInputStream, Stream, check_whole
from spanwise.pipelines.input.rows import in_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Skip(Op):
    passes_through = True

    input: Op
    count: int  #: -1 for all of them

    def __post_init__(self) -> None:
        check_whole("skip", "count", self.count, at_least=-1)

    @property
    def cardinality(self) -> Count:
        below = self.input.cardinality
        return 0 if self.count < 0 else None if below is None else max(below - self.count, 0)

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        return RowSkipStream(source, self.count) if in_rows(self.input) else SkipStream(source, self.count)


class SkipStream(SingleInputStream):
    state_fields = ("left",)

    def __init__(self, source: Stream, count: int) -> None:
        super().__init__(source)
        self.left = count
        self._take = source.__next__

    def __next__(self) -> Element:
        return self._behind() if self.left else self._take()

    def _behind(self) -> Element:
        if self.left < 0:
            raise StopIteration
        while self.left:
            self.left -= 1
            self._take()
        return self._take()


class RowSkipStream(SkipStream):
    """Gives the rest of the block with the last skipped row first, so that its state is between two blocks."""

    def _behind(self) -> Element:
        if self.left < 0:
            raise StopIteration
        while self.left:
            block = self._take()
            skipped = min(self.left, block.num_rows)
            self.left -= skipped
            if skipped < block.num_rows:
                return block.slice(skipped)
        return self._take()
