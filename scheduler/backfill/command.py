"""The command `spanwise backfill`: from what was typed to a plan, to its work, to the exit code."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from spanwise.orchestrator.errors import SpanwiseError, UsageError
from spanwise.orchestrator.executor import Executor
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import as_typed
from spanwise.orchestrator.store import Store
from spanwise.scheduler.backfill import formatting
from spanwise.scheduler.backfill.execution import Asked, Means, Result, carry_out, standing
from spanwise.scheduler.backfill.inventory import ingesting, inventory
from spanwise.scheduler.backfill.plan import Plan, Wish, planned, refuse_overlap, took_s
from spanwise.scheduler.backfill.record import Backfill, Stage, enter, find, record
from spanwise.scheduler.formatting import format_json
from spanwise.scheduler.ledger.pauses import list_pauses
from spanwise.scheduler.ledger.schedules import list_keys
from spanwise.scheduler.ledger.ticks import list_missed
from spanwise.scheduler.project import root
from spanwise.scheduler.project.load import Loaded, load, load_again
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.launch import ExecutionOptions, parse_span
from spanwise.scheduler.run.openlineage import emitting
from spanwise.scheduler.schedule.part import train_nodes

_RECENT = 10  # runs that tell how long nodes take
_MOST = 100_000  # spans of a range: the hours of eleven years


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A backfill as it was typed."""

    reference: str | None = None  #: the pipeline file
    span: str | None = None
    missed: bool = False
    stale: bool = False
    resume: str | None = None
    wish: Wish = field(default_factory=Wish)
    params: Sequence[str] = ()
    kill: bool = False
    fail_fast: bool = False
    effort: ExecutionOptions
    elsewhere: Sequence[str] = ()  #: --root and --config, as words


def plan(typed: Typed, settings: Settings) -> tuple[Plan, Loaded]:
    """What the backfill would do.

    Raises:
        UsageError: what was typed asks for nothing, or for two things.
        SpanNotFound: a span that is not there.
    """
    asked = [name for name, given in _asked(typed) if given]
    if len(asked) != 1 or typed.reference is None:
        found = "nothing" if not asked else " and ".join(asked)
        raise UsageError(
            f"A backfill takes a pipeline file and one of --span, --missed and --stale, or --resume; found {found}"
            f"{'' if typed.reference else ', and no file'}.\n"
            "For example:  spanwise backfill flights.py --span 2013-01-05..2013-01-09 --train-once"
        )
    loaded = load(typed.reference, typed=typed.params, settings=settings.params)
    calendar = loaded.calendar
    with root.read(settings) as store:
        name = loaded.pipeline.name
        wish = typed.wish
        spans: Sequence[int] | None = None
        if typed.span is not None:
            first, last = calendar.parse_range(typed.span)
            parse_span(typed.span.partition("..")[0], calendar)  # a number that is no date
            spans = _range(first, last, typed.span)
            wish = replace(wish, spans=(first, last))
        elif typed.missed:
            entries = [entry for line in list_keys(store, name) for entry in list_missed(store, line)]
            spans = sorted({e.tick.span for e in entries if e.tick.span is not None})
            wish = replace(wish, missed=tuple(spans))
        else:
            wish = replace(wish, stale=True)
        ingesting(loaded.pipeline)
        sources = inventory(loaded.pipeline, store, spans)
        if typed.span is not None and not any(source.ready for source in sources):
            sources = inventory(loaded.pipeline, store)  # for the message that says which there are
        took = took_s(store.executions(run) for run in itertools.islice(store.runs(name), _RECENT))
        return planned(wish, loaded.pipeline, calendar, store, sources, took), loaded


def _range(first: int, last: int, said: str) -> range:
    """All spans of a range; one that is too long was not meant."""
    if last - first >= _MOST:
        raise UsageError(f"{said} is {last - first + 1:,} spans; a backfill takes at most {_MOST:,}. Write fewer.")
    return range(first, last + 1)


def _asked(typed: Typed) -> list[tuple[str, bool]]:
    return [("--span", typed.span is not None), ("--missed", typed.missed), ("--stale", typed.stale)]


def begin(typed: Typed, settings: Settings, made: Plan, loaded: Loaded) -> Backfill:
    """Records a planned backfill."""
    with root.opened(settings) as store:
        newest = next(iter(store.runs(loaded.pipeline.name)), None)
        return record(
            store,
            Backfill(
                pipeline=loaded.pipeline.name,
                source=loaded.place,
                typed=tuple(typed.params),
                calendar=loaded.calendar.value,
                spans=tuple(target.span for target in made.targets),
                train=made.train,
                parallel=made.parallel,
                from_scratch=not made.warm_start,
                began=datetime.now(UTC),
                after_run=0 if newest is None else newest.number,
            ),
        )


def again(typed: Typed, settings: Settings) -> tuple[Result, Loaded]:
    """How a backfill stands that is to go on, with its pipeline as its file has it now.

    Raises:
        NotRecorded: there is no such backfill.
        UsageError: nothing is left of it, or its pipeline is another now.
    """
    if typed.reference or typed.wish != Wish() or any(given for _, given in _asked(typed)):
        raise UsageError(
            "--resume goes on with a backfill as it was planned; it takes no file, no spans, and nothing that would "
            "plan it otherwise (--train-once, --split-at, --parallel, --warm-start, --force, --skip-absent)."
        )
    assert typed.resume is not None, "asked for only then"
    with root.read(settings) as store:
        so_far = standing(find(store, typed.resume), store)
    backfill = so_far.backfill
    if backfill.stage is Stage.COMPLETE:
        raise UsageError(f"Backfill {backfill.name} is complete, so nothing is left of it.")
    backfill = replace(backfill, typed=(*backfill.typed, *typed.params))
    who = f"backfill {backfill.name}"
    loaded = load_again(backfill.source, who=who, typed=backfill.typed, settings=settings.params)
    if changed := _changed(so_far, loaded.pipeline):
        raise UsageError(
            f"{as_typed(backfill.source)} is no longer what backfill {backfill.name} was planned for: {changed}. "
            "Plan a new one; what was ingested is not ingested again."
        )
    return replace(so_far, backfill=backfill), loaded


def _changed(so_far: Result, pipeline: Pipeline) -> str:
    """What a pipeline has become that keeps a backfill of it from going on; empty when nothing does."""
    backfill = so_far.backfill
    if pipeline.name != backfill.pipeline:
        return f"it makes {pipeline.name!r}"
    lost = [node for node in backfill.train if node not in pipeline.nodes]
    if lost or not backfill.train:
        return f"it has lost {', '.join(lost)}" if lost else ""
    now = train_nodes(pipeline, pipeline.first_of(backfill.train))
    if new := [node for node in now if node not in backfill.train]:
        return f"{', '.join(new)} would run once, too"
    ingest = [node for node in pipeline.order if node not in now]
    if new := [n for n in ingest if any(n not in so_far.runs[span].nodes for span in so_far.done)]:
        return f"{', '.join(new)} has not run for the spans that are done"
    if backfill.parallel > 1:
        refuse_overlap(pipeline, ingest, now)
    return ""


def work(backfill: Backfill, loaded: Loaded, typed: Typed, settings: Settings, asked: Asked, *, json: bool) -> int:
    """Carries a backfill out, prints what became of it, and returns the exit code."""
    began = datetime.now(UTC)
    out = sys.stderr if json else sys.stdout
    try:
        executor = Executor(loaded.pipeline)  # before the metadata is opened: the server is forked here
        with contextlib.closing(executor), root.opened(settings) as store:
            backfill = enter(store, backfill, Stage.GOING)
            done = len(standing(backfill, store).done)
            with (
                formatting.bar(backfill, done, out, live=not json and sys.stdout.isatty()) as (display, tell),
                emitting(settings, store, display) as observe,
            ):
                means = Means(
                    executor=executor,
                    store=store,
                    settings=settings,
                    effort=typed.effort,
                    kill=typed.kill,
                    fail_fast=typed.fail_fast,
                    observe=observe,
                    tell=tell,
                )
                result = carry_out(backfill, loaded, means, asked)
            passed = _passed(store, backfill.pipeline, began)
    except SpanwiseError as error:
        raise type(error)(
            f"{error}\nGo on with what is left:  {formatting.again(backfill, typed.elsewhere)}"
        ) from error
    if json:
        sys.stdout.write(format_json(formatting.result_document(result, passed)) + "\n")
    else:
        sys.stdout.write(formatting.told(result, passed, typed.elsewhere) + "\n")
    return _exit_code(result)


def _passed(store: Store, pipeline: str, since: datetime) -> list[formatting.Passed]:
    """The ticks that have come since then, oldest first; those in a pause are missed, also when nobody has looked."""
    from spanwise.scheduler.ledger import schedule_status

    known = [schedule_status.find_schedule(store, line) for line in list_keys(store, pipeline)]
    pauses = list_pauses(store, pipeline, since=since)
    now = datetime.now(UTC)
    came = [each for of in known for each in schedule_status.explain_ticks(store, of.timetable, of, since, now)]
    return [
        formatting.Passed(
            tick=one.tick.name,
            outcome="missed" if one.record is None and any(p.holds(one.tick.at) for p in pauses) else one.outcome,
        )
        for one in came
    ]


def _exit_code(result: Result) -> int:
    if result.interrupted:
        return 130 if result.interrupted == "SIGINT" else 1
    return 0 if result.complete else 1
