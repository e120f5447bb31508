"""Previews: the ticks that come, with their spans and with what changes of the clock do to them. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from spanwise.orchestrator.calendar import Calendar
from spanwise.scheduler.formatting import Document, format_span, format_table, format_time, iso_time, span_document
from spanwise.scheduler.schedule.span_rule import SpanRule
from spanwise.scheduler.schedule.ticks import Tick, span_of, starts, ticks
from spanwise.scheduler.schedule.timetable import Timetable


def list_coming(timetable: Timetable, after: datetime, count: int, rule: SpanRule | None = None) -> list[Tick]:
    """The next ticks; `rule` is the timetable's custom span rule, if it has one."""
    found = itertools.islice(ticks(timetable, after), count)
    return [tick if rule is None else replace(tick, span=span_of(rule, tick)) for tick in found]


def format_ticks(timetable: Timetable, found: Sequence[Tick], calendar: Calendar) -> str:
    """Ticks as a table, times in the schedule's zone."""
    zone, shaken = timetable.clock, timetable.jitter_s > 0
    rows = [
        (
            tick.name,
            format_time(tick.at, zone),
            *([format_time(starts(timetable, tick), zone)] if shaken else []),
            span_label(timetable, tick, calendar),
            tick.note,
        )
        for tick in found
    ]
    if not rows:
        return f"{timetable.pipeline} has no tick any more: its schedule has ended."
    table = format_table(("TICK", "DUE", *(["STARTS"] if shaken else []), "SPAN", "NOTE"), rows)
    return "\n".join([table, *timetable.warnings])


def ticks_document(timetable: Timetable, found: Sequence[Tick], calendar: Calendar) -> Document:
    """Ticks for programs."""
    return {
        "pipeline": timetable.pipeline,
        "cron": timetable.cron,
        "zone": timetable.zone,
        "warnings": [*timetable.warnings],
        "ticks": [tick_document(timetable, tick, calendar) for tick in found],
    }


def tick_document(timetable: Timetable, tick: Tick, calendar: Calendar) -> Document:
    """A tick for programs."""
    return {
        "tick": tick.name,
        "at": iso_time(tick.at),
        "starts": iso_time(starts(timetable, tick)),
        **span_document(tick.span, calendar),
        "note": tick.note,
    }


def span_label(timetable: Timetable, tick: Tick, calendar: Calendar) -> str:
    """A tick's span as people write it; `newest` where the schedule names none."""
    return "newest" if timetable.span is None else format_span(tick.span, calendar)
