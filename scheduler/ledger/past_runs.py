"""Past runs: how long the last complete runs of a schedule, and their nodes, took. Reads only."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from spanwise.orchestrator.continuation import attempted_nodes
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import elapsed_s
from spanwise.scheduler.ledger.ticks import list_ticks
from spanwise.scheduler.schedule.forecast import HISTORY, PastRun
from spanwise.scheduler.schedule.outcome import TickOutcome
from spanwise.scheduler.schedule.schedule_key import DATA, WHOLE, parse_cause, part_of, pipeline_of


def list_past_runs(store: Store, key: str, limit: int = HISTORY, *, nodes: bool = True) -> list[PastRun]:
    """The last complete runs of the whole pipeline, newest first; without `nodes`, for speed, only what each took.

    Partial runs, those that ingest for a backfill or do the rest of a failed run included, and those that failed or
    were ended, are left out: they say little of how long a run takes. Where the parts of a pipeline are scheduled, it
    is those of the part.
    """
    newest = list(itertools.islice(store.runs(pipeline_of(key)), 3 * limit))
    recent = [run for run in newest if _counts(run, key)]
    scheduled = [run for run in recent if run.trigger is Trigger.SCHEDULE and _is_of(run, key)]
    if len(newest) == 3 * limit and len(scheduled) < limit:  # others have crowded them out; a tick takes ten questions
        scheduled = [run for run in _list_scheduled(store, key, limit) if _counts(run, key)]
    found = sorted({run.number: run for run in (*recent, *scheduled)}.values(), key=lambda run: -run.number)
    whole = attempted_nodes(store, (scheduled or _list_widest(found) or [Run(pipeline=pipeline_of(key))])[0])
    same = [run for run in found if set(run.nodes) == whole][:limit]
    by_run: dict[str, list[Execution]] = defaultdict(list)
    for execution in store.executions_of(same) if nodes else ():
        by_run[execution.run_name].append(execution)
    return [measure_run(run, by_run[run.name]) for run in same]


def _list_scheduled(store: Store, key: str, limit: int) -> Iterator[Run]:
    """The runs of the last ticks that ran, newest first."""
    for tick in list_ticks(store, key, limit=limit):
        if tick.end is not None and tick.end.outcome is TickOutcome.RAN and tick.end.run is not None:
            yield store.run(pipeline_of(key), tick.end.run)


def _list_widest(runs: Sequence[Run]) -> list[Run]:
    """Those of which no other has run the same nodes and more."""
    every = {frozenset(run.nodes) for run in runs}
    return [run for run in runs if not any(set(run.nodes) < other for other in every)]


def _counts(run: Run, key: str) -> bool:
    whole = _is_of(run, key) if part_of(key) not in (WHOLE, DATA) else run.base is None
    return run.state is State.COMPLETE and whole and elapsed_s(run) is not None


def _is_of(run: Run, key: str) -> bool:
    return parse_cause(run.pipeline, run.cause)[0] == key


def measure_run(run: Run, executions: Sequence[Execution]) -> PastRun:
    """What a complete run took."""
    assert run.started is not None, "a run is recorded with its start"
    worked = [execution for execution in executions if execution.state is not State.CACHED]
    nodes = {e.node: sum(elapsed_s(other) or 0.0 for other in worked if other.node == e.node) for e in worked}
    return PastRun(started=run.started, took_s=elapsed_s(run) or 0.0, nodes_s=nodes)
