"""Arrivals: spans whose newest version was not ingested yet, and the runs that are due for them.

Finding them needs the pipeline, so a child does it; settling and deciding are pure.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spanwise.orchestrator.calendar import Calendar, Version
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.store import Store
from spanwise.scheduler.backfill.inventory import (
    IngestInventory,
    InputChangeMarker,
    arrived_versions,
    find_ingest_nodes,
    is_ingested,
    lone_versions,
    ready_versions,
    take_inventory,
)
from spanwise.scheduler.backfill.pairing import Pairing, Pairings
from spanwise.scheduler.formatting import format_duration, format_spans
from spanwise.scheduler.inspect.window_forecast import ExpectedWindow, WindowForecast, read_spans
from spanwise.scheduler.ledger.ticks import TickRecord, is_taken, list_ticks
from spanwise.scheduler.project.span_sources import example_rules, list_span_sources
from spanwise.scheduler.schedule.outcome import TickOutcome
from spanwise.scheduler.schedule.part import completed_parts
from spanwise.scheduler.schedule.schedule_key import INGEST, TRAIN, WHOLE

log = logging.getLogger("spanwise.scheduler")

_FEW = 5  # commands that are named

UNTRAINED_TICKS = 1000
"""How many ticks back to search for data that was ingested and not trained on."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A span that has arrived, or a newer version of it."""

    span: int
    name: str  #: span, version and a digest that changes with the files; the name of the tick
    in_window: bool  #: a window reads it


@dataclass(frozen=True, kw_only=True)
class ReadyData:
    """The data that was ready at one moment."""

    newest: int | None  #: span; None if there is none
    divided: bool  #: ingestion can run without training
    arrivals: tuple[Arrival, ...]  #: the oldest first
    lone: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  #: by node, spans of which others have no input
    apart: tuple[int, ...] = ()  #: spans of which nodes have data that was, or is, joined with another span
    apart_why: str = ""  #: with which, and the commands that run them


def find_ready(pipeline: Pipeline, calendar: Calendar, store: Store, file: str = "FILE") -> ReadyData:
    """The data that is ready now; `file` is for messages.

    Raises:
        UsageError: no node of the pipeline ingests spans, or those that do use different calendars.
    """
    counted = list_span_sources(pipeline)
    if len({each.calendar for each in counted}) > 1:
        kinds = ", ".join(f"{each.node} counts {each.calendar.value}s" for each in counted)
        raise UsageError(
            f"The nodes of {pipeline.name!r} that ingest use different calendars: {kinds}. So no span can have "
            f"arrived in all of them, and `watch` cannot tell when to run it. Write a schedule with a rule for each:\n"
            f'  Schedule({pipeline.name}, cron="0 3 * * *", span={example_rules(counted)})'
        )
    sources = take_inventory(pipeline, store)
    ready = ready_versions(sources)
    newest = max(ready, default=None)
    begun = min((span for source in sources for span in source.published), default=newest)
    came, pairings = arrived_versions(sources), Pairings(store, pipeline, pipeline.order)
    apart = _find_apart(pairings, sources, came)
    arrived = {span: versions for span, versions in came.items() if span not in apart}
    windows = _list_windows(pipeline, calendar, store, arrived)
    wanted = {span for window in windows for span in read_spans(window)}
    if unseen := wanted - set(ready):  # a source that names only its newest span may have a new version of these
        seen = take_inventory(pipeline, store, sorted(unseen))
        came |= arrived_versions(seen)
        apart |= _find_apart(pairings, seen, arrived_versions(seen))
        arrived = {span: versions for span, versions in sorted(came.items()) if span not in apart}
    read = _list_read(windows, arrived, newest, begun)
    left = _list_read(_list_windows(pipeline, calendar, store, came), came, newest, begun) if apart else set()
    left &= set(apart)
    return ReadyData(
        apart=tuple(sorted(left)),
        apart_why=_describe_apart(pairings, take_inventory(pipeline, store, sorted(left)), apart, file) if left else "",
        newest=newest,
        divided=INGEST in completed_parts(pipeline, pipeline.order),
        lone=lone_versions(sources),
        arrivals=tuple(
            Arrival(
                span=span, name=_name(pipeline, calendar, span, versions, marked=span in read), in_window=span in read
            )
            for span, versions in sorted(arrived.items())
        ),
    )


def _list_windows(
    pipeline: Pipeline, calendar: Calendar, store: Store, arrived: Mapping[int, Mapping[str, Version]]
) -> Sequence[ExpectedWindow]:
    """What resolvers would choose once these were ingested."""
    expected = WindowForecast(pipeline, store, calendar)
    for span, versions in arrived.items():
        expected.add(span, versions)
    return list(expected.windows())


def _list_read(
    windows: Sequence[ExpectedWindow], arrived: Iterable[int], newest: int | None, begun: int | None
) -> set[int]:
    """The spans that windows read, of what was ingested or has arrived since the first span `begun`."""
    read = {span for window in windows for span in read_spans(window)}
    if newest is not None and all(window.fixed for window in windows):
        read.add(newest)
    if not all(window.explained for window in windows):  # what was there before the first run, nobody has asked for
        read |= {span for span in arrived if begun is not None and span >= begun}
    return read


def _find_apart(pairings: Pairings, sources: Sequence[IngestInventory], arrived: Collection[int]) -> dict[int, Pairing]:
    """The spans of which a run of one span for all nodes would join what does not belong together, and what shows it.

    They were joined with other spans; of one that was never joined, the newest that was ingested shows it.
    """
    apart: dict[int, Pairing] = {}
    for source in sources if arrived else ():
        if not pairings.joined_with(source.node):
            continue
        newest = max(source.published, default=None)
        usual = None if newest is None else pairings.differs(source.node, newest)
        for span in arrived:
            known = span in source.published and pairings.find(source.node, span)
            if (found := pairings.differs(source.node, span) if known else usual) is not None:
                apart.setdefault(span, found)
    return apart


def _describe_apart(
    pairings: Pairings, sources: Sequence[IngestInventory], apart: Mapping[int, Pairing], file: str
) -> str:
    due = [(s.node, span) for s in sources for span in sorted(s.ready) if span in apart and not is_ingested(s, span)]
    commands = [pairings.command_for(node, span, file) for node, span in due]
    more = f"; and {len(commands) - _FEW} more like these" if len(commands) > _FEW else ""
    return f"{pairings.explain_apart(apart[due[0][1]])}. Run each by hand:  {'; '.join(commands[:_FEW])}{more}"


def _name(pipeline: Pipeline, calendar: Calendar, span: int, versions: Mapping[str, Version], *, marked: bool) -> str:
    """The name of an arrival; only one that may be run is `marked`, since that reads the state of each file."""
    nodes = find_ingest_nodes(pipeline)
    marks = {n: node.mark(span) for n, node in nodes.items() if marked and isinstance(node, InputChangeMarker)}
    digest = hashlib.blake2b(json.dumps([sorted(versions.items()), sorted(marks.items())]).encode(), digest_size=5)
    newest = sorted({f".v{version}" for version in versions.values() if version is not None})
    return f"{calendar.label(span)}{''.join(newest)}.{digest.hexdigest()}"


class ArrivalWatch:
    """How long arrivals have not changed."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def select_settled(self, arrivals: Iterable[Arrival], settle_s: float, monotonic: float) -> list[Arrival]:
        """The arrivals that have not changed for `settle_s`."""
        seen = list(arrivals)
        self._since = {each.name: self._since.get(each.name, monotonic) for each in seen}
        return [each for each in seen if monotonic - self._since[each.name] >= settle_s]


@dataclass(frozen=True, kw_only=True)
class ArrivalRun:
    """A run that is due because data has arrived."""

    name: str  #: of its tick
    part: str
    span: int | None
    from_scratch: bool  #: an earlier model may have learned from replaced data


def decide_arrival(due: Sequence[Arrival], ready: ReadyData, untrained: TickRecord | None) -> ArrivalRun | None:
    """The next run for arrivals that are due; None if there is none.

    A single arrival gets a run of the whole pipeline. Of several, all but the newest are only ingested, so that one
    model is trained. `untrained` was only ingested: once nothing else is due, its training is.
    """
    if not due:
        if untrained is None:
            return None
        return ArrivalRun(name=f"train.{untrained.number}", part=TRAIN, span=None, from_scratch=True)
    first, *more = sorted(due, key=lambda each: each.span)
    if more and ready.divided:
        return ArrivalRun(name=first.name, part=INGEST, span=first.span, from_scratch=True)
    old = untrained is not None or first.span != ready.newest
    return ArrivalRun(name=first.name, part=WHOLE, span=first.span, from_scratch=old)


def describe_awaited(ready: ReadyData, settling: Sequence[int], calendar: Calendar, settle_s: float) -> str:
    """What a pipeline waits for when no run is due for it."""
    lone = [f"{node} has {format_spans(spans, calendar)}" for node, spans in ready.lone.items()]
    more = f"; {', '.join(lone)}, of which other nodes have no input" if lone else ""
    more += f"; {format_spans(ready.apart, calendar)} must be run by hand, joined as before" if ready.apart else ""
    if settling:
        return f"{format_spans(settling, calendar)} must not have changed for {format_duration(settle_s)}{more}"
    if ready.newest is None:
        return f"its first span; none has input in every node that ingests{more}"
    return f"a span after {calendar.label(ready.newest)}, or a newer version of one that a window reads{more}"


def find_untrained(records: Iterable[TickRecord], pending: Collection[int]) -> TickRecord | None:
    """The newest tick that only ingested, if nothing was trained after it; `records` are newest first.

    `pending` are spans that were not ingested yet: a run of one of these failed before it could train. A run that
    failed later is left to people.
    """
    for record in records:
        ran = record.end is not None and record.end.outcome is TickOutcome.RAN and record.end.run is not None
        if record.end is None or record.tick.part == TRAIN:
            return None
        if record.tick.part == INGEST and ran:
            return record
        if record.tick.part == WHOLE and (ran or record.tick.span not in pending):
            return None
    return None


class ArrivalQueue:
    """The data that has arrived for one pipeline and was not processed yet."""

    def __init__(self, ready: ReadyData | None) -> None:
        self.unread = ready  #: the ready data, until a decision has used it
        self.wants_look = False  #: a run of ours may have changed what is ready
        self.settling = False  #: an arrival has not settled yet, or waits for its turn
        self._watch = ArrivalWatch()
        self._outside: frozenset[str] = frozenset()  # names that were logged as outside every window
        self._apart_why = ""  # what was logged about spans that were joined with others
        self._awaited = ""  # what was logged as waited for

    @property
    def pending(self) -> bool:
        """Whether there is still something to wait for."""
        return self.settling or self.wants_look

    def update(self, ready: ReadyData | None) -> None:
        """Uses the data that is ready now."""
        self.unread, self.wants_look = ready, False

    def decide(self, store: Store, key: str, calendar: str, settle_s: float, monotonic: float) -> ArrivalRun | None:
        """The run that is due for the ready data.

        Each inventory is used once: data found while the pipeline is held may be ingested by the time it is free.
        """
        ready, self.unread = self.unread, None
        assert ready is not None, "it was updated"
        self._log_outside(ready, key, calendar)
        self._log_apart(ready, key, calendar)
        read = [each for each in ready.arrivals if each.in_window]
        settled = self._watch.select_settled(read, settle_s, monotonic)
        new = {each.name for each in read if not is_taken(store, key, each.name)}
        due = [each for each in settled if each.name in new]
        untrained = find_untrained(list_ticks(store, key, limit=UNTRAINED_TICKS), {each.span for each in read})
        run = decide_arrival(due, ready, untrained)
        self.settling = run is not None or bool(new)
        settling = [each.span for each in read if each.name in new and each not in due]
        if run is None:
            self.wait_for(describe_awaited(ready, settling, Calendar.from_name(calendar), settle_s), key)
        return run

    def wait_for(self, awaited: str, key: str) -> None:
        """Logs what is waited for, whenever that changes."""
        if awaited != self._awaited:
            log.info("run-awaits", extra={"pipeline": key, "reason": awaited})
        self._awaited = awaited

    def _log_outside(self, ready: ReadyData, key: str, calendar: str) -> None:
        outside = [each for each in ready.arrivals if not each.in_window]
        if any(each.name not in self._outside for each in outside):
            spans = format_spans([each.span for each in outside], Calendar.from_name(calendar))
            log.warning("spans-ignored", extra={"pipeline": key, "spans": spans, "reason": "no window reads them"})
        self._outside = frozenset(each.name for each in outside)

    def _log_apart(self, ready: ReadyData, key: str, calendar: str) -> None:
        if ready.apart and ready.apart_why != self._apart_why:
            spans = format_spans(ready.apart, Calendar.from_name(calendar))
            log.warning("spans-ignored", extra={"pipeline": key, "spans": spans, "reason": ready.apart_why})
        self._apart_why = ready.apart_why
