"""Arrivals: spans that lie ready and were not ingested at their newest version, and what is to run for them.

Looking needs the pipeline, so a child does it; settling and deciding are pure.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spanwise.orchestrator.calendar import Calendar, Version
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.store import Store
from spanwise.scheduler.backfill.inventory import (
    InputChangeMarker,
    arrived_versions,
    find_ingest_nodes,
    ready_versions,
    take_inventory,
)
from spanwise.scheduler.backfill.plan import WindowForecast
from spanwise.scheduler.formatting import format_spans
from spanwise.scheduler.ledger.ticks import TickRecord, is_taken, list_ticks
from spanwise.scheduler.schedule.outcome import TickOutcome
from spanwise.scheduler.schedule.part import completed_parts
from spanwise.scheduler.schedule.schedule_key import INGEST, TRAIN, WHOLE

log = logging.getLogger("spanwise.scheduler")

OWED_TICKS = 1000
"""How many ticks back it is looked whether something was ingested and not trained on."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A span that has come, or a newer version of it."""

    span: int
    name: str  #: its span, its version, and a digest that changes with its files; the name of its tick
    read: bool  #: a window reads it


@dataclass(frozen=True, kw_only=True)
class ReadyData:
    """What lay ready when somebody looked."""

    newest: int | None  #: span; None where there is none
    divided: bool  #: what ingests can run without what trains
    arrivals: tuple[Arrival, ...]  #: the oldest first


def find_ready(pipeline: Pipeline, calendar: Calendar, store: Store) -> ReadyData:
    """What lies ready now.

    Raises:
        UsageError: no node of the pipeline ingests spans.
    """
    sources = take_inventory(pipeline, store)
    there = ready_versions(sources)
    come = arrived_versions(sources)
    expected = WindowForecast(pipeline, store, calendar)
    for span, versions in come.items():
        expected.add(span, versions)
    windows = list(expected.windows())
    wanted = {span for window in windows for span in (*dict(window.spans), *window.absent)}
    if unseen := wanted - set(there):  # a source that names only its newest span may have a new version of these
        come |= arrived_versions(take_inventory(pipeline, store, sorted(unseen)))
    newest = max(there, default=None)
    read = wanted if windows else {newest}
    return ReadyData(
        newest=newest,
        divided=INGEST in completed_parts(pipeline, pipeline.order),
        arrivals=tuple(
            Arrival(span=span, name=_name(pipeline, calendar, span, versions, marked=span in read), read=span in read)
            for span, versions in sorted(come.items())
        ),
    )


def _name(pipeline: Pipeline, calendar: Calendar, span: int, versions: Mapping[str, Version], *, marked: bool) -> str:
    """InputChangeMarker are taken of what may be run, since they cost a look at each file."""
    nodes = find_ingest_nodes(pipeline)
    marks = {n: node.mark(span) for n, node in nodes.items() if marked and isinstance(node, InputChangeMarker)}
    digest = hashlib.blake2b(json.dumps([sorted(versions.items()), sorted(marks.items())]).encode(), digest_size=5)
    newest = sorted({f".v{version}" for version in versions.values() if version is not None})
    return f"{calendar.label(span)}{''.join(newest)}.{digest.hexdigest()}"


class ArrivalWatch:
    """For how long what has come has not changed."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def settled(self, arrivals: Iterable[Arrival], settle_s: float, monotonic: float) -> list[Arrival]:
        """Those that were seen so long ago, and ever since, as they are now."""
        seen = list(arrivals)
        self._since = {each.name: self._since.get(each.name, monotonic) for each in seen}
        return [each for each in seen if monotonic - self._since[each.name] >= settle_s]


@dataclass(frozen=True, kw_only=True)
class ArrivalRun:
    """A run that is due because of data."""

    name: str  #: of its tick
    part: str
    span: int | None
    from_scratch: bool  #: an earlier model may have learned from what was replaced


def decide_arrival(due: Sequence[Arrival], found: ReadyData, owed: TickRecord | None) -> ArrivalRun | None:
    """What runs next for arrivals that are due; None when nothing does.

    One is a run of the whole pipeline. Of several, all but the newest are only ingested, so that one model is trained.
    `owed` was ingested so and never trained on: where nothing else is due, its training is.
    """
    if not due:
        if owed is None:
            return None
        return ArrivalRun(name=f"train.{owed.number}", part=TRAIN, span=None, from_scratch=True)
    first, *more = sorted(due, key=lambda each: each.span)
    if more and found.divided:
        return ArrivalRun(name=first.name, part=INGEST, span=first.span, from_scratch=True)
    old = owed is not None or first.span != found.newest
    return ArrivalRun(name=first.name, part=WHOLE, span=first.span, from_scratch=old)


def find_owed(entries: Iterable[TickRecord], coming: Collection[int]) -> TickRecord | None:
    """The newest tick that has only ingested, and after which nothing was trained; `entries` are the newest first.

    `coming` are spans that were not ingested yet: a run of one of these failed before it could train. A run that has
    failed later is for people to look at.
    """
    for entry in entries:
        ran = entry.end is not None and entry.end.outcome is TickOutcome.RAN and entry.end.run is not None
        if entry.end is None or entry.tick.part == TRAIN:
            return None
        if entry.tick.part == INGEST and ran:
            return entry
        if entry.tick.part == WHOLE and (ran or entry.tick.span not in coming):
            return None
    return None


class ArrivalQueue:
    """The data that has arrived for one pipeline, and what is still to be done about it."""

    def __init__(self, ready: ReadyData | None) -> None:
        self.unread = ready  #: what was found ready, until it was looked at
        self.wants_look = False  #: what is ready may have changed, by what was done here
        self.settling = False  #: something has arrived that has not settled yet, or waits for its turn
        self._watch = ArrivalWatch()
        self._outside: frozenset[str] = frozenset()  # what was logged as outside every window

    @property
    def pending(self) -> bool:
        """Whether something is still to be waited for."""
        return self.settling or self.wants_look

    def update(self, ready: ReadyData | None) -> None:
        """Goes on with what was found ready now."""
        self.unread, self.wants_look = ready, False

    def decide(self, store: Store, key: str, calendar: str, settle_s: float, monotonic: float) -> ArrivalRun | None:
        """The run that is due for what was found ready.

        Each look is used once: what is found while the pipeline is held may have been ingested when it no longer is.
        """
        ready, self.unread = self.unread, None
        assert ready is not None, "it was looked"
        self._log_outside(ready, key, calendar)
        read = [each for each in ready.arrivals if each.read]
        settled = self._watch.settled(read, settle_s, monotonic)
        new = {each.name for each in read if not is_taken(store, key, each.name)}
        due = [each for each in settled if each.name in new]
        owed = find_owed(list_ticks(store, key, limit=OWED_TICKS), {each.span for each in read})
        run = decide_arrival(due, ready, owed)
        self.settling = run is not None or bool(new)
        return run

    def _log_outside(self, ready: ReadyData, key: str, calendar: str) -> None:
        outside = [each for each in ready.arrivals if not each.read]
        if any(each.name not in self._outside for each in outside):
            spans = format_spans([each.span for each in outside], Calendar.from_name(calendar))
            log.warning("spans-ignored", extra={"pipeline": key, "spans": spans, "reason": "no window reads them"})
        self._outside = frozenset(each.name for each in outside)
