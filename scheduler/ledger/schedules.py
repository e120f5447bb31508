"""Schedules in the ledger: each timetable as it was last loaded, so that it is known where the pipeline file is not.

| claim            | is                                                                 |
|------------------|--------------------------------------------------------------------|
| `schedule k`     | the timetable of a schedule key, and since when it counts          |
| `scheduled #n`   | the n-th schedule key that was ever scheduled                      |
| `parts p`        | the names of all parts by which a pipeline was ever scheduled      |
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.claim_record import facts_of, record_of
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.scheduler.ledger.missed import is_any_missed
from spanwise.scheduler.ledger.numbered import newest_number
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.schedule.due import WALKED
from spanwise.scheduler.schedule.schedule_key import DATA, HALF_NAMES, WHOLE, part_of, pipeline_of, schedule_key
from spanwise.scheduler.schedule.ticks import source_spans, ticks
from spanwise.scheduler.schedule.timetable import Timetable


@dataclass(frozen=True, kw_only=True)
class ScheduleRecord:
    """A schedule as the metadata knows it."""

    timetable: Timetable
    since: datetime  #: ticks after this moment count
    source: str = ""  #: the file it was loaded from, `/path/file.py:name`
    folder: str = ""  #: of the scheduler that loaded it: relative paths of its pipeline are of this folder
    calendar: str = "number"  #: how its spans are shown
    calendars: Mapping[str, str] = field(default_factory=dict)  #: the same of each node that ingests
    pushes: tuple[str, ...] = ()  #: where its pushed models are found, `node/key`
    pushed_before: tuple[str, ...] = ()  #: where they were found before, as its file was then
    nodes: tuple[str, ...] = ()  #: that it runs: whoever completes them has done what it is for
    first: tuple[str, ...] = ()  #: of a part: where a run by hand of it alone begins; empty where the pipeline does
    last: tuple[str, ...] = ()  #: the same where it ends
    ingests: bool = True  #: it has nodes that ingest spans, so it can be backfilled
    replaced: bool = False  #: the pipeline has another schedule now, or its file none of it
    renamed: str = ""  #: the pipeline that its file has in its place
    created: datetime | None = field(default=None, compare=False)  #: when this was written

    @property
    def key(self) -> str:
        """The schedule key."""
        return self.timetable.pipeline

    @property
    def selection(self) -> list[str]:
        """The options of a run of its part alone; none for all of the pipeline, or for nodes that may be gone."""
        ends = [("--from", self.first), ("--to", self.last)]
        return [] if self.replaced else [word for option, nodes in ends for node in nodes for word in (option, node)]

    def source_spans(self, record: TickRecord) -> Sequence[Mapping[str, int]] | None:
        """The span of each node, as `ticks.source_spans` says, for each tick for which this one stands.

        Empty where all nodes have that of the tick, or it has none; None where those of some node are not known.
        """
        spans = source_spans(self.timetable, record.tick) if record.spans else {}
        if not spans:
            return None if spans is None else []
        if record.end is None or (record.end.first_at is None and record.end.first_span is None):
            every: Sequence[Mapping[str, int]] = [spans]
        else:
            every = self._list_summed(record, spans)
        nodes = self.calendars or spans
        known = bool(every) and all(node in each for each in every for node in nodes)
        return [{node: each[node] for node in nodes} for each in every] if known else None

    def _list_summed(self, record: TickRecord, last: Mapping[str, int]) -> Sequence[Mapping[str, int]]:
        """The spans of each node for all ticks for which one stands; none where the rules are others by now."""
        if record.end is None or record.end.first_at is None:
            return []
        came = ticks(self.timetable, record.end.first_at - timedelta(seconds=1), record.tick.at)
        summed = list(itertools.islice(came, WALKED + 1))
        if len(summed) > WALKED or sorted({tick.span or 0 for tick in summed}) != [*record.spans]:
            return []
        every = [tick.by_node or {} for tick in summed]
        return [dict(each) for each in dict.fromkeys(tuple(of.items()) for of in every)] if every[-1] == last else []

    def backfills(self, record: TickRecord) -> bool:
        """Whether a backfill recovers a tick: it has a span, and it is the same for all nodes that ingest."""
        if not self.ingests or record.tick.span is None or (each := self.source_spans(record)) is None:
            return False
        same = all(len({self.label(node, span) for node, span in of.items()}) == 1 for of in each)
        return not each or (len(record.spans) > 1 and same)

    def label(self, node: str, span: int) -> str:
        """A span of a node as it is typed."""
        rules = {each.node: each.rule.calendar.value for each in self.timetable.sources}
        return Calendar.from_name(self.calendars.get(node) or rules.get(node, self.calendar)).label(span)


def put_schedule(store: Store, loaded: ScheduleRecord) -> ScheduleRecord:
    """Records a schedule as it was loaded; what is returned counts since it was first known."""
    while True:
        _note_parts(store, loaded)
        known = read_schedule(store, loaded.key)
        if known is not None:
            earlier = dict.fromkeys([*known.pushed_before, *known.pushes])
            before = tuple(place for place in earlier if place not in loaded.pushes)
            current = replace(loaded, since=loaded.since if known.replaced else known.since, pushed_before=before)
            if current != known:
                _replace_others(store, loaded)
                store.amend(_claim(current))
            return current
        number = newest_number(store, "scheduled", "") + 1
        try:
            store.claim(_claim(loaded), Claim("scheduled", f"#{number}", {"key": loaded.key}))
        except AlreadyClaimed:
            continue
        _replace_others(store, loaded)
        return loaded


def _replace_others(store: Store, loaded: ScheduleRecord) -> None:
    """A pipeline is scheduled as a whole or by certain parts: what it was before is over.

    What is left to do about its ticks is done with the file as it is now.
    """
    pipeline, part = pipeline_of(loaded.key), part_of(loaded.key)
    mine = {each.name for each in loaded.timetable.division} or {part}
    for other in () if part == DATA else {WHOLE, *_parts(store, pipeline)} - mine:
        known = read_schedule(store, schedule_key(pipeline, other))
        if known is not None and (not known.replaced or known.source != loaded.source):
            store.amend(_claim(replace(known, replaced=True, source=loaded.source)))


def retire_schedule(store: Store, key: str) -> None:
    """Records that a schedule is over, since its file no longer has it; loaded again, it counts from then."""
    known = read_schedule(store, key)
    if known is not None and not known.replaced:
        store.amend(_claim(replace(known, replaced=True, renamed=_find_renamed(store, known))))


def _find_renamed(store: Store, known: ScheduleRecord) -> str:
    """The pipeline that the file has where it had the one of this schedule: who runs the file, runs that one."""
    pipeline = pipeline_of(known.key)
    others = (read_schedule(store, key) for key in list_schedules(store) if pipeline_of(key) != pipeline)
    there = (each for each in others if each is not None and not each.replaced and each.source == known.source)
    return next((pipeline_of(each.key) for each in there), "")


def _note_parts(store: Store, loaded: ScheduleRecord) -> None:
    """Records the names of parts, so that the keys of a pipeline can be listed without its file."""
    pipeline, names = pipeline_of(loaded.key), [each.name for each in loaded.timetable.division]
    known = _parts(store, pipeline)
    if all(name in known for name in names):
        return
    claim = Claim("parts", pipeline, {"names": " ".join(dict.fromkeys([*known, *names]))})
    try:
        store.claim(claim)
    except AlreadyClaimed:
        store.amend(claim)


def _parts(store: Store, pipeline: str) -> list[str]:
    """The names of the parts by which a pipeline was ever scheduled, in the order in which they run."""
    claim = store.find_claim("parts", pipeline)
    noted = [] if claim is None else str(claim.facts["names"]).split()
    return list(dict.fromkeys([*HALF_NAMES, *noted]))


def read_schedule(store: Store, key: str) -> ScheduleRecord | None:
    """A schedule as it was last loaded; None when it never was."""
    claim = store.find_claim("schedule", key)
    return None if claim is None else record_of(ScheduleRecord, claim)


def list_keys(store: Store, pipeline: str) -> list[str]:
    """The schedule keys of a pipeline: what of it is scheduled, and what runs because data has arrived.

    With those that were replaced and of which ticks are still missed.
    """
    return _list_standing(store, [schedule_key(pipeline, part) for part in (WHOLE, *_parts(store, pipeline), DATA)])


def list_schedules(store: Store) -> list[str]:
    """The schedule keys of all pipelines, in the order in which they were first scheduled.

    Of those that were replaced, the ones of which ticks are still missed.
    """
    newest = newest_number(store, "scheduled", "")
    names = [f"#{number}" for number in range(1, newest + 1)]
    found = store.find_claims("scheduled", names)
    return _list_standing(store, [str(found[name].facts["key"]) for name in names])


def list_replaced(store: Store, pipeline: str) -> list[ScheduleRecord]:
    """The schedules that a pipeline had, and that another has replaced."""
    keys = [schedule_key(pipeline, part) for part in (WHOLE, *_parts(store, pipeline))]
    known = (record_of(ScheduleRecord, claim) for claim in store.find_claims("schedule", keys).values())
    return [schedule for schedule in known if schedule.replaced]


def _list_standing(store: Store, keys: Sequence[str]) -> list[str]:
    """Those that were scheduled, and are not over."""
    found = store.find_claims("schedule", keys)
    return [key for key in keys if key in found and not is_over(store, record_of(ScheduleRecord, found[key]))]


def is_over(store: Store, schedule: ScheduleRecord) -> bool:
    """Whether a schedule was replaced, and nothing is left to do about its ticks."""
    return schedule.replaced and not is_any_missed(store, schedule.key)


def _claim(record: ScheduleRecord) -> Claim:
    return Claim("schedule", record.key, facts_of(record, without=["created"]))
