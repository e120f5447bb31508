"""A shuffle that is repeated. If its buffer holds all of an input that never changes, the input is read once."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from spanwise.pipelines.input.op import Count, Op, Opening, Stream, list_ops
from spanwise.pipelines.input.ops.arrow import Arrow
from spanwise.pipelines.input.ops.cache import Cache
from spanwise.pipelines.input.ops.filter import Filter
from spanwise.pipelines.input.ops.ipc import ArrowFiles
from spanwise.pipelines.input.ops.parquet import Parquet
from spanwise.pipelines.input.ops.range import Range
from spanwise.pipelines.input.ops.repeat import Repeat
from spanwise.pipelines.input.ops.select import Select
from spanwise.pipelines.input.ops.shard import Shard
from spanwise.pipelines.input.ops.shuffle import Shuffle
from spanwise.pipelines.input.ops.skip import Skip
from spanwise.pipelines.input.ops.take import Take
from spanwise.pipelines.input.ops.tensors import Elements, TensorSlices

_STEADY = (Arrow, ArrowFiles, Cache, Elements, Parquet, Range, Select, Shard, Skip, Take, TensorSlices)


@dataclass(frozen=True, kw_only=True, eq=False)
class ShuffleAndRepeat(Op):
    input: Op
    buffer: int | None
    seed: int | None
    reshuffle_each_iteration: bool
    count: int | None

    @property
    def keeps(self) -> bool:
        """Whether what is read in the first round serves the others too."""
        count = self.input.cardinality
        whole = self.buffer is None or (isinstance(count, int) and count <= self.buffer)
        return whole and all(_is_steady(op) for op in list_ops(self.input))

    @property
    def cardinality(self) -> Count:
        return self._with_separate_ops(self.input).cardinality

    def open(self, opening: Opening) -> Stream:
        source = Cache(input=self.input, limit_bytes=sys.maxsize) if self.keeps else self.input
        return opening.open(self._with_separate_ops(source))

    def _with_separate_ops(self, source: Op) -> Repeat:
        shuffle = Shuffle(
            input=source,
            buffer=self.buffer,
            seed=self.seed,
            reshuffle_each_iteration=self.reshuffle_each_iteration,
        )
        return Repeat(input=shuffle, count=self.count)


def _is_steady(op: Op) -> bool:
    """Whether an op gives the same in each round, whatever users' functions do."""
    if isinstance(op, Filter):
        return op.expression is not None
    return isinstance(op, _STEADY) and not getattr(op, "shuffle", False)
