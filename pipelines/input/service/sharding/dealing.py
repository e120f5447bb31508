"""Dynamic sharding: a graph whose sources read the splits that they are dealt while the graph runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.op import Count, Element, Op, Opening, State, Stream, rebuild
from spanwise.pipelines.input.ops.repeat import Repeat
from spanwise.pipelines.input.ops.shuffle_and_repeat import ShuffleAndRepeat
from spanwise.pipelines.input.service.sharding.splits import SourceSplits, sources_of, splits_of

_MOST_VAIN: Final = 10
"""After so many rounds of which a worker had some of the splits, and which gave nothing here, it leaves the rest to
others: who goes on has all splits of the rounds to come."""


class SplitQueue:
    """Where a worker gets its splits from, one at a time; several threads use it."""

    def next(self, source: int, repetition: int) -> int | None:
        """The number of the next split; None if this repetition has none left."""
        raise NotImplementedError


def read_from_queue(op: Op, queue: SplitQueue) -> Op:
    """The graph whose sources read the splits that the queue hands out."""
    numbers = {id(source): number for number, source in enumerate(sources_of(op))}

    def change(each: Op) -> Op:
        if id(each) in numbers:
            splits = splits_of(each)
            assert splits is not None, "checked when the dataset was registered"
            return QueuedSource(source=each, splits=splits, number=numbers[id(each)], queue=queue)
        assert not isinstance(each, ShuffleAndRepeat), "plan_graph leaves out the rewrite that makes it"
        return QueuedRepeat(input=each.input, count=each.count) if isinstance(each, Repeat) else each

    return rebuild(op, change)


@dataclass(frozen=True, kw_only=True, eq=False)
class QueuedSource(Op):
    """A source that reads the splits that a queue hands out."""

    source: Op = field(repr=False)
    splits: SourceSplits = field(repr=False)
    number: int
    queue: SplitQueue = field(repr=False)
    opened: list[int] = field(default_factory=lambda: [0], repr=False)  #: how often: the repetition it is opened for
    taken: list[int] = field(default_factory=lambda: [0], repr=False)  #: how many splits this worker got of all of them

    @property
    def lacking(self) -> int:
        """How many splits of its repetitions so far went to other workers."""
        return self.opened[0] * self.splits.count - self.taken[0]

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return self.source.spec

    @property
    def cardinality(self) -> Count:
        return None if self.splits.count else 0

    def open(self, opening: Opening) -> Stream:
        self.opened[0] += 1
        return QueuedSourceStream(self, opening, self.opened[0] - 1)


class QueuedSourceStream(Stream):
    def __init__(self, op: QueuedSource, opening: Opening, repetition: int) -> None:
        self._op = op
        self._opening = opening
        self._repetition = repetition
        self._split: Stream | None = None

    def __next__(self) -> Element:
        while True:
            if self._split is None:
                number = self._op.queue.next(self._op.number, self._repetition)
                if number is None:
                    raise StopIteration
                self._op.taken[0] += 1
                self._split = self._opening.open(self._op.splits.part(number))
            try:
                return next(self._split)
            except StopIteration:
                self._split.close()
                self._split = None

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        raise NotImplementedError("the splits of a job are handed out once; only the job itself can go on")

    def close(self) -> None:
        if self._split is not None:
            self._split.close()


@dataclass(frozen=True, kw_only=True, eq=False)
class QueuedRepeat(Repeat):
    """A repeat over queued sources: a repetition in which other workers got every split does not end it.

    One of which this worker got every split, and which gave nothing, ends a repeat without end as it ends one that is
    not shared. So does one that gave nothing and asked for no split, since a cache has what there is here.
    """

    def open(self, opening: Opening) -> Stream:
        return QueuedRepeatStream(self, opening)


class QueuedRepeatStream(Stream):
    def __init__(self, op: QueuedRepeat, opening: Opening) -> None:
        self._op = op
        self._opening = opening
        self._round = 0
        self._source: Stream | None = None
        self._sources = [each for each in sources_of(op) if isinstance(each, QueuedSource)]
        self._is_empty = all(each.cardinality == 0 for each in self._sources)
        self._before = (0, 0, 0)  # splits that others and this worker got before this round, and sources it opened
        self._given = False  # whether this round has given anything
        self._vain = 0  # rounds, one after another, of which this worker had splits, and that gave nothing

    def __next__(self) -> Element:
        while self._round < self._op.rounds and not self._is_empty:
            if self._source is None:
                self._before, self._given = self._counts(), False
                self._source = self._opening.round(self._round).open(self._op.input)
            try:
                element = next(self._source)
            except StopIteration:
                self._source.close()
                self._source = None
                self._round += 1
                if not self._given and self._op.rounds == math.inf:
                    self._end_in_vain()
            except Exception:
                self._given, self._vain = True, 0  # it was used up by an element
                raise
            else:
                self._given, self._vain = True, 0
                return element
        raise StopIteration

    def _counts(self) -> tuple[int, int, int]:
        lacking = sum(each.lacking for each in self._sources)
        taken = sum(each.taken[0] for each in self._sources)
        return lacking, taken, sum(each.opened[0] for each in self._sources)

    def _end_in_vain(self) -> None:
        """A round has given nothing here: it ends the repeat if all of it was here, or if many did the same."""
        lacking, taken, opened = self._counts()
        if opened == self._before[2]:
            self._is_empty = True
            return
        if taken == self._before[1]:  # others had the splits
            return
        self._vain += 1
        self._is_empty = lacking == self._before[0] or self._vain >= _MOST_VAIN

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        raise NotImplementedError("the splits of a job are handed out once; only the job itself can go on")

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
