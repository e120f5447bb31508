"""Profiles: where the time of a pass goes, op by op, who waits for whom, and what to do about it."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.iterator import DatasetIterator
from spanwise.pipelines.input.op import Op
from spanwise.pipelines.input.ops.map import Map
from spanwise.pipelines.input.rows import in_rows
from spanwise.pipelines.input.tuning.stats import Reading, Span, Stats, Trace, overhead_s

KEEPS_UP = 0.1  #: a consumer that waits for less than this share of its time has an input that keeps up
QUICK_S = 1e-4  #: a call that takes less is not worth a thread
WHOLE = 0.9  #: a trace that covers more than this share of the time is of all of it
BUSY = 0.5  #: a call that has a core for more than this share of its time computes, or else it waits


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
    """What a pass over a dataset took. Printed it is a table; `save` writes it as a page with a timeline."""

    ops: tuple[OpTime, ...]  #: each after its consumer
    elements: int  #: that the consumer has taken
    elapsed_s: float
    waited_s: float  #: of it the consumer waited for the input
    stepped: bool  #: whether the consumer did anything with the elements
    advice: str
    timing_s: float  #: what measuring has cost
    spans: tuple[Span, ...] = ()

    @property
    def bottleneck(self) -> str:
        """`input` or `consumer`: who lets the other wait."""
        return "input" if self.waited_s > KEEPS_UP * self.elapsed_s else "consumer"

    @property
    def verdict(self) -> str:
        """Who waits for whom, in a sentence."""
        rate = f"{self.elements / self.elapsed_s:,.0f} elements a second for {self.elapsed_s:.2f} s"
        share = f"{self.waited_s / self.elapsed_s:.0%}"
        if not self.stepped:
            return f"{rate}. Nothing was done with them; profile(step) tells whether your step waits for the input."
        if self.bottleneck == "input":
            return f"{rate}. The input is the bottleneck: {share} of the time the consumer waits for it."
        return f"{rate}. The consumer is the bottleneck: it waits for the input for {share} of the time only."

    def __str__(self) -> str:
        head = ("op", "calls", "elements", "own s", "waiting s", "share", "MB")
        table = [head, *map(_cells, self.ops)]
        widths = [max(len(row[i]) for row in table) for i in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in table
        ]
        return "\n".join([*(line.rstrip() for line in lines), "", self.verdict, self.advice, self.cost])

    @property
    def cost(self) -> str:
        """What the profile itself has taken, in a sentence."""
        return f"Timing has taken {self.timing_s * 1000:.2g} ms."

    def html(self) -> str:
        """The page: one file, nothing from the network."""
        head = "".join(f"<th>{name}</th>" for name in ("op", "calls", "elements", "own s", "waiting s", "share", "MB"))
        body = "".join(
            f'<tr><th style="padding-left: {op.depth}em">{html.escape(op.op)}</th>'
            + "".join(f"<td>{cell}</td>" for cell in _cells(op)[1:])
            + f'<td><i style="width: {op.share * 160:.0f}px"></i></td></tr>'
            for op in self.ops
        )
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Profile of an input</title>'
            f"<style>{STYLE}</style></head>\n<body><h1>Profile of an input</h1>\n"
            f"<p><b>{html.escape(self.verdict)}</b></p><p>{html.escape(self.advice)} {html.escape(self.cost)}</p>\n"
            f"<table><thead><tr>{head}<th></th></tr></thead><tbody>{body}</tbody></table>\n"
            f"<h2>Timeline</h2><p>A line for each op in each thread; dark is a call of a function in the background."
            f"{self._part()}</p>\n{_timeline(self.spans)}</body></html>\n"
        )

    def _part(self) -> str:
        """How much of the pass was traced, if it is not all of it."""
        traced_s = max((span.end_s for span in self.spans), default=0.0)
        return "" if traced_s > WHOLE * self.elapsed_s else f" These are the first {traced_s:.2f} s."

    def save(self, path: str | Path) -> None:
        """Writes the page."""
        Path(path).write_text(self.html(), encoding="utf-8")


def profiled(dataset: Flow, step: Callable[[Any], object] | None, *, limit_s: float) -> Profile:
    """Runs one pass over a dataset, or `limit_s` seconds of it, and tells what it took; after a first element."""
    with _a_pass(dataset) as warm_up:  # without it, what the first element makes Python import would be counted
        next(warm_up, None)
    trace = Trace()
    elements, waited_s = 0, 0.0
    with _a_pass(dataset, trace) as iterator:
        begun = now = time.perf_counter()
        while now < begun + limit_s:
            element = next(iterator, iterator)
            given = time.perf_counter()
            waited_s += given - now
            if element is iterator:
                break
            elements += 1
            if step is not None:
                step(element)
            now = time.perf_counter()
        elapsed_s = time.perf_counter() - begun
        assert iterator.tuner is not None
        stats = iterator.tuner.stats
        readings = stats.readings()
    ops = tuple(_op_times(stats, readings))
    return Profile(
        ops=ops,
        elements=elements,
        elapsed_s=elapsed_s,
        waited_s=waited_s,
        stepped=step is not None,
        advice="The input keeps up: to go faster, make the step faster."
        if step is not None and waited_s <= KEEPS_UP * elapsed_s
        else _advice(stats, readings)
        if elements
        else "Nothing came out: the dataset is empty, or its first element takes longer than there was time.",
        timing_s=overhead_s() * sum(op.calls for op in ops),
        spans=tuple(trace.spans),
    )


def _a_pass(dataset: Flow, trace: Trace | None = None) -> DatasetIterator:
    """One that is not numbered, so that later passes are what they would have been."""
    return DatasetIterator(dataset.op, dataset.settings, 0, blocks=False, dataset=type(dataset), trace=trace)


def _op_times(stats: Stats, readings: Mapping[Op, Reading]) -> Iterator[OpTime]:
    own_s = {op: _own_s(op, readings) for op in stats.ops}
    depths = {stats.ops[0]: 0}
    for op in stats.ops:
        for below in op.inputs:
            depths[below] = depths[op] + 1
    for op in stats.ops:
        read = readings[op]
        yield OpTime(
            op=_named(op),
            depth=depths[op],
            calls=read.calls,
            elements=read.units,
            own_s=own_s[op],
            waiting_s=read.total_s if read.ahead else 0.0,
            share=own_s[op] / (sum(own_s.values()) or 1.0),
            given_bytes=read.element_bytes * read.calls,
        )


def _own_s(op: Op, readings: Mapping[Op, Reading]) -> float:
    read = readings[op]
    if read.ahead:
        return read.work.took_s if read.work is not None else 0.0
    return max(0.0, read.total_s - sum(readings[below].total_s for below in op.inputs))


def _advice(stats: Stats, readings: Mapping[Op, Reading]) -> str:
    """What to try first: about the op whose own work is most."""
    slowest = max(stats.ops, key=lambda op: _own_s(op, readings))
    read = readings[slowest]
    most = f"Most of the work is {_named(slowest)}'s"
    per_call_s = _own_s(slowest, readings) / max(read.calls, 1)
    if not slowest.inputs:
        return f"{most}: read several files at once (interleave with num_parallel), or keep them: cache, snapshot."
    if read.ahead:
        return f"{most}, {_of_parallel(slowest, read)}."
    if not hasattr(slowest, "function"):
        return f"{most}: give it less to do: filter and select before it, and work on rows rather than on elements."
    if not in_rows(slowest) and per_call_s < QUICK_S:
        return f"{most}, {per_call_s * 1e6:.0f} us a call: work on many elements at once, vectorized or after batch."
    return f"{most}: let several calls run at once, with num_parallel=AUTOTUNE, or work on blocks: vectorized=True."


def _of_parallel(op: Op, read: Reading) -> str:
    computes = read.work is not None and read.work.cpu_s > BUSY * read.work.took_s
    if computes and isinstance(op, Map) and not op.may_travel:
        return (
            "and it computes: if it is Python rather than NumPy, try workers='processes'; "
            "or keep what it makes: snapshot"
        )
    return "and it is parallel already: keep what it makes (cache, snapshot), or make it do less"


def _named(op: Op) -> str:
    """The op, and the function that it was given."""
    function = getattr(op, "function", None)
    return op.name if function is None else f"{op.name} {getattr(function, '__name__', type(function).__name__)}"


def _cells(op: OpTime) -> tuple[str, ...]:
    waiting = f"{op.waiting_s:.3f}" if op.waiting_s else ""
    share, size = f"{op.share:.0%}", f"{op.given_bytes / 1e6:,.1f}"
    return ("  " * op.depth + op.op, f"{op.calls:,}", f"{op.elements:,}", f"{op.own_s:.3f}", waiting, share, size)


STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --faint: #66707a; --line: #d9dee3; --paper: #fff;
  --wait: #a9c8e8; --call: #2f6fb3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --faint: #98a2ad; --line: #39424b; --paper: #15191d;
  --wait: #35536f; --call: #6aa5e0; } }
body { margin: 0 auto; padding: 24px 32px 64px; max-width: 1180px; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 4px; } p { margin: 4px 0 8px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 16px 3px 0; text-align: right; font-weight: normal; white-space: nowrap; }
th:first-child { text-align: left; } thead th { color: var(--faint); border-bottom: 1px solid var(--line); }
td i { display: block; height: 10px; background: var(--call); }
svg { display: block; width: 100%; } svg text { fill: var(--faint); font-size: 11px; }
.wait { fill: var(--wait); } .call { fill: var(--call); } .axis { stroke: var(--line); }
"""

_WIDTH, _NAMES, _LANE = 1100, 230, 18  # px: the whole, its left column, the height of a line


def _timeline(spans: Sequence[Span]) -> str:
    """The spans as SVG, a lane for each op in each thread, over the time that they cover."""
    if not spans:
        return "<p>Nothing was traced.</p>"
    end_s = max(span.end_s for span in spans)
    lanes = {key: place for place, key in enumerate(dict.fromkeys((_named(s.op), s.thread) for s in spans))}
    scale = (_WIDTH - _NAMES) / end_s
    height = len(lanes) * _LANE + 24
    drawn = [
        f'<text x="0" y="{place * _LANE + 13}">{html.escape(f"{op} in {thread}")}</text>'
        for (op, thread), place in lanes.items()
    ]
    for span in spans:
        x, y = _NAMES + span.start_s * scale, lanes[_named(span.op), span.thread] * _LANE + 3
        width = max(0.5, (span.end_s - span.start_s) * scale)
        told = f"{_named(span.op)}: {(span.end_s - span.start_s) * 1000:.3f} ms at {span.start_s * 1000:.1f} ms"
        drawn.append(
            f'<rect class="{"call" if span.call else "wait"}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
            f'height="{_LANE - 6}"><title>{html.escape(told)}</title></rect>'
        )
    for tenth in range(0, 11, 2):
        x = _NAMES + tenth / 10 * (_WIDTH - _NAMES)
        anchor = "end" if tenth == 10 else "middle"  # noqa: PLR2004  the last stands at the edge
        drawn.append(f'<line class="axis" x1="{x:.0f}" y1="0" x2="{x:.0f}" y2="{height - 20}"/>')
        drawn.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}">{end_s * tenth * 100:.0f} ms</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(drawn)}</svg>'
