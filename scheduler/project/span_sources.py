"""Span sources: the nodes of a pipeline that ingest spans, and the calendar that each counts in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.pipeline import Pipeline


@dataclass(frozen=True)
class CountedSource:
    """A node that ingests one span a run."""

    node: str
    calendar: Calendar


def list_span_sources(pipeline: Pipeline) -> list[CountedSource]:
    """The nodes that ingest spans, parents first; without those whose data has no spans, such as a fixed table.

    The first is the leading one: its spans name the ticks and runs of the pipeline.
    """
    return [
        CountedSource(node.name, calendar)
        for node in pipeline
        if hasattr(node, "available")
        and isinstance(calendar := getattr(node, "calendar", None), Calendar)
        and getattr(node, "takes_span", True)
    ]


def leading_calendar(pipeline: Pipeline) -> Calendar:
    """How the spans of the pipeline are written: as its first source counts them, or else its first node."""
    known = [source.calendar for source in list_span_sources(pipeline)]
    known += [c for node in pipeline if isinstance(c := getattr(node, "calendar", None), Calendar)]
    return known[0] if known else Calendar.NUMBER


def example_rules(sources: Sequence[CountedSource]) -> str:
    """A span rule for each node, as it is written in a schedule."""
    rules = (
        f'"{each.node}": ' + ("your_rule" if each.calendar is Calendar.NUMBER else f"{each.calendar.value}s_before(1)")
        for each in sources
    )
    return f"{{{', '.join(rules)}}}"
