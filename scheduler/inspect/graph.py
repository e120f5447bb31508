"""Graphs: a pipeline drawn as text, as Mermaid, or as a self-contained SVG picture. Pure."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spanwise.orchestrator.component import Node, Resolver
from spanwise.orchestrator.pipeline import Pipeline, channels_of

BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 46, 34, 58, 20
CHAR_WIDTH = 7.9
"""Pixels of a character at 13 px; a generous estimate, because the font is unknown."""

PORT_GAP = 40
_SWEEPS = 6


def format_text(pipeline: Pipeline) -> str:
    """The nodes by layer, each with its inputs."""
    lines = []
    for depth, layer in enumerate(assign_layers(pipeline)):
        for name in layer:
            reads = [f"{c!r}" for c in channels_of(pipeline.nodes[name])]
            after = [f"after {other.name}" for other in pipeline.nodes[name].after]
            sources = f"  <- {', '.join(dict.fromkeys([*reads, *after]))}" if reads or after else ""
            lines.append(f"{'   ' * depth}{name}{sources}")
    return "\n".join(lines)


def format_mermaid(pipeline: Pipeline) -> str:
    """The pipeline as a Mermaid flowchart."""
    ids = {name: f"n{i}" for i, name in enumerate(pipeline.order)}
    lines = ["flowchart TD"]
    for node in pipeline:
        left, right = ("([", "])") if isinstance(node, Resolver) else ("[", "]")
        lines.append(f'    {ids[node.name]}{left}"{_label(node)}"{right}')
    for edge in list_edges(pipeline):
        arrow = "-.->" if edge.past else "-->"
        arrow = arrow if edge.waits else f"{arrow}|{edge.key}|"
        lines.append(f"    {ids[edge.source]} {arrow} {ids[edge.target]}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Edge:
    """A connection of two nodes."""

    source: str
    target: str
    key: str
    past: bool = False  #: the target reads outputs of earlier runs, and does not wait
    waits: bool = False  #: the target runs after the source and reads nothing of it; the key is empty


def list_edges(pipeline: Pipeline) -> list[Edge]:
    """Every edge, one for each output that is read."""
    reads = {
        Edge(channel.node, node.name, channel.key, channel.producer is None): None
        for node in pipeline
        for channel in channels_of(node)
    }
    order = [Edge(other.name, node.name, "", waits=True) for node in pipeline for other in node.after]
    return [*reads, *order]


def assign_layers(pipeline: Pipeline) -> list[list[str]]:
    """The nodes in layers: each node is below all nodes that it waits for."""
    depth: dict[str, int] = {}
    for name in pipeline.order:
        depth[name] = max((depth[p] + 1 for p in pipeline.parents(name)), default=0)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in pipeline.order:
        layers[depth[name]].append(name)
    return layers


def draw_svg(pipeline: Pipeline) -> str:
    """A picture: layers from top to bottom; resolvers have round ends, edges into the past are dashed.

    The layout is Sugiyama's: an edge that passes through layers gets a place in each, and the nodes of a layer are
    ordered by the mean place of their neighbours, so that few edges cross and none runs behind a box.
    """
    drawn = [e for e in list_edges(pipeline) if not e.past]
    rows, chains = _insert_passages(assign_layers(pipeline), {(e.source, e.target) for e in drawn})
    rows = _order_rows(rows, chains)
    widths = {name: _width(pipeline.nodes.get(name)) for row in rows for name in row}
    centres, total = _place_rows(rows, widths, chains)
    tops = {name: MARGIN + i * (BOX_HEIGHT + GAP_Y) for i, row in enumerate(rows) for name in row}
    height = 2 * MARGIN + len(rows) * BOX_HEIGHT + max(0, len(rows) - 1) * GAP_Y
    keys: dict[tuple[str, str], list[str]] = {}
    for edge in drawn:
        keys.setdefault((edge.source, edge.target), []).append(edge.key or "then")
    past = [e for e in list_edges(pipeline) if e.past]
    sides = {n: (centres[n] + widths[n] / 2, tops[n]) for n in pipeline.nodes}
    parts = [_head(total + (3 * MARGIN if past else 0), height, pipeline.name)]
    ports = _assign_ports(chains, centres, widths)
    parts += [_path(_points(edge, chain, centres, tops, ports)) for edge, chain in chains.items()]
    parts += [_past(sides[e.source], sides[e.target], total) for e in past]
    parts += [_box(node, centres[node.name], tops[node.name], widths[node.name]) for node in pipeline]
    parts += [_caption(", ".join(keys[edge]), port, tops[edge[1]]) for edge, port in ports.items()]
    return "\n".join([*parts, "</svg>"])


Chains: TypeAlias = Mapping[tuple[str, str], Sequence[str]]
"""The places that each edge passes through, from its source to its target."""


def _insert_passages(rows: list[list[str]], pairs: Iterable[tuple[str, str]]) -> tuple[list[list[str]], Chains]:
    """The layers with a place for each edge in every layer it passes, and each edge as the places it goes through."""
    rows = [list(row) for row in rows]
    depth = {name: i for i, row in enumerate(rows) for name in row}
    chains: dict[tuple[str, str], list[str]] = {}
    for source, target in sorted(pairs, key=lambda p: (depth[p[0]], depth[p[1]], p)):
        chain = [source]
        for level in range(depth[source] + 1, depth[target]):
            # One place for all edges of a source in a layer, so that they run as one line and part late.
            passage = f"{source}>{level}"
            if passage not in rows[level]:
                rows[level].append(passage)
            chain.append(passage)
        chains[source, target] = [*chain, target]
    return rows, chains


def _order_rows(rows: list[list[str]], chains: Chains) -> list[list[str]]:
    links = {(a, b) for chain in chains.values() for a, b in itertools.pairwise(chain)}
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for a, b in links:
        above.setdefault(b, []).append(a)
        below.setdefault(a, []).append(b)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for i in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            other = {name: place for place, name in enumerate(rows[i - 1 if down else i + 1])}
            here = {name: place for place, name in enumerate(rows[i])}
            rows[i].sort(key=lambda n: _mean([other[m] for m in near.get(n, ())], here[n]))
    return rows


def _mean(places: Sequence[float], otherwise: float) -> float:
    return sum(places) / len(places) if places else otherwise


def _place_rows(rows: list[list[str]], widths: Mapping[str, float], chains: Chains) -> tuple[dict[str, float], float]:
    """The centre of each place, near those of its neighbours and without overlaps; and the total width."""
    links = {(a, b) for chain in chains.values() for a, b in itertools.pairwise(chain)}
    near: dict[str, list[str]] = {}
    for a, b in links:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    centres: dict[str, float] = {}
    for row in rows:
        x = 0.0
        for name in row:
            centres[name] = x + widths[name] / 2
            x += widths[name] + GAP_X
    for _ in range(_SWEEPS):
        for row in [*rows, *reversed(rows)]:
            wanted = [_mean([centres[m] for m in near.get(n, ())], centres[n]) for n in row]
            centres |= dict(zip(row, _spread(wanted, [widths[n] for n in row]), strict=True))
    left = min((centres[n] - widths[n] / 2 for row in rows for n in row), default=0.0)
    centres = {name: x - left + MARGIN for name, x in centres.items()}
    right = max((centres[n] + widths[n] / 2 for row in rows for n in row), default=0.0)
    return centres, right + MARGIN


def _spread(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The nearest places that keep the order and the gaps: the mean of pushing right and pushing left."""
    right = list(wanted)
    for i in range(1, len(right)):
        right[i] = max(right[i], right[i - 1] + (widths[i - 1] + widths[i]) / 2 + GAP_X)
    left = list(wanted)
    for i in range(len(left) - 2, -1, -1):
        left[i] = min(left[i], left[i + 1] - (widths[i] + widths[i + 1]) / 2 - GAP_X)
    return [(a + b) / 2 for a, b in zip(left, right, strict=True)]


@dataclass(frozen=True)
class Port:
    """The point at which an edge enters a box."""

    x: float
    place: int  #: its index among the edges into that box, from the left


def _assign_ports(
    chains: Chains, centres: Mapping[str, float], widths: Mapping[str, float]
) -> dict[tuple[str, str], Port]:
    """The port of each edge: side by side, in the order of their sources."""
    ports: dict[tuple[str, str], Port] = {}
    for target in dict.fromkeys(target for _, target in chains):
        arriving = sorted((e for e in chains if e[1] == target), key=lambda e: centres[chains[e][-2]])
        room = widths[target] - 2 * MARGIN
        apart = min(PORT_GAP, room / max(1, len(arriving) - 1))
        for place, edge in enumerate(arriving):
            ports[edge] = Port(centres[target] + (place - (len(arriving) - 1) / 2) * apart, place)
    return ports


def _points(
    edge: tuple[str, str],
    chain: Sequence[str],
    centres: Mapping[str, float],
    tops: Mapping[str, float],
    ports: Mapping[tuple[str, str], Port],
) -> list[tuple[float, float]]:
    return [*((centres[n], tops[n]) for n in chain[:-1]), (ports[edge].x, tops[edge[1]])]


def _width(node: Node | None) -> float:
    if node is None:
        return 8.0  # an edge that passes through
    lines = [node.name, *([] if type(node).__name__ == node.name else [type(node).__name__])]
    return 28 + CHAR_WIDTH * max(len(line) for line in lines)


def _head(width: float, height: float, name: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" role="img">\n'
        f"<title>{html.escape(name)}</title>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#64748b"/></marker></defs>\n'
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    """A smooth line from the bottom of the first place to the top of the last, straight through those between."""
    (x, top), *rest = points
    y = top + BOX_HEIGHT
    drawn = [f"M{x:.1f} {y:.1f}"]
    for i, (next_x, next_top) in enumerate(rest):
        bend = (next_top - y) / 2
        drawn.append(f"C{x:.1f} {y + bend:.1f} {next_x:.1f} {next_top - bend:.1f} {next_x:.1f} {next_top:.1f}")
        x, y = next_x, next_top
        if i < len(rest) - 1:
            y = next_top + BOX_HEIGHT
            drawn.append(f"L{x:.1f} {y:.1f}")
    return f'<path d="{" ".join(drawn)}" fill="none" stroke="#64748b" stroke-width="1.3" marker-end="url(#tip)"/>'


def _past(source: tuple[float, float], target: tuple[float, float], right: float) -> str:
    """A dashed line from the right side of the producer to the right side of the resolver."""
    (x1, top1), (x2, top2) = source, target
    y1, y2 = top1 + BOX_HEIGHT * 0.7, top2 + BOX_HEIGHT * 0.3
    out = right + MARGIN
    return (
        f'<path d="M{x1:.1f} {y1:.1f} C{out:.1f} {y1:.1f} {out:.1f} {y2:.1f} {x2:.1f} {y2:.1f}" fill="none" '
        'stroke="#64748b" stroke-width="1.3" stroke-dasharray="5 4" marker-end="url(#tip)"/>'
    )


def _box(node: Node, centre: float, top: float, width: float) -> str:
    resolver = isinstance(node, Resolver)
    fill, edge = ("#fef3c7", "#b45309") if resolver else ("#e0f2fe", "#0369a1")
    radius = BOX_HEIGHT / 2 if resolver else 6
    kind = type(node).__name__
    named = kind != node.name
    box = f'x="{centre - width / 2:.1f}" y="{top}" width="{width:.1f}" height="{BOX_HEIGHT}" rx="{radius:g}"'
    middle = f'x="{centre:.1f}" text-anchor="middle"'
    name, y = html.escape(node.name), top + (20 if named else 28)
    parts = [
        f'<rect {box} fill="{fill}" stroke="{edge}"/>',
        f'<text {middle} y="{y}" font-size="13" fill="#0f172a">{name}</text>',
    ]
    if named:
        parts.append(f'<text {middle} y="{top + 36}" font-size="11" fill="#475569">{html.escape(kind)}</text>')
    return "\n".join(parts)


def _caption(text: str, port: Port, top: float) -> str:
    """The caption of an edge at its port; every other one is higher, so that they do not touch."""
    place = f'x="{port.x:.1f}" y="{top - 11 - port.place % 2 * 12:.1f}" text-anchor="middle" font-size="10"'
    text = html.escape(text)
    # The first is a light outline of the second: not every SVG renderer supports `paint-order`.
    return (
        f'<text {place} stroke="#ffffff" stroke-width="4" fill="#ffffff">{text}</text>\n'
        f'<text {place} fill="#334155">{text}</text>'
    )


def _label(node: Node) -> str:
    kind = type(node).__name__
    return node.name if kind == node.name else f"{node.name}<br/><small>{kind}</small>"
