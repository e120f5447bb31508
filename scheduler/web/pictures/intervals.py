"""Values with their intervals on one scale, a row for each: what differs by more than chance is seen at once. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from spanwise.scheduler.web.pictures.svg import element, picture

_WIDTH, _LINE, _EDGE = 180.0, 11.0, 6.0


@dataclass(frozen=True)
class Estimate:
    """A value, within what it lies, and what it is compared with."""

    value: float | None
    interval: tuple[float, float] | None
    baseline: float | None
    style: str  #: a class of the style sheet


def find_scale(estimates: Sequence[Estimate]) -> tuple[float, float] | None:
    """From the lowest to the highest of all; None where nothing is known."""
    every = [v for e in estimates for v in (e.value, e.baseline, *(e.interval or ())) if v is not None]
    known = [value for value in every if math.isfinite(value)]
    return (min(known), max(known)) if known else None


def draw_estimate(estimates: Sequence[Estimate], scale: tuple[float, float] | None, title: str) -> Markup:
    """One line each: a dot at the value, a bar over its interval, a tick at the baseline."""
    if scale is None:
        return Markup("")
    low, high = scale
    across = (_WIDTH - 2 * _EDGE) / ((high - low) or 1.0)

    def place(value: float) -> float:
        return _EDGE + (value - low) * across

    parts = []
    for number, each in enumerate(estimates):
        y = _LINE / 2 + number * _LINE
        if each.interval is not None and all(map(math.isfinite, each.interval)):
            first, last = map(place, each.interval)
            parts.append(element("line", x1=first, y1=y, x2=last, y2=y, class_=f"whisker {each.style}"))
        if each.baseline is not None and math.isfinite(each.baseline):
            x = place(each.baseline)
            parts.append(element("line", x1=x, y1=y - 4, x2=x, y2=y + 4, class_="tick"))
        if each.value is not None and math.isfinite(each.value):
            parts.append(element("circle", cx=place(each.value), cy=y, r=3.2, class_=f"mark {each.style}"))
    return picture(_WIDTH, _LINE * len(estimates), title, *parts, class_="estimate")
