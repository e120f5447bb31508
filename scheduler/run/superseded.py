"""Superseded ticks: missed ticks whose spans no window reads any more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.history import versions_of
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Address, Store
from spanwise.scheduler.alerts.recovery import record_closing
from spanwise.scheduler.formatting import format_spans
from spanwise.scheduler.inspect.window_forecast import ExpectedWindow, WindowForecast, is_read
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.schedules import list_keys, read_schedule
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.project.span_sources import CountedSource, list_span_sources
from spanwise.scheduler.schedule.outcome import Closing, TickClosure


def close_superseded(
    store: Store, pipeline: Pipeline, calendar: Calendar, place: str | Path, *, run: Run | None
) -> list[TickRecord]:
    """Closes the missed ticks whose spans no window would read if they were ingested now; returns those.

    `run` is the one after which this is so.
    """
    closed: list[TickRecord] = []
    now = datetime.now(UTC)
    for record in [each for key in list_keys(store, pipeline.name) for each in list_missed(store, key)]:
        if _awaits_others(store, pipeline, record):
            continue
        if record.spans and (windows := _find_windows(store, pipeline, calendar, record.spans)):
            because = f"no window reads its span any more: {_format_windows(windows, calendar)}"
            number = None if run is None else run.number
            closure = TickClosure(how=Closing.SUPERSEDED, at=now, run=number, because=because)
            closed += record_closing(store, [record], closure, place)
    return closed


def _awaits_others(store: Store, pipeline: Pipeline, record: TickRecord) -> bool:
    """Whether a window would read the span of another node that a tick was to ingest, and that nobody has ingested."""
    schedule = read_schedule(store, record.key)
    every = () if schedule is None else schedule.source_spans(record) or ()
    others = list_span_sources(pipeline)[1:]
    for source, span in [(source, each[source.node]) for source in others for each in every if source.node in each]:
        forecast = WindowForecast(pipeline, store, source.calendar, source.node)
        is_ingested = any(
            span in dict(window.spans) if window.explained else _is_published(store, pipeline, source, span)
            for window in forecast.windows()
        )
        forecast.add(span, {"": None})
        windows = list(forecast.windows())
        if windows and not is_ingested and is_read(span, windows):
            return True
    return False


def _is_published(store: Store, pipeline: Pipeline, source: CountedSource, span: int) -> bool:
    addresses = (Address(pipeline.name, source.node, key) for key in pipeline.nodes[source.node].outputs)
    return any(versions_of(store, address, span, source.calendar) for address in addresses)


def _find_windows(
    store: Store, pipeline: Pipeline, calendar: Calendar, spans: Sequence[int]
) -> Sequence[ExpectedWindow]:
    """The windows as they are now, if none of them would read any of the spans; else nothing."""
    for span in reversed(spans):  # windows read the newest
        forecast = WindowForecast(pipeline, store, calendar)
        forecast.add(span, {"": None})
        windows = list(forecast.windows())
        cannot_tell = any(window.refusal and not (window.spans or window.absent) for window in windows)
        if cannot_tell or is_read(span, windows):
            return []
    return list(WindowForecast(pipeline, store, calendar).windows())


def _format_windows(windows: Sequence[ExpectedWindow], calendar: Calendar) -> str:
    return ", ".join(f"{w.node} reads {format_spans([span for span, _ in w.spans], calendar)}" for w in windows)
