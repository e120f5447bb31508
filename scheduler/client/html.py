"""HTML of records, as notebooks show them: small tables, readable on light and dark, everything escaped. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Protocol

_COLOURS = {
    "complete": "#157347",
    "cached": "#157347",
    "read": "#157347",
    "accepted": "#157347",
    "blessed": "#157347",
    "running": "#0b5ed7",
    "failed": "#c02b37",
    "refused": "#c02b37",
    "missing": "#c02b37",
    "canceled": "#9a5b00",
}


class Text(Protocol):
    """Whatever can be written."""

    def __str__(self) -> str: ...


def heading(text: Text, state: str = "") -> str:
    """A line in bold, with a state after it."""
    return f"<p><b>{html.escape(str(text))}</b>{f' {mark(state)}' if state else ''}</p>"


def mark(state: str) -> str:
    """A state in its colour; the word says it as well."""
    colour = _COLOURS.get(state)
    text = html.escape(state)
    return f'<span style="color:{colour};font-weight:600">{text}</span>' if colour else text


def table(headers: Sequence[str], rows: Iterable[Sequence[Text]], *, states: str = "STATE") -> str:
    """A table; the cells of the column `states` are coloured."""
    head = "".join(f'<th style="text-align:left">{html.escape(header)}</th>' for header in headers)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="text-align:left">{mark(str(cell)) if header == states else html.escape(str(cell))}</td>'
            for header, cell in zip(headers, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
