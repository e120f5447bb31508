"""Span histories: the state of every span that one channel has ingested, kept up to date by reading only new runs.

It holds a few numbers for each span, not its artifacts, so that tens of thousands of spans fit. The newest spans are
read first, so that they can be shown while the rest is read.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from spanwise.orchestrator.artifact import Artifact, Examples, Model
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.history import find_parts, identity_of, versions_of
from spanwise.orchestrator.node_history import find_newest_successes, list_outputs
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Address, SpanSummary, Store, summarize_span
from spanwise.orchestrator.verdict import find_standings
from spanwise.scheduler.formatting import run_calendar
from spanwise.scheduler.inspect import find, records
from spanwise.scheduler.inspect.run_outputs import MOST_OUTPUTS, Learned, find_learned, find_names, find_window

T = TypeVar("T")

MOST_RUNS = 10_000
"""How many of the newest runs say which of them was of which span."""

MOST_JUDGED = 400
"""Up to how many spans at once are asked for the verdicts of people; of more, only what their runs say is known."""

_NEAR = 400  # spans
_MANY_NEW = 500  # runs since the last look, from which on everything is read again
_AT_ONCE = 500  # runs or spans, between two looks at the clock


class SpanStatus(StrEnum):
    """What is known of one span."""

    INGESTED = "ingested"
    WAITING = "newer version waiting"  #: its input has a newer version than was ingested
    TAINTED = "tainted"  #: a model that serves learned, or its base, from a version that was replaced or refused since
    REFUSED = "refused"  #: by a gate or a person
    FAILED = "failed"  #: the last run of it failed before it was ingested
    RUNNING = "running"
    MISSING = "missing"  #: between the first and the last span, and nothing was published


@dataclass(frozen=True, slots=True)
class SpanRun:
    """The last run of one span."""

    number: int
    state: State
    refused: bool = False  #: a gate refused it


class SpanHistory:
    """The spans of one channel; threads may share it."""

    def __init__(self, address: Address, calendar: Calendar) -> None:
        self.address = address
        self.calendar = calendar
        self.entries: dict[int, SpanSummary] = {}
        self.runs: dict[int, SpanRun] = {}  # by span
        self.window: frozenset[int] = frozenset()  #: the spans that the newest model which reads this channel has read
        self.learned: Mapping[int, Sequence[Artifact]] = {}  #: by span, what the models which serve have learned from
        self.waiting: frozenset[int] = frozenset()  #: spans whose input has a newer version, as far as was looked
        self.complete = False  #: everything was read
        self.version = 0  #: counts up whenever something has changed
        self._learned: Learned = {}
        self._names: frozenset[Address] = frozenset()  # that the channel had when that was read
        self._seen = 0  # the highest run that was looked at
        self._open: set[int] = set()  # runs that had not ended then
        self._reading: Iterator[None] | None = None
        self._lock = threading.RLock()

    def refresh(self, store: Store, *, within_s: float = float("inf")) -> None:
        """Reads the runs that are new or had not ended; everything at the first time, or after many.

        It stops soon after `within_s`; the next call goes on from there.
        """
        until = time.monotonic() + within_s
        with self._lock:
            newest = next(iter(store.runs(self.address.pipeline)), None)
            if newest is None:
                return
            if self._reading is None and (not self._seen or newest.number - self._seen > _MANY_NEW):
                self._reading = self._read_all(store, newest)
            if self._reading is None:
                self._read_new(store, newest)
                return
            try:
                for _ in self._reading:
                    self.version += 1
                    if time.monotonic() >= until:
                        return
            except BaseException:
                self._reading = None  # as when the connection was lost: begin again
                raise
            self._reading, self.complete = None, True
            self.version += 1

    def _read_all(self, store: Store, newest: Run) -> Iterator[None]:
        """Everything, the newest first; what is there is shown in between."""
        self.entries, self.runs, self._learned, self.complete = {}, {}, {}, False
        self._open.clear()
        runs = store.runs(self.address.pipeline, before=newest.number + 1)
        first = list(itertools.islice(runs, _AT_ONCE))
        self._read_window(store, find_newest_successes(store, self.address.pipeline).values())
        self._read_learned(store)
        self._add_runs(store, first[::-1])
        summaries = store.span_summaries(self.address)
        while group := list(itertools.islice(summaries, _AT_ONCE)):
            self.entries |= {summary.span: summary for summary in group}
            yield
        for _ in range(_AT_ONCE, MOST_RUNS, _AT_ONCE):
            older = list(itertools.islice(runs, _AT_ONCE))
            known = dict(self.runs)
            self._add_runs(store, older[::-1])
            self.runs |= known
            yield
        self._seen = newest.number

    def _read_new(self, store: Store, newest: Run) -> None:
        recent = itertools.takewhile(lambda run: run.number > self._seen, store.runs(self.address.pipeline))
        listed = [*(store.run(self.address.pipeline, n) for n in sorted(self._open)), *list(recent)[::-1]]
        if not listed:
            return
        self._add_runs(store, listed)
        replays = {run.number for run in listed if run.replay}
        executions = [e for e in store.executions_of(listed) if not e.chosen]
        self._read_window(store, [e for e in executions if e.state.succeeded and e.run not in replays])
        mine = [e for e in executions if e.node == self.address.node]
        for _, made in list_outputs(store, mine):
            for span in {s for a in made if isinstance(s := a.properties.get("span"), int)}:
                if published := store.of_span(self.address, span):
                    self._put(self.entries, span, summarize_span(span, published))
        if any(run.state.ended for run in listed):
            self._read_learned(store)
        self._seen = newest.number

    def _put(self, known: dict[int, T], span: int, value: T) -> None:
        if known.get(span) != value:
            known[span] = value
            self.version += 1

    def _read_learned(self, store: Store) -> None:
        names = find_names(store, self.address)
        known = self._learned if names == self._names else {}
        self._learned = find_learned(store, self.address.pipeline, names, known)
        self._names = names
        learned: dict[int, list[Artifact]] = defaultdict(list)
        for artifact in itertools.chain(*(each.values() for each in self._learned.values())):
            if isinstance(span := artifact.properties.get("span"), int):
                learned[span].append(artifact)
        self.version += learned != self.learned
        self.learned = dict(learned)

    def _add_runs(self, store: Store, runs: Collection[Run]) -> None:
        """What runs say, the last of them last."""
        failed = [run for run in runs if run.state is State.FAILED]
        refused = self._list_refused(store, failed[-_MANY_NEW:])
        for run in runs:
            span = None if run.replay else asked_span(run, self.address.node, self.calendar)
            if span is not None:
                self._put(self.runs, span, SpanRun(run.number, run.state, run.number in refused))
            (self._open.discard if run.state.ended else self._open.add)(run.number)

    def _list_refused(self, store: Store, failed: Collection[Run]) -> set[int]:
        """The runs in which a gate has refused something of this channel."""
        gates = {e.id: e.run for e in store.executions_of(failed) if (e.error or "").startswith("Refused")}
        links = store.links(executions=list(gates), read=True) if gates else []
        mine = {
            artifact.id
            for artifact in store.artifacts_by_id({link.artifact for link in links})
            if artifact.name.startswith(f"{self.address}/")
        }
        return {gates[link.execution] for link in links if link.artifact in mine}

    def _read_window(self, store: Store, executions: Collection[Execution]) -> None:
        """The window of the newest model that these have made; other nodes choose spans for their own purposes."""
        made = list_outputs(store, sorted(executions, key=lambda e: -e.id), most=MOST_OUTPUTS)
        for model in (a for _, artifacts in made for a in artifacts if a.is_a(Model)):
            if window := find_window(store, model, self.address):
                self.version += window != self.window
                self.window = window
                return

    @property
    def extent(self) -> tuple[int, int] | None:
        """The first and the last span that was published, or asked for near them: a typing error is far away.

        While not everything was read, the first is the lowest that was.
        """
        with self._lock:
            if not self.entries:
                return (min(self.runs), max(self.runs)) if self.runs else None
            first, last = min(self.entries), max(self.entries)
            near = [span for span in self.runs if first - _NEAR * self.complete <= span <= last + _NEAR]
            return min([first, *near]), max([last, *near])

    def statuses(self, store: Store, first: int, last: int) -> dict[int, SpanStatus]:
        """The status of every span of a range, gaps included."""
        judged = self._read_verdicts(store, first, last) if last - first < MOST_JUDGED else {}
        corrected = self._list_corrected(store, first, last)
        with self._lock:
            return {span: self._status(span, judged.get(span), corrected) for span in range(first, last + 1)}

    def _status(self, span: int, judged: SpanStatus | None, corrected: Collection[int]) -> SpanStatus:
        entry, run = self.entries.get(span), self.runs.get(span)
        if run is not None and run.state is State.RUNNING:
            return SpanStatus.RUNNING
        if entry is None:
            return SpanStatus.FAILED if run is not None and run.state is not State.COMPLETE else SpanStatus.MISSING
        learned = self.learned.get(span, ())
        if judged is SpanStatus.REFUSED if judged else run is not None and run.refused:
            return SpanStatus.TAINTED if any(a.name == entry.name for a in learned) else SpanStatus.REFUSED
        if span in corrected:
            return SpanStatus.TAINTED
        return SpanStatus.WAITING if span in self.waiting else SpanStatus.INGESTED

    def _list_corrected(self, store: Store, first: int, last: int) -> set[int]:
        """The spans of which a model that serves has learned what is not current."""
        others = {
            span: {identity_of(a) for a in self.learned.get(span, ())} - {(entry.version, entry.content)}
            for span in range(first, last + 1)
            if (entry := self.entries.get(span)) is not None
        }
        asked = [span for span, found in others.items() if found]
        current = find_parts(store, [versions_of(store, self.address, span, None) for span in asked])
        return {span for span, parts in zip(asked, current, strict=True) if others[span] - {*map(identity_of, parts)}}

    def _read_verdicts(self, store: Store, first: int, last: int) -> Mapping[int, SpanStatus]:
        judged = {}
        for span in range(first, last + 1):
            entry, run = self.entries.get(span), self.runs.get(span)
            if entry is not None and (run is None or run.state is not State.RUNNING):
                judged[span] = Artifact("", name=entry.name)
        standings = find_standings(store, "accepted", judged.values())
        return {
            span: SpanStatus.INGESTED if standings[artifact.name].holds() else SpanStatus.REFUSED
            for span, artifact in judged.items()
            if standings[artifact.name].by_judge
        }


def asked_span(run: Run, node: str, calendar: Calendar) -> int | None:
    """The span that a run was to ingest by a node; None where it named none for it."""
    if not run.spans:
        return run.span
    try:
        return calendar.parse(run.spans[node]) if node in run.spans else None
    except UsageError:  # the node had another calendar then
        return None


def ingesting_channels(store: Store, pipeline: str) -> dict[Address, Calendar]:
    """The channels of examples that recent runs ingested, in the order of the pipeline, each with its calendar.

    That is seen in the newest success of each node, and of these alone the artifacts are read.
    """
    recent = itertools.islice(store.runs(pipeline), find.LOOK_BACK)
    order = max((run.nodes for run in recent), key=len, default=())
    newest = find_newest_successes(store, pipeline)
    found: dict[Address, Calendar] = {}
    for node in sorted(newest, key=lambda node: order.index(node) if node in order else len(order)):
        execution = store.execution(newest[node].id)
        if any(execution.inputs.values()):
            continue
        for key, made in execution.outputs.items():
            if any(a.is_a(Examples) and isinstance(a.properties.get("span"), int) for a in made):
                default = run_calendar(store.run(pipeline, execution.run))
                found[Address(pipeline, execution.node, key)] = records.artifact_calendar(made[0], default)
    return found
