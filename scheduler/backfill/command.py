"""The command `spanwise backfill`: from what was typed to a plan, to its work, to the exit code."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.errors import SpanwiseError, UsageError
from orchestrator.executor import Executor
from orchestrator.run import as_typed
from orchestrator.store import Store
from scheduler import ledger, root, show
from scheduler.backfill import telling
from scheduler.backfill.inventory import ingesting, inventory
from scheduler.backfill.plan import Plan, Wish, planned, took_s
from scheduler.backfill.record import Backfill, Stage, enter, find, record, runs
from scheduler.backfill.work import Means, Result, carry_out
from scheduler.launch import Effort, span_typed
from scheduler.load import Loaded, load
from scheduler.openlineage import emitting
from scheduler.settings import Settings

_RECENT = 10  # runs that tell how long nodes take


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A backfill as it was typed."""

    reference: str | None = None  #: the pipeline file
    span: str | None = None
    missed: bool = False
    stale: bool = False
    resume: str | None = None
    wish: Wish
    params: Sequence[str] = ()
    kill: bool = False
    fail_fast: bool = False
    effort: Effort
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
            span_typed(typed.span.partition("..")[0], calendar)  # a number that is no date
            spans = range(first, last + 1)
            wish = replace(wish, spans=(first, last))
        elif typed.missed:
            entries = ledger.missed(store, name)
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


def again(typed: Typed, settings: Settings) -> tuple[Backfill, Loaded]:
    """A backfill that is to go on, with its pipeline as its file has it now.

    Raises:
        NotRecorded: there is no such backfill.
        UsageError: nothing is left of it, or its pipeline is another now.
    """
    if typed.reference or any(given for _, given in _asked(typed)):
        raise UsageError("--resume goes on with a backfill as it was planned; it takes no file and no spans.")
    assert typed.resume is not None, "asked for only then"
    with root.read(settings) as store:
        backfill = find(store, typed.resume)
    if backfill.stage is Stage.COMPLETE:
        raise UsageError(f"Backfill {backfill.name} is complete, so nothing is left of it.")
    if not Path(backfill.source.partition(":")[0]).is_file():
        raise UsageError(f"The pipeline file of backfill {backfill.name} is gone: {backfill.source}. Put it back.")
    loaded = load(as_typed(backfill.source), typed=[*backfill.typed, *typed.params], settings=settings.params)
    lost = [node for node in backfill.train if node not in loaded.pipeline.nodes]
    if loaded.pipeline.name != backfill.pipeline or lost:
        raise UsageError(
            f"{as_typed(backfill.source)} is no longer what backfill {backfill.name} was planned for"
            f"{': it has lost ' + ', '.join(lost) if lost else ''}. Plan a new one."
        )
    return backfill, loaded


def work(backfill: Backfill, loaded: Loaded, typed: Typed, settings: Settings, *, json: bool) -> int:
    """Carries a backfill out, prints what became of it, and returns the exit code."""
    executor = Executor(loaded.pipeline)  # before the metadata is opened: the server is forked here
    out = sys.stderr if json else sys.stdout
    try:
        with root.opened(settings) as store:
            backfill = enter(store, backfill, Stage.GOING)
            done = sum(run.state.succeeded for run in runs(store, backfill).values())
            with (
                telling.bar(backfill, done, out, live=not json and sys.stdout.isatty()) as (display, tell),
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
                result = carry_out(backfill, loaded, means)
            passed = _passed(store, backfill)
    except SpanwiseError as error:
        raise type(error)(f"{error}\nGo on with what is left:  spanwise backfill --resume {backfill.name}") from error
    finally:
        executor.close()
    if json:
        sys.stdout.write(show.json_text(telling.result_document(result, passed)) + "\n")
    else:
        sys.stdout.write(telling.told(result, passed, typed.elsewhere) + "\n")
    return _exit_code(result)


def _passed(store: Store, backfill: Backfill) -> list[ledger.Entry]:
    """The ticks that came while the backfill went on, oldest first."""
    return list(ledger.entries(store, backfill.pipeline, since=backfill.began))[::-1]


def _exit_code(result: Result) -> int:
    if result.interrupted:
        return 130 if result.interrupted == "SIGINT" else 1
    return 1 if telling.left(result) else 0
