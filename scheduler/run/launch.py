"""Launching a run by hand: from what was typed to its outcome, and the words for it."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import StoreError, UsageError
from spanwise.orchestrator.executor import Executor
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.run import State
from spanwise.orchestrator.run_request import RunOutcome, RunRequest
from spanwise.orchestrator.runner import run as run_pipeline
from spanwise.orchestrator.store import Store
from spanwise.scheduler.formatting import run_calendar, strip_control
from spanwise.scheduler.inspect import artifact_summary, find, records
from spanwise.scheduler.project import root
from spanwise.scheduler.project.load import Loaded, load
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.openlineage import emitting
from spanwise.scheduler.run.progress import Display, Lines, Live, show_progress

if TYPE_CHECKING:
    from spanwise.scheduler.formatting import Document


log = logging.getLogger("spanwise.launch")

_NO_DATA_BEFORE = 1980  # a year; a smaller date that is typed as a number is a mistake


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A run as it was asked for on the command line; texts are as they were typed."""

    reference: str
    span: str | None = None
    first: Sequence[str] = ()  #: --from
    last: Sequence[str] = ()  #: --to
    skip: Sequence[str] = ()
    only: Sequence[str] = ()
    base: str | None = None
    params: Sequence[str] = ()
    as_of: str | None = None
    cache: bool = True
    jobs: int | None = None


def launch(wish: Wish, settings: Settings, *, json: bool) -> tuple[RunOutcome, Loaded]:
    """Loads the pipeline and runs it, with its progress shown; with `json`, on stderr.

    Raises:
        UsageError: what was typed does not make a run; nothing was started.
        Held: another run has the pipeline.
    """
    loaded = load(wish.reference, typed=wish.params, settings=settings.params)
    selection = selected(loaded.pipeline, wish)
    span = None if wish.span is None else span_typed(wish.span, loaded.calendar)
    as_of = None if wish.as_of is None else moment(wish.as_of)

    def request(store: Store) -> RunRequest:
        base = base_run(store, loaded.pipeline.name, wish.base)
        return RunRequest(selection=selection, span=span, as_of=as_of, base=base, typed=tuple(wish.params))

    return carried_out(loaded, request, settings, Effort(wish.jobs, cache=wish.cache), json=json), loaded


@dataclass(frozen=True)
class Effort:
    """How the work of a run is done, whatever it is."""

    jobs: int | None = None  #: nodes at once; None leaves it to the settings
    cache: bool = True


def carried_out(
    loaded: Loaded, request: Callable[[Store], RunRequest], settings: Settings, effort: Effort, *, json: bool
) -> RunOutcome:
    """Runs a loaded pipeline as `request` asks once it has seen the store; the loaded facts are filled in."""
    # Before the metadata is opened: the server that is forked here imports what the nodes need meanwhile.
    executor = Executor(loaded.pipeline)
    try:
        with (
            root.opened(settings) as store,
            show_progress(_display(json=json)) as observe_progress,
            emitting(settings, store, observe_progress) as observe,
        ):
            outcome = run_pipeline(
                loaded.pipeline,
                executor=executor,
                store=store,
                root=settings.root,
                request=filled(request(store), loaded, settings, effort),
                observe=observe,
            )
            _recover(store, outcome, loaded.pipeline, settings.root)
            return outcome
    finally:
        executor.close()


def _recover(store: Store, outcome: RunOutcome, pipeline: Pipeline, home: Path) -> None:
    """Notes that what a schedule has missed of the run's span is made good, in the parts that it brought to an end."""
    if not outcome.succeeded:
        return
    try:
        if store.claimed("scheduled", "#1") is not None:  # or the ledger need not be imported
            from spanwise.scheduler.ledger.recovery import make_good
            from spanwise.scheduler.schedule.part import covered

            run = outcome.run
            make_good(store, run, [] if run.span is None else [run.span], home, covered(pipeline, run.nodes))
    except StoreError as error:  # the run is complete, whatever is known of it; `schedule missed` goes on listing them
        log.warning("recovery-not-noted", extra={"run": outcome.run.name, "reason": str(error)})


def filled(request: RunRequest, loaded: Loaded, settings: Settings, effort: Effort) -> RunRequest:
    """The request with what the pipeline file and the settings say of it."""
    return replace(
        request,
        jobs=effort.jobs or settings.jobs or request.jobs,
        calendar=loaded.calendar.value,
        parameters=loaded.parameters,
        source=loaded.place,
        cache=effort.cache,
        grace_s=settings.grace_s,
    )


def _display(*, json: bool) -> Display:
    if json:
        return Lines(sys.stderr)
    return Live() if sys.stdout.isatty() else Lines(sys.stdout)


def selected(pipeline: Pipeline, wish: Wish) -> Selection | None:
    """The part of the pipeline that was asked for; None for all of it.

    Raises:
        UsageError: an unknown node, an empty part, or words that contradict each other.
    """
    if wish.only and (wish.first or wish.last or wish.skip):
        raise UsageError("--only says which nodes run, so --from, --to and --skip have no place beside it.")
    if wish.only:
        part = pipeline.select(first=wish.only, last=wish.only)
        between = [n for n in part.run if n not in wish.only]
        if between:
            raise UsageError(
                f"--only {' --only '.join(wish.only)} leaves out what lies between them: {', '.join(between)}. "
                "Name these too, or run the nodes one after the other."
            )
        return part
    if wish.first or wish.last or wish.skip:
        return pipeline.select(first=wish.first, last=wish.last, skip=wish.skip)
    return None


def span_typed(text: str, calendar: Calendar) -> int:
    """The span that was typed.

    Raises:
        UsageError: it is none; or, where spans are dates, a small number: `5` is 1970-01-06, which nobody means.
    """
    span = calendar.parse(text)
    label = calendar.label(span)
    if calendar is not Calendar.NUMBER and label < str(_NO_DATA_BEFORE) and label != text.strip():
        raise UsageError(
            f"{text} is {label} here, since a number counts the {calendar.value}s from 1970-01-01. {calendar.hint}\n"
            f"If that is what you mean, write it so: {label}"
        )
    return span


def moment(text: str, zone: tzinfo | None = None) -> datetime:
    """A point in time as it is typed: ISO 8601; without a zone it is time in `zone`, or local time.

    Raises:
        UsageError: it is none.
    """
    try:
        typed = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is no time; write 2013-01-08, 2013-01-08T03:00 (your zone) or 2013-01-08T03:00Z (UTC)."
        ) from error
    return (typed.replace(tzinfo=zone) if typed.tzinfo is None and zone is not None else typed).astimezone(UTC)


def base_run(store: Store, pipeline: str, typed: str | None) -> int | None:
    """The number of the run that stands in for nodes left out; None lets the runner choose.

    Raises:
        UsageError: it is no number, or a run of another pipeline.
        NotRecorded: there is no such run.
    """
    if typed is None:
        return None
    if typed == "latest":
        newest = find.latest(store, pipeline)
        if newest is None:
            raise UsageError(f"{pipeline!r} has no run yet that could be the base; run the whole pipeline first.")
        return newest.number
    name, slash, number = typed.rpartition("/")
    if not number.isascii() or not number.isdigit() or (slash and name != pipeline):
        raise UsageError(f"--base-run takes the number of a run of {pipeline!r}, or `latest`; not {typed!r}.")
    return store.run(pipeline, int(number)).number


def told(outcome: RunOutcome, elsewhere: Sequence[str] = ()) -> str:
    """What to say at the end of a run: verdict and one line; after a failure each error, its log, and the way on.

    `elsewhere` is --root and --config as they were typed.
    """
    verdict = artifact_summary.describe_verdict(outcome.run, outcome.executions.values())
    parts = [f"{verdict[0].upper()}{verdict[1:]}."] if verdict else []
    parts.append(records.summarize_run(outcome.run, outcome.executions, outcome.skipped))
    for node in outcome.failed:
        failed = outcome.executions[node]
        parts.append(f"\n{node} failed: {strip_control(failed.error or '').strip()}")
        if failed.log and Path(failed.log).is_file():
            parts.append(f"Its log:  {failed.log}")
    if not outcome.succeeded:
        way_on = shlex.join(["spanwise", "resume", outcome.run.name, *elsewhere])
        parts.append(f"{'' if not outcome.failed else chr(10)}Go on from there:  {way_on}")
    return "\n".join(parts)


def document(outcome: RunOutcome) -> Document:
    """The outcome for programs."""
    calendar = run_calendar(outcome.run)
    return {
        **records.run_document(outcome.run),
        "executions": [records.execution_document(e, calendar) for e in outcome.executions.values()],
        "failed": list(outcome.failed),
        "not_reached": list(outcome.skipped),
    }


def exit_code(outcome: RunOutcome) -> int:
    """0 for a run that went well, 130 for one that Ctrl-C ended, else 1."""
    if outcome.succeeded:
        return 0
    interrupted = outcome.run.state is State.CANCELED and "SIGINT" in (outcome.run.error or "")
    return 130 if interrupted else 1
