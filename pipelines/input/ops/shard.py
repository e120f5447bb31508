"""Every n-th element: one of n parts that together are the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spanwise.orchestrator.errors import BlockFailed, DatasetError, FunctionFailed
from spanwise.pipelines.input.op import Count, Element, Op, Opening, SingleInputStream, Stream, ceil_div, check_whole
from spanwise.pipelines.input.rows import in_rows
from spanwise.pipelines.input.selection import check_selectable, take_rows

SHARD_HINT: Final = -1
"""Given instead of a number of shards: `distribute(processing_mode="hint")` fills in the workers and the index."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Shard(Op):
    input: Op
    shards: int
    index: int

    def __post_init__(self) -> None:
        check_selectable("shard", self.input.spec)
        if self.shards == SHARD_HINT:
            return
        check_whole("shard", "shards", self.shards)
        check_whole("shard", "index", self.index, at_least=0)
        if self.index >= self.shards:
            raise DatasetError(f"shard(index={self.index}): expected less than shards={self.shards}.")

    @property
    def cardinality(self) -> Count:
        below = self.input.cardinality
        return None if below is None or self.shards == SHARD_HINT else ceil_div(max(below - self.index, 0), self.shards)

    def open(self, opening: Opening) -> Stream:
        if self.shards == SHARD_HINT:
            raise DatasetError(
                "shard(SHARD_HINT): only distribute(processing_mode='hint') replaces this placeholder, and this "
                "dataset runs without it. Pass the number of shards."
            )
        source = opening.open(self.input)
        return RowShardStream(source, self) if in_rows(self.input) else ShardStream(source, self)


class ShardStream(SingleInputStream):
    state_fields = ("wait",)

    def __init__(self, source: Stream, op: Shard) -> None:
        super().__init__(source)
        self._op = op
        self.wait = op.index  # elements that are not ours before the next one that is

    def __next__(self) -> Element:
        while self.wait:
            self.wait -= 1
            try:
                next(self._source)
            except BlockFailed:  # some of its rows may be ours
                raise
            except FunctionFailed:
                continue  # raised in the shard that the element belongs to
        self.wait = self._op.shards - 1
        return next(self._source)


class RowShardStream(ShardStream):
    def __next__(self) -> Element:
        import numpy as np

        for block in self._source:
            rows, first = block.num_rows, self.wait
            if rows <= first:
                self.wait -= rows
                continue
            self.wait = (first - rows) % self._op.shards
            return block if self._op.shards == 1 else take_rows(block, np.arange(first, rows, self._op.shards))
        raise StopIteration
