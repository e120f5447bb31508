"""Spans of a client: the state of each, its versions, the runs that were made for it, and the models that read it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.history import versions_of
from spanwise.orchestrator.store import Address
from spanwise.scheduler.client.artifacts import ArtifactRecord
from spanwise.scheduler.client.runs import RunRecord, record_of
from spanwise.scheduler.client.session import Session
from spanwise.scheduler.formatting import format_time

if TYPE_CHECKING:
    from spanwise.scheduler.inspect.span_history import SpanHistory, SpanStatus
    from spanwise.scheduler.inspect.taint import TaintReport

_RUNS = 200  # of the newest runs, those that are looked through for one span


@dataclass(frozen=True)
class SpanRecord:
    """One span of one channel."""

    session: Session = field(repr=False, compare=False)
    address: Address
    calendar: Calendar
    span: int
    status: str  #: ingested, newer version waiting, tainted, refused, failed, running or missing
    version: int | None  #: the newest that was ingested
    publications: int  #: how often it was ingested
    rows: int | None  #: of the newest publication
    in_window: bool  #: the newest model has learned from it

    @property
    def label(self) -> str:
        """The span as people write it."""
        return self.calendar.label(self.span)

    def versions(self) -> list[ArtifactRecord]:
        """Everything that was published for it, by version; windows read the last."""
        found = versions_of(self.session.store, self.address, self.span, self.calendar)
        return [ArtifactRecord(self.session, artifact) for artifact in found]

    def runs(self, limit: int = 20) -> list[RunRecord]:
        """The runs that were asked for it, among the recent ones, newest first."""
        from spanwise.scheduler.inspect.span_history import asked_span

        recent = itertools.islice(self.session.store.runs(self.address.pipeline), _RUNS)
        mine = (run for run in recent if asked_span(run, self.address.node, self.calendar) == self.span)
        return [record_of(self.session, run) for run in itertools.islice(mine, limit)]

    def taint(self, version: int | None = None) -> TaintReport:
        """The models and other artifacts that learned from it.

        Raises:
            NotRecorded: nothing was published for it, or not that version.
        """
        from spanwise.scheduler.inspect.taint import trace_taint

        store, pipeline, node = self.session.store, self.address.pipeline, self.address.node
        return trace_taint(store, pipeline, self.span, node=node, version=version, calendar=self.calendar)

    def _repr_html_(self) -> str:
        from spanwise.scheduler.client import html

        rows = [(v.version or "-", v.name, format_time(v.created), ", ".join(v.summary)) for v in self.versions()]
        head = html.heading(f"{self.address.pipeline} {self.label}", self.status)
        return head + html.table(("VERSION", "ARTIFACT", "PUBLISHED", "SUMMARY"), rows)


def select_channel(session: Session, pipeline: str, node: str | None = None) -> tuple[Address, Calendar]:
    """The channel on which a pipeline ingests spans; by its node, where there are several.

    Raises:
        NotRecorded: no recent run has ingested any, or the node has not.
    """
    from spanwise.scheduler.inspect.span_history import ingesting_channels

    found = ingesting_channels(session.store, pipeline)
    fits = [(address, calendar) for address, calendar in found.items() if node in (None, address.node)]
    if not fits:
        there = ", ".join(address.node for address in found) or "none of its recent runs has ingested a span"
        wanted = "ingests spans" if node is None else f"{node!r} ingests spans"
        raise NotRecorded(f"No node of {pipeline!r} {wanted}: {there}. See:  spanwise show {pipeline}")
    return fits[0]


def list_spans(
    session: Session, history: SpanHistory, calendar: Calendar, first: int | None, last: int | None
) -> Sequence[SpanRecord]:
    """The spans of a range, gaps included, ascending; none when nothing was published."""
    history.refresh(session.store)
    extent = history.extent
    if extent is None:
        return []
    first, last = extent[0] if first is None else first, extent[1] if last is None else last
    statuses = history.statuses(session.store, first, last)
    return [_record(session, history, calendar, span, status) for span, status in statuses.items()]


def _record(session: Session, history: SpanHistory, calendar: Calendar, span: int, status: SpanStatus) -> SpanRecord:
    entry = history.entries.get(span)
    return SpanRecord(
        session,
        history.address,
        calendar,
        span,
        status.value,
        None if entry is None else entry.version,
        0 if entry is None else entry.publications,
        None if entry is None else entry.rows,
        span in history.window,
    )
