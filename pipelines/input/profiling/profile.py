"""Profiles: where the time of a pass goes, op by op, who waits for whom, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.iterator import DatasetIterator
from spanwise.pipelines.input.op import Op
from spanwise.pipelines.input.profiling.advice import EMPTY_ADVICE, KEEP_UP_ADVICE, advise, label, own_s
from spanwise.pipelines.input.profiling.page import draw_timeline, render_page
from spanwise.pipelines.input.tuning.reading import OpReading
from spanwise.pipelines.input.tuning.timing import Timeline, TimelineSpan, overhead_s

HEAD: Final = ("op", "calls", "elements", "own s", "waiting s", "share", "MB")

KEEPS_UP: Final = 0.1
"""A consumer that waits for less than this share of its time has an input that keeps up."""

WHOLE: Final = 0.9
"""A trace that covers more than this share of the time covers the whole pass."""


@dataclass(frozen=True, kw_only=True)
class OpTime:
    """One op of a profiled graph."""

    op: str
    depth: int  #: 0 for the last op, which the consumer sees
    calls: int  #: elements or blocks given
    elements: int  #: or rows, where these travel in blocks
    own_s: float  #: its own work, that of its threads and processes together
    waiting_s: float  #: how long its consumer waited for what it makes in the background
    share: float  #: of the own work of all ops
    given_bytes: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Where the time of a pass went. Prints as a table; `save` writes a page with a timeline."""

    ops: tuple[OpTime, ...]  #: each after its consumer
    elements: int  #: taken by the consumer
    elapsed_s: float
    waited_s: float  #: of it the consumer waited for the input
    stepped: bool  #: whether the consumer did anything with the elements
    advice: str
    timing_s: float  #: what measuring cost
    spans: tuple[TimelineSpan, ...] = ()

    @property
    def bottleneck(self) -> str:
        """`input` or `consumer`: which one the other waits for."""
        return "input" if self.waited_s > KEEPS_UP * self.elapsed_s else "consumer"

    @property
    def verdict(self) -> str:
        """Which one waits for the other, in a sentence."""
        rate = f"{self.elements / self.elapsed_s:,.0f} elements a second for {self.elapsed_s:.2f} s"
        share = f"{self.waited_s / self.elapsed_s:.0%}"
        if not self.stepped:
            return f"{rate}. Nothing was done with them; profile(step) shows whether your step waits for the input."
        if self.bottleneck == "input":
            return f"{rate}. The input is the bottleneck: {share} of the time the consumer waits for it."
        return f"{rate}. The consumer is the bottleneck: it waits for the input for {share} of the time only."

    def __str__(self) -> str:
        table = [HEAD, *map(_cells, self.ops)]
        widths = [max(len(row[i]) for row in table) for i in range(len(HEAD))]
        lines = [
            "  ".join(
                cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in table
        ]
        return "\n".join([*(line.rstrip() for line in lines), "", self.verdict, self.advice, self.cost])

    @property
    def cost(self) -> str:
        """What the profile itself took, in a sentence."""
        return f"Timing took {self.timing_s * 1000:.2g} ms."

    def html(self) -> str:
        """The page: one file that loads nothing from the network."""
        traced_s = max((span.end_s for span in self.spans), default=0.0)
        part = "" if traced_s > WHOLE * self.elapsed_s else f" These are the first {traced_s:.2f} s."
        caption = f"<p>One line per op and thread; dark is a call of a function in the background.{part}</p>"
        return render_page(
            HEAD,
            [(op.depth, op.share, _cells(op)) for op in self.ops],
            [self.verdict, self.advice, self.cost],
            f"{caption}\n{draw_timeline(self.spans)}",
        )

    def save(self, path: str | Path) -> None:
        """Writes the page."""
        Path(path).write_text(self.html(), encoding="utf-8")


def profile_pass(dataset: Flow, step: Callable[[Any], object] | None, *, limit_s: float) -> Profile:
    """Runs one pass over a dataset, or `limit_s` seconds of it, after one element to warm up, and measures it."""
    with _start_pass(dataset) as warm_up:  # or what the first element makes Python import would be counted
        next(warm_up, None)
    trace = Timeline()
    elements, waited_s = 0, 0.0
    with _start_pass(dataset, trace) as iterator:
        started = now = perf_counter()
        while now < started + limit_s:
            element = next(iterator, iterator)
            received = perf_counter()
            waited_s += received - now
            if element is iterator:
                break
            elements += 1
            if step is not None:
                step(element)
            now = perf_counter()
        elapsed_s = perf_counter() - started
        assert iterator.tuner is not None
        stats = iterator.tuner.stats
        readings = stats.readings()
        available = iterator.tuner.budget.cores
    keeps_up = step is not None and waited_s <= KEEPS_UP * elapsed_s
    ops = tuple(op_times(stats.ops, readings))
    return Profile(
        ops=ops,
        elements=elements,
        elapsed_s=elapsed_s,
        waited_s=waited_s,
        stepped=step is not None,
        advice=KEEP_UP_ADVICE if keeps_up else advise(readings, elapsed_s, available) if elements else EMPTY_ADVICE,
        timing_s=overhead_s() * sum(op.calls for op in ops),
        spans=tuple(trace.spans),
    )


def _start_pass(dataset: Flow, trace: Timeline | None = None) -> DatasetIterator:
    """A pass without a number, so that later passes are unaffected."""
    return DatasetIterator(dataset.op, dataset.settings, 0, blocks=False, dataset=type(dataset), trace=trace)


def op_times(ops: Sequence[Op], readings: Mapping[Op, OpReading]) -> Iterator[OpTime]:
    """One record per op; `ops` has each op after its consumer."""
    spent_s = {op: own_s(op, readings) for op in ops}
    depths = {ops[0]: 0}
    for op in ops:
        for below in op.inputs:
            depths[below] = depths[op] + 1
    for op in ops:
        read = readings[op]
        yield OpTime(
            op=label(op),
            depth=depths[op],
            calls=read.calls,
            elements=read.units,
            own_s=spent_s[op],
            waiting_s=read.total_s if read.ahead else 0.0,
            share=spent_s[op] / (sum(spent_s.values()) or 1.0),
            given_bytes=read.element_bytes * read.calls,
        )


def _cells(op: OpTime) -> tuple[str, ...]:
    waiting = f"{op.waiting_s:.3f}" if op.waiting_s else ""
    share, size = f"{op.share:.0%}", f"{op.given_bytes / 1e6:,.1f}"
    return ("  " * op.depth + op.op, f"{op.calls:,}", f"{op.elements:,}", f"{op.own_s:.3f}", waiting, share, size)
