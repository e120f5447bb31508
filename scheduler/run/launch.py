"""Launches a run from the command line: from its options to its outcome."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import StoreError, UsageError
from spanwise.orchestrator.gate import printed_accept
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.orchestrator.run_request import RunOutcome, RunRequest
from spanwise.orchestrator.runner import run as run_pipeline
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import FIX, add_options, run_calendar, strip_control
from spanwise.scheduler.inspect import artifact_summary, find, records
from spanwise.scheduler.inspect.artifact_pages import PageFinder
from spanwise.scheduler.inspect.rollback import format_push
from spanwise.scheduler.project import root
from spanwise.scheduler.project.load import Loaded, load
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.executors import open_executor
from spanwise.scheduler.run.openlineage import emitting
from spanwise.scheduler.run.progress import Display, Lines, Live, show_progress
from spanwise.scheduler.run.span_options import parse_exclusions, parse_spans

if TYPE_CHECKING:
    from spanwise.scheduler.formatting import Document


log = logging.getLogger("spanwise.launch")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run, as they were typed."""

    reference: str
    span: Sequence[str] = ()  #: --span
    exclude: Sequence[str] = ()  #: --exclude
    first: Sequence[str] = ()  #: --from
    last: Sequence[str] = ()  #: --to
    skip: Sequence[str] = ()
    only: Sequence[str] = ()
    base: str | None = None
    params: Sequence[str] = ()
    as_of: str | None = None
    cache: bool = True
    jobs: int | None = None


def launch(options: RunOptions, settings: Settings, *, json: bool) -> tuple[RunOutcome, Loaded]:
    """Loads the pipeline and runs it, showing its progress; on stderr with `json`.

    Raises:
        UsageError: the options are wrong; nothing was started.
        Held: another run holds the pipeline.
    """
    loaded = load(options.reference, typed=options.params, settings=settings.params)
    selection = select_nodes(loaded.pipeline, options)
    wanted = parse_spans(options.span, loaded.pipeline, selection)
    as_of = None if options.as_of is None else parse_time(options.as_of)
    exclude = parse_exclusions(options.exclude, loaded.pipeline, selection)

    def request(store: Store) -> RunRequest:
        base = find_base_run(store, loaded.pipeline.name, options.base)
        return RunRequest(
            selection=selection,
            span=wanted.leading,
            calendar=wanted.calendar.value,
            spans=wanted.by_node,
            exclude=exclude,
            as_of=as_of,
            replay=as_of is not None,
            base=base,
            force_base=base is not None,
            typed=tuple(options.params),
        )

    return run_loaded(loaded, request, settings, ExecutionOptions(options.jobs, cache=options.cache), json=json), loaded


@dataclass(frozen=True)
class ExecutionOptions:
    """How the nodes of a run are executed."""

    jobs: int | None = None  #: how many nodes run in parallel; None: as set
    cache: bool = True


def run_loaded(
    loaded: Loaded,
    request: Callable[[Store], RunRequest],
    settings: Settings,
    execution: ExecutionOptions,
    *,
    json: bool,
) -> RunOutcome:
    """Runs a loaded pipeline. `request` is called with the store, and is completed with the settings."""
    # Before the metadata is opened: the fork server imports what the nodes need in the meantime.
    executor = open_executor(loaded.pipeline, settings)
    try:
        with (
            root.open_for_writing(settings) as store,
            show_progress(_display(json=json)) as observe_progress,
            emitting(settings, store, observe_progress) as observe,
        ):
            outcome = run_pipeline(
                loaded.pipeline,
                executor=executor,
                store=store,
                root=settings.root,
                request=complete_request(request(store), loaded, settings, execution),
                observe=observe,
            )
            _close_missed(store, outcome, loaded, settings.place)
            return outcome
    finally:
        executor.close()


def _close_missed(store: Store, outcome: RunOutcome, loaded: Loaded, place: str) -> None:
    """Records which missed ticks the run has recovered, and which it has superseded."""
    if not outcome.succeeded or outcome.run.replay:
        return
    run = outcome.run
    try:
        if store.find_claim("scheduled", "#1") is not None:  # otherwise the ledger need not be imported
            from spanwise.orchestrator.continuation import list_attempts
            from spanwise.scheduler.run.superseded import close_superseded
            from spanwise.scheduler.run.tick_recovery import AskedSpans, recover_ticks

            asked = AskedSpans(store, loaded.pipeline, *list_attempts(store, run))
            recover_ticks(store, loaded.pipeline, run, asked, place)
            close_superseded(store, loaded.pipeline, loaded.calendar, place, run=run)
    except StoreError as error:  # the run is complete anyway; `schedule missed` still lists the ticks
        log.warning("recovery-lost", extra={"run": run.name, "reason": str(error)})


def complete_request(
    request: RunRequest, loaded: Loaded, settings: Settings, execution: ExecutionOptions
) -> RunRequest:
    """The request with what the pipeline file and the settings add to it."""
    return replace(
        request,
        jobs=execution.jobs or settings.jobs or request.jobs,
        calendar=request.calendar if request.spans else loaded.calendar.value,
        parameters=loaded.parameters,
        source=loaded.place,
        cache=execution.cache,
        grace_s=settings.grace_s,
        pools=settings.executor.pools,
        beam=settings.beam,
    )


def _display(*, json: bool) -> Display:
    if json:
        return Lines(sys.stderr)
    return Live() if sys.stdout.isatty() else Lines(sys.stdout)


def select_nodes(pipeline: Pipeline, options: RunOptions) -> Selection | None:
    """The part of the pipeline that the options select; None for all of it.

    Raises:
        UsageError: an unknown node, an empty part, or options that contradict each other.
    """
    if options.only and (options.first or options.last or options.skip):
        raise UsageError("--only cannot be combined with --from, --to or --skip.")
    if options.only:
        part = pipeline.select(first=options.only, last=options.only)
        between = [n for n in part.run if n not in options.only]
        if between:
            raise UsageError(
                f"--only {' --only '.join(options.only)} leaves out the nodes between them: {', '.join(between)}. "
                "Add these, or run the nodes one after the other."
            )
        return part
    if options.first or options.last or options.skip:
        return _leave_out(pipeline, options)
    return None


def _leave_out(pipeline: Pipeline, options: RunOptions) -> Selection:
    """The selected part without every node that is to be skipped, or a refusal.

    `Pipeline.select` runs a skipped node whose inputs change. Here a person has typed it, perhaps to push nothing.
    """
    part = pipeline.select(first=options.first, last=options.last, skip=options.skip)
    remaining = [node for node in part.run if node not in options.skip]
    for node in part.run:
        if node in options.skip and (readers := pipeline.descendants(node).intersection(remaining)):
            changing = [n for n in part.run if n in pipeline.ancestors(node)]
            following = [n for n in remaining if n in readers and not pipeline.ancestors(n) & readers]
            start = " ".join(f"--from {name}" for name in following)
            raise UsageError(
                f"{node} cannot be skipped: it depends on {changing[-1]}, which runs, and {', '.join(following)} "
                f"{'depends' if len(following) == 1 else 'depend'} on it. Start after it instead:  {start}"
            )
    if len(remaining) == len(part.run):
        return part
    return pipeline.select(first=options.first, last=pipeline.last_of(remaining), skip=options.skip)


def parse_time(text: str, zone: tzinfo | None = None) -> datetime:
    """Parses a time from the command line: ISO 8601; without a zone it is in `zone`, or local.

    Raises:
        UsageError: it is not a time.
    """
    try:
        typed = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a time; write 2013-01-08, 2013-01-08T03:00 (your zone) or 2013-01-08T03:00Z (UTC)."
        ) from error
    return (typed.replace(tzinfo=zone) if typed.tzinfo is None and zone is not None else typed).astimezone(UTC)


def find_base_run(store: Store, pipeline: str, typed: str | None) -> int | None:
    """The number of the run that supplies the outputs of nodes left out; None lets the runner choose.

    Raises:
        UsageError: it is not a number, or a run of another pipeline.
        NotRecorded: there is no such run.
    """
    if typed is None:
        return None
    if typed == "latest":
        newest = find.latest(store, pipeline)
        if newest is None:
            raise UsageError(f"{pipeline!r} has no run yet that could be the base run; run the whole pipeline first.")
        return newest.number
    name, slash, number = typed.rpartition("/")
    if not number.isascii() or not number.isdigit() or (slash and name != pipeline):
        raise UsageError(f"--base-run takes the number of a run of {pipeline!r}, or `latest`; found {typed!r}.")
    return store.run(pipeline, int(number)).number


def format_run_outcome(outcome: RunOutcome, elsewhere: Sequence[str] = ()) -> str:
    """The verdict and a summary line of a run; after a failure each error, its log, and the command that resumes.

    A run that a gate has stopped is not resumed: its error says what to type.

    `elsewhere` is --root and --config as they were typed.
    """
    parts = artifact_summary.format_verdict(outcome.run, outcome.executions.values())
    parts.append(records.summarize_run(outcome.run, outcome.executions, outcome.skipped))
    for node in outcome.failed:
        failed = outcome.executions[node]
        parts.append(f"\n{node} failed: {add_options(strip_control(failed.error or '').strip(), elsewhere)}")
        if failed.log and Path(failed.log).is_file():
            parts.append(f"Log:  {failed.log}")
    if not outcome.succeeded:
        errors = [outcome.executions[node].error for node in outcome.failed]
        if outcome.run.trigger is Trigger.PUSH:
            again = f"Push it again:  {push_command(outcome.run, outcome.executions.values(), elsewhere)}"
        elif any(printed_accept(error) for error in errors):
            return "\n".join(parts)  # until what the gate prints is typed, a resumed run fails again
        else:
            first = any(FIX in (error or "") for error in errors)  # the errors say what to type before
            again = f"{'Then resume' if first else 'Resume'} it:  {resume_command(outcome.run, elsewhere)}"
        parts.append(f"{'' if not outcome.failed else chr(10)}{again}")
    return "\n".join(parts)


def resume_command(run: Run, elsewhere: Sequence[str] = ()) -> str:
    """The command that resumes a run."""
    return shlex.join(["spanwise", "resume", run.name, *elsewhere])


def push_command(run: Run, executions: Iterable[Execution], elsewhere: Sequence[str] = ()) -> str:
    """The command that pushes the model of a push again, by the same Pusher."""
    model = find.pushed_model(executions)
    return format_push("MODEL" if model is None else model.name, "".join(run.nodes), elsewhere)


def outcome_document(outcome: RunOutcome) -> Document:
    """The outcome for programs."""
    calendar, pages = run_calendar(outcome.run), PageFinder()
    return {
        **records.run_document(outcome.run),
        "executions": [records.execution_document(e, calendar, pages=pages) for e in outcome.executions.values()],
        "failed": list(outcome.failed),
        "not_reached": list(outcome.skipped),
    }


def exit_code(outcome: RunOutcome) -> int:
    """0 for a run that succeeded, 130 for one that Ctrl-C ended, else 1."""
    if outcome.succeeded:
        return 0
    interrupted = outcome.run.state is State.CANCELED and "SIGINT" in (outcome.run.error or "")
    return 130 if interrupted else 1
