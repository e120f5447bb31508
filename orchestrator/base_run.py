"""Base runs: which earlier run supplies the outputs of the nodes that a partial run leaves out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.component import Channel
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.pipeline import Pipeline, Selection, channels_of
from spanwise.orchestrator.run import Execution, Run, format_source
from spanwise.orchestrator.store import Store, is_marked

LOOK_BACK = 100
"""How many runs are searched for one that has the outputs needed."""


@dataclass(frozen=True)
class BaseRun:
    """What one earlier run supplies; outputs of several runs are never mixed."""

    number: int | None = None  #: None when nothing has to be supplied
    executions: Mapping[str, Execution] = field(default_factory=dict)


def find_base_run(
    store: Store,
    pipeline: Pipeline,
    selection: Selection,
    base: int | None,
    *,
    as_of: datetime | None = None,
    source: str = "",
) -> BaseRun:
    """Finds the outputs of the nodes left out: in run `base`, or in the newest run that has all that is read.

    TFX takes the newest run however it ended, so that one failed run blocks the next partial one; this takes the
    newest run that has what is needed. `source` is what the pipeline was loaded from, for messages. A replay, whose
    time is `as_of`, is supplied with what was published by then; no other run is supplied by a replay.

    Raises:
        UsageError: the base run lacks what a node reads; the message names runs that have it.
        NotRecorded: there is no such run.
    """
    left_out = (*selection.required, *selection.optional)
    if not left_out and base is None:
        return BaseRun()
    needed = {c.node for n in selection.run for c in _channels_of_run(pipeline, n) if c.node not in selection.run}
    if base is not None:
        chosen = _named_outputs(store, store.run(pipeline.name, base), as_of)
        lacking = sorted(needed - set(chosen))
        if lacking:
            able = [r.number for r in _recent(store, pipeline.name) if needed <= set(_outputs(store, r, as_of))][:5]
            raise UsageError(
                f"Run {base} of {pipeline.name!r} has no finished {', '.join(lacking)}, which this part reads. "
                + (
                    f"Runs that have it: {', '.join(map(str, able))}."
                    if able
                    else _none(store, pipeline.name, source, as_of)
                )
            )
        return BaseRun(base, {n: e for n, e in chosen.items() if n in left_out})
    for run in _recent(store, pipeline.name):
        chosen = _outputs(store, run, as_of)
        if needed <= set(chosen):
            return BaseRun(run.number, {n: e for n, e in chosen.items() if n in left_out})
    if needed:
        raise UsageError(
            f"This part of {pipeline.name!r} begins at {', '.join(_first(pipeline, selection))} and reads what it "
            f"leaves out: {', '.join(n for n in pipeline.order if n in needed)}. "
            f"{_none(store, pipeline.name, source, as_of)}"
        )
    return BaseRun()


def usable_executions(store: Store, executions: Iterable[Execution]) -> list[Execution]:
    """Those whose outputs can still be read: they succeeded, and none of their artifacts was collected since."""
    return [
        execution
        for execution in executions
        if execution.state.succeeded
        and not any(is_marked(store, COLLECTED, a) for a in itertools.chain(*execution.outputs.values()))
    ]


def _channels_of_run(pipeline: Pipeline, node: str) -> list[Channel]:
    return [c for c in channels_of(pipeline.nodes[node]) if c.producer is not None]


def _recent(store: Store, pipeline: str) -> list[Run]:
    return [run for run in itertools.islice(store.runs(pipeline), LOOK_BACK) if not run.replay]


def _outputs(store: Store, run: Run, as_of: datetime | None = None) -> dict[str, Execution]:
    """The last usable execution of each node of a run, of those that had ended by `as_of`."""
    if as_of is not None and run.started is not None and run.started > as_of:
        return {}
    usable = usable_executions(store, store.executions(run))
    return {e.node: e for e in usable if as_of is None or (e.ended is not None and e.ended <= as_of)}


def _named_outputs(store: Store, run: Run, as_of: datetime | None) -> dict[str, Execution]:
    """The outputs of the run that somebody has named, or that is resumed.

    Raises:
        UsageError: it is a replay of another time, or what it has made is of later than `as_of`.
    """
    if run.replay and run.as_of == as_of:
        return _outputs(store, run)
    if run.replay:
        raise UsageError(
            f"Run {run.number} of {run.pipeline!r} is a replay as of {_format_time(run.as_of)}, so only a replay as of "
            "the same time is supplied by it. Name another base run, or none."
        )
    chosen = _outputs(store, run, as_of)
    if later := [node for node in _outputs(store, run) if node not in chosen]:
        raise UsageError(
            f"In run {run.number} of {run.pipeline!r}, {', '.join(later)} ended after {_format_time(as_of)}, the time "
            "of this replay. Name an earlier base run, or none."
        )
    return chosen


def _format_time(time: datetime | None) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M %Z}" if time is not None else "no time"


def _first(pipeline: Pipeline, selection: Selection) -> list[str]:
    return [n for n in selection.run if not pipeline.ancestors(n) & set(selection.run)]


def _none(store: Store, pipeline: str, source: str, as_of: datetime | None) -> str:
    if as_of is not None:
        return f"No run had finished that by {_format_time(as_of)}. Choose a later time."
    ran = next(iter(store.runs(pipeline)), None) is not None
    why = f"None of its last {LOOK_BACK} runs has finished that" if ran else "No run of it is recorded here yet"
    return f"{why}.\nRun the whole pipeline once:  spanwise run {format_source(source) or f'{pipeline}.py'}"
