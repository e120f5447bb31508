"""Resuming: which part of a pipeline a run that did not complete has left. Decides; `launch` runs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spanwise.orchestrator.driver import find_unreadable
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.run import Execution, Run, State, Trigger, format_source
from spanwise.orchestrator.run_command import format_run_command
from spanwise.orchestrator.run_request import RunOutcome, RunRequest
from spanwise.orchestrator.store import Store
from spanwise.scheduler.inspect import find
from spanwise.scheduler.project import root
from spanwise.scheduler.project.load import Loaded, load_again
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.folder import refuse_elsewhere
from spanwise.scheduler.run.launch import ExecutionOptions, push_command, run_loaded


def resume(
    reference: str, settings: Settings, execution: ExecutionOptions, *, typed: Sequence[str] = (), json: bool
) -> tuple[RunOutcome, Loaded]:
    """Continues a run that did not complete, with its span, its pipeline file and its arguments.

    `typed` are arguments, "name=value", that replace those of the run.

    Raises:
        UsageError: nothing is left of the run, it began in another folder, or its pipeline cannot be loaded again.
        Held: the run, or another one, is still running.
    """
    with root.open_for_reading(settings) as store:
        stopped = find.run(store, reference)
        executions = find_finished(store, stopped)
        _refuse_complete(store, stopped)
    if stopped.trigger is Trigger.PUSH:
        again = push_command(stopped, executions)
        raise UsageError(f"Run {stopped.name} pushed what a person had named, so only a person repeats it:  {again}")
    words = ["spanwise", "resume", stopped.name, *(word for text in typed for word in ("--param", text))]
    stopped = replace(stopped, typed=(*stopped.typed, *typed))
    anew = format_run_command(stopped, stopped.pipeline)
    refuse_elsewhere(stopped.folder, settings, who=f"Run {stopped.name}", source=stopped.source, words=words, anew=anew)
    loaded = reload_pipeline(stopped, settings)
    request = resume_request(stopped, executions, loaded.pipeline)
    return run_loaded(loaded, lambda _: request, settings, execution, json=json), loaded


def reload_pipeline(run: Run, settings: Settings) -> Loaded:
    """Loads the pipeline of a run again, from the run's file and arguments.

    Raises:
        UsageError: the run records no file, the file is gone, or it defines another pipeline now.
    """
    if not run.source:
        raise UsageError(f"Run {run.name} was not started from a file, so its pipeline cannot be loaded again.")
    loaded = load_again(run.source, who=f"run {run.name}", typed=run.typed, settings=settings.params)
    if loaded.pipeline.name != run.pipeline:
        raise UsageError(
            f"{format_source(run.source)} now defines pipeline {loaded.pipeline.name!r}, not {run.pipeline!r}."
        )
    return loaded


def find_finished(store: Store, run: Run) -> list[Execution]:
    """What a run has finished and can still be read; a resolver has not that chose what was collected or lost since."""
    return [e for e in store.executions(run) if e.state.succeeded and not any(find_unreadable(store, e.outputs))]


def resume_request(run: Run, executions: Iterable[Execution], pipeline: Pipeline) -> RunRequest:
    """The request for the rest of a run: its nodes that did not succeed, and its nodes after them.

    Raises:
        UsageError: the pipeline no longer has some nodes of the run, or nothing is left to do.
    """
    gone = [name for name in run.nodes if name not in pipeline.nodes]
    if gone:
        raise UsageError(
            f"Run {run.name} had nodes that {pipeline.name!r} no longer has: {', '.join(gone)}. Start a new run:\n"
            f"  {format_run_command(run, run.pipeline)}"
        )
    selection = select_remaining(run, executions, pipeline)
    return RunRequest(
        selection=selection,
        trigger=Trigger.RESUME,
        cause=run.name,
        span=run.span,
        calendar=run.calendar,
        spans=run.spans,
        exclude=run.exclude,
        from_scratch=run.from_scratch,
        as_of=run.as_of,
        replay=run.replay,
        base=run.number if selection.required or selection.optional else None,
        behind=tuple(name for name in run.behind if name in pipeline.nodes),
        typed=run.typed,
    )


def select_remaining(run: Run, executions: Iterable[Execution], pipeline: Pipeline) -> Selection:
    """The part of the pipeline that continues a run."""
    done = {e.node for e in executions if e.state.succeeded}
    todo = [name for name in run.nodes if name not in done]
    if not todo:
        raise UsageError(f"All nodes of run {run.name} succeeded, so there is nothing to resume.")
    return pipeline.select(first=pipeline.first_of(todo), last=pipeline.last_of(run.nodes))


def _refuse_complete(store: Store, run: Run) -> None:
    if run.state is State.COMPLETE:
        whole = find.requested_run(store, run).whole  # the whole pipeline does more than a part did
        again = f" Run its pipeline again:  {format_run_command(run, run.pipeline)}" if run.source and whole else ""
        raise UsageError(f"Run {run.name} is complete, so there is nothing to resume.{again}")
