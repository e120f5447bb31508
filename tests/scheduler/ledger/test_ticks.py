import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import AlreadyClaimed, MemoryStore, Store
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.pauses import current_pause, list_pauses, pause_schedule, resume_schedule
from spanwise.scheduler.ledger.schedules import ScheduleRecord, list_schedules, put_schedule, read_schedule
from spanwise.scheduler.ledger.ticks import (
    OverrunCause,
    TickRecord,
    adopt_tick,
    attempt_claim,
    claim_ended_ticks,
    claim_tick,
    end_tick,
    list_open,
    list_ticks,
    list_unsettled,
    mark_alerted,
    mark_overrun,
    newest_tick,
    read_overrun,
    read_tick,
    settle_ticks,
)
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable

THREE = datetime(2026, 3, 1, 3, tzinfo=UTC)
DAY = timedelta(days=1)
RAN = TickEnd(outcome=TickOutcome.RAN, run=1)
MISSED = TickEnd(outcome=TickOutcome.MISSED, why="no scheduler ran")
FAILED = TickEnd(outcome=TickOutcome.FAILED, why="Trainer failed", run=1)


@pytest.fixture(params=["memory", "mlmd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """The ledger is nothing but claims, so it has to hold on every store."""
    opened = MemoryStore() if request.param == "memory" else open_store(str(tmp_path / "metadata.db"))
    yield opened
    opened.close()


def tick(day: int, span: int | None = None) -> Tick:
    at = THREE + day * DAY
    return Tick(at=at, name=f"{at:%Y-%m-%dT%H:%M}", wall=at, span=day if span is None else span)


def take(store: Store, day: int, holder: int = 1, end: TickEnd | None = None) -> TickRecord:
    record = claim_tick(store, "p", tick(day), holder=holder, now=THREE + day * DAY, end=end)
    assert record is not None
    return record


@pytest.mark.parametrize(("key", "taken"), [("p", False), ("p:data", True)], ids=["of a cron", "of data"])
def test_data_that_arrives_is_taken_while_the_clock_stands_before_the_last_tick(
    store: Store, key: str, taken: bool
) -> None:
    """It has a name of its own; a tick of a cron would be one that has come before."""
    assert claim_tick(store, key, tick(3), holder=1, now=THREE + 3 * DAY, end=RAN) is not None

    assert (claim_tick(store, key, tick(1), holder=1, now=THREE + DAY) is not None) == taken
    assert claim_tick(store, key, tick(3), holder=1, now=THREE + DAY) is None


def test_a_tick_is_taken_once(store: Store) -> None:
    """Whoever comes second is told that it is not theirs."""
    first = claim_tick(store, "p", tick(1), holder=1, now=THREE)
    second = claim_tick(store, "p", tick(1), holder=2, now=THREE)

    assert first is not None
    assert second is None
    assert [e.holder for e in list_ticks(store, "p")] == [1]


def test_a_tick_before_the_newest_is_never_taken(store: Store) -> None:
    """A clock that was set back brings no tick again, not even one that was passed over."""
    take(store, 3)

    assert claim_tick(store, "p", tick(2), holder=1, now=THREE) is None


def test_a_second_tick_of_one_name_is_not_taken(store: Store) -> None:
    """In the night in which 01:30 comes twice, its second coming is later and has the same name."""
    first = take(store, 1)
    again = Tick(at=first.tick.at + timedelta(hours=1), name=first.tick.name, wall=first.tick.wall, span=1)

    assert claim_tick(store, "p", again, holder=1, now=THREE) is None


def test_many_who_try_take_each_tick_once_and_in_order(tmp_path: Path) -> None:
    """Numbers have no gap, and rise with the time of the ticks."""
    path, taken = str(tmp_path / "metadata.db"), []
    open_store(path).close()
    barrier = threading.Barrier(4)

    def race(holder: int) -> None:
        store = open_store(path)
        barrier.wait()
        for day in range(1, 8):
            record = claim_tick(store, "p", tick(day), holder=holder, now=THREE)
            taken.extend([record] if record else [])
        store.close()

    threads = [threading.Thread(target=race, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted((e.number, e.tick.name) for e in taken) == [(n, tick(n).name) for n in range(1, 8)]


def test_a_tick_ends_once(store: Store) -> None:
    """The first outcome stands."""
    record = take(store, 1)

    assert end_tick(store, record, FAILED, now=THREE)
    assert not end_tick(store, record, RAN, now=THREE)
    assert read_tick(store, "p", record.tick.name).end == FAILED


def test_no_run_of_a_tick_begins_after_its_end(store: Store) -> None:
    """Ending it takes the place of the attempt that a straggler would begin with."""
    record = take(store, 1)
    end_tick(store, record, MISSED, now=THREE)

    with pytest.raises(AlreadyClaimed):
        store.begin_run(Run(pipeline="p"), attempt_claim("p", record.tick.name, 1))

    assert list(store.runs("p")) == []
    assert read_tick(store, "p", record.tick.name).attempts == 0


def test_a_tick_whose_run_has_just_begun_does_not_end(store: Store) -> None:
    """Who had not seen that run yet is told to look again."""
    record = take(store, 1)
    store.begin_run(Run(pipeline="p"), attempt_claim("p", record.tick.name, 1))

    assert not end_tick(store, record, MISSED, now=THREE)

    again = read_tick(store, "p", record.tick.name)
    assert (again.end, again.attempts, again.after_run) == (None, 1, 0)
    assert end_tick(store, again, RAN, now=THREE)


def test_a_tick_taken_and_ended_at_once_is_never_open(store: Store) -> None:
    """Nobody can find it half done."""
    take(store, 1, end=MISSED)

    assert list_open(store, "p") == []
    assert [e.end for e in list_ticks(store, "p")] == [MISSED]


def test_ticks_are_listed_newest_first(store: Store) -> None:
    """As many as asked for, or back to a moment."""
    for day in range(1, 6):
        take(store, day, end=RAN)

    assert [e.tick.span for e in list_ticks(store, "p", limit=2)] == [5, 4]
    assert [e.tick.span for e in list_ticks(store, "p", since=THREE + 3 * DAY)] == [5, 4, 3]
    assert newest_tick(store, "p").tick == tick(5)


def test_what_is_over_is_not_looked_at_again(store: Store) -> None:
    """However long the history, the open ones are found in a few questions."""
    for day in range(1, 30):
        take(store, day, end=RAN)
    settle_ticks(store, "p")
    open_ones = [take(store, 30), take(store, 31, end=RAN), take(store, 32)]
    asked = counting(store)

    found = list_open(store, "p")

    assert [e.name for e in found] == [open_ones[0].name, open_ones[2].name]
    assert len(asked) < 40


def counting(store: Store) -> list[str]:
    asked: list[str] = []
    claimed = store.find_claim

    def counted(kind: str, name: str) -> object:
        asked.append(f"{kind} {name}")
        return claimed(kind, name)

    store.find_claim = counted
    return asked


def test_many_missed_ticks_are_recorded_at_once(store: Store) -> None:
    """A scheduler that comes back after months asks a few questions for each tick that it missed, however many."""
    take(store, 1)
    asked = counting(store)

    def record_missed(first: int, last: int) -> int:
        before = len(asked)
        ends = [(tick(day), MISSED) for day in range(first, last)]
        records = claim_ended_ticks(store, "p", ends, holder=1, now=THREE + last * DAY, seen=first - 1)
        assert [record.number for record in records] == list(range(first, last))
        for record in records:
            mark_alerted(store, record)
        settle_ticks(store, "p")
        return len(asked) - before

    few, many = record_missed(2, 32), record_missed(32, 152)

    assert many < 5 * few
    assert len(list_missed(store, "p")) == 150
    assert [record.name for record in list_unsettled(store, "p")] == [f"p@{tick(1).name}"]


def test_missed_ticks_that_another_has_taken_are_left_out(store: Store) -> None:
    """Two schedulers that come back at once record each tick once, and one of a name."""
    take(store, 1)
    take(store, 2, holder=2, end=MISSED)
    twice = replace(tick(4), at=tick(4).at + timedelta(hours=1))
    ends = [(tick(2), MISSED), (tick(3), MISSED), (tick(4), MISSED), (twice, MISSED)]

    records = claim_ended_ticks(store, "p", ends, holder=1, now=THREE)

    assert [record.tick for record in records] == [tick(3), tick(4)]
    assert [record.holder for record in list_ticks(store, "p")] == [1, 1, 2, 1]


def test_an_end_without_an_alert_is_found(store: Store) -> None:
    """Who recorded it may have died before the alert was in the outbox."""
    record = take(store, 1)
    end_tick(store, record, FAILED, now=THREE)
    take(store, 2, end=RAN)

    (found,) = list_unsettled(store, "p")
    mark_alerted(store, found)

    assert found.end == FAILED
    assert list_unsettled(store, "p") == []
    assert list_open(store, "p") == []


def test_a_quiet_end_needs_no_alert(store: Store) -> None:
    """A tick in a pause was meant not to run."""
    take(store, 1, end=TickEnd(outcome=TickOutcome.MISSED, why="paused", quiet=True))

    assert list_unsettled(store, "p") == []
    assert len(list_missed(store, "p")) == 1


def test_an_open_tick_is_adopted_by_one(store: Store) -> None:
    """Two who see its holder dead do not both look after it."""
    record = take(store, 1)

    adopted = adopt_tick(store, record, holder=2)

    assert adopted.holder == 2
    assert adopt_tick(store, record, holder=3) is None
    assert read_tick(store, "p", record.tick.name).holder == 2
    assert adopt_tick(store, adopted, holder=4).holder == 4


def test_the_end_of_a_run_that_is_ended_for_a_later_tick_is_announced(store: Store) -> None:
    """So that whoever sees it end knows why, whoever that will be."""
    take(store, 1)

    cause = OverrunCause(by="the tick that came", tick=tick(2).name)
    mark_overrun(store, "p", tick(1).name, cause)
    mark_overrun(store, "p", tick(1).name, OverrunCause(by="a backfill"))

    assert read_overrun(store, "p", tick(1).name) == cause
    assert read_overrun(store, "p", tick(2).name) is None


def test_a_schedule_counts_since_it_was_first_known(store: Store) -> None:
    """A file that is loaded again changes what is known, not since when."""
    daily, hourly = (Timetable("p", cron=cron) for cron in ("@daily", "@hourly"))
    first = ScheduleRecord(timetable=daily, since=THREE, source="p.py", pushes=("Pusher/pushed",))
    later = ScheduleRecord(timetable=hourly, since=THREE + DAY, source="p.py")

    put_schedule(store, first)
    known = put_schedule(store, later)
    put_schedule(store, ScheduleRecord(timetable=replace(daily, pipeline="q"), since=THREE))

    assert known.since == THREE
    assert read_schedule(store, "p") == known
    assert known.timetable == hourly
    assert list_schedules(store) == ["p", "q"]
    assert read_schedule(store, "nobody") is None


def test_a_pause_holds_until_its_time_or_until_it_is_resumed(store: Store) -> None:
    """Whichever comes first."""
    pause_schedule(store, "p", who="ann", why="new disk", now=THREE, until=THREE + 2 * DAY)
    assert current_pause(store, "p", THREE + DAY).why == "new disk"
    assert current_pause(store, "p", THREE + 2 * DAY) is None

    resumed = resume_schedule(store, "p", who="bob", now=THREE + DAY)

    assert resumed.resumed_by == "bob"
    assert current_pause(store, "p", THREE + DAY) is None
    assert resume_schedule(store, "p", who="bob", now=THREE + DAY) is None


def test_pauses_of_the_past_are_known(store: Store) -> None:
    """A scheduler that was down while a pause began and ended knows which ticks fell into it."""
    at: Callable[[int], datetime] = lambda day: THREE + day * DAY  # noqa: E731
    pause_schedule(store, "p", who="ann", why="first", now=at(0), until=at(1))
    pause_schedule(store, "p", who="ann", why="second", now=at(2))
    pause_schedule(store, "p", who="ann", why="takes its place", now=at(4), until=at(5))

    found = list_pauses(store, "p", since=at(3))

    assert [p.why for p in found] == ["second", "takes its place"]
    assert [[p.holds(at(day)) for day in (1, 2, 3, 4, 5)] for p in found] == [
        [False, True, True, False, False],
        [False, False, False, True, False],
    ]
