"""Calendars of spans: a band for each year, with a column for each week or day, or a strip of numbers. Pure.

Tens of thousands of spans are drawn as one path for each state; up to a thousand are cells of their own, with links.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from spanwise.orchestrator.calendar import Calendar
from spanwise.scheduler.web.pictures.svg import element, join, link, picture

MOST_CELLS = 1200
"""Up to how many spans have a cell and a link each."""

_STRIP = 100  # numbers in a row
_SMALLEST_SIGN = 5.0
_HEAD = 34.0  # room for the labels of bands and rows
_TOP = 16.0  # room above a band for the labels of its columns
_GAP = 12.0  # between bands
_DAYS = ("Mon", "", "Wed", "", "Fri", "", "")


@dataclass(frozen=True)
class SpanPlace:
    """Where a span is drawn."""

    band: str  #: such as a year
    column: int
    row: int


@dataclass(frozen=True)
class SpanCell:
    """What a span looks like."""

    state: str  #: a class of the style sheet
    in_window: bool
    label: str  #: what a reader sees on hover


def place_span(calendar: Calendar, span: int) -> SpanPlace:
    """Days by week and weekday, hours by day and hour, all others in rows."""
    start = calendar.start_of(span)
    if start is None or calendar not in (Calendar.DAY, Calendar.HOUR):
        wide = _wide(calendar)
        return SpanPlace("", span % wide, span // wide)
    first = start.replace(month=1, day=1, hour=0)
    day = (start - first).days
    if calendar is Calendar.HOUR:
        return SpanPlace(str(start.year), day, start.hour)
    return SpanPlace(str(start.year), (day + first.weekday()) // 7, start.weekday())


def _wide(calendar: Calendar) -> int:
    """How many spans a row of a strip has."""
    return {Calendar.WEEK: 53, Calendar.MONTH: 12, Calendar.QUARTER: 4}.get(calendar, _STRIP)


def draw_swatch(state: str) -> Markup:
    """A cell of this state, for a legend."""
    cell = SpanCell(state, in_window=False, label="")
    rect = element("rect", x=0.0, y=0.0, width=12.0, height=12.0, rx=2, class_=f"cell {state}")
    inside = join([rect, *_mark(cell, 0.0, 0.0, 14.0)])
    return element("svg", inside, class_="spans swatch", width=12, height=12, viewBox="0 0 12 12", aria_hidden="true")


def draw_spans(
    calendar: Calendar,
    cells: Mapping[int, SpanCell],
    href: Callable[[int], str],
    *,
    title: str,
) -> Markup:
    """The picture of a range of spans. `data-` attributes say where each lies, for dragging a range."""
    if not cells:
        return Markup("")
    places = {span: place_span(calendar, span) for span in cells}
    bands = list(dict.fromkeys(cell.band for cell in places.values()))
    lowest = min(cell.row for cell in places.values()) if not bands[0] else 0
    rows = max(cell.row for cell in places.values()) - lowest + 1
    rows = {Calendar.DAY: 7, Calendar.HOUR: 24}.get(calendar, rows) if bands[0] else rows
    columns = max(cell.column for cell in places.values()) + 1
    size = _cell_size(calendar, columns, len(cells))
    height = _TOP + rows * size
    offset = {band: number * (height + _GAP) for number, band in enumerate(bands)}

    def corner(cell: SpanPlace) -> tuple[float, float]:
        return _HEAD + cell.column * size, offset[cell.band] + _TOP + (cell.row - lowest) * size

    drawn = (
        _draw_each(cells, places, corner, size, href)
        if len(cells) <= MOST_CELLS
        else _draw_paths(cells, places, corner, size)
    )
    labels = [_label_band(calendar, band, offset[band], size, rows) for band in bands]
    if len(cells) > MOST_CELLS:
        drawn = itertools.chain(drawn, _draw_bands(calendar, places, offset, size, rows))
    width = _HEAD + columns * size + 2
    return picture(width, len(bands) * (height + _GAP), title, *labels, join(drawn), class_="spans")


def _cell_size(calendar: Calendar, columns: int, count: int) -> float:
    if calendar is Calendar.HOUR:
        return 3.0 if count > MOST_CELLS else max(3.0, min(14.0, 1000 / columns))
    return 14.0 if columns <= 60 else 10.0  # noqa: PLR2004  a year of weeks


def _draw_each(
    cells: Mapping[int, SpanCell],
    places: Mapping[int, SpanPlace],
    corner: Callable[[SpanPlace], tuple[float, float]],
    size: float,
    href: Callable[[int], str],
) -> Iterator[Markup]:
    for span, cell in cells.items():
        x, y = corner(places[span])
        rect = element(
            "rect",
            x=x,
            y=y,
            width=size - 2,
            height=size - 2,
            rx=2,
            class_=f"cell {cell.state}{' window' if cell.in_window else ''}",
            data_span=span,
        )
        yield link(href(span), rect, *_mark(cell, x, y, size), label=cell.label)


def _mark(cell: SpanCell, x: float, y: float, size: float) -> Iterator[Markup]:
    """A sign on what is not simply there, so that its colour need not be seen."""
    inner = size - 2
    if inner < _SMALLEST_SIGN:
        return
    side = inner - 6 if inner > 9 else inner - 3  # noqa: PLR2004
    left, top = x + (inner - side) / 2, y + (inner - side) / 2
    middle, bottom = left + side / 2, top + side
    if cell.state in ("failed", "refused"):
        path = f"M{left:.1f} {top:.1f}l{side:.1f} {side:.1f}m0 {-side:.1f}l{-side:.1f} {side:.1f}"
        yield element("path", d=path, class_="sign")
    elif cell.state == "newer-version-waiting":
        path = f"M{middle:.1f} {bottom:.1f}V{top:.1f}m{-side / 2:.1f} {side / 2:.1f}l{side / 2:.1f} {-side / 2:.1f}"
        yield element("path", d=f"{path}l{side / 2:.1f} {side / 2:.1f}", class_="sign")
    elif cell.state == "tainted":
        path = f"M{middle:.1f} {top:.1f}L{left + side:.1f} {bottom:.1f}H{left:.1f}Z"
        yield element("path", d=path, class_="sign")
    elif cell.state == "running":
        yield element("circle", cx=x + inner / 2, cy=y + inner / 2, r=inner / 5, class_="sign")


def _draw_paths(
    cells: Mapping[int, SpanCell],
    places: Mapping[int, SpanPlace],
    corner: Callable[[SpanPlace], tuple[float, float]],
    size: float,
) -> Iterator[Markup]:
    """One path for each state, in which neighbours of a column are one stroke."""
    paths: dict[str, list[str]] = defaultdict(list)
    columns: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
    for span, cell in cells.items():
        place = places[span]
        columns[place.band, place.column].append((place.row, cell.state + " window" * cell.in_window))
    for (band, column), found in columns.items():
        found.sort()
        numbered = [(row - number, row, state) for number, (row, state) in enumerate(found)]
        for (_, state), group in groupby(numbered, key=lambda each: (each[0], each[2])):
            stroke = [row for _, row, _ in group]
            x, y = corner(SpanPlace(band, column, stroke[0]))
            paths[state].append(f"M{x:g} {y:g}h{size:g}v{len(stroke) * size:g}h{-size:g}z")
    for state, strokes in sorted(paths.items()):
        yield element("path", d="".join(strokes), class_=f"cell {state}")


def _draw_bands(
    calendar: Calendar, places: Mapping[int, SpanPlace], offset: Mapping[str, float], size: float, rows: int
) -> Iterator[Markup]:
    """What takes the pointer where cells are too many to be elements: `data-` says which span is where in a band."""
    seen: dict[str, tuple[int, SpanPlace]] = {}
    for span, place in places.items():
        seen.setdefault(place.band, (span, place))
    lowest = 0 if next(iter(seen)) else min(place.row for place in places.values())
    columns: dict[str, int] = defaultdict(int)
    for place in places.values():
        columns[place.band] = max(columns[place.band], place.column + 1)
    for band, (span, place) in seen.items():
        across, down = (rows, 1) if band else (1, _wide(calendar))
        yield element(
            "rect",
            x=_HEAD,
            y=offset[band] + _TOP,
            width=columns[band] * size,
            height=rows * size,
            class_="band",
            data_calendar=calendar.value,
            data_base=span - place.column * across - (place.row - lowest) * down,
            data_across=across,
            data_down=down,
            data_columns=columns[band],
            data_rows=rows,
            data_least=min(places),
            data_most=max(places),
        )


def _label_band(calendar: Calendar, band: str, top: float, size: float, rows: int) -> Markup:
    """The year, its months above, and weekdays or hours at the side."""
    if not band:
        return Markup("")
    parts = [element("text", band, x=0, y=top + 10, class_="axis strong")]
    for month in range(1, 13):
        name = f"{band}-{month:02}-01" + ("T00" if calendar is Calendar.HOUR else "")
        cell = place_span(calendar, calendar.parse(name))
        parts.append(element("text", _MONTHS[month - 1], x=_HEAD + cell.column * size, y=top + 11, class_="axis"))
    names = _DAYS if calendar is Calendar.DAY else [f"{h:02}" if h % 6 == 0 else "" for h in range(rows)]
    for row, name in enumerate(names):
        if name:
            y = top + _TOP + row * size + min(size, 10.0)
            parts.append(element("text", name, x=_HEAD - 5, y=y, class_="axis", text_anchor="end"))
    return join(parts)


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
