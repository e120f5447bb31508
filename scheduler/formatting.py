"""Numbers, sizes, times, durations, spans and tables as text for people, and records as JSON documents for programs.

Every other room uses it, and it imports none of them. Text has times in a zone, documents have them in UTC.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.run import Execution, Run
from spanwise.orchestrator.storage.url import is_object_url

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Document: TypeAlias = dict[str, Value]

FIX = ":  spanwise "
"""What stands in a line of a message that says what to type."""

# A command of ours in a message stands behind a colon, on a line of its own, or in parentheses; with it, its line ends.
_COMMAND = re.compile(r"(^ *|: +|\()(cd .+ && )?(spanwise [^()\n]*(?=\)$)|spanwise .*$)", re.MULTILINE)
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_MINUTE_S, _HOUR_S = 60, 3600
_KILO = 1000


# Text


def single_line(text: str) -> str:
    """The text in one line, without colours, cursor movements and other control characters."""
    if text.isprintable():
        return text.strip()
    return _CONTROL.sub("", text.replace("\t", "    ")).replace("\n", " ").strip()


def strip_control(text: str) -> str:
    """The text without control characters; of a line that overwrote itself, the last state."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(_CONTROL.sub("", line) for line in lines)


def add_options(text: str, options: Sequence[str]) -> str:
    """The text with these options after each command of ours that it says to type and that has none of them yet."""

    def add(found: re.Match[str]) -> str:
        before, command = f"{found[1]}{found[2] or ''}", found[3]
        if any(f" {name}" in command for name in options[::2]):
            return f"{before}{command}"
        given = [_from_anywhere(text) for text in options] if found[2] else options
        if " -- " in command:  # no option stands after it
            with contextlib.suppress(ValueError):  # no end of a quotation, or no such word
                words = shlex.split(command)
                at = words.index("--")
                return before + shlex.join([*words[:at], *given, *words[at:]])
        return f"{before}{command} {shlex.join(given)}"

    return _COMMAND.sub(add, text) if options else text


def _from_anywhere(option: str) -> str:
    """An option, or its value: the folder, file or URL that it names, for a command that is typed in another folder."""
    return option if option.startswith("--") or is_object_url(option) else str(Path(option).absolute())


def shorten(text: str, width: int) -> str:
    """The text cut to `width` characters, an ellipsis included."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


# Numbers


def format_number(value: Value) -> str:
    """A number with at most six significant digits; anything else as it is."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def format_count(count: int, noun: str) -> str:
    """`1 model`, `3 models`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_few(commands: Sequence[str], few: int = 5) -> Sequence[str]:
    """The first few of many commands that differ in their spans alone, with a comment that says how many there are."""
    more = len(commands) - few
    return [*commands[:few], f"# … and {more} more like these"] if more > 0 else commands


def format_size(size_bytes: float) -> str:
    """A size in decimal units: `12 B`, `3.4 kB`, `1.2 GB`."""
    amount, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < _KILO:
            break
        amount, unit = amount / _KILO, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


# Times


def format_time(moment: datetime | None, zone: tzinfo | None = None) -> str:
    """A moment with its zone; `zone` None is the reader's."""
    return "-" if moment is None else f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def iso_time(moment: datetime | None) -> str | None:
    """A moment for programs: ISO 8601, UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat()


def format_duration(duration_s: float | None) -> str:
    """A length of time: `0.4 s`, `3 min 20 s`, `2 h 05 min`."""
    if duration_s is None:
        return "-"
    if duration_s < _MINUTE_S:
        return f"{duration_s:.1f} s"
    whole = round(duration_s)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02} s"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02} min"


def elapsed_s(record: Run | Execution, now: datetime | None = None) -> float | None:
    """How long it took, or has taken until `now`; None when that is not known."""
    end = record.ended or now
    return None if record.started is None or end is None else max(0.0, (end - record.started).total_seconds())


# Spans


def run_calendar(run: Run) -> Calendar:
    """The calendar that writes the spans of a run."""
    return Calendar.from_name(run.calendar)


def format_span(span: object, calendar: Calendar) -> str:
    """A span as people write it; `-` for none."""
    return calendar.label(span) if isinstance(span, int) else "-"


def format_run_span(run: Run, none: str = "-") -> str:
    """The span of a run as people write it, or that of each node that ingests; `none` when none was requested."""
    if run.spans:
        return ", ".join(f"{node}={label}" for node, label in run.spans.items())
    return none if run.span is None else run_calendar(run).label(run.span)


def format_spans(spans: Iterable[int], calendar: Calendar) -> str:
    """Spans as people write them, neighbours as ranges."""
    return format_versions(((span, None) for span in sorted(spans)), calendar)


# Tables


def create_table(
    headers: Sequence[str], *, right: Collection[str] = (), widths: Mapping[str, int] | None = None
) -> Table:
    """An empty table without borders; columns in `right` are aligned to the right, `widths` are the least widths."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers:
        width = max(len(header), (widths or {}).get(header, 0))
        table.add_column(
            header, no_wrap=True, overflow="ellipsis", justify="right" if header in right else "left", min_width=width
        )
    return table


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns side by side, each as wide as its longest cell, whatever the width of the terminal."""
    # Not by rich, which takes a second for 1,000 rows: minutes for what a large collection prints.
    lines = [list(headers), *([single_line(cell) for cell in row] for row in rows)]
    widths = [max(map(_columns, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(_pad, line, widths)).rstrip() for line in lines)


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _columns(text))


def _columns(text: str) -> int:
    """How many columns of a terminal it takes: wide letters two, marks on letters none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def render(content: RenderableType, width: int) -> str:
    """What rich draws, as plain text."""
    from rich.console import Console

    console = Console(width=width, no_color=True, markup=False, emoji=False, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(content)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


# Documents


def as_document(record: object, *names: str) -> Document:
    """The fields of a dataclass, or the entries of a mapping, as JSON has them; all of them, or those of these names.

    Enumerations become their values, times ISO 8601 in UTC, paths text, and records in it documents.
    """
    if isinstance(record, Mapping):
        facts = record
    else:
        facts = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}  # type: ignore[arg-type]
    return {str(name): _as_json(facts[name]) for name in names or facts}


def span_document(span: int | None, calendar: Calendar) -> Document:
    """A span for programs: as the number it is, and as people write it."""
    return {"span": span, "span_label": None if span is None else calendar.label(span)}


def format_json(document: object) -> str:
    """A document as JSON, in ASCII so that it passes any terminal. NaN and infinities, which JSON lacks, are null."""
    return json.dumps(_as_json(document), indent=2, allow_nan=False)


def _as_json(value: object) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_as_json(part) for part in value]
    if isinstance(value, Enum):
        return _as_json(value.value)
    if isinstance(value, datetime):
        return iso_time(value)
    return str(value) if isinstance(value, Path) else as_document(value)
