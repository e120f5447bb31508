"""Window forecasts: what resolvers would choose once certain spans are ingested. Reads only."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.calendar import Calendar, Version
from spanwise.orchestrator.component import Resolver
from spanwise.orchestrator.driver import check_given, history_of
from spanwise.orchestrator.errors import ResolutionError
from spanwise.orchestrator.gate import find_calendar
from spanwise.orchestrator.history import History, Withheld, span_of, version_key, version_of
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.span_resolver import (
    SpanAwaiter,
    SpanResolver,
    WantedSpan,
    WindowChecker,
)
from spanwise.orchestrator.store import Store
from spanwise.scheduler.project.span_sources import list_span_sources
from spanwise.scheduler.schedule.part import find_learned_choices, second_part


@dataclass(frozen=True, kw_only=True)
class ExpectedWindow:
    """What one resolver would choose."""

    node: str
    spans: tuple[tuple[int, Version], ...]  #: with the version that each would have by then
    absent: tuple[int, ...] = ()  #: wanted, but neither ingested nor planned
    awaited: tuple[int, ...] = ()  #: ingested or planned, and read by a later window: they have yet to settle
    refusal: str = ""  #: why the run would fail there
    fixed: bool = False  #: it reads the same spans whatever comes
    explained: bool = True  #: its resolver says which spans it reads; else it may read any


def is_read(span: int, windows: Sequence[ExpectedWindow]) -> bool:
    """Whether any window reads the span or may, or would if it were not refused, or will once newer spans have come.

    Where no window moves, each run trains on its own span.
    """
    return all(w.fixed for w in windows) or any(not w.explained or span in read_spans(w) for w in windows)


def read_spans(window: ExpectedWindow) -> set[int]:
    """The spans that a window reads, or would if they were there and not refused, or will once newer ones have come."""
    return {*dict(window.spans), *window.absent, *window.awaited}


class WindowForecast:
    """What resolvers would choose once planned spans are ingested; of one that cannot say, that it may read any.

    Of a pipeline whose sources use different calendars, or with the name of a `source`, only what chooses among
    the spans that are planned.
    """

    def __init__(self, pipeline: Pipeline, store: Store, calendar: Calendar, source: str = "") -> None:
        run = Run(pipeline=pipeline.name, calendar=calendar.value)
        others = {each.calendar for each in list_span_sources(pipeline)} - {calendar}
        self._planned: dict[int, Mapping[str, Version]] = {}
        resolvers = [
            node
            for node in pipeline
            if isinstance(node, Resolver)
            if (find_calendar(node.source) or calendar) not in others
            if not source or source in pipeline.ancestors(node.name)
        ]
        self._resolvers = [
            (node, _PlannedHistory(**vars(_history(store, run, node, pipeline)), planned=self._planned))
            for node in resolvers
            if isinstance(node, SpanResolver)
        ]
        learned = find_learned_choices(pipeline, second_part(pipeline))
        self._unexplained = [
            ExpectedWindow(node=node.name, spans=(), explained=False)
            for node in resolvers
            if not isinstance(node, SpanResolver) and node.name in learned
        ]

    def add(self, span: int, versions: Mapping[str, Version]) -> None:
        """Treats the span as ingested at these versions from now on."""
        self._planned[span] = versions

    def windows(self) -> Iterator[ExpectedWindow]:
        """What each resolver would choose."""
        for node, history in self._resolvers:
            window = self._window(node, history)
            if not window.fixed or read_spans(window) or window.refusal:  # else it reads one artifact, and no span
                yield window
        yield from self._unexplained

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
            check_given(node, node, history)
        except ResolutionError as error:
            refusal = str(error)
        return ExpectedWindow(
            node=node.name,
            spans=tuple((w.span, version_of(w.chosen)) for w in wanted if w.chosen is not None),
            absent=tuple(w.span for w in wanted if w.chosen is None),
            awaited=tuple(w.span for w in node.explain_awaited(history)) if isinstance(node, SpanAwaiter) else (),
            refusal=refusal,
            fixed=node.is_fixed,
        )


def _history(store: Store, run: Run, node: Resolver, pipeline: Pipeline) -> History:
    return history_of(store, run, node.source, scope=pipeline.scopes[node.name][node.source.key])


@dataclass(frozen=True)
class _PlannedHistory(History):
    """A history in which planned spans are already published."""

    planned: Mapping[int, Mapping[str, Version]] = field(default_factory=dict)

    def published_spans(self, *, below: int | None = None) -> Iterator[int]:
        planned = sorted((s for s in self.planned if below is None or s < below), reverse=True)
        both = heapq.merge(planned, super().published_spans(below=below), reverse=True)
        return (span for span, _ in itertools.groupby(both))

    def withheld(self, span: int) -> Withheld | None:
        """A planned span counts once its gates have judged it again, unless a person has refused that version."""
        found = super().withheld(span)
        if found is None or span not in self.planned:
            return found
        by_person = found.verdict is not None and found.verdict.personal and not found.through
        return (
            found if by_person and version_of(found.artifact) == self._planned_version(span, found.artifact) else None
        )

    def published(self, span: int) -> list[Artifact]:
        versions_of_span = super().published(span)
        versions = self.planned.get(span)
        if versions is None:
            return versions_of_span
        version = self._planned_version(span)
        if any(version_of(a) == version for a in versions_of_span):
            return versions_of_span
        properties = {"span": span} if version is None else {"span": span, "version": version}
        planned = self.kind("", id=sys.maxsize, name=f"{self.address}/{span}/planned", properties=properties)
        return sorted([*versions_of_span, planned], key=version_key)

    def _planned_version(self, span: int, artifact: Artifact | None = None) -> Version:
        """The version of a planned span that the node of the channel, or of an artifact, will read or give."""
        versions = self.planned[span]
        node = self.address.node if artifact is None else artifact.name.split("/")[1]
        return versions.get(node, next(iter(versions.values())))

    def replaced_origin(self, artifact: Artifact) -> tuple[Artifact, Artifact] | None:
        """Of a planned span nothing: its run makes it anew."""
        return None if span_of(artifact) in self.planned else super().replaced_origin(artifact)

    def last_given(self, span: int) -> Artifact | None:
        """Of a planned span, what its run will give."""
        versions = self.planned.get(span)
        if versions is None:
            return super().last_given(span)
        found, version = self.published(span), self._planned_version(span)
        planned = (a for a in reversed(found) if version is None or version_of(a) == version)
        return next(planned, None)
