"""Span sources: the nodes of a pipeline that ingest spans, and the calendar that each counts in. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.component import Resolver
from spanwise.orchestrator.gate import ingested_calendar
from spanwise.orchestrator.pipeline import Pipeline, channels_of


@dataclass(frozen=True)
class CountedSource:
    """A node that ingests one span a run."""

    node: str
    calendar: Calendar


def list_span_sources(pipeline: Pipeline) -> list[CountedSource]:
    """The nodes that ingest spans, parents first; without those whose data has no spans, such as a fixed table.

    The first is the leading one: its spans name the ticks and runs of the pipeline.
    """
    return [CountedSource(node.name, c) for node in pipeline if (c := ingested_calendar(node)) is not None]


def list_joins(pipeline: Pipeline) -> Mapping[str, frozenset[str]]:
    """The nodes that bring spans of several nodes that ingest together, with these; not what only follows such a node.

    What a resolver chooses does not count: it reads what was published, whatever its run ingests.
    """
    sources = {source.node for source in list_span_sources(pipeline)}
    read: dict[str, frozenset[str]] = {}
    joins: dict[str, frozenset[str]] = {}
    for node in pipeline:
        above = [read[c.node] for c in channels_of(node) if c.producer is not None and not isinstance(node, Resolver)]
        read[node.name] = frozenset(sources & {node.name}).union(*above)
        if len(read[node.name]) > 1 and read[node.name] not in above:
            joins[node.name] = read[node.name]
    return joins


def find_joined(source: str, joins: Mapping[str, Collection[str]]) -> frozenset[str]:
    """The nodes whose spans some of these bring together with those of a source, also through others; with itself."""
    joined = {source}
    while more := {node for of in joins.values() if joined & set(of) for node in of} - joined:
        joined |= more
    return frozenset(joined)


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
