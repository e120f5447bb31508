"""Plans of backfills: which spans to run again, in which order, and what each model would learn from. Reads only."""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar, Version
from spanwise.orchestrator.component import Component, Resolver
from spanwise.orchestrator.driver import history_of
from spanwise.orchestrator.errors import ResolutionError, SpanNotFound, UsageError
from spanwise.orchestrator.history import History, version_key, version_of
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.span_resolver import SpanResolver, WantedSpan, WindowChecker
from spanwise.orchestrator.store import Store
from spanwise.scheduler.backfill.inventory import IngestInventory, ready_versions, stale_spans
from spanwise.scheduler.formatting import format_spans
from spanwise.scheduler.schedule.part import train_nodes


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


@dataclass(frozen=True, kw_only=True)
class ExpectedWindow:
    """What one resolver would choose."""

    node: str
    spans: tuple[tuple[int, Version], ...]  #: with the version that each would have by then
    absent: tuple[int, ...] = ()  #: wanted, but neither ingested nor planned
    refusal: str = ""  #: why the run would fail there


@dataclass(frozen=True, kw_only=True)
class BackfillTarget:
    """One span to run again."""

    span: int
    versions: Mapping[str, Version]  #: the newest in the input, by ingesting node
    replaces: Mapping[str, Version]  #: the ingested version; empty when there is none
    windows: tuple[
        ExpectedWindow, ...
    ] = ()  #: what the model of its run would learn from; empty with one model for all spans


@dataclass(frozen=True, kw_only=True)
class BackfillPlan:
    """A backfill before it begins."""

    pipeline: str
    calendar: Calendar
    targets: tuple[BackfillTarget, ...]  #: in the order in which they run, oldest first
    outside: tuple[int, ...] = ()  #: skipped because no window reads them
    absent: tuple[int, ...] = ()  #: skipped because they have no input
    ingest: tuple[str, ...] = ()  #: the nodes that run for each span
    train: tuple[str, ...] = ()  #: the nodes that run once, at the end; empty when each span has a full run
    windows: tuple[ExpectedWindow, ...] = ()  #: what the one model would learn from
    parallel: int = 1
    warm_start: bool = False
    estimate_s: float | None = None  #: from recent runs; None when these nodes have not run yet


def plan_backfill(
    options: BackfillOptions,
    pipeline: Pipeline,
    calendar: Calendar,
    store: Store,
    sources: Sequence[IngestInventory],
    took_s: Mapping[str, float],
) -> BackfillPlan:
    """Plans a backfill. `took_s` has the usual duration of each node, as far as known.

    Raises:
        UsageError: spans of the range have no input, the split is wrong, or nodes cannot run in parallel.
        SpanNotFound: none of the spans has input.
    """
    chosen, absent = _choose_spans(options, calendar, sources)
    train = train_nodes(pipeline, options.split_at) if options.train_once else ()
    ingest = tuple(n for n in pipeline.order if n not in train)
    if options.parallel > 1:
        refuse_overlap(pipeline, ingest, train)
    there = ready_versions(sources)
    forecast = WindowForecast(pipeline, store, calendar)
    targets: list[BackfillTarget] = []
    outside: list[int] = []
    if train:
        for span in chosen:
            forecast.add(span, there[span])
    for span in chosen:  # with full runs, earlier spans are ingested by then and later ones are not
        forecast.add(span, there[span])
        windows = tuple(forecast.windows())
        if not options.force and not _is_read(span, windows):
            outside.append(span)
            continue
        replaces = {s.node: s.published[span] for s in sources if span in s.published}
        learned = () if train else windows
        targets.append(BackfillTarget(span=span, versions=there[span], replaces=replaces, windows=learned))
    return BackfillPlan(
        pipeline=pipeline.name,
        calendar=calendar,
        targets=tuple(targets),
        outside=tuple(outside),
        absent=tuple(absent),
        ingest=ingest,
        train=train,
        windows=tuple(forecast.windows()) if train else (),
        parallel=options.parallel,
        warm_start=options.warm_start,
        estimate_s=_estimate(took_s, ingest, train, spans=len(targets), parallel=options.parallel),
    )


def _is_read(span: int, windows: Sequence[ExpectedWindow]) -> bool:
    """Whether any window reads the span. Without windows, each run trains on its own span."""
    return not windows or any(span in dict(window.spans) for window in windows)


def _choose_spans(
    options: BackfillOptions, calendar: Calendar, sources: Sequence[IngestInventory]
) -> tuple[list[int], list[int]]:
    """The spans to run again, and the requested ones without input."""
    there = ready_versions(sources)
    if options.stale:
        return [span for span in stale_spans(sources) if span in there], []
    if options.missed is not None:
        wanted: Collection[int] = sorted(set(options.missed))
        return [s for s in wanted if s in there], [s for s in wanted if s not in there]
    assert options.spans is not None, "one of the three is always asked for"
    first, last = options.spans
    chosen = [span for span in there if first <= span <= last]
    if first == last and not chosen:
        raise SpanNotFound(
            f"Span {calendar.label(first)} has no input, or not in every split, so it cannot be backfilled. "
            f"{_nearest(first, there, calendar)}"
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
    return chosen, absent


def _nearest(span: int, there: Iterable[int], calendar: Calendar) -> str:
    near = sorted(sorted(there, key=lambda s: abs(s - span))[:3])
    return f"Nearest spans with input: {', '.join(map(calendar.label, near))}." if near else "No span has input."


# --- the two parts of a pipeline


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
    choosing = [n.name for n in nodes if isinstance(n, Resolver) and isinstance(n, SpanResolver)]
    acting = [n.name for n in nodes if isinstance(n, Component) and not type(n).cacheable]
    if choosing or acting:
        why = "choose among spans" if choosing else "act outside the metadata"
        raise UsageError(
            f"{', '.join(choosing or acting)} {why}, so their runs cannot be parallel. Leave out --parallel, "
            f"or move them into the training part:  --split-at {(choosing or acting)[0]}"
        )


# --- expected windows


class WindowForecast:
    """What resolvers would choose once planned spans are ingested."""

    def __init__(self, pipeline: Pipeline, store: Store, calendar: Calendar) -> None:
        run = Run(pipeline=pipeline.name, calendar=calendar.value)
        self._planned: dict[int, Mapping[str, Version]] = {}
        self._resolvers = [
            (node, _PlannedHistory(**vars(history_of(store, run, node.source)), planned=self._planned))
            for node in pipeline
            if isinstance(node, Resolver) and isinstance(node, SpanResolver)
        ]

    def add(self, span: int, versions: Mapping[str, Version]) -> None:
        """Treats the span as ingested at these versions from now on."""
        self._planned[span] = versions

    def windows(self) -> Iterator[ExpectedWindow]:
        """What each resolver would choose."""
        for node, history in self._resolvers:
            yield self._window(node, history)

    def _window(self, node: Resolver, history: History) -> ExpectedWindow:
        assert isinstance(node, SpanResolver)
        refusal = ""
        wanted: Sequence[WantedSpan] = ()
        try:
            wanted = node.explain(history)
            if isinstance(node, WindowChecker):
                node.refuse(history, wanted)
            else:
                node.resolve(history)
        except ResolutionError as error:
            refusal = str(error)
        return ExpectedWindow(
            node=node.name,
            spans=tuple((w.span, version_of(w.chosen)) for w in wanted if w.chosen is not None),
            absent=tuple(w.span for w in wanted if w.chosen is None),
            refusal=refusal,
        )


@dataclass(frozen=True)
class _PlannedHistory(History):
    """A history in which planned spans are already published. It caches what it has read: a plan is a snapshot."""

    planned: Mapping[int, Mapping[str, Version]] = field(default_factory=dict)
    known: dict[int, list[Artifact]] = field(default_factory=dict)

    def spans(self, *, below: int | None = None) -> Iterator[int]:
        planned = sorted((s for s in self.planned if below is None or s < below), reverse=True)
        published = (s for s in self._published if below is None or s < below)
        both = heapq.merge(planned, published, reverse=True)
        return (span for span, _ in itertools.groupby(both))

    @cached_property
    def _published(self) -> Iterable[int]:
        return _ReplayableSpans(History.spans(self))

    def of_span(self, span: int) -> list[Artifact]:
        versions_of_span = self.known.get(span)
        if versions_of_span is None:
            versions_of_span = self.known[span] = super().of_span(span)
        versions = self.planned.get(span)
        if versions is None:
            return versions_of_span
        version = versions.get(self.address.node, next(iter(versions.values())))
        if any(version_of(a) == version for a in versions_of_span):
            return versions_of_span
        properties = {"span": span} if version is None else {"span": span, "version": version}
        planned = self.kind("", id=sys.maxsize, name=f"{self.address}/{span}/planned", properties=properties)
        return sorted([*versions_of_span, planned], key=version_key)


class _ReplayableSpans(Iterable[int]):
    """An iterator that can be iterated again; it reads no further than necessary."""

    def __init__(self, source: Iterator[int]) -> None:
        self._source = source
        self._read: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for place in itertools.count():
            if place == len(self._read):
                item = next(self._source, None)
                if item is None:
                    return
                self._read.append(item)
            yield self._read[place]


# --- durations


def median_durations_s(histories: Iterable[Iterable[Execution]]) -> dict[str, float]:
    """How long each node takes to execute: the median over some runs."""
    seen: dict[str, list[float]] = {}
    for e in itertools.chain.from_iterable(histories):
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
