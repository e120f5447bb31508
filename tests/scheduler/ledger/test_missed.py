"""Missed ticks, and what closes them, on every store."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator.errors import NotRecorded, UsageError
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import MemoryStore, Store
from spanwise.scheduler.ledger.missed import MissedTicks, close_ticks, list_abnormal, list_missed, select_missed
from spanwise.scheduler.ledger.schedule_status import (
    explain_ticks,
    find_schedule,
    read_status,
    recovery_command,
    recovery_commands,
)
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_keys, list_schedules, put_schedule, retire_schedule
from spanwise.scheduler.ledger.status_formatting import format_missed
from spanwise.scheduler.ledger.ticks import TickRecord, claim_tick, read_tick
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.outcome import Closing, TickClosure, TickEnd, TickOutcome
from spanwise.scheduler.schedule.span_rule import CustomSpanRule, SourceRule, days_before
from spanwise.scheduler.schedule.ticks import Tick, source_spans, ticks
from spanwise.scheduler.schedule.timetable import Timetable

THREE = datetime(2026, 3, 1, 3, tzinfo=UTC)
DAY = timedelta(days=1)
RAN = TickEnd(outcome=TickOutcome.RAN, run=1)
MISSED = TickEnd(outcome=TickOutcome.MISSED, why="no scheduler ran")
FAILED = TickEnd(outcome=TickOutcome.FAILED, why="Trainer failed", run=1)
GIVEN_UP = TickClosure(how=Closing.ACKNOWLEDGED, at=THREE, who="ann@host", because="a holiday")


@pytest.fixture(params=["memory", "mlmd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """The ledger is nothing but claims, so it has to hold on every store."""
    opened = MemoryStore() if request.param == "memory" else open_store(str(tmp_path / "metadata.db"))
    yield opened
    opened.close()


def take(store: Store, day: int, end: TickEnd | None = MISSED, *, span: int | None = -1, part: str = "") -> TickRecord:
    at = THREE + day * DAY
    tick = Tick(at=at, name=f"{at:%Y-%m-%dT%H:%M}", wall=at, span=day if span == -1 else span, part=part)
    record = claim_tick(store, "p", tick, holder=1, now=at, end=end)
    assert record is not None
    return record


def spans(records: list[TickRecord]) -> list[int | None]:
    return [record.tick.span for record in records]


def test_missed_ticks_are_those_that_no_run_has_recovered(store: Store) -> None:
    """A later run of a span recovers all its missed ticks."""
    for day, end in [(1, MISSED), (2, RAN), (3, FAILED), (4, MISSED)]:
        take(store, day, end)

    recovered = MissedTicks(store).recover("p", [3], 9, now=THREE)

    closure = TickClosure(how=Closing.RECOVERED, at=THREE, run=9)
    assert [(e.tick.span, e.closed) for e in recovered] == [(3, closure)]
    assert read_tick(store, "p", recovered[0].tick.name).closed == closure
    assert spans(list_missed(store, "p")) == [1, 4]
    assert MissedTicks(store).recover("p", [3], 10, now=THREE) == []


def test_closed_ticks_are_not_looked_at_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Years of failures that were closed cost nothing, and stay visible."""
    for day in range(1, 20):
        take(store, day)
        MissedTicks(store).recover("p", [day], day, now=THREE)
    take(store, 20)
    asked = []
    find = store.find_claim
    monkeypatch.setattr(store, "find_claim", lambda kind, name: asked.append(name) or find(kind, name))

    assert spans(list_missed(store, "p")) == [20]
    assert len(asked) < 30
    assert spans(list_abnormal(store, "p", 3)) == [18, 19, 20]


def test_a_tick_is_closed_once(tmp_path: Path) -> None:
    """Of several who acknowledge or recover it at once, one does; the others are told."""
    path = str(tmp_path / "metadata.db")
    first = open_store(path)
    missed = [take(first, day) for day in range(1, 6)]
    first.close()
    barrier, closed = threading.Barrier(4), []

    def race(who: str) -> None:
        store = open_store(path)
        barrier.wait()
        closure = TickClosure(how=Closing.ACKNOWLEDGED, at=THREE, who=who, because="a holiday")
        closed.extend(close_ticks(store, missed, closure))
        store.close()

    threads = [threading.Thread(target=race, args=(f"{n}@host",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    store = open_store(path)
    assert sorted(spans(closed)) == [1, 2, 3, 4, 5]
    assert {e.name: e.closed for e in closed} == {e.name: e.closed for e in list_abnormal(store, "p", 9)}
    assert list_missed(store, "p") == []
    store.close()


def test_a_tick_for_the_newest_data_is_recovered_by_any_run_of_its_part(store: Store) -> None:
    """Which span it would have run on is not known, and the newest has run since."""
    take(store, 1, span=None, part="train")
    take(store, 2, span=None)

    def recovered(run: int, *parts: str) -> list[str]:
        found = MissedTicks(store).recover("p", [7], run, now=THREE, is_done=lambda record: record.tick.part in parts)
        return [record.tick.part for record in found]

    assert recovered(1, "ingest") == []
    assert recovered(2, "train", "") == ["train", ""]


def test_a_summary_of_missed_ticks_is_recovered_with_all_its_spans(store: Store) -> None:
    """The run of its last span alone leaves the others."""
    end = TickEnd(outcome=TickOutcome.MISSED, why="about 3 ticks were missed", first_span=3)
    take(store, 5, end)

    assert MissedTicks(store).recover("p", [5], 1, now=THREE) == []
    assert spans(MissedTicks(store).recover("p", [3, 4, 5, 6], 2, now=THREE)) == [5]


def test_missed_ticks_are_selected_by_span_or_by_name(store: Store) -> None:
    """What is no missed tick is refused, with what it is."""
    records = [take(store, day, end) for day, end in [(1, MISSED), (2, RAN), (3, FAILED), (4, None)]]
    close_ticks(store, [records[2]], GIVEN_UP)

    assert spans(select_missed(store, ["p"], spans={"p": range(9)})) == [1]
    assert spans(select_missed(store, ["p"], tick=records[0].tick.name)) == [1]
    with pytest.raises(NotRecorded, match=r"p has no missed tick of these spans; missed are: p@2026-03-02T03:00\."):
        select_missed(store, ["p"], spans={"p": [3]})
    for record, is_what in zip(records[1:], ["ran", "it was acknowledged", "it has not ended"], strict=True):
        with pytest.raises(UsageError, match=f"The tick {record.name} is no missed tick: {is_what}"):
            select_missed(store, ["p"], tick=record.tick.name)


@pytest.mark.parametrize("place", ["/a/p.py", "/a/p.py:other"])
def test_a_tick_of_a_pipeline_that_was_renamed_can_only_be_given_up(store: Store, place: str) -> None:
    """The command that ran its file ran the new pipeline, and the tick stayed missed; where both are there, it helps."""
    known = ScheduleRecord(timetable=Timetable("p", cron="0 3 * * *"), since=THREE, source="/a/p.py")
    put_schedule(store, known)
    tick = take(store, 1)
    put_schedule(store, replace(known, timetable=Timetable("q", cron="0 3 * * *"), source=place))
    retire_schedule(store, "p")

    text = format_missed(store, [(find_schedule(store, "p"), [tick])], ())

    renamed = place == known.source
    assert ("Recover them" in text) is not renamed
    why = "in place of 'p', its file has 'q' now, whose runs are others"
    assert (f"No run recovers p@2026-03-02T03:00: {why}." in text) is renamed
    assert "spanwise schedule acknowledge p --span 1" in text
    put_schedule(store, known)
    assert recovery_command(tick, find_schedule(store, "p")) == "spanwise backfill /a/p.py --span 1"


def test_ticks_of_a_schedule_that_was_replaced_are_listed_until_they_are_closed(store: Store) -> None:
    """Parts in place of a cron lose no span: the old key is there as long as it has missed ticks, and takes none."""
    put_schedule(store, ScheduleRecord(timetable=Timetable("p", cron="0 3 * * *"), since=THREE))
    take(store, 1)
    for half in HALVES:
        table = Timetable(f"p:{half.name}", cron="0 3 * * *", division=HALVES)
        put_schedule(store, ScheduleRecord(timetable=table, since=THREE + DAY))
    now = THREE + 7 * DAY

    assert sorted(list_schedules(store)) == sorted(list_keys(store, "p")) == ["p", "p:ingest", "p:train"]
    status = read_status(store, "p", now)
    assert (status.missed, status.next, status.overdue) == (1, None, None)
    past = explain_ticks(store, status.schedule.timetable, status.schedule, THREE, now)
    assert [each.outcome for each in past] == ["not taken", "missed", *["not taken"] * 6]

    close_ticks(store, list_missed(store, "p"), GIVEN_UP)

    assert list_keys(store, "p") == ["p:ingest", "p:train"]
    with pytest.raises(NotRecorded, match="'p' was never scheduled here"):
        find_schedule(store, "p")


def test_the_command_that_recovers_a_tick_names_the_span_of_each_node_as_it_is_typed(store: Store) -> None:
    """Where each has a rule of its own; one whose spans are numbers may count days."""
    rules = SourceRule("Clicks", days_before(1)), SourceRule("Prices", days_before(3))
    table = Timetable("p", cron="@daily", span=days_before(1), sources=rules)
    calendars = {"Clicks": "day", "Prices": "number"}
    known = ScheduleRecord(timetable=table, since=THREE, source="p.py", calendar="day", calendars=calendars)
    schedule = put_schedule(store, known)
    tick, edited = (take(store, day, span=span) for day, span in ((1, 20513), (2, 20513)))

    assert recovery_command(tick, schedule) == "spanwise run p.py --span Clicks=2026-03-01 --span Prices=20511"
    assert recovery_command(edited, schedule) == "spanwise run p.py --span Clicks=2026-03-01 --span Prices=SPAN"


def test_a_missed_tick_keeps_the_span_of_each_node(store: Store) -> None:
    """Also one in a gap that ends at midnight, and whatever becomes of the rules; a node that is gone is not named."""
    rules = SourceRule("Clicks", days_before(0)), SourceRule("Prices", days_before(7))
    table = Timetable("p", cron="30 23 * * *", zone="America/Nuuk", span=days_before(0), sources=rules)
    known = ScheduleRecord(timetable=table, since=THREE, source="p.py", calendar="day")
    after_gap = datetime(2026, 3, 29, 1, tzinfo=UTC)
    (tick,) = ticks(table, after_gap - timedelta(hours=1), after_gap)
    claim_tick(store, "p", tick, holder=1, now=after_gap, end=MISSED)

    (missed,) = list_missed(store, "p")

    each = "spanwise run p.py --span Clicks=2026-03-28 --span Prices=2026-03-21"
    assert recovery_command(missed, known) == each
    edited = replace(known, timetable=replace(table, sources=(rules[0], SourceRule("Prices", days_before(3)))))
    assert recovery_command(missed, edited) == each
    one_rule = replace(known, timetable=replace(table, sources=()), calendars={"Clicks": "day", "Prices": "day"})
    assert recovery_command(missed, one_rule) == each
    one_node = replace(one_rule, calendars={"Clicks": "day"})
    assert recovery_command(missed, one_node) == "spanwise run p.py --span Clicks=2026-03-28"


@pytest.mark.parametrize(
    ("now", "commands"),
    [
        (
            (1, 2),
            ["run p.py --span A=2026-03-01 --span B=2026-02-28", "run p.py --span A=2026-03-02 --span B=2026-03-01"],
        ),
        ((1, 3), ["run p.py --span A=2026-03-01 --span B=SPAN", "run p.py --span A=2026-03-02 --span B=SPAN"]),
        ((), ["run p.py --span A=2026-03-01 --span B=SPAN", "run p.py --span A=2026-03-02 --span B=SPAN"]),
    ],
    ids=["as then", "edited", "one rule"],
)
def test_a_tick_that_stands_for_several_is_recovered_by_a_run_for_each(
    store: Store, now: tuple[int, ...], commands: list[str]
) -> None:
    """With the spans that its rules gave; where they are others by now, these are left to be filled in."""

    def schedule_with(*rules: int) -> ScheduleRecord:
        sources = tuple(SourceRule(name, days_before(days)) for name, days in zip("AB", rules, strict=False))
        table = Timetable("p", cron="0 3 * * *", span=days_before(1), sources=sources)
        calendars = dict.fromkeys("AB", "day")
        return ScheduleRecord(timetable=table, since=THREE, source="p.py", calendar="day", calendars=calendars)

    came = [*ticks(schedule_with(1, 2).timetable, THREE + DAY - timedelta(hours=1), THREE + 2 * DAY)]
    end = TickEnd(outcome=TickOutcome.MISSED, first_at=came[0].at, first_span=came[0].span)
    claim_tick(store, "p", came[-1], holder=1, now=came[-1].at, end=end)
    (missed,) = list_missed(store, "p")

    assert recovery_commands([missed], schedule_with(*now)) == [f"spanwise {command}" for command in commands]
    assert not schedule_with(*now).backfills(missed)


def test_of_a_long_gap_only_a_few_runs_are_printed(store: Store) -> None:
    """With how many there are; where all nodes have the same span, one backfill of all recovers it."""
    rules = SourceRule("A", days_before(1)), SourceRule("B", days_before(2))
    table = Timetable("p", cron="0 3 * * *", span=days_before(1), sources=rules)
    known = ScheduleRecord(timetable=table, since=THREE, source="p.py", calendar="day")
    came = [*ticks(table, THREE - timedelta(hours=1), THREE + 8 * DAY)]
    end = TickEnd(outcome=TickOutcome.MISSED, first_at=came[0].at, first_span=came[0].span)
    alike = replace(known, timetable=replace(table, sources=(rules[0], SourceRule("B", days_before(1)))))

    def printed(schedule: ScheduleRecord) -> Sequence[str]:
        (last,) = ticks(schedule.timetable, came[-2].at, came[-1].at)
        record = TickRecord(
            key="p", tick=last, number=1, taken=last.at, after_run=0, holder=1, attempts=0, end=end, ended=last.at
        )
        return recovery_commands([record], schedule)

    assert len(printed(known)) == 6
    assert printed(known)[-1] == "# … and 4 more like these"
    assert printed(alike) == ["spanwise backfill p.py --span 2026-02-28..2026-03-08"]


def test_the_span_of_a_node_that_a_tick_does_not_name_is_that_of_its_rule(store: Store) -> None:
    """It was renamed or added since; where the rule is a function of the file, the span is not known."""
    rules = SourceRule("Clicks", days_before(0)), SourceRule("Prices", days_before(7))
    table = Timetable("p", cron="0 3 * * *", span=days_before(0), sources=rules)
    (tick,) = ticks(table, THREE - timedelta(hours=1), THREE)

    def spans_with(*others: SourceRule) -> object:
        return source_spans(replace(table, sources=(rules[0], *others)), tick)

    assert spans_with(SourceRule("Costs", days_before(2))) == {"Clicks": 20513, "Costs": 20511}
    assert spans_with(rules[1], SourceRule("Costs", CustomSpanRule("rule"))) is None
    renamed = replace(table, sources=(SourceRule("Visits", days_before(0)), rules[1]))
    assert source_spans(renamed, tick) == {"Visits": 20513, "Prices": 20506}
    assert source_spans(replace(renamed, sources=(SourceRule("Visits", days_before(1)), rules[1])), tick) is None
