"""Plans of backfills: which spans to run again, in which order, and what each model would learn from. Reads only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spanwise.orchestrator.calendar import Calendar, Version
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import SpanNotFound, UsageError
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.run import Execution, State
from spanwise.orchestrator.span_resolver import is_window
from spanwise.orchestrator.store import Store
from spanwise.scheduler.backfill.inventory import IngestInventory, lowered_spans, ready_versions, stale_spans
from spanwise.scheduler.backfill.pairing import Pairings
from spanwise.scheduler.formatting import format_spans
from spanwise.scheduler.inspect.window_forecast import ExpectedWindow, WindowForecast, is_read
from spanwise.scheduler.project.span_sources import find_joined, list_joins, list_span_sources
from spanwise.scheduler.schedule.part import find_learned_choices, train_nodes

_FEW = 5  # commands for one node

LOWERED_FIX = (
    "Add the data at a version above the one that was ingested. If the versions of the input begin anew, give the node "
    "that ingests them another name, so that its history begins anew."
)
"""What to do about an input whose versions went down."""


@dataclass(frozen=True, kw_only=True)
class BackfillOptions:
    """The options of a backfill."""

    spans: tuple[int, int] | None = None  #: first and last of a range
    missed: tuple[int, ...] | None = None  #: the spans of ticks that did not succeed
    stale: bool = False  #: all spans whose input has a newer version than the ingested one
    train_once: bool = False
    split_at: tuple[str, ...] = ()  #: the first nodes of the training part
    parallel: int = 1  #: how many ingesting runs are parallel
    force: bool = False  #: include spans that no window reads
    skip_absent: bool = False  #: skip spans of the range without input
    warm_start: bool = False
    source: str = ""  #: the node whose spans are run again, where each that ingests has its own


@dataclass(frozen=True, kw_only=True)
class BackfillTarget:
    """One span to run again."""

    span: int
    versions: Mapping[str, Version]  #: the newest in the input, by ingesting node
    replaces: Mapping[str, Version]  #: the ingested version; empty when there is none
    windows: tuple[
        ExpectedWindow, ...
    ] = ()  #: what the model of its run would learn from; empty with one model for all spans
    joined: Mapping[str, str] = field(default_factory=dict)  #: the spans of other nodes that its run joins with it


@dataclass(frozen=True, kw_only=True)
class BackfillPlan:
    """A backfill before it begins."""

    pipeline: str
    calendar: Calendar
    targets: tuple[BackfillTarget, ...]  #: in the order in which they run, oldest first
    outside: tuple[int, ...] = ()  #: skipped because no window reads them
    asked: Calendar | None = None  #: of `absent` and `lowered`, where the spans that run are those of another node
    absent: tuple[int, ...] = ()  #: skipped because they have no input
    give_up: tuple[str, ...] = ()  #: the commands that give up the missed ticks of these
    lowered: tuple[int, ...] = ()  #: skipped because no window would read them: a higher version was ingested before
    alone: tuple[tuple[str, int], ...] = ()  #: nodes with spans, skipped because other nodes lack these
    ingest: tuple[str, ...] = ()  #: the nodes that run for each span
    train: tuple[str, ...] = ()  #: the nodes that run once, at the end; empty when each span has a full run
    windows: tuple[ExpectedWindow, ...] = ()  #: what the one model would learn from
    parallel: int = 1
    warm_start: bool = False
    estimate_s: float | None = None  #: from recent runs; None when these nodes have not run yet
    source: str = ""  #: the node whose spans these are, where each that ingests has its own
    spanless: int = 0  #: missed ticks without a span, which a run on the newest data recovers
    runs: tuple[str, ...] = ()  #: the commands that do, where no span is run that would recover them too
    lost: tuple[str, ...] = ()  #: which missed ticks no run recovers, and why
    own: tuple[tuple[str, ...], ...] = ()  #: the commands for each missed tick that gives each node its own span


def plan_backfill(
    options: BackfillOptions,
    pipeline: Pipeline,
    calendar: Calendar,
    store: Store,
    sources: Sequence[IngestInventory],
    took_s: Mapping[str, float],
    *,
    file: str = "FILE",
) -> BackfillPlan:
    """Plans a backfill. `took_s` has the usual duration of each node, as far as known; `file` is for messages.

    Raises:
        UsageError: spans of the range have no input, or at a lower version than was ingested; nothing says what they
            are to be joined with; the split is wrong, or nodes cannot run in parallel.
        SpanNotFound: none of the spans has input.
    """
    chosen, absent, alone = _choose_spans(options, calendar, sources)
    lowered = _lowered(options, chosen, calendar, sources)
    chosen = [span for span in chosen if span not in lowered]
    train = train_nodes(pipeline, options.split_at) if options.train_once else ()
    pairings = Pairings(store, pipeline, [node for node in pipeline.order if node not in train])
    asked, joined = calendar, pairings.join(options.source, chosen, file) if options.source and chosen else None
    if joined is not None:
        chosen, calendar, sources = list(joined.spans), joined.calendar, joined.inventories
        options = replace(options, source=joined.source, force=options.force or not joined.named)
        lowered += _lowered(options, chosen, calendar, sources)
        chosen = [span for span in chosen if span not in lowered]
    elif not options.source and options.missed is None:  # these missed ticks are of one span for all nodes
        _refuse_apart(options, pairings, calendar, sources, chosen, file)
    ingest = select_ingest(pipeline, train, options.source).run
    if options.parallel > 1:
        refuse_overlap(pipeline, ingest, train)
    there = ready_versions(sources)
    forecast = WindowForecast(pipeline, store, calendar, options.source)
    targets: list[BackfillTarget] = []
    outside: list[int] = []
    if train:
        for span in chosen:
            forecast.add(span, there[span])
    for span in chosen:  # with full runs, earlier spans are ingested by then and later ones are not
        forecast.add(span, there[span])
        windows = tuple(forecast.windows())
        if not options.force and not is_read(span, windows):
            outside.append(span)
            continue
        replaces = {s.node: s.published[span] for s in sources if span in s.published}
        learned = () if train else windows
        others = {} if joined is None else joined.spans[span]
        targets.append(
            BackfillTarget(span=span, versions=there[span], replaces=replaces, windows=learned, joined=others)
        )
    return BackfillPlan(
        pipeline=pipeline.name,
        calendar=calendar,
        targets=tuple(targets),
        outside=tuple(outside),
        asked=asked,
        absent=tuple(absent),
        lowered=tuple(lowered),
        alone=tuple(
            (each.node, span)
            for each, span in alone
            if options.force or is_read(span, _windows_with(span, each, pipeline, store, calendar))
        ),
        ingest=ingest,
        train=train,
        windows=tuple(forecast.windows()) if train else (),
        parallel=options.parallel,
        warm_start=options.warm_start,
        source=options.source,
        estimate_s=_estimate(took_s, ingest, train, spans=len(targets), parallel=options.parallel),
    )


def _choose_spans(
    options: BackfillOptions, calendar: Calendar, sources: Sequence[IngestInventory]
) -> tuple[list[int], list[int], list[tuple[IngestInventory, int]]]:
    """The spans to run again, the requested ones without input, and those of which one node has input but not all."""
    there = ready_versions(sources)
    if options.stale:
        stale = [(each, span) for each in sources for span in stale_spans([each])]
        ready = sorted({span for _, span in stale if span in there})
        return ready, [], [(each, span) for each, span in stale if span not in there]
    if options.missed is not None:
        wanted: Collection[int] = sorted(set(options.missed))
        alone = [(each, span) for span in wanted if span not in there for each in sources if span in each.ready]
        partly = {span for _, span in alone}
        return [s for s in wanted if s in there], [s for s in wanted if s not in there and s not in partly], alone
    assert options.spans is not None, "one of the three is always asked for"
    first, last = options.spans
    chosen = [span for span in there if first <= span <= last]
    if first == last and not chosen:
        lacking = [each.node for each in sources if first not in each.ready]
        having = [each.node for each in sources if each.node not in lacking]
        of = f" of {', '.join(lacking)}" if having else ""
        named = [f"  --span {node}={calendar.label(first)}" for node in having]
        raise SpanNotFound(
            f"Span {calendar.label(first)}{of} has no input, or not in every split, so it cannot be backfilled. "
            f"{_nearest(first, there, calendar)}" + (f"\nTo run the span of one node:{''.join(named)}" if named else "")
        )
    absent = [span for span in range(first, last + 1) if span not in there]
    if not chosen:
        raise SpanNotFound(
            f"No span of {calendar.label(first)}..{calendar.label(last)} has input. {_nearest(first, there, calendar)}"
        )
    if absent and not options.skip_absent:
        raise UsageError(
            f"{calendar.label(first)}..{calendar.label(last)} has {len(absent)} "
            f"{'span' if len(absent) == 1 else 'spans'} without input: {format_spans(absent, calendar)}.\n"
            f"Nothing was started. Wait for the data, or skip them:  --skip-absent"
        )
    return chosen, absent, []


def _windows_with(
    span: int, source: IngestInventory, pipeline: Pipeline, store: Store, calendar: Calendar
) -> tuple[ExpectedWindow, ...]:
    """What resolvers would choose if a span of one node were ingested."""
    forecast = WindowForecast(pipeline, store, calendar, source.node)
    forecast.add(span, {source.node: source.ready[span]})
    return tuple(forecast.windows())


def _lowered(
    options: BackfillOptions, chosen: Sequence[int], calendar: Calendar, sources: Sequence[IngestInventory]
) -> list[int]:
    """The spans whose input has a lower version than was ingested; of a range that was named, none may have."""
    lowered = [span for span in lowered_spans(sources) if options.stale or span in chosen]
    if lowered and options.spans is not None:
        raise UsageError(
            f"The input of {format_spans(lowered, calendar)} has a lower version than was ingested before, so no "
            f"window would read it. Nothing was started.\n{LOWERED_FIX}"
        )
    return lowered


def _refuse_apart(
    options: BackfillOptions,
    pairings: Pairings,
    calendar: Calendar,
    sources: Sequence[IngestInventory],
    chosen: Sequence[int],
    file: str,
) -> None:
    """Refuses to run a span of all nodes that was joined with another one before, such as that of the day before.

    Raises:
        UsageError: the message has the commands that run the spans of each node as they were joined.
    """
    asked = {each.node: stale_spans([each]) if options.stale else list(chosen) for each in sources}
    for node, spans in asked.items():
        if not pairings.joined_with(node):
            continue
        if (found := next((p for span in spans if (p := pairings.differs(node, span)) is not None), None)) is not None:
            whole = [] if options.spans is None else ["..".join(map(calendar.label, sorted(set(options.spans))))]
            named = [f"{each}={s}" for each in asked for s in whole or map(calendar.label, asked[each][:_FEW])]
            commands = "".join(f"\n  spanwise backfill {file} --span {each}" for each in named)
            raise UsageError(
                f"{pairings.explain_apart(found)}. Nothing was started. Run the spans of each node, with those that "
                f"they were joined with:{commands}"
            )


def _nearest(span: int, there: Iterable[int], calendar: Calendar) -> str:
    near = sorted(sorted(there, key=lambda s: abs(s - span))[:3])
    return f"Nearest spans with input: {', '.join(map(calendar.label, near))}." if near else "No span has input."


# --- the two parts of a pipeline


def select_ingest(pipeline: Pipeline, train: Sequence[str], source: str) -> Selection:
    """The nodes that run for each span: all but those that `train`.

    Of a `source`, the other nodes that ingest run where their spans are joined with its own.
    """
    rest = [node for node in pipeline.order if node not in train]
    if not source:
        return pipeline.select(last=pipeline.last_of(rest)) if train else pipeline.select()
    joined = find_joined(source, {name: of for name, of in list_joins(pipeline).items() if name in rest})
    others = [each.node for each in list_span_sources(pipeline) if each.node not in joined]
    mine = [node for node in rest if not train or node == source or source in pipeline.ancestors(node)]
    return pipeline.select(last=pipeline.last_of(mine), skip=others)


def refuse_overlap(pipeline: Pipeline, ingest: Sequence[str], train: Sequence[str]) -> None:
    """Refuses parallel runs of the ingesting part where one run could affect another.

    RFC, Concurrent Runs: parallel backfills are safe for partial pipelines without cross dependency. All of these runs
    see the history as of the start of the backfill, so none sees what another publishes. That leaves nodes that choose
    among spans, and effects outside the store.

    Raises:
        UsageError: some nodes prevent parallel runs; the message names them.
    """
    if not train:
        raise UsageError(
            "Full runs cannot be parallel: each trains on a window that the others change. Ingest the spans in "
            "parallel and train once:  --train-once --parallel N"
        )
    nodes = [pipeline.nodes[name] for name in ingest]
    choosing = [n.name for n in nodes if is_window(n)]
    acting = [n.name for n in nodes if isinstance(n, Component) and not type(n).cacheable]
    if choosing or acting:
        why = "choose among spans" if choosing else "act outside the metadata"
        raise UsageError(
            f"{', '.join(choosing or acting)} {why}, so their runs cannot be parallel. Leave out --parallel, "
            f"or move them into the training part:  --split-at {(choosing or acting)[0]}"
        )
    if learned := [name for name in find_learned_choices(pipeline, train) if name in ingest]:
        raise UsageError(
            f"{', '.join(learned)} choose{'s' if len(learned) == 1 else ''} among spans what models learn from, so the "
            f"runs cannot be parallel: none sees what another replaces. Leave out --parallel."
        )


# --- durations


def median_durations_s(executions: Iterable[Execution]) -> dict[str, float]:
    """How long each node takes to execute: the median over those of some runs."""
    seen: dict[str, list[float]] = {}
    for e in executions:
        if e.state is State.COMPLETE and e.started is not None and e.ended is not None:
            seen.setdefault(e.node, []).append((e.ended - e.started).total_seconds())
    return {node: statistics.median(times) for node, times in seen.items()}


def _estimate(
    took: Mapping[str, float], ingest: Sequence[str], train: Sequence[str], *, spans: int, parallel: int
) -> float | None:
    """The sum over nodes; None while no duration is known."""
    if not any(node in took for node in (*ingest, *train)):
        return None
    one, last = (sum(took.get(node, 0.0) for node in part) for part in (ingest, train))
    return one * math.ceil(spans / parallel) + last
