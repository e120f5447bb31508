"""Tick recovery: which missed ticks a complete run, by hand or of a backfill, has done the work of."""

from __future__ import annotations

from collections.abc import Collection

from spanwise.orchestrator.continuation import completed_nodes
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts.recovery import record_recovery
from spanwise.scheduler.ledger.missed import MissedTicks
from spanwise.scheduler.ledger.schedules import read_schedule
from spanwise.scheduler.project.span_sources import list_span_sources
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.part import completed_parts


class AskedSpans:
    """The spans that complete runs of a pipeline were asked for."""

    def __init__(self, pipeline: Pipeline, *runs: Run) -> None:
        self.leading: set[int] = set()  #: of the leading node, by whose spans ticks are named
        self.by_node: dict[str, set[int]] = {}
        self._sources = list_span_sources(pipeline)
        for run in runs:
            self.add(run)

    def add(self, run: Run) -> None:
        """Adds the spans of a run: those of each node that were named, or the one of all nodes."""
        named = {s.node: s.calendar.parse(run.spans[s.node]) for s in self._sources if s.node in run.spans}
        if run.span is None:
            return
        spans = named if run.spans else {source.node: run.span for source in self._sources}
        for node, span in spans.items():
            self.by_node.setdefault(node, set()).add(span)
        leads = not run.spans or not named.keys().isdisjoint([source.node for source in self._sources[:1]])
        if leads:
            self.leading.add(run.span)


def recover_ticks(
    store: Store,
    pipeline: Pipeline,
    run: Run,
    asked: AskedSpans,
    place: str,
    *,
    among: Collection[int] | None = None,
    missed: MissedTicks | None = None,
) -> None:
    """Records the missed ticks that a complete run has recovered, in the parts of which it has done all nodes.

    `asked` has its spans, and those of the runs before it that belong to it; of these, `among` are recovered, or all.
    """
    done = completed_nodes(store, run)

    def completed(key: str) -> frozenset[str]:
        record = read_schedule(store, key)
        division = HALVES if record is None else record.timetable.division or HALVES
        return completed_parts(pipeline, done, division)

    spans = asked.leading if among is None else asked.leading.intersection(among)
    record_recovery(store, run, spans, place, completed, missed, asked.by_node)
