"""Resuming: the part of a pipeline that is left of a run which did not finish. Decides; `launch` runs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spanwise.orchestrator.base_run import usable_executions
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.run import Execution, Run, State, Trigger, as_typed
from spanwise.orchestrator.run_request import RunOutcome, RunRequest
from spanwise.scheduler.inspect import find
from spanwise.scheduler.project import root
from spanwise.scheduler.project.load import Loaded, load_again
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.launch import Effort, carried_out


def resume(
    reference: str, settings: Settings, effort: Effort, *, typed: Sequence[str] = (), json: bool
) -> tuple[RunOutcome, Loaded]:
    """Takes up a run that did not finish, where it stopped, with its span, its pipeline file and its arguments.

    `typed` are arguments, "name=value", that replace those of the run.

    Raises:
        UsageError: there is nothing left of it, or what is left cannot be known.
        Held: it, or another run, is still going.
    """
    with root.read(settings) as store:
        stopped = find.run(store, reference)
        executions = usable_executions(store, store.executions(stopped))
    _refuse_complete(stopped)
    stopped = replace(stopped, typed=(*stopped.typed, *typed))
    loaded = loaded_again(stopped, settings)
    request = resuming(stopped, executions, loaded.pipeline)
    return carried_out(loaded, lambda _: request, settings, effort, json=json), loaded


def loaded_again(run: Run, settings: Settings) -> Loaded:
    """The pipeline of a run, made again from the file and the arguments that the run had.

    Raises:
        UsageError: the run does not say which file, the file is gone, or it holds another pipeline now.
    """
    if not run.source:
        raise UsageError(f"Run {run.name} was not started from a file, so its pipeline cannot be loaded again.")
    loaded = load_again(run.source, who=f"run {run.name}", typed=run.typed, settings=settings.params)
    if loaded.pipeline.name != run.pipeline:
        raise UsageError(f"{as_typed(run.source)} makes pipeline {loaded.pipeline.name!r} now, not {run.pipeline!r}.")
    return loaded


def resuming(run: Run, executions: Iterable[Execution], pipeline: Pipeline) -> RunRequest:
    """What is left of a run: its nodes that did not end well and, of its nodes, all after them.

    Raises:
        UsageError: the pipeline has lost nodes of the run, or none is left to do.
    """
    gone = [name for name in run.nodes if name not in pipeline.nodes]
    if gone:
        raise UsageError(
            f"Run {run.name} had nodes that {pipeline.name!r} has no longer: {', '.join(gone)}. Start a new run:\n"
            f"  spanwise run {as_typed(run.source)}"
        )
    selection = left(run, executions, pipeline)
    return RunRequest(
        selection=selection,
        trigger=Trigger.RESUME,
        cause=run.name,
        span=run.span,
        from_scratch=run.from_scratch,
        as_of=run.as_of,
        base=run.number if selection.required or selection.optional else None,
        typed=run.typed,
    )


def left(run: Run, executions: Iterable[Execution], pipeline: Pipeline) -> Selection:
    """The part of the pipeline that continues a run."""
    done = {e.node for e in executions if e.state.succeeded}
    todo = [name for name in run.nodes if name not in done]
    if not todo:
        raise UsageError(f"All nodes of run {run.name} have ended well, so nothing is left of it to resume.")
    return pipeline.select(first=pipeline.first_of(todo), last=pipeline.last_of(run.nodes))


def _refuse_complete(run: Run) -> None:
    if run.state is State.COMPLETE:
        again = f" Run its pipeline again:  spanwise run {as_typed(run.source)}" if run.source else ""
        raise UsageError(f"Run {run.name} is complete, so nothing is left of it to resume.{again}")
