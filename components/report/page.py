"""Pages: one self-contained HTML file of headings, paragraphs, tables and plots, light or dark."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --faint: #66707a; --line: #d9dee3; --paper: #fff; --band: #f5f7f9;
  --c0: #2f6fb3; --c1: #d98324; --c2: #3d9a6b; --c3: #a4508b; --bad: #b3261e; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --faint: #98a2ad; --line: #39424b; --paper: #15191d;
  --band: #1d2328; --c0: #6aa5e0; --c1: #eda95a; --c2: #6cc397; --c3: #d187b9; --bad: #f2867e; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 32px 64px; max-width: 1180px; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 8px; }
h3 { font-size: 14px; margin: 0; overflow-wrap: anywhere; }
p { margin: 4px 0 8px; } .faint { color: var(--faint); } .bad { color: var(--bad); } .warn { color: var(--warn); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 2px 14px 2px 0; text-align: right; font-weight: normal; vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child, td.text, th.text { text-align: left; } td.text { white-space: normal; }
thead th { color: var(--faint); border-bottom: 1px solid var(--line); }
tbody th { color: var(--faint); }
table.wide { width: 100%; } table.wide td, table.wide th { border-bottom: 1px solid var(--line);
  padding: 5px 14px 5px 0; }
.feature { display: grid; grid-template-columns: minmax(300px, 1fr) 460px; gap: 6px 20px; padding: 12px 0;
  border-top: 1px solid var(--line); }
@media (max-width: 1000px) { .feature { grid-template-columns: 1fr; } }
.feature header { grid-column: 1 / -1; display: flex; flex-wrap: wrap; gap: 2px 14px; align-items: baseline; }
.figures { display: flex; flex-wrap: wrap; gap: 4px 30px; align-items: flex-start; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 5px 0 12px; }
.key:first-child { margin-left: 0; }
input { font: inherit; color: inherit; background: var(--band); border: 1px solid var(--line); border-radius: 6px;
  padding: 5px 10px; width: 260px; }
svg { display: block; max-width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 11px; }
svg text.value { fill: var(--ink); }
"""

_SEARCH_SCRIPT = """
const wanted = document.getElementById("wanted");
wanted.addEventListener("input", () => {
  const text = wanted.value.toLowerCase();
  for (const row of document.querySelectorAll(".feature"))
    row.style.display = row.dataset.name.toLowerCase().includes(text) ? "" : "none";
});
"""


def escaped(text: object) -> str:
    """Text with the characters escaped that HTML gives a meaning."""
    return html.escape(str(text).encode("utf-8", "replace").decode("utf-8"), quote=True)


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    tone: str = ""  #: "", "text" (left, may wrap), "bad", "warn", "faint", or several with blanks between


class ReportPage:
    """A page under construction; every method appends to it."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = [f"<h1>{escaped(title)}</h1>"]
        self._searchable = False

    def heading(self, text: str) -> None:
        """The title of a section."""
        self._parts.append(f"<h2>{escaped(text)}</h2>")

    def paragraph(self, text: str, tone: str = "faint") -> None:
        """A line of prose."""
        self._parts.append(f'<p class="{escaped(tone)}">{escaped(text)}</p>')

    def table(self, head: Sequence[str | Cell], rows: Sequence[Sequence[str | Cell]], *, wide: bool = False) -> None:
        """A table; its first column is text, the others are numbers unless a cell says otherwise."""
        self._parts.append(table(head, rows, wide=wide))

    def plot(self, svg: str) -> None:
        """A plot of `spanwise.components.report.plot`."""
        self._parts.append(svg)

    def legend(self, names: Sequence[str]) -> None:
        """The colours of the series."""
        keys = (
            f'<span class="key" style="background: var(--c{i % 4})"></span>{escaped(name)}'
            for i, name in enumerate(names)
        )
        self._parts.append(f"<p>{''.join(keys)}</p>")

    def search(self) -> None:
        """A search field that hides the features whose names do not match."""
        self._searchable = True
        self._parts.append('<p><input id="wanted" type="search" placeholder="Find a feature" aria-label="Find"></p>')

    def feature(self, name: str, about: Sequence[Cell], figures: str, plot: str) -> None:
        """A row about one feature: its name and notes, a table, a plot."""
        notes = "".join(f'<span class="{escaped(a.tone or "faint")}">{escaped(a.text)}</span>' for a in about)
        self._parts.append(
            f'<section class="feature" data-name="{escaped(name)}"><header><h3>{escaped(name)}</h3>{notes}</header>'
            f'<div class="figures">{figures}</div><div>{plot}</div></section>'
        )

    def html(self) -> str:
        """The whole page."""
        script = f"<script>{_SEARCH_SCRIPT}</script>" if self._searchable else ""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escaped(self._title)}</title><style>{STYLE}</style></head>\n<body>\n"
            + "\n".join(self._parts)
            + f"\n{script}</body></html>\n"
        )


def table(head: Sequence[str | Cell], rows: Sequence[Sequence[str | Cell]], *, wide: bool = False) -> str:
    """The HTML of a table; the first cell of a row is its heading."""
    titles = "".join(_format_cell("th", cell) for cell in head)
    lines = ("".join(_format_cell("td" if i else "th", cell) for i, cell in enumerate(row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    kind = ' class="wide"' if wide else ""
    return f"<table{kind}><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _format_cell(tag: str, cell: str | Cell) -> str:
    text, tone = (cell.text, cell.tone) if isinstance(cell, Cell) else (cell, "")
    return f'<{tag} class="{escaped(tone)}">{escaped(text)}</{tag}>' if tone else f"<{tag}>{escaped(text)}</{tag}>"
