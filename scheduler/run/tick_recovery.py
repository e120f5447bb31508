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


def recover_ticks(
    store: Store,
    pipeline: Pipeline,
    run: Run,
    place: str,
    *,
    spans: Collection[int] | None = None,
    missed: MissedTicks | None = None,
) -> None:
    """Records the missed ticks that a complete run has recovered, in the parts of which it has done all nodes.

    `spans` are those of the leading node that were run; None: the one that this run was asked for.
    """
    done = completed_nodes(store, run)

    def completed(key: str) -> frozenset[str]:
        record = read_schedule(store, key)
        division = HALVES if record is None else record.timetable.division or HALVES
        return completed_parts(pipeline, done, division)

    spans = leading_spans(pipeline, run) if spans is None else spans
    record_recovery(store, run, spans, place, completed, missed)


def leading_spans(pipeline: Pipeline, run: Run) -> list[int]:
    """The span that a run was asked for, if it is one of the leading node, by whose spans ticks are named."""
    if not run.spans:
        return [] if run.span is None else [run.span]
    return [
        source.calendar.parse(run.spans[source.node])
        for source in list_span_sources(pipeline)[:1]
        if source.node in run.spans
    ]
