"""The same elements several times over, or without end; shuffles below it differ each time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spanwise.pipelines.input.op import Count, Element, InputSeries, Op, Opening, State, Stream, check_whole


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeat(Op):
    input: Op
    count: int | None = None  #: None, or -1, for no end

    def __post_init__(self) -> None:
        if self.count is not None:
            check_whole("repeat", "count", self.count, at_least=-1)

    @property
    def needs_all(self) -> str:
        return ""

    @property
    def rounds(self) -> float:
        return math.inf if self.count is None or self.count < 0 else self.count

    @property
    def cardinality(self) -> Count:
        below = self.input.cardinality
        if self.rounds == 0 or below == 0:
            return 0
        if math.inf in {below, self.rounds}:
            return math.inf
        return None if below is None else int(below * self.rounds)

    def open(self, opening: Opening) -> Stream:
        # one round is the input itself, so that to leave out such a repeat changes no shuffle
        return opening.open(self.input) if self.count == 1 else RepeatStream(self, opening)


class RepeatStream(Stream):
    def __init__(self, op: Repeat, opening: Opening) -> None:
        self._op = op
        self._series = InputSeries(opening)
        self._rounds = op.rounds if op.cardinality != 0 else 0
        self._round = 0
        self._source: Stream | None = None
        self._empty = True  # whether this round has given nothing so far

    def __next__(self) -> Element:
        while self._round < self._rounds:
            if self._source is None:
                self._source = self._open_round()
                self._empty = True
            try:
                element = next(self._source)
            except StopIteration:
                self._source.close()
                self._source = None
                self._round += 1
                if self._empty and self._rounds == math.inf:  # an endless repeat of nothing ends too
                    raise
            except Exception:
                self._empty = False  # it was used up by an element
                raise
            else:
                self._empty = False
                return element
        raise StopIteration

    def _open_round(self) -> Stream:
        return self._series.opening(self._round).round(self._round).open(self._op.input)

    def state(self) -> State:
        inside = None if self._source is None else self._source.state()
        unopened = self._series.unopened(self._round + (inside is not None))
        return {"round": self._round, "input": inside, "empty": self._empty, **unopened}

    def restore(self, state: State) -> None:
        self._round, self._empty = state["round"], state["empty"]
        if state["input"] is not None:
            self._source = self._open_round()
            self._source.restore(state["input"])

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
