"""Plans: which spans a backfill runs again, in which order, and what each model would learn from. Pure.

A plan reads what is there and changes nothing; carrying it out is `work`'s.
"""

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
from spanwise.orchestrator.history import History, version_of
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.span_resolver import SpanResolver, WantedSpan, WindowChecker
from spanwise.orchestrator.store import Store
from spanwise.scheduler.backfill.inventory import Source, listed, ready, stale
from spanwise.scheduler.schedule.part import train_nodes


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A backfill as it was asked for."""

    spans: tuple[int, int] | None = None  #: first and last of a range
    missed: tuple[int, ...] | None = None  #: the spans of ticks that did not run to a good end
    stale: bool = False  #: every span whose input has a newer version than was ingested
    train_once: bool = False
    split_at: tuple[str, ...] = ()  #: the first nodes of the second part
    parallel: int = 1  #: ingesting runs side by side
    force: bool = False  #: also spans that no window reads
    skip_absent: bool = False  #: leave out spans of the range that have no input
    warm_start: bool = False


@dataclass(frozen=True, kw_only=True)
class Window:
    """What one resolver would read."""

    node: str
    spans: tuple[tuple[int, Version], ...]  #: with the version each would have by then
    absent: tuple[int, ...] = ()  #: wanted, and neither ingested nor planned
    refusal: str = ""  #: why the run would fail there


@dataclass(frozen=True, kw_only=True)
class Target:
    """One span to be run again."""

    span: int
    versions: Mapping[str, Version]  #: the newest in the input, by ingesting node
    replaces: Mapping[str, Version]  #: what was ingested of it; empty when nothing was
    windows: tuple[Window, ...] = ()  #: what its run's model would learn from; empty where one model is trained for all


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A backfill before it begins."""

    pipeline: str
    calendar: Calendar
    targets: tuple[Target, ...]  #: in the order they are run, the oldest first
    outside: tuple[int, ...] = ()  #: left out, since no window reads them
    absent: tuple[int, ...] = ()  #: left out, since they have no input
    ingest: tuple[str, ...] = ()  #: the nodes that run for each span
    train: tuple[str, ...] = ()  #: the nodes that run once, at the end; empty when each span has a full run
    windows: tuple[Window, ...] = ()  #: what the one model would learn from
    parallel: int = 1
    warm_start: bool = False
    estimate_s: float | None = None  #: from the last runs; None when nothing like it has run yet


def planned(
    wish: Wish,
    pipeline: Pipeline,
    calendar: Calendar,
    store: Store,
    sources: Sequence[Source],
    took_s: Mapping[str, float],
) -> Plan:
    """What a backfill would do. `took_s` is how long each node takes, as far as is known.

    Raises:
        UsageError: nothing, a range with spans that have no input, a split that is none, nodes that may not overlap.
        SpanNotFound: a single span that is not there.
    """
    chosen, absent = _chosen(wish, calendar, sources)
    train = train_nodes(pipeline, wish.split_at) if wish.train_once else ()
    ingest = tuple(n for n in pipeline.order if n not in train)
    if wish.parallel > 1:
        refuse_overlap(pipeline, ingest, train)
    there = ready(sources)
    expected = Expected(pipeline, store, calendar)
    targets: list[Target] = []
    outside: list[int] = []
    if train:
        for span in chosen:
            expected.add(span, there[span])
    for span in chosen:  # in a backfill of full runs, those before it are there by then, and those after it are not
        expected.add(span, there[span])
        windows = tuple(expected.windows())
        if not wish.force and not _read(span, windows):
            outside.append(span)
            continue
        replaces = {s.node: s.published[span] for s in sources if span in s.published}
        learned = () if train else windows
        targets.append(Target(span=span, versions=there[span], replaces=replaces, windows=learned))
    return Plan(
        pipeline=pipeline.name,
        calendar=calendar,
        targets=tuple(targets),
        outside=tuple(outside),
        absent=tuple(absent),
        ingest=ingest,
        train=train,
        windows=tuple(expected.windows()) if train else (),
        parallel=wish.parallel,
        warm_start=wish.warm_start,
        estimate_s=_estimate(took_s, ingest, train, spans=len(targets), parallel=wish.parallel),
    )


def _read(span: int, windows: Sequence[Window]) -> bool:
    """Whether any window reads the span. Without windows, each run trains on its own span."""
    return not windows or any(span in dict(window.spans) for window in windows)


def _chosen(wish: Wish, calendar: Calendar, sources: Sequence[Source]) -> tuple[list[int], list[int]]:
    """The spans to run again, and those that were asked for and have no input."""
    there = ready(sources)
    if wish.stale:
        return [span for span in stale(sources) if span in there], []
    if wish.missed is not None:
        wanted: Collection[int] = sorted(set(wish.missed))
        return [s for s in wanted if s in there], [s for s in wanted if s not in there]
    assert wish.spans is not None, "one of the three is always asked for"
    first, last = wish.spans
    chosen = [span for span in there if first <= span <= last]
    if first == last and not chosen:
        raise SpanNotFound(
            f"Span {calendar.label(first)} is not there, or not in every split, so it cannot be backfilled. "
            f"{_nearest(first, there, calendar)}"
        )
    absent = [span for span in range(first, last + 1) if span not in there]
    if not chosen:
        raise SpanNotFound(
            f"No span of {calendar.label(first)}..{calendar.label(last)} is there. {_nearest(first, there, calendar)}"
        )
    if absent and not wish.skip_absent:
        raise UsageError(
            f"{calendar.label(first)}..{calendar.label(last)} has {len(absent)} "
            f"{'span' if len(absent) == 1 else 'spans'} without input: {listed(absent, calendar)}.\n"
            f"Nothing was started. Wait for the data, or leave them out:  --skip-absent"
        )
    return chosen, absent


def _nearest(span: int, there: Iterable[int], calendar: Calendar) -> str:
    near = sorted(sorted(there, key=lambda s: abs(s - span))[:3])
    return f"Nearest that are: {', '.join(map(calendar.label, near))}." if near else "No span is there at all."


# --- the two parts of a pipeline


def refuse_overlap(pipeline: Pipeline, ingest: Sequence[str], train: Sequence[str]) -> None:
    """Refuses to run the first part for several spans side by side where one run could see what another does.

    RFC, Concurrent Runs: parallel backfills are safe for partial pipelines without cross dependency. What such runs
    read of the past is held at the moment the backfill begins, so one cannot see what another publishes; what is left
    are nodes that choose among spans, and effects outside the store.

    Raises:
        UsageError: the nodes that stand in the way.
    """
    if not train:
        raise UsageError(
            "Full runs cannot go side by side: each trains on a window that the others change. Ingest the spans side "
            "by side and train once:  --train-once --parallel N"
        )
    nodes = [pipeline.nodes[name] for name in ingest]
    choosing = [n.name for n in nodes if isinstance(n, Resolver) and isinstance(n, SpanResolver)]
    acting = [n.name for n in nodes if isinstance(n, Component) and not type(n).cacheable]
    if choosing or acting:
        why = "choose among spans" if choosing else "act outside the metadata"
        raise UsageError(
            f"{', '.join(choosing or acting)} {why}, so runs with them cannot go side by side. Leave out --parallel, "
            f"or put them behind the split:  --split-at {(choosing or acting)[0]}"
        )


# --- what a window will hold


class Expected:
    """What resolvers would read once planned spans are ingested."""

    def __init__(self, pipeline: Pipeline, store: Store, calendar: Calendar) -> None:
        run = Run(pipeline=pipeline.name, calendar=calendar.value)
        self._planned: dict[int, Mapping[str, Version]] = {}
        self._resolvers = [
            (node, _Foreseen(**vars(history_of(store, run, node.source)), planned=self._planned))
            for node in pipeline
            if isinstance(node, Resolver) and isinstance(node, SpanResolver)
        ]

    def add(self, span: int, versions: Mapping[str, Version]) -> None:
        """From here on, the span counts as ingested at these versions."""
        self._planned[span] = versions

    def windows(self) -> Iterator[Window]:
        """What each resolver would read."""
        for node, history in self._resolvers:
            yield self._window(node, history)

    def _window(self, node: Resolver, history: History) -> Window:
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
        return Window(
            node=node.name,
            spans=tuple((w.span, version_of(w.chosen)) for w in wanted if w.chosen is not None),
            absent=tuple(w.span for w in wanted if w.chosen is None),
            refusal=refusal,
        )


@dataclass(frozen=True)
class _Foreseen(History):
    """A history in which planned spans are published. What it has read it keeps: a plan is of one moment."""

    planned: Mapping[int, Mapping[str, Version]] = field(default_factory=dict)
    known: dict[int, list[Artifact]] = field(default_factory=dict)

    def spans(self, *, below: int | None = None) -> Iterator[int]:
        coming = sorted((s for s in self.planned if below is None or s < below), reverse=True)
        there = (s for s in self._there if below is None or s < below)
        both = heapq.merge(coming, there, reverse=True)
        return (span for span, _ in itertools.groupby(both))

    @cached_property
    def _there(self) -> Iterable[int]:
        return _Kept(History.spans(self))

    def of_span(self, span: int) -> list[Artifact]:
        editions = self.known.get(span)
        if editions is None:
            editions = self.known[span] = super().of_span(span)
        versions = self.planned.get(span)
        if versions is None:
            return editions
        version = versions.get(self.address.node, next(iter(versions.values())))
        if any(version_of(a) == version for a in editions):
            return editions
        said = {"span": span} if version is None else {"span": span, "version": version}
        return [*editions, self.kind("", id=sys.maxsize, name=f"{self.address}/{span}/planned", properties=said)]


class _Kept(Iterable[int]):
    """An iterator that can be gone through again; it is asked for no more than anybody has wanted."""

    def __init__(self, source: Iterator[int]) -> None:
        self._source = source
        self._kept: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for place in itertools.count():
            if place == len(self._kept):
                further = next(self._source, None)
                if further is None:
                    return
                self._kept.append(further)
            yield self._kept[place]


# --- how long it takes


def took_s(histories: Iterable[Iterable[Execution]]) -> dict[str, float]:
    """How many seconds each node takes when it does its work: the median over some runs."""
    seen: dict[str, list[float]] = {}
    for e in itertools.chain.from_iterable(histories):
        if e.state is State.COMPLETE and e.started is not None and e.ended is not None:
            seen.setdefault(e.node, []).append((e.ended - e.started).total_seconds())
    return {node: statistics.median(times) for node, times in seen.items()}


def _estimate(
    took: Mapping[str, float], ingest: Sequence[str], train: Sequence[str], *, spans: int, parallel: int
) -> float | None:
    """Node after node; None while nothing is known."""
    if not any(node in took for node in (*ingest, *train)):
        return None
    one, last = (sum(took.get(node, 0.0) for node in part) for part in (ingest, train))
    return one * math.ceil(spans / parallel) + last
