"""The spans of a pipeline as a picture and a table, zoomed to a range."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from markupsafe import Markup

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import NotRecorded, SpanwiseError, UsageError
from spanwise.orchestrator.store import Address, SpanSummary
from spanwise.scheduler.client import PipelineRecord
from spanwise.scheduler.formatting import single_line
from spanwise.scheduler.inspect.span_history import MOST_JUDGED, SpanHistory, SpanStatus, ingesting_channels
from spanwise.scheduler.web.pages import make_url, style_of
from spanwise.scheduler.web.pictures.spans import MOST_CELLS, SpanCell, draw_spans
from spanwise.scheduler.web.site import WebSite

PATIENCE_S = 0.3
"""How long a page waits for spans that have not been read yet; it then shows the newest, and says so."""

_TURN_S = 0.2  # of reading in the background
_LOOK_S = 300.0  # between two looks at the input
_RANGES = 6  # of each state

PER_TABLE = 60
"""How many spans the table below the picture lists, the newest of the range."""

_KEEP_S = 600.0  # a picture of very many spans, while nothing has changed

MOST = 100_000
"""Spans in one picture; more are zoomed to the newest."""

ZOOMS: Mapping[Calendar, Sequence[tuple[str, int]]] = {
    Calendar.HOUR: (("a day", 24), ("a week", 168), ("30 days", 720), ("a year", 8784), ("3 years", 26_352)),
    Calendar.DAY: (("a day", 1), ("30 days", 30), ("a year", 366), ("3 years", 1098)),
    Calendar.WEEK: (("a year", 53), ("3 years", 159)),
    Calendar.MONTH: (("a year", 12), ("3 years", 36)),
    Calendar.QUARTER: (("5 years", 20), ("20 years", 80)),
    Calendar.NUMBER: (("100", 100), ("1,000", 1000)),
}


@dataclass(frozen=True, kw_only=True)
class SpanRow:
    """One span of the table."""

    span: int
    label: str
    status: str
    entry: SpanSummary | None
    run: int | None  #: the last of it
    in_window: bool


@dataclass(frozen=True, kw_only=True)
class SpansView:
    """The spans of a range."""

    address: Address
    channels: Sequence[str]  #: the nodes that ingest
    calendar: Calendar
    picture: Markup
    first: str  #: label of the first span shown
    last: str
    extent: tuple[str, str]  #: of all spans
    shown: int
    counts: Mapping[str, int]  #: by status
    in_window: int
    rows: Sequence[SpanRow]
    zooms: Sequence[tuple[str, str]]  #: what it is called, and its address
    notable: Sequence[tuple[str, Sequence[tuple[str, str]]]]  #: states with their ranges, each with its address
    complete: bool  #: older spans are still being read otherwise
    known: int  #: spans that were read so far
    earlier: str  #: the range before, as an address; empty at the first
    later: str
    inputs: str  #: what is known of newer versions in the input, where that is not all


def read_spans(site: WebSite, pipeline: str, *, node: str | None, first: str, last: str) -> SpansView | None:
    """The spans between two labels, all without them; None when no recent run has ingested any.

    Raises:
        NotRecorded: the node ingests no spans.
        UsageError: a label is not a span, or the range is empty.
    """
    channels = read_channels(site, pipeline)
    chosen = next((address for address in channels if node in (None, "", address.node)), None)
    if chosen is None and channels:
        there = ", ".join(address.node for address in channels)
        raise NotRecorded(f"{node!r} of {pipeline!r} has ingested no spans recently; these have: {there}.")
    if chosen is None:
        return None
    calendar = channels[chosen]
    history = find_history(site, pipeline, chosen, calendar, within_s=PATIENCE_S)
    inputs = look_for_versions(site, pipeline, history)
    extent = history.extent
    if extent is None:
        return None
    begin = calendar.parse(first) if first else extent[0]
    end = calendar.parse(last) if last else extent[1]
    if begin > end:
        raise UsageError(f"{calendar.label(begin)} is after {calendar.label(end)}, so there is no span between them.")
    begin, end = _bound((begin, end), extent)
    shown = (pipeline, chosen, history.version, begin, end)
    if end - begin < MOST_JUDGED:  # verdicts of people may have changed
        statuses = history.statuses(site.store, begin, end)
        picture = _draw(pipeline, chosen, calendar, history, statuses)
    else:
        read = partial(history.statuses, site.store, begin, end)
        statuses = site.memo.get(("statuses", *shown), read, for_s=_KEEP_S)
        draw = partial(_draw, pipeline, chosen, calendar, history, statuses)
        picture = site.memo.get(("spans", *shown), draw, for_s=_KEEP_S)
    newest = list(statuses)[-PER_TABLE:][::-1]

    def zoom(start: int, stop: int) -> str:
        return make_url("p", pipeline, "spans", node=node, first=calendar.label(start), last=calendar.label(stop))

    fitting = [(name, count) for name, count in ZOOMS[calendar] if count < 2 * (extent[1] - extent[0] + 1)]
    zooms = [(name, zoom(min(end, max(end - count + 1, extent[0])), end)) for name, count in fitting]
    long = end - begin + 1
    return SpansView(
        address=chosen,
        channels=[address.node for address in channels],
        calendar=calendar,
        picture=picture,
        first=calendar.label(begin),
        last=calendar.label(end),
        extent=(calendar.label(extent[0]), calendar.label(extent[1])),
        shown=len(statuses),
        counts=dict(Counter(status.value for status in statuses.values())),
        in_window=sum(begin <= span <= end for span in history.window),
        rows=[_row(history, calendar, span, statuses[span]) for span in newest],
        zooms=[*zooms, ("all", make_url("p", pipeline, "spans", node=node))],
        notable=[
            (status.value, [(_range(calendar, *ends), zoom(*ends)) for ends in ranges[-_RANGES:][::-1]])
            for status in SpanStatus
            if status is not SpanStatus.INGESTED and (ranges := _ranges(statuses, status))
        ],
        complete=history.complete,
        known=len(history.entries),
        earlier=zoom(max(begin - long, extent[0]), begin - 1) if begin > extent[0] else "",
        later=zoom(end + 1, min(end + long, extent[1])) if end < extent[1] else "",
        inputs=inputs,
    )


def _bound(wanted: tuple[int, int], extent: tuple[int, int]) -> tuple[int, int]:
    """What is drawn of a range: no more than there is; where there is nothing of it, as much as has cells."""
    begin, end = max(wanted[0], extent[0]), min(wanted[1], extent[1])
    most = MOST
    if begin > end:
        begin, end = wanted
        most = MOST_CELLS
    return max(begin, end - most + 1), end


def _ranges(statuses: Mapping[int, SpanStatus], wanted: SpanStatus) -> list[tuple[int, int]]:
    """The ranges of neighbours in this state, ascending."""
    numbered = enumerate(span for span, status in statuses.items() if status is wanted)
    groups = [[span for _, span in group] for _, group in groupby(numbered, key=lambda pair: pair[1] - pair[0])]
    return [(group[0], group[-1]) for group in groups]


def _range(calendar: Calendar, first: int, last: int) -> str:
    return calendar.label(first) if first == last else f"{calendar.label(first)} to {calendar.label(last)}"


def read_channels(site: WebSite, pipeline: str) -> dict[Address, Calendar]:
    """The channels on which recent runs ingested."""
    newest = next(iter(site.store.runs(pipeline)), None)
    key = ("channels", pipeline, None if newest is None else (newest.number, newest.state))
    return site.memo.get(key, lambda: ingesting_channels(site.store, pipeline), for_s=30.0)


def find_history(
    site: WebSite, pipeline: str, address: Address, calendar: Calendar, *, within_s: float = float("inf")
) -> SpanHistory:
    """What the site knows of the spans of a channel, brought up to date; what takes longer is read meanwhile."""
    kept: PipelineRecord = site.client.pipeline(pipeline)
    history = kept.histories.setdefault(address, SpanHistory(address, calendar))
    history.refresh(site.store, within_s=within_s)
    if not history.complete and history.extent is not None:
        site.begin_work(("history", address), partial(_read_on, site, history))
    return history


def _read_on(site: WebSite, history: SpanHistory) -> None:
    """Reads the rest in the background, and lets pages in between."""
    while not history.complete:
        history.refresh(site.store, within_s=_TURN_S)
        time.sleep(_TURN_S / 4)


def look_for_versions(site: WebSite, pipeline: str, history: SpanHistory) -> str:
    """Has the input looked through for newer versions, in the background; returns why that is not known, if it is not.

    A process of its own imports the pipeline's file, as `spanwise backfill --stale --dry-run`.
    """
    record = site.client.pipeline(pipeline)
    if not record.source:
        return ""

    def look() -> None:
        try:
            history.waiting, trouble = frozenset(record.find_waiting()), ""
        except SpanwiseError as error:
            trouble = single_line(str(error))
        site.memo.get(key, lambda: trouble, for_s=_LOOK_S)
        history.version += 1

    key = ("waiting", pipeline)
    if not site.memo.holds(key):
        site.begin_work(key, look)
        return site.memo.last(key, "they are still being looked for")
    return site.memo.last(key, "")


def _draw(
    pipeline: str,
    address: Address,
    calendar: Calendar,
    history: SpanHistory,
    statuses: Mapping[int, SpanStatus],
) -> Markup:
    cells = {
        span: SpanCell(
            style_of(status.value),
            span in history.window,
            _describe(history, calendar, span, status) if len(statuses) <= MOST_CELLS else "",
        )
        for span, status in statuses.items()
    }
    title = f"{len(cells):,} spans of {address.node}; the table below lists the newest, and the links above zoom"
    return draw_spans(
        calendar,
        cells,
        lambda span: make_url("p", pipeline, "spans", calendar.label(span), node=address.node),
        title=title,
    )


def _describe(history: SpanHistory, calendar: Calendar, span: int, status: SpanStatus) -> str:
    entry = history.entries.get(span)
    version = f", version {entry.version}" if entry is not None and entry.version is not None else ""
    rows = f", {entry.rows:,} rows" if entry is not None and entry.rows is not None else ""
    window = ", in the window" if span in history.window else ""
    return f"{calendar.label(span)}: {status.value}{version}{rows}{window}"


def _row(history: SpanHistory, calendar: Calendar, span: int, status: SpanStatus) -> SpanRow:
    run = history.runs.get(span)
    return SpanRow(
        span=span,
        label=calendar.label(span),
        status=status.value,
        entry=history.entries.get(span),
        run=None if run is None else run.number,
        in_window=span in history.window,
    )
