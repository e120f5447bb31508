"""The page of a profile: its table and a timeline, as one HTML file that loads nothing from the network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

from spanwise.pipelines.input.profiling.advice import label
from spanwise.pipelines.input.tuning.timing import TimelineSpan

STYLE: Final = """
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


def render_page(
    head: Sequence[str], rows: Iterable[tuple[int, float, Sequence[str]]], summary: Sequence[str], timeline: str
) -> str:
    """The page: `rows` are the depth, the share of the work and the cells of each op; `summary` the sentences above."""
    names = "".join(f"<th>{name}</th>" for name in head)
    body = "".join(
        f'<tr><th style="padding-left: {depth}em">{html.escape(cells[0].strip())}</th>'
        + "".join(f"<td>{cell}</td>" for cell in cells[1:])
        + f'<td><i style="width: {share * 160:.0f}px"></i></td></tr>'
        for depth, share, cells in rows
    )
    verdict, *others = map(html.escape, summary)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Profile of an input</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>Profile of an input</h1>\n"
        f"<p><b>{verdict}</b></p><p>{' '.join(others)}</p>\n"
        f"<table><thead><tr>{names}<th></th></tr></thead><tbody>{body}</tbody></table>\n"
        f"<h2>Timeline</h2>{timeline}</body></html>\n"
    )


def draw_timeline(spans: Sequence[TimelineSpan]) -> str:
    """The spans as SVG, a lane for each op in each thread, over the time that they cover."""
    if not spans:
        return "<p>Nothing was traced.</p>"
    end_s = max(span.end_s for span in spans)
    lanes = {key: place for place, key in enumerate(dict.fromkeys((label(s.op), s.thread) for s in spans))}
    scale = (_WIDTH - _NAMES) / end_s
    height = len(lanes) * _LANE + 24
    drawn = [
        f'<text x="0" y="{place * _LANE + 13}">{html.escape(f"{op} in {thread}")}</text>'
        for (op, thread), place in lanes.items()
    ]
    for span in spans:
        x, y = _NAMES + span.start_s * scale, lanes[label(span.op), span.thread] * _LANE + 3
        width = max(0.5, (span.end_s - span.start_s) * scale)
        title = f"{label(span.op)}: {(span.end_s - span.start_s) * 1000:.3f} ms at {span.start_s * 1000:.1f} ms"
        drawn.append(
            f'<rect class="{"call" if span.call else "wait"}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
            f'height="{_LANE - 6}"><title>{html.escape(title)}</title></rect>'
        )
    for tenth in range(0, 11, 2):
        x = _NAMES + tenth / 10 * (_WIDTH - _NAMES)
        anchor = "end" if tenth == 10 else "middle"  # noqa: PLR2004  the last stands at the edge
        drawn.append(f'<line class="axis" x1="{x:.0f}" y1="0" x2="{x:.0f}" y2="{height - 20}"/>')
        drawn.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}">{end_s * tenth * 100:.0f} ms</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(drawn)}</svg>'
