"""Graphs: the nodes of a run with their states, and lineage, as boxes in layers with lines between them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from spanwise.scheduler.web.pictures.svg import element, join, link, picture

_WIDE, _HIGH, _GAP_X, _GAP_Y, _EDGE = 138.0, 40.0, 14.0, 12.0, 4.0
_SWEEPS = 4
_CHARACTERS = 16  # of a line in a box


@dataclass(frozen=True)
class Box:
    """One node of a graph."""

    key: str
    text: str
    below: str  #: a second line
    state: str  #: a class of the style sheet
    href: str
    sign: str = ""  #: what the state looks like without its colour


def draw_graph(boxes: Sequence[Box], edges: Iterable[tuple[str, str]], title: str) -> Markup:
    """Layers from left to right, each node in the first layer after all those that it waits for."""
    known = {box.key: box for box in boxes}
    pairs = sorted({(a, b) for a, b in edges if a in known and b in known and a != b})
    layers = _layers(list(known), pairs)
    places = {
        key: (_EDGE + column * (_WIDE + _GAP_X), _EDGE + row * (_HIGH + _GAP_Y))
        for column, layer in enumerate(layers)
        for row, key in enumerate(layer)
    }
    width = len(layers) * (_WIDE + _GAP_X) - _GAP_X + 2 * _EDGE
    height = max(map(len, layers), default=1) * (_HIGH + _GAP_Y) - _GAP_Y + 2 * _EDGE
    lines = join(_line(places[a], places[b]) for a, b in pairs)
    return picture(width, height, title, lines, join(_box(known[k], *places[k]) for k in known), class_="graph")


def _layers(keys: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    above: Mapping[str, list[str]] = defaultdict(list)
    for a, b in pairs:
        above[b].append(a)
    depth = dict.fromkeys(keys, 0)
    for _ in keys:  # as often as the longest way is long; a circle, which lineage may have, ends it
        deeper = {k: max((depth[a] + 1 for a in above[k]), default=0) for k in keys}
        if deeper == depth or max(deeper.values(), default=0) >= len(keys):
            break
        depth = deeper
    below: Mapping[str, list[str]] = defaultdict(list)
    for a, b in pairs:
        below[a].append(b)
    for key in keys:  # what waits for nothing stands beside its first reader, so that its line is short
        if not above[key] and below[key]:
            depth[key] = max(0, min(depth[b] for b in below[key]) - 1)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for key in keys:
        layers[depth[key]].append(key)
    for _ in range(_SWEEPS):
        row = {key: n for layer in layers for n, key in enumerate(layer)}
        for layer in layers[1:]:
            layer.sort(key=lambda k: sum(row[a] for a in above[k]) / (len(above[k]) or 1))
    return layers


def _line(source: tuple[float, float], target: tuple[float, float]) -> Markup:
    x1, y1 = source[0] + _WIDE, source[1] + _HIGH / 2
    x2, y2 = target[0], target[1] + _HIGH / 2
    bend = max(14.0, (x2 - x1) / 2)
    return element("path", d=f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}", class_="edge")


def _box(box: Box, x: float, y: float) -> Markup:
    label = f"{box.text}, {box.below}"
    return link(
        box.href,
        element("rect", x=x, y=y, width=_WIDE, height=_HIGH, rx=5, class_=f"box {box.state}"),
        element("text", f"{box.sign} {_cut(box.text)}".strip(), x=x + 6, y=y + 17, class_="name"),
        element("text", _cut(box.below, _CHARACTERS + 4), x=x + 6, y=y + 32, class_="axis"),
        label=label,
    )


def _cut(text: str, most: int = _CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
