"""Span histories: the state of every span that one channel has ingested, kept up to date by reading only new runs.

It holds a few numbers for each span, not its artifacts, so that tens of thousands of spans fit.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from spanwise.orchestrator.artifact import Artifact, Examples
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.run import Run, State
from spanwise.orchestrator.store import Address, Store
from spanwise.orchestrator.verdict import find_standing
from spanwise.scheduler.formatting import run_calendar
from spanwise.scheduler.inspect import find

MOST_RUNS = 10_000
"""How many of the newest runs say which of them was of which span."""

MOST_JUDGED = 400
"""Up to how many spans at once are asked for the verdicts of people; of more, only what their runs say is known."""

_NEAR = 400  # spans
_MANY_NEW = 500  # runs since the last look, from which on everything is read again


class SpanStatus(StrEnum):
    """What is known of one span."""

    INGESTED = "ingested"
    REFUSED = "refused"  #: by a gate or a person
    UNJUDGED = "not judged"  #: published, and its gate has not decided
    FAILED = "failed"  #: the last run of it failed before it was ingested
    RUNNING = "running"
    MISSING = "missing"  #: between the first and the last span, and nothing was published


@dataclass(frozen=True, slots=True)
class SpanEntry:
    """What was published for one span."""

    span: int
    artifact: int  #: id of the newest publication
    name: str  #: of that artifact
    version: int | None
    publications: int
    rows: int | None
    created: datetime | None


@dataclass(frozen=True, slots=True)
class SpanRun:
    """The last run of one span."""

    number: int
    state: State
    refused: bool = False  #: a gate refused it


class SpanHistory:
    """The spans of one channel; threads may share it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.entries: dict[int, SpanEntry] = {}
        self.runs: dict[int, SpanRun] = {}  # by span
        self.window: frozenset[int] = frozenset()  #: the spans that the newest run that trained has read
        self.version = 0  #: counts up whenever something has changed
        self._seen = 0  # the highest run that was looked at
        self._open: set[int] = set()  # runs that had not ended then
        self._lock = threading.Lock()

    def refresh(self, store: Store) -> None:
        """Reads the runs that are new or had not ended; everything at the first time, or after many."""
        with self._lock:
            newest = next(iter(store.runs(self.address.pipeline)), None)
            if newest is None:
                return
            if not self._seen or newest.number - self._seen > _MANY_NEW:
                self._read_all(store, newest.number)
                return
            fresh = list(itertools.takewhile(lambda run: run.number > self._seen, store.runs(self.address.pipeline)))
            again = [store.run(self.address.pipeline, number) for number in sorted(self._open)]
            self._add_runs(store, again + fresh[::-1], publications=True)
            self._seen = newest.number

    def _read_all(self, store: Store, newest: int) -> None:
        runs = list(itertools.islice(store.runs(self.address.pipeline, before=newest + 1), MOST_RUNS))
        self.entries = {span: _entry(span, found) for span, found in store.of_spans(self.address)}
        self._add_runs(store, runs[::-1], publications=False)
        self._seen = newest

    def _add_runs(self, store: Store, runs: Iterable[Run], *, publications: bool) -> None:
        listed = list(runs)
        self.version += bool(listed)
        failed = [run for run in listed if run.state is State.FAILED]
        refused = {e.run for e in store.executions_of(failed[-_MANY_NEW:]) if (e.error or "").startswith("Refused")}
        for run in listed:
            if run.span is not None and not run.replay:
                self.runs[run.span] = SpanRun(run.number, run.state, run.number in refused)
            (self._open.discard if run.state.ended else self._open.add)(run.number)
        for run in listed if publications else listed[-find.LOOK_BACK :]:
            self._add_publications(store, run, new=publications)

    def _add_publications(self, store: Store, run: Run, *, new: bool) -> None:
        for execution in store.executions(run):
            if execution.chosen and any(execution.outputs.values()):
                chosen = itertools.chain(*execution.outputs.values())
                spans = frozenset(s for a in chosen if isinstance(s := a.properties.get("span"), int))
                self.window = spans or self.window
            if new and execution.node == self.address.node:
                for artifact in execution.outputs.get(self.address.key, ()):
                    span = artifact.properties.get("span")
                    if isinstance(span, int):
                        self.entries[span] = _entry(span, store.of_span(self.address, span))

    @property
    def extent(self) -> tuple[int, int] | None:
        """The first and the last span that was published, or asked for near them: a typing error is far away."""
        if not self.entries:
            return (min(self.runs), max(self.runs)) if self.runs else None
        first, last = min(self.entries), max(self.entries)
        near = [span for span in self.runs if first - _NEAR <= span <= last + _NEAR]
        return min([first, *near]), max([last, *near])

    def statuses(self, store: Store, first: int, last: int) -> dict[int, SpanStatus]:
        """The status of every span of a range, gaps included."""
        judged = self._read_verdicts(store, first, last) if last - first < MOST_JUDGED else {}
        return {span: judged.get(span) or self._status(span) for span in range(first, last + 1)}

    def _status(self, span: int) -> SpanStatus:
        entry, run = self.entries.get(span), self.runs.get(span)
        if run is not None and run.state is State.RUNNING:
            return SpanStatus.RUNNING
        if entry is not None:
            return SpanStatus.REFUSED if run is not None and run.refused else SpanStatus.INGESTED
        return SpanStatus.FAILED if run is not None and run.state is not State.COMPLETE else SpanStatus.MISSING

    def _read_verdicts(self, store: Store, first: int, last: int) -> Mapping[int, SpanStatus]:
        found = {}
        for span in range(first, last + 1):
            entry, run = self.entries.get(span), self.runs.get(span)
            if entry is None or (run is not None and run.state is State.RUNNING):
                continue
            standing = find_standing(store, "accepted", Artifact("", name=entry.name))
            if standing.by_judge:
                found[span] = SpanStatus.INGESTED if standing.holds() else SpanStatus.REFUSED
        return found


def _entry(span: int, publications: list[Artifact]) -> SpanEntry:
    newest = max(publications, key=lambda a: (_version(a) or -1, a.id))
    rows = newest.properties.get("rows")
    return SpanEntry(
        span=span,
        artifact=newest.id,
        name=newest.name,
        version=_version(newest),
        publications=len(publications),
        rows=sum(r for r in rows.values() if isinstance(r, int)) if isinstance(rows, dict) else None,
        created=newest.created,
    )


def _version(artifact: Artifact) -> int | None:
    version = artifact.properties.get("version")
    return version if isinstance(version, int) else None


def ingesting_channels(store: Store, pipeline: str) -> dict[Address, Calendar]:
    """The channels of examples that recent runs ingested, without reading other artifacts, each with its calendar."""
    found: dict[Address, Calendar] = {}
    for run in itertools.islice(store.runs(pipeline), find.LOOK_BACK):
        for execution in store.executions(run):
            if any(execution.inputs.values()):
                continue
            for key, made in execution.outputs.items():
                if any(a.kind == Examples.kind and isinstance(a.properties.get("span"), int) for a in made):
                    calendar = Calendar.from_name(made[0].properties.get("calendar", run_calendar(run).value))
                    found.setdefault(Address(pipeline, execution.node, key), calendar)
        if found and run.state is State.COMPLETE:
            break
    return found
