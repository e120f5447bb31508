"""Plots: histograms, bars and lines as SVG, whatever the numbers mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spanwise.components.report.page import escaped

WIDTH = 460
_BAR_PX = 18  # height of one bar with its text, px
_LETTER_PX = 7.4  # about the width of a capital letter, px


@dataclass(frozen=True)
class Series:
    """Heights of one colour."""

    name: str
    values: tuple[float, ...]  #: one per bin or label; NaN is not shapes


@dataclass(frozen=True)
class Line:
    """A line of one colour."""

    name: str
    points: tuple[tuple[float, float], ...]


def histogram(
    edges: Sequence[float],
    series: Sequence[Series],
    *,
    ends: tuple[str, str],
    share: bool = True,
    height: int = 130,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Bins between edges: the first series filled, the others outlined over it.

    `ends` are the texts below the first and the last edge; with `share`, heights are shares of 1 and shown as percent.
    `marks` are vertical lines with a text.
    """
    left, top, right, bottom = 44, 12, 6, 18
    width, tall = WIDTH - left - right, height - top - bottom
    most = max((v for s in series for v in s.values if math.isfinite(v)), default=0.0) or 1.0
    span = (edges[-1] - edges[0]) or 1.0

    def x(edge: float) -> float:
        return left + (edge - edges[0]) / span * width

    def y(value: float) -> float:
        return top + tall * (1 - (value if math.isfinite(value) else 0.0) / most)

    shapes = [_draw_axis(left, top, width, tall, _format_percent(most) if share else f"{most:,.4g}")]
    for number, s in enumerate(series):
        path = [f"M{x(edges[0]):.1f},{top + tall}"]
        for i, value in enumerate(s.values):
            path.append(f"V{y(value):.1f}H{x(edges[i + 1]):.1f}")
        path.append(f"V{top + tall}Z")
        fill = f'fill="var(--c{number % 4})" fill-opacity="0.35"' if not number else 'fill="none"'
        shapes.append(
            f'<path d="{"".join(path)}" {fill} stroke="var(--c{number % 4})" stroke-width="1.5">'
            f"<title>{escaped(s.name)}</title></path>"
        )
    for place, text in marks:
        if edges[0] <= place <= edges[-1]:
            shapes.append(_draw_mark(x(place), top, tall, text))
    shapes.append(_draw_text(left, height - 4, ends[0], "start"))
    shapes.append(_draw_text(WIDTH - right, height - 4, ends[1], "end"))
    return _wrap_svg(height, shapes)


def bars(
    labels: Sequence[str], series: Sequence[Series], *, show: Callable[[float], str] | None = None, cut: int = 26
) -> str:
    """Horizontal bars, a group per label; each bar has its value beside it."""
    show = show or _format_percent
    groups = max(1, len(series))
    thick = 12 if groups == 1 else max(5, 14 // groups + 3)
    step = max(_BAR_PX, thick * groups + 6)
    height = step * len(labels) + 4
    shown = [label if len(label) <= cut else label[: cut - 1] + "…" for label in labels]
    left = min(200, 12 + max((len(label) for label in shown), default=0) * _LETTER_PX)
    room = WIDTH - left - 54
    most = max((v for s in series for v in s.values if math.isfinite(v)), default=0.0) or 1.0
    shapes = []
    for i, label in enumerate(shown):
        middle = 2 + step * i + step / 2
        shapes.append(
            f'<text x="{left - 8:.1f}" y="{middle + 4:.1f}" text-anchor="end" class="value">{escaped(label)}'
            f"<title>{escaped(labels[i])}</title></text>"
        )
        for number, s in enumerate(series):
            value = s.values[i]
            if not math.isfinite(value):
                continue
            y = middle - thick * groups / 2 + thick * number
            wide = max(1.0, room * value / most)
            shapes.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{thick - 1}" fill="var(--c{number % 4})" '
                f'fill-opacity="0.75"><title>{escaped(s.name)}: {escaped(show(value))}</title></rect>'
            )
            shapes.append(_draw_text(left + wide + 5, y + thick / 2 + 3.5, show(value), "start"))
    return _wrap_svg(height, shapes)


def lines(
    lines: Sequence[Line],
    *,
    x_label: str = "",
    y_label: str = "",
    diagonal: bool = False,
    height: int = 260,
    limits: tuple[float, float, float, float] | None = None,
) -> str:
    """Lines through points, with a grid of five by five; `limits` are least x, most x, least y, most y."""
    left, top, right, bottom = 52, 10, 10, 34
    width, tall = WIDTH - left - right, height - top - bottom
    points = [p for line in lines for p in line.points if math.isfinite(p[0]) and math.isfinite(p[1])]
    x0, x1, y0, y1 = limits or _find_limits(points)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return left + (point[0] - x0) / (x1 - x0) * width, top + tall * (1 - (point[1] - y0) / (y1 - y0))

    shapes = []
    for i in range(6):
        at = i / 5
        gx, gy = left + at * width, top + (1 - at) * tall
        shapes.append(f'<path d="M{gx:.1f},{top}V{top + tall}M{left},{gy:.1f}H{left + width}" stroke="var(--line)"/>')
        shapes.append(_draw_text(gx, top + tall + 14, f"{x0 + at * (x1 - x0):.3g}", "middle"))
        shapes.append(_draw_text(left - 6, gy + 4, f"{y0 + at * (y1 - y0):.3g}", "end"))
    if diagonal:
        (ax, ay), (bx, by) = place((x0, y0)), place((x1, y1))
        shapes.append(f'<path d="M{ax:.1f},{ay:.1f}L{bx:.1f},{by:.1f}" stroke="var(--faint)" stroke-dasharray="4 4"/>')
    for number, line in enumerate(lines):
        path = " ".join("{:.1f},{:.1f}".format(*place(p)) for p in line.points if all(map(math.isfinite, p)))
        shapes.append(
            f'<polyline points="{path}" fill="none" stroke="var(--c{number % 4})" stroke-width="2">'
            f"<title>{escaped(line.name)}</title></polyline>"
        )
    shapes.append(_draw_text(left + width / 2, height - 4, x_label, "middle"))
    shapes.append(
        f'<text transform="translate(12 {top + tall / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escaped(y_label)}</text>"
    )
    return _wrap_svg(height, shapes)


def _find_limits(points: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    if not points:
        return 0.0, 1.0, 0.0, 1.0
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    x_least, y_least = min(xs), min(ys)
    x_most, y_most = max(xs), max(ys)
    return x_least, x_most + (x_least == x_most), y_least, y_most + (y_least == y_most)


def _format_percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.995 else f"{share:.1%}"  # noqa: PLR2004  which rounds to 100 %


def _draw_axis(left: float, top: float, width: float, tall: float, most: str) -> str:
    return (
        f'<path d="M{left},{top}H{left + width}M{left},{top + tall}H{left + width}" stroke="var(--line)"/>'
        + _draw_text(left - 6, top + 4, most, "end")
        + _draw_text(left - 6, top + tall + 4, "0", "end")
    )


def _draw_mark(x: float, top: float, tall: float, text: str) -> str:
    line = f'<path d="M{x:.1f},{top}V{top + tall}" stroke="var(--faint)" stroke-dasharray="3 3"/>'
    return line + _draw_text(x + 4, top + 9, text, "start")


def _draw_text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'


def _wrap_svg(height: float, shapes: Sequence[str]) -> str:
    inner = "".join(shapes)
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" role="img">{inner}</svg>'
