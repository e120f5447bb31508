"""Tick recovery: which missed ticks a complete run, by hand or of a backfill, has done the work of."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path

from spanwise.orchestrator.continuation import attempted_nodes, completed_nodes, list_attempts
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts.recovery import SpansByNode, record_recovery
from spanwise.scheduler.ledger.missed import MissedTicks
from spanwise.scheduler.ledger.schedules import read_schedule
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.project.span_sources import list_span_sources
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.part import completed_parts


class AskedSpans:
    """The spans that complete runs of a pipeline, and those that they continue, were asked for."""

    def __init__(self, store: Store, pipeline: Pipeline, *runs: Run) -> None:
        self.leading: set[int] = set()  #: of the leading node, by whose spans ticks are named
        self.by_node: dict[str, set[int]] = {}  #: of each node that has run
        self._store = store
        self._sources = list_span_sources(pipeline)
        for run in runs:
            self.add(run)

    def add(self, run: Run) -> None:
        """Adds the spans of a run: those of each node that were named, or the one of all nodes."""
        if run.span is None:
            return
        if not run.spans or any(source.node in run.spans for source in self._sources[:1]):
            self.leading.add(run.span)
        nodes = attempted_nodes(self._store, run)
        for source in self._sources:
            label = run.spans.get(source.node)
            if source.node in nodes and (label is not None or not run.spans):
                span = run.span if label is None else source.calendar.parse(label)
                self.by_node.setdefault(source.node, set()).add(span)


def recover_ticks(
    store: Store,
    pipeline: Pipeline,
    run: Run,
    asked: AskedSpans,
    place: str | Path,
    *,
    among: Collection[int] | None = None,
    missed: MissedTicks | None = None,
) -> None:
    """Records the missed ticks that a complete run has recovered, in the parts of which it has done all nodes.

    `asked` has its spans, and those of the runs before it that belong to it; of these, `among` are recovered, or all.
    Without `among`, runs by hand recover a tick that stands for several once they have done all its spans.
    """
    done = completed_nodes(store, run)

    def completed(key: str) -> frozenset[str]:
        table = None if (record := read_schedule(store, key)) is None else record.timetable
        others = _nodes_of_others(pipeline) if table is not None and table.sources else set()
        return completed_parts(pipeline, done | others, (table and table.division) or HALVES)

    def earlier(record: TickRecord) -> tuple[Collection[int], SpansByNode]:
        before = AskedSpans(store, pipeline)
        if among is None and len(record.spans) > 1:
            since = itertools.takewhile(lambda each: each.number > record.after_run, store.runs(run.pipeline))
            for each in since:
                if each.number < run.number and done <= completed_nodes(store, each):
                    for attempt in list_attempts(store, each):
                        before.add(attempt)
        return before.leading, before.by_node

    spans = asked.leading if among is None else asked.leading.intersection(among)
    record_recovery(store, run, spans, place, completed, missed, asked.by_node, earlier)


def _nodes_of_others(pipeline: Pipeline) -> set[str]:
    """The nodes that ingest, but for the leading one, and what they alone feed.

    Where each has a span of its own, they may have run apart; `record_recovery` checks these spans if they are known.
    """
    leading, *others = [source.node for source in list_span_sources(pipeline)] or [""]
    theirs = set(others)
    above = {node: pipeline.ancestors(node) for node in pipeline.order}
    return theirs | {node for node in pipeline.order if above[node] & theirs and leading not in above[node]}
