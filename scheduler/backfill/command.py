"""The command `spanwise backfill`: from its options to a plan, its runs and the exit code."""

from __future__ import annotations

import contextlib
import itertools
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import SpanNotFound, SpanwiseError, UsageError
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import State, format_source
from spanwise.orchestrator.store import Store
from spanwise.scheduler.backfill import formatting
from spanwise.scheduler.backfill.execution import (
    BackfillContext,
    BackfillResult,
    StopSignal,
    backfill_status,
    run_backfill,
)
from spanwise.scheduler.backfill.inventory import find_ingest_nodes, ready_versions, take_inventory
from spanwise.scheduler.backfill.plan import (
    BackfillOptions,
    BackfillPlan,
    median_durations_s,
    plan_backfill,
    refuse_overlap,
    select_ingest,
)
from spanwise.scheduler.backfill.record import (
    Backfill,
    BackfillStage,
    backfill_runs,
    find_backfill,
    record_backfill,
    set_stage,
)
from spanwise.scheduler.formatting import add_options, format_count, format_few, format_json, format_time
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.pauses import list_pauses
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_keys
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.project import root
from spanwise.scheduler.project.load import Loaded, load, load_again
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.project.span_sources import CountedSource, list_span_sources
from spanwise.scheduler.run.executors import open_executor
from spanwise.scheduler.run.folder import refuse_elsewhere
from spanwise.scheduler.run.launch import ExecutionOptions
from spanwise.scheduler.run.openlineage import emitting
from spanwise.scheduler.run.span_options import parse_span
from spanwise.scheduler.run.superseded import close_superseded
from spanwise.scheduler.schedule.outcome import TickOutcome
from spanwise.scheduler.schedule.part import train_nodes
from spanwise.scheduler.schedule.schedule_key import pipeline_of

_FEW = 5  # ticks that are named
_RECENT = 10  # runs from which durations are estimated
_MOST = 100_000  # spans of a range: the hours of eleven years


@dataclass(frozen=True, kw_only=True)
class BackfillRequest:
    """A backfill as it was requested on the command line."""

    reference: str | None = None  #: the pipeline file
    span: str | None = None
    missed: bool = False
    stale: bool = False
    resume: str | None = None
    options: BackfillOptions = field(default_factory=BackfillOptions)
    params: Sequence[str] = ()
    kill: bool = False
    fail_fast: bool = False
    execution: ExecutionOptions
    elsewhere: Sequence[str] = ()  #: --root and --config, as typed


def plan_request(request: BackfillRequest, settings: Settings) -> tuple[BackfillPlan, Loaded]:
    """Plans a requested backfill.

    Raises:
        UsageError: the request selects no spans, or selects them in two ways.
        SpanNotFound: none of the spans has input.
    """
    selected = [name for name, is_given in _selections(request) if is_given]
    if len(selected) != 1 or request.reference is None:
        found = "nothing" if not selected else " and ".join(selected)
        raise UsageError(
            f"A backfill needs a pipeline file and one of --span, --missed and --stale, or --resume; found {found}"
            f"{'' if request.reference else ', and no file'}.\n"
            "For example:  spanwise backfill flights.py --span 2013-01-05..2013-01-09 --train-once"
        )
    loaded = load(request.reference, typed=request.params, settings=settings.params)
    source = _find_source(request, loaded.pipeline)
    calendar = source.calendar if source is not None else loaded.calendar
    node = "" if source is None else source.node
    with root.open_for_reading(settings) as store:
        name = loaded.pipeline.name
        options = replace(request.options, source=node)
        spans: Sequence[int] | None = None
        if request.span is not None:
            text = request.span.rpartition("=")[2]
            first, last = calendar.parse_range(text)
            parse_span(text.partition("..")[0], calendar)  # refuses a number that is not meant as a date
            spans = _range(first, last, text)
            options = replace(options, spans=(first, last))
        elif request.missed:
            entries = [tick for schedule, tick in _missed(store, name) if schedule.backfills(tick)]
            spans = sorted({span for entry in entries for span in entry.spans})
            options = replace(options, missed=tuple(spans))
        else:
            options = replace(options, stale=True)
        find_ingest_nodes(loaded.pipeline)
        sources = take_inventory(loaded.pipeline, store, spans, node)
        if request.span is not None and not ready_versions(sources):
            sources = take_inventory(
                loaded.pipeline, store, source=node
            )  # for the message that names the spans with input
        took = median_durations_s(store.executions_of([*itertools.islice(store.runs(name), _RECENT)]))
        try:
            plan = plan_backfill(options, loaded.pipeline, calendar, store, sources, took, file=loaded.quoted)
            return _add_others(plan, store, request) if request.missed else plan, loaded
        except SpanNotFound as error:
            commands = _give_up(store, _missed(store, name), () if node else spans or (), request.elsewhere)
            raise SpanNotFound("\n".join([str(error), *_format_give_up(commands)])) from error


def _missed(store: Store, pipeline: str) -> list[tuple[ScheduleRecord, TickRecord]]:
    """The missed ticks of a pipeline, each with its schedule."""
    from spanwise.scheduler.ledger.schedule_status import find_schedule

    return [(find_schedule(store, key), tick) for key in list_keys(store, pipeline) for tick in list_missed(store, key)]


def _add_others(plan: BackfillPlan, store: Store, request: BackfillRequest) -> BackfillPlan:
    """The plan with the missed ticks that no backfill of a span recovers, and the commands that do."""
    from spanwise.scheduler.ledger.schedule_status import explain_lost, list_recovery
    from spanwise.scheduler.ledger.status_formatting import format_lost

    missed = _missed(store, plan.pipeline)
    others = [(schedule, tick) for schedule, tick in missed if not schedule.backfills(tick)]
    others = [(schedule, tick) for schedule, tick in others if not explain_lost(tick, schedule)]
    spanless = [(schedule, tick) for schedule, tick in others if tick.tick.span is None]
    own = [(schedule, tick) for schedule, tick in others if tick.tick.span is not None and schedule.ingests]
    runs, own_runs = (
        tuple(dict.fromkeys(tuple(list_recovery(tick, schedule, request.elsewhere)) for schedule, tick in ticks))
        for ticks in (spanless, own)
    )
    return replace(
        plan,
        spanless=len(spanless),
        runs=() if plan.targets else tuple(itertools.chain(*runs)),
        own=own_runs,
        lost=tuple(format_lost(missed)),
        give_up=tuple(_give_up(store, missed, plan.absent, request.elsewhere)),
    )


def _find_source(request: BackfillRequest, pipeline: Pipeline) -> CountedSource | None:
    """The node whose spans are run again, where each that ingests has its own; None: those of all.

    Raises:
        UsageError: the node does not ingest, or none is named and the nodes use different calendars.
    """
    sources = list_span_sources(pipeline)
    name, equals, text = (request.span or "").rpartition("=")
    example = "  ".join(f"--span {each.node}={each.calendar.example}" for each in sources)
    if equals:
        found = next((each for each in sources if each.node == name), None)
        if found is None:
            raise UsageError(f"--span {request.span}: {name} does not ingest spans. Write for example:  {example}")
        return found if len(sources) > 1 else None
    if len({each.calendar for each in sources}) > 1:
        if request.missed:
            return sources[0]  # whose spans name the ticks
        if len(fitting := [each for each in sources if _is_label(text, each.calendar)]) == 1:
            return fitting[0]
        raise UsageError(
            f"The nodes of {pipeline.name!r} that ingest use different calendars, so each is backfilled by itself"
            f"{f'; whose span is {text}?' if text else '.'} Write for example:  {example}"
        )
    return None


def _is_label(text: str, calendar: Calendar) -> bool:
    """Whether a span or a range is written as this calendar writes it; a number may be of any."""
    try:
        labels = [calendar.label(span) for span in calendar.parse_range(text)] if text else []
    except UsageError:
        return False
    return calendar is not Calendar.NUMBER and text in (labels[0], "..".join(labels)) if labels else False


def _give_up(
    store: Store, missed: Sequence[tuple[ScheduleRecord, TickRecord]], spans: Collection[int], elsewhere: Sequence[str]
) -> list[str]:
    """The commands that give up the missed ticks of spans without input.

    One that stands for several, or gives each node a span of its own, by its name: other ticks may have its span.
    """
    from spanwise.scheduler.ledger.schedule_status import format_key

    commands: dict[str, None] = {}
    for schedule, tick in missed:
        if not any(span in spans for span in tick.spans):
            continue
        if tick.spans[0] == tick.spans[-1] and not tick.tick.by_node:
            label = Calendar.from_name(schedule.calendar).label(tick.spans[0])
            what = [pipeline_of(schedule.key), "--span", label]
        else:
            what = [format_key(store, schedule.key), "--tick", tick.tick.name]
        words = ["spanwise", "schedule", "acknowledge", *what, "--because", "no data", *elsewhere]
        commands[shlex.join(words)] = None
    return [*format_few([*commands], _FEW)]


def _format_give_up(commands: Sequence[str]) -> list[str]:
    every = [f"  {command}" for command in commands]
    return ["If the data will never come, give up the missed ticks:", *every] if commands else []


def describe_left_out(request: BackfillRequest, plan: BackfillPlan, closed: Sequence[TickRecord]) -> str:
    """What follows from the spans that a plan leaves out; empty where nothing does."""
    lines = []
    if closed:
        lines.append(
            f"{format_count(len(closed), 'missed tick')} closed as superseded, since no window reads the span."
        )
    if request.missed:
        lines += _format_give_up(plan.give_up)
    return "".join(f"{line}\n" for line in lines)


def _range(first: int, last: int, text: str) -> range:
    """All spans of a range; a range that is too long is a mistake."""
    if last - first >= _MOST:
        raise UsageError(f"{text} has {last - first + 1:,} spans; a backfill takes at most {_MOST:,}.")
    return range(first, last + 1)


def _selections(request: BackfillRequest) -> list[tuple[str, bool]]:
    return [("--span", request.span is not None), ("--missed", request.missed), ("--stale", request.stale)]


def close_outside(settings: Settings, plan: BackfillPlan, loaded: Loaded) -> list[TickRecord]:
    """Closes the missed ticks of spans that a plan leaves out because no window reads them."""
    if not plan.outside:
        return []
    with root.open_for_writing(settings) as store:
        runs = itertools.islice(store.runs(loaded.pipeline.name), _RECENT)
        newest = next((run for run in runs if run.state is State.COMPLETE), None)
        return close_superseded(store, loaded.pipeline, loaded.calendar, settings.place, run=newest)


def record_plan(request: BackfillRequest, settings: Settings, plan: BackfillPlan, loaded: Loaded) -> Backfill:
    """Records a planned backfill.

    Raises:
        UsageError: parallel runs would miss what there is already, since this host's clock is behind.
    """
    began = datetime.now(UTC)
    with root.open_for_writing(settings) as store:
        newest = next(store.runs(loaded.pipeline.name, limit=1), None)
        last = newest and (newest.ended or newest.started)
        if plan.parallel > 1 and newest and last and last > began:
            raise UsageError(
                f"By the clock of this host, run {newest.number} of {newest.pipeline!r} ends in the future, at "
                f"{format_time(last)}; it is {format_time(began)} here. Parallel runs see what was recorded before the "
                "backfill began, so they would miss what that run made. Set the clock, or leave out --parallel."
            )
        return record_backfill(
            store,
            Backfill(
                pipeline=loaded.pipeline.name,
                source=loaded.place,
                folder=str(Path.cwd()),
                typed=tuple(request.params),
                calendar=plan.calendar.value,
                source_node=plan.source,
                joined=tuple(target.joined for target in plan.targets) if plan.source else (),
                spans=tuple(target.span for target in plan.targets),
                train=plan.train,
                parallel=plan.parallel,
                from_scratch=not plan.warm_start,
                began=began,
                after_run=0 if newest is None else newest.number,
            ),
            settings.root,
        )


def load_resumed(request: BackfillRequest, settings: Settings) -> tuple[BackfillResult, Loaded]:
    """The status of a backfill to resume, and its pipeline as currently defined in its file.

    Raises:
        NotRecorded: there is no such backfill.
        UsageError: nothing is left of it, it was planned in another folder, or its pipeline has changed too much.
    """
    if (
        request.reference
        or request.options != BackfillOptions()
        or any(is_given for _, is_given in _selections(request))
    ):
        raise UsageError(
            "--resume continues a backfill as planned; it takes no file, no spans, and no option that changes "
            "the plan (--train-once, --split-at, --parallel, --warm-start, --force, --skip-absent)."
        )
    assert request.resume is not None, "called only with --resume"
    with root.open_for_reading(settings) as store:
        backfill = find_backfill(store, request.resume, settings.root)
        made = backfill_runs(store, backfill)
    if backfill.stage is BackfillStage.COMPLETE:
        raise UsageError(f"Backfill {backfill.name} is complete, so there is nothing to resume.")
    backfill = replace(backfill, typed=(*backfill.typed, *request.params))
    words = ["spanwise", "backfill", "--resume", backfill.name, *(w for p in request.params for w in ("--param", p))]
    refuse_elsewhere(backfill.folder, settings, who=f"Backfill {backfill.name}", source=backfill.source, words=words)
    who = f"backfill {backfill.name}"
    loaded = load_again(backfill.source, who=who, typed=backfill.typed, settings=settings.params)
    so_far = backfill_status(backfill, made, loaded.pipeline)
    if change := _find_change(so_far, loaded.pipeline):
        raise UsageError(
            f"{format_source(backfill.source)} has changed since backfill {backfill.name} was planned: {change}. "
            "Start a new backfill; what was ingested is not ingested again."
        )
    return so_far, loaded


def _find_change(so_far: BackfillResult, pipeline: Pipeline) -> str:
    """The change of a pipeline that prevents resuming its backfill; empty when there is none."""
    backfill = so_far.backfill
    if pipeline.name != backfill.pipeline:
        return f"it defines {pipeline.name!r}"
    if change := _find_joined_change(backfill, pipeline):
        return change
    lost = [node for node in backfill.train if node not in pipeline.nodes]
    if lost or not backfill.train:
        return f"it no longer has {', '.join(lost)}" if lost else ""
    now = train_nodes(pipeline, pipeline.first_of(backfill.train))
    if new := [node for node in now if node not in backfill.train]:
        return f"{', '.join(new)} would now run once"
    ingest = select_ingest(pipeline, now, backfill.source_node).run
    if new := [n for n in ingest if any(n not in so_far.runs[span].nodes for span in so_far.done)]:
        return f"{', '.join(new)} has not run for the completed spans"
    if backfill.parallel > 1:
        refuse_overlap(pipeline, ingest, now)
    return ""


def _find_joined_change(backfill: Backfill, pipeline: Pipeline) -> str:
    """The change of what is joined with the spans of one node; empty when there is none."""
    if not (source := backfill.source_node):
        return ""
    if source not in pipeline.nodes:
        return f"it no longer has {source}"
    running = select_ingest(pipeline, backfill.train, source).run
    named = {name for each in backfill.joined for name in each}
    now = {each.node for each in list_span_sources(pipeline) if each.node in running} - {source}
    return "" if now == named else f"{source} is joined with other nodes: {', '.join(sorted(now | named))}"


def execute(
    backfill: Backfill,
    loaded: Loaded,
    request: BackfillRequest,
    settings: Settings,
    stop_signal: StopSignal,
    *,
    json: bool,
) -> int:
    """Runs a backfill, prints its result, and returns the exit code."""
    began = datetime.now(UTC)
    out = sys.stderr if json else sys.stdout
    try:
        executor = open_executor(
            loaded.pipeline, settings
        )  # before the metadata is opened: the fork server starts here
        with contextlib.closing(executor), root.open_for_writing(settings) as store:
            backfill = set_stage(store, backfill, BackfillStage.RUNNING, settings.root)
            done = len(backfill_status(backfill, backfill_runs(store, backfill), loaded.pipeline).done)
            with (
                formatting.show_progress(backfill, done, out, live=not json and sys.stdout.isatty()) as (
                    display,
                    notify,
                ),
                emitting(settings, store, display) as observe,
            ):
                context = BackfillContext(
                    executor=executor,
                    store=store,
                    settings=settings,
                    execution=request.execution,
                    kill=request.kill,
                    fail_fast=request.fail_fast,
                    observe=observe,
                    notify=notify,
                )
                result = run_backfill(backfill, loaded, context, stop_signal)
            passed = _find_passed_ticks(store, backfill, began)
    except SpanwiseError as error:
        raise type(error)(f"{error}\nResume it:  {formatting.resume_command(backfill, request.elsewhere)}") from error
    if json:
        sys.stdout.write(format_json(formatting.result_document(result, passed)) + "\n")
    else:
        text = formatting.format_result(result, passed, request.elsewhere)
        sys.stdout.write(add_options(text, request.elsewhere) + "\n")
    return _exit_code(result)


def _find_passed_ticks(store: Store, backfill: Backfill, began: datetime) -> list[formatting.PassedTick]:
    """The ticks that were due since then, oldest first; those during a pause are missed, recorded or not.

    Of the time since the backfill was planned, when another process worked at it, those that still need backfilling.
    """
    from spanwise.scheduler.ledger import schedule_status

    since, now = backfill.began, datetime.now(UTC)
    known = [schedule_status.find_schedule(store, line) for line in list_keys(store, backfill.pipeline)]
    pauses = list_pauses(store, backfill.pipeline, since=since)
    passed = []
    for one in [each for of in known for each in schedule_status.explain_ticks(store, of.timetable, of, since, now)]:
        paused = one.record is None and any(pause.holds(one.tick.at) for pause in pauses)
        outcome = TickOutcome.MISSED.value if paused else one.outcome
        lost = outcome in formatting.ABNORMAL and (one.record is None or one.record.closed is None)
        if lost or one.tick.at >= began:
            passed.append(formatting.PassedTick(tick=one.tick.name, outcome=outcome))
    return passed


def _exit_code(result: BackfillResult) -> int:
    if result.interrupted:
        return 130 if result.interrupted == "SIGINT" else 1
    return 0 if result.complete else 1
