"""Charts: sparklines, lines over spans with a baseline, durations of runs, and when the nodes of a run worked. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from spanwise.scheduler.formatting import format_duration, format_number
from spanwise.scheduler.web.pictures.svg import element, join, link, picture

_MARGIN = 6.0
_LABEL = 46.0  # width of the labels of an axis


def draw_sparkline(values: Sequence[float | None], title: str, *, width: int = 96, height: int = 22) -> Markup:
    """The last values as a line, with a dot at the last; nothing when there are fewer than two."""
    known = [(i, v) for i, v in enumerate(values) if v is not None and math.isfinite(v)]
    if len(known) < 2:  # noqa: PLR2004  a line has two ends
        return Markup("")
    low, high = min(v for _, v in known), max(v for _, v in known)
    across, up = (width - 6) / max(1, len(values) - 1), (height - 6) / ((high - low) or 1)
    points = [(3 + i * across, height - 3 - (v - low) * up) for i, v in known]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dot = element("circle", cx=points[-1][0], cy=points[-1][1], r=2.2, class_="dot")
    return picture(width, height, title, element("polyline", points=line, class_="line"), dot, class_="spark")


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart."""

    name: str
    values: Sequence[float | None]
    style: str  #: line or baseline
    intervals: Sequence[tuple[float, float] | None] = ()  #: within which each value lies
    hollow: Sequence[bool] = ()  #: whose dots are empty


def draw_lines(labels: Sequence[str], series: Sequence[ChartLine], title: str, links: Sequence[str] = ()) -> Markup:
    """Values over spans or runs, with an axis and a dot for each; a dot links to what `links` has at its place."""
    width, height = 720.0, 190.0
    bounds = [end for each in series for interval in each.intervals if interval is not None for end in interval]
    every = [v for each in series for v in (*each.values, *bounds) if v is not None and math.isfinite(v)]
    if not every:
        return Markup("")
    low, high = min(every), max(every)
    low, high = (low - abs(low) * 0.05 - 1e-9, high + abs(high) * 0.05 + 1e-9) if low == high else (low, high)
    across = (width - _LABEL - 2 * _MARGIN) / max(1, len(labels) - 1)
    up = (height - 40) / (high - low)

    def place(index: int, value: float) -> tuple[float, float]:
        return _LABEL + _MARGIN + index * across, 14 + (high - value) * up

    parts = []
    for value in (low, (low + high) / 2, high):
        y = place(0, value)[1]
        parts.append(element("line", x1=_LABEL, y1=y, x2=width, y2=y, class_="grid"))
        text = format_number(float(f"{value:.3g}"))
        parts.append(element("text", text, x=_LABEL - 4, y=y + 4, class_="axis", text_anchor="end"))
    step = max(1, math.ceil(len(labels) / 8))
    for index in range(0, len(labels), step):
        x = place(index, low)[0]
        anchor = "start" if index == 0 else "end" if x + _LABEL > width else "middle"  # or the edge would cut it
        parts.append(element("text", labels[index], x=x, y=height - 6, class_="axis", text_anchor=anchor))
    parts += [element("polygon", points=points, class_="band") for each in series for points in _bands(each, place)]
    for each in series:
        points = [(i, *place(i, v)) for i, v in enumerate(each.values) if v is not None and math.isfinite(v)]
        line = " ".join(f"{x:.1f},{y:.1f}" for _, x, y in points)
        parts.append(element("polyline", points=line, class_=each.style))
        for index, x, y in points:
            interval = each.intervals[index] if index < len(each.intervals) else None
            within = "" if interval is None else f", {format_number(interval[0])} to {format_number(interval[1])}"
            hollow = index < len(each.hollow) and each.hollow[index]
            label = f"{labels[index]}: {each.name} {format_number(each.values[index])}{within}"
            label += ", not blessed" * hollow
            style = f"dot {each.style}{' hollow' * hollow}"
            dot = element("circle", element("title", label), cx=x, cy=y, r=3.4, class_=style)
            parts.append(link(links[index], dot, label=label) if index < len(links) and each.style == "line" else dot)
    return picture(width, height, title, *parts, class_="chart", scale=True)


def _bands(line: ChartLine, place: Callable[[int, float], tuple[float, float]]) -> Iterator[str]:
    """The outlines of the intervals of neighbours."""
    known = [n for n, i in enumerate(line.intervals) if i is not None and all(map(math.isfinite, i))]
    for _, group in groupby(enumerate(known), key=lambda pair: pair[1] - pair[0]):
        run = [index for _, index in group]
        ends = [(index, interval) for index in run if (interval := line.intervals[index]) is not None]
        around = [place(i, low) for i, (low, _) in ends] + [place(i, high) for i, (_, high) in reversed(ends)]
        if len(run) == 1:  # one alone is a bar
            (x, low), (_, high) = around
            around = [(x - 3, low), (x + 3, low), (x + 3, high), (x - 3, high)]
        yield " ".join(f"{x:.1f},{y:.1f}" for x, y in around)


@dataclass(frozen=True)
class Bar:
    """What one node did in a run: when it waited, worked and published."""

    name: str
    state: str
    href: str
    start_s: float  #: since the run began
    took_s: float
    queued_s: float | None = None  #: between when all that it waited for had ended, and its start
    publish_s: float | None = None  #: of `took_s`, after its code had ended


def draw_gantt(bars: Sequence[Bar], total_s: float) -> Markup:
    """When each node worked, from the start of the run to its end."""
    width, row, names = 720.0, 20.0, 150.0
    scale = (width - names - 70) / (total_s or 1)
    parts = []
    for number, bar in enumerate(bars):
        y = number * row + 4
        x, length = names + bar.start_s * scale, max(2.0, bar.took_s * scale)
        label = (
            f"{bar.name}: {bar.state}, {format_duration(bar.took_s)}, {format_duration(bar.start_s)} after the start"
        )
        phases = [element("rect", x=x, y=y, width=length, height=row - 8, rx=2, class_=f"bar {bar.state}")]
        if bar.queued_s:
            label += f", of which it had waited {format_duration(bar.queued_s)}"
            wait = bar.queued_s * scale
            phases.append(element("rect", x=x - wait, y=y + 4, width=wait, height=row - 16, class_="bar queued"))
        if bar.publish_s:
            label += f"; {format_duration(bar.publish_s)} to publish"
            last = min(length, max(1.5, bar.publish_s * scale))
            phases.append(element("rect", x=x + length - last, y=y, width=last, height=row - 8, class_="bar publish"))
        parts += [
            element("text", _cut(bar.name), x=names - 6, y=y + 10, class_="axis", text_anchor="end"),
            link(bar.href, *phases, label=label),
            element("text", format_duration(bar.took_s), x=x + length + 4, y=y + 10, class_="axis"),
        ]
    height = len(bars) * row + 4
    axis = element("line", x1=names, y1=0.0, x2=names, y2=height, class_="grid")
    title = f"When {len(bars)} nodes worked, over {format_duration(total_s)}; the same is in the table of nodes"
    return picture(width, height, title, axis, join(parts), class_="chart", scale=True)


def _cut(text: str, most: int = 22) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
