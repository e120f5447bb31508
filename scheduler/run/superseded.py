"""Superseded ticks: missed ticks whose spans no window reads any more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts.recovery import record_closing
from spanwise.scheduler.formatting import format_spans
from spanwise.scheduler.inspect.window_forecast import ExpectedWindow, WindowForecast, is_read
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.schedules import list_keys
from spanwise.scheduler.ledger.ticks import TickRecord
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
        if record.spans and (windows := _find_windows(store, pipeline, calendar, record.spans)):
            because = f"no window reads its span any more: {_format_windows(windows, calendar)}"
            number = None if run is None else run.number
            closure = TickClosure(how=Closing.SUPERSEDED, at=now, run=number, because=because)
            closed += record_closing(store, [record], closure, place)
    return closed


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
