"""Base runs: which earlier run supplies the outputs of the nodes that a partial run leaves out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
    store: Store, pipeline: Pipeline, selection: Selection, base: int | None, *, source: str = ""
) -> BaseRun:
    """Finds the outputs of the nodes left out: in run `base`, or in the newest run that has all that is read.

    TFX takes the newest run however it ended, so that one failed run blocks the next partial one; this takes the
    newest run that has what is needed. `source` is what the pipeline was loaded from, for messages.

    Raises:
        UsageError: the base run lacks what a node reads; the message names runs that have it.
        NotRecorded: there is no such run.
    """
    left_out = (*selection.required, *selection.optional)
    if not left_out and base is None:
        return BaseRun()
    needed = {c.node for n in selection.run for c in _channels_of_run(pipeline, n) if c.node not in selection.run}
    if base is not None:
        chosen = _outputs(store, store.run(pipeline.name, base))
        lacking = sorted(needed - set(chosen))
        if lacking:
            able = [r.number for r in _recent(store, pipeline.name) if needed <= set(_outputs(store, r))][:5]
            raise UsageError(
                f"Run {base} of {pipeline.name!r} has no finished {', '.join(lacking)}, which this part reads. "
                + (f"Runs that have it: {', '.join(map(str, able))}." if able else _none(store, pipeline.name, source))
            )
        return BaseRun(base, {n: e for n, e in chosen.items() if n in left_out})
    for run in _recent(store, pipeline.name):
        chosen = _outputs(store, run)
        if needed <= set(chosen):
            return BaseRun(run.number, {n: e for n, e in chosen.items() if n in left_out})
    if needed:
        raise UsageError(
            f"This part of {pipeline.name!r} begins at {', '.join(_first(pipeline, selection))} and reads what it "
            f"leaves out: {', '.join(n for n in pipeline.order if n in needed)}. {_none(store, pipeline.name, source)}"
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
    return list(itertools.islice(store.runs(pipeline), LOOK_BACK))


def _outputs(store: Store, run: Run) -> dict[str, Execution]:
    """The last usable execution of each node of a run."""
    return {e.node: e for e in usable_executions(store, store.executions(run))}


def _first(pipeline: Pipeline, selection: Selection) -> list[str]:
    return [n for n in selection.run if not pipeline.ancestors(n) & set(selection.run)]


def _none(store: Store, pipeline: str, source: str) -> str:
    ran = next(iter(store.runs(pipeline)), None) is not None
    why = f"None of its last {LOOK_BACK} runs has finished that" if ran else "No run of it is recorded here yet"
    return f"{why}.\nRun the whole pipeline once:  spanwise run {format_source(source) or f'{pipeline}.py'}"
