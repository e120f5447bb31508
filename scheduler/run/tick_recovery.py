"""Tick recovery: which missed ticks a complete run, by hand or of a backfill, has done the work of."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from spanwise.orchestrator.continuation import (
    attempted_nodes,
    completed_attempts,
    completed_nodes,
    list_attempts,
    nodes_of,
)
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts.recovery import record_recovery
from spanwise.scheduler.ledger.missed import MissedTicks
from spanwise.scheduler.ledger.schedules import ScheduleRecord, read_schedule
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.project.span_sources import list_span_sources
from spanwise.scheduler.schedule.division import HALVES, PartStart
from spanwise.scheduler.schedule.part import completed_parts


class AskedSpans:
    """The spans that complete runs of a pipeline, and those that they continue, were asked for."""

    def __init__(self, store: Store, pipeline: Pipeline, *runs: Run) -> None:
        #: The newest run of each span of the leading node, by whose spans ticks are named.
        self.leading: dict[int, Run] = {}
        self.by_node: dict[str, dict[int, Run]] = {}  #: the same of each node that has run
        self._store = store
        self._sources = list_span_sources(pipeline)
        for run in runs:
            self.add(run)

    def add(self, run: Run) -> None:
        """Adds the spans of a run: those of each node that were named, or the one of all nodes."""
        if run.span is None:
            return
        if not run.spans or any(source.node in run.spans for source in self._sources[:1]):
            _note(self.leading, run.span, run)
        nodes = attempted_nodes(self._store, run)
        for source in self._sources:
            label = run.spans.get(source.node)
            if source.node in nodes and (label is not None or not run.spans):
                span = run.span if label is None else source.calendar.parse(label)
                _note(self.by_node.setdefault(source.node, {}), span, run)

    def extend(self, runs: Iterator[Run]) -> AskedSpans:
        """The same with the spans of further runs."""
        extended = copy.copy(self)
        extended.leading = dict(self.leading)
        extended.by_node = {node: dict(found) for node, found in self.by_node.items()}
        for run in runs:
            extended.add(run)
        return extended

    def has_since(self, record: TickRecord, schedule: ScheduleRecord | None) -> bool:
        """Whether all spans of a tick were asked for since it came, of each node that it gives one of its own."""
        wanted = () if schedule is None else schedule.source_spans(record) or ()
        runs: list[Run | None] = [self.leading.get(span) for span in record.spans]
        runs += [self.by_node.get(node, {}).get(span) for each in wanted for node, span in each.items()]
        return all(run is not None and record.came_before(run) for run in runs)


def _note(runs: dict[int, Run], span: int, run: Run) -> None:
    if span not in runs or runs[span].number < run.number:
        runs[span] = run


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
    """Records the missed ticks that a complete run has recovered: those of whose part it has done all nodes since.

    What it continues counts, as far as that began after the tick had come: a window that was chosen before is not the
    one that the tick was to read. `asked` has its spans, and those of the runs before it that belong to it; of these,
    `among` are recovered, or all. Without `among`, runs by hand recover a tick that stands for several once they have
    done all its spans.
    """
    attempts = completed_attempts(store, run)
    extended: dict[str, AskedSpans] = {}

    @functools.cache
    def completed(done: frozenset[str], division: Sequence[PartStart]) -> frozenset[str]:
        return completed_parts(pipeline, done, division)

    def all_asked(record: TickRecord) -> AskedSpans:
        if among is not None or len(record.spans) <= 1:
            return asked
        if record.name not in extended:
            extended[record.name] = asked.extend(_list_earlier(store, run, nodes_of(attempts), record))
        return extended[record.name]

    def is_done(record: TickRecord) -> bool:
        schedule = read_schedule(store, record.key)
        table = None if schedule is None else schedule.timetable
        others = _nodes_of_others(pipeline) if table is not None and table.sources else set()
        done = nodes_of(filter(record.came_before, attempts)) | others
        parts = completed(done, (table and table.division) or HALVES)
        return record.tick.part in parts and all_asked(record).has_since(record, schedule)

    spans = [span for span in asked.leading if among is None or span in among]
    record_recovery(store, run, spans, place, missed, is_done, lambda record: all_asked(record).leading)


def _list_earlier(store: Store, run: Run, nodes: frozenset[str], record: TickRecord) -> Iterator[Run]:
    """The runs since a tick came, before this one, that have done the same nodes, with those that they continue."""
    since = itertools.takewhile(lambda each: each.number > record.after_run, store.runs(run.pipeline))
    for each in since:
        if each.number < run.number and nodes <= completed_nodes(store, each):
            yield from list_attempts(store, each)


def _nodes_of_others(pipeline: Pipeline) -> set[str]:
    """The nodes that ingest, but for the leading one, and what they alone feed.

    Where each has a span of its own, they may have run apart; `AskedSpans` checks these spans if they are known.
    """
    leading, *others = [source.node for source in list_span_sources(pipeline)] or [""]
    theirs = set(others)
    above = {node: pipeline.ancestors(node) for node in pipeline.order}
    return theirs | {node for node in pipeline.order if above[node] & theirs and leading not in above[node]}
