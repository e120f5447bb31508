"""Elements of several datasets, drawn one by one with given weights.

The draws follow from the seed alone. A draw of a dataset that has ended is dropped, so the others keep their weights
among each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import Spec, merge_specs
from spanwise.pipelines.input.op import Count, Element, Op, Opening, State, Stream, check_shares, check_whole, mix_seed
from spanwise.pipelines.input.ops.concatenate import check_same_kind
from spanwise.pipelines.input.rows import RowCursor, in_rows, join_batches, open_parts
from spanwise.pipelines.input.selection import check_selectable, take_rows

if TYPE_CHECKING:
    import pyarrow as pa

_DRAWS = 4096  # computed at a time; part of what a seed means, so never change it


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample(Op):
    parts: tuple[Op, ...]
    weights: tuple[float, ...]
    seed: int | None = None
    stop_on_empty: bool = False  #: whether to end when a dataset is drawn that has ended
    reshuffle_each_iteration: bool = True

    def __post_init__(self) -> None:
        op = "sample_from_datasets"
        check_same_kind(op, self.parts)
        check_selectable(op, self.parts[0].spec)
        if len(self.weights) != len(self.parts):
            raise DatasetError(f"{op}: {len(self.parts)} datasets, but {len(self.weights)} weights.")
        check_shares(op, "weights", self.weights)
        if self.seed is not None:
            check_whole(op, "seed", self.seed, at_least=0)

    @property
    def needs_all(self) -> str:
        if self.stop_on_empty and self.cardinality != math.inf:
            return "sample_from_datasets(stop_on_empty=True) ends with the part of a dataset"
        return ""

    @property
    def spec(self) -> Spec:
        return self.parts[0].spec if in_rows(self.parts[0]) else merge_specs(part.spec for part in self.parts)

    @property
    def cardinality(self) -> Count:
        counts = [part.cardinality for part, weight in zip(self.parts, self.weights, strict=True) if weight]
        if self.stop_on_empty:
            return math.inf if all(count == math.inf for count in counts) else None
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def open(self, opening: Opening) -> Stream:
        sources = open_parts(opening, "sample_from_datasets", self.parts)
        epoch = opening.epoch if self.reshuffle_each_iteration else ()
        kind = RowSampleStream if in_rows(self) else SampleStream
        return kind(self, sources, mix_seed(self.seed or 0, *epoch))


class SampleStream(Stream):
    def __init__(self, op: Sample, sources: list[Stream], seed: int) -> None:
        self._op = op
        self._sources = sources
        self._seed = seed
        self._ended = [weight == 0 for weight in op.weights]
        self._number = 0  # of the draws made together
        self._at = 0  # of those, how many are used
        self._draws: Any = None

    def _draw_parts(self) -> Any:
        import numpy as np

        generator = np.random.Generator(np.random.PCG64(mix_seed(self._seed, self._number)))
        bounds = np.cumsum(self._op.weights) / sum(self._op.weights)
        last = max(place for place, weight in enumerate(self._op.weights) if weight)
        return np.minimum(np.searchsorted(bounds, generator.random(_DRAWS), side="right"), last)

    def __next__(self) -> Element:
        while not all(self._ended):
            if self._draws is None:
                self._draws = self._draw_parts().tolist()
            drawn = self._draws[self._at]
            self._at += 1
            if self._at == _DRAWS:
                self._draws, self._number, self._at = None, self._number + 1, 0
            if self._ended[drawn]:
                continue
            try:
                return next(self._sources[drawn])
            except StopIteration:
                self._ended = [True] * len(self._ended) if self._op.stop_on_empty else self._with_end(drawn)
        raise StopIteration

    def _with_end(self, place: int) -> list[bool]:
        return [ended or number == place for number, ended in enumerate(self._ended)]

    def _places(self) -> list[State]:
        return [source.state() for source in self._sources]

    def state(self) -> State:
        return {"inputs": self._places(), "ended": list(self._ended), "number": self._number, "at": self._at}

    def restore(self, state: State) -> None:
        for source, its in zip(self._sources, state["inputs"], strict=True):
            source.restore(its)
        self._ended, self._number, self._at = list(state["ended"]), state["number"], state["at"]

    def close(self) -> None:
        for source in self._sources:
            source.close()


class RowSampleStream(SampleStream):
    """Takes the rows for a set of draws from each dataset at once, and puts them in the order of the draws."""

    def __init__(self, op: Sample, sources: list[Stream], seed: int) -> None:
        super().__init__(op, sources, seed)
        self._rows = [RowCursor(source) for source in sources]

    def __next__(self) -> Element:
        while not all(self._ended):
            draws = self._draw_parts()
            self._number += 1
            block, self._ended = gather_rows(draws, self._rows, self._ended, stop_on_empty=self._op.stop_on_empty)
            if block is not None:
                return block
        raise StopIteration

    def _places(self) -> list[State]:
        return [rows.state() for rows in self._rows]

    def restore(self, state: State) -> None:
        for rows, its in zip(self._rows, state["inputs"], strict=True):
            rows.restore(its)
        self._ended, self._number, self._at = list(state["ended"]), state["number"], state["at"]


def gather_rows(
    draws: Any, sources: Sequence[RowCursor], ended: Sequence[bool], *, stop_on_empty: bool
) -> tuple[pa.RecordBatch | None, list[bool]]:
    """The next row of the source of each number in `draws`, in that order, and which of the sources have ended.

    Draws of a source that has ended are dropped, or with `stop_on_empty` end all.
    """
    import numpy as np

    now = list(ended)
    pieces, places = [], []
    stop = len(draws)
    for number, rows in enumerate(sources):
        wanted = np.flatnonzero(draws == number)
        if ended[number] or not len(wanted):
            continue
        got = rows.gather(len(wanted))
        count = 0 if got is None else got.num_rows
        if count < len(wanted):
            now[number] = True
            stop = min(stop, int(wanted[count]))
        if got is not None:
            pieces.append(got)
            places.append(wanted[:count])
    if stop_on_empty and stop < len(draws):
        now = [True] * len(now)
    if not pieces:
        return None, now
    place = np.concatenate(places)
    order = np.argsort(place)
    if stop_on_empty:
        order = order[place[order] < stop]
    return (take_rows(join_batches(pieces), order) if len(order) else None), now
