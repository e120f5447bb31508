import random
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import TypeVar

import pytest

from spanwise.scheduler.schedule.due import LISTED, DueTicks, OlderTicks, find_due
from spanwise.scheduler.schedule.span_rule import hours_before
from spanwise.scheduler.schedule.ticks import Tick, starts, ticks
from spanwise.scheduler.schedule.timetable import Catchup, Timetable

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
T = TypeVar("T")


def hourly(**terms: object) -> Timetable:
    return Timetable("flights", **{"cron": "0 * * * *", **terms})  # type: ignore[arg-type]


def count_calls(act: Callable[[], T]) -> tuple[T, int]:
    """The result, and the number of function calls: the work, whatever the machine."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = act()
    finally:
        sys.setprofile(before)
    return result, calls


def names(found: DueTicks) -> list[str]:
    return [tick.name for tick in found.run]


def test_nothing_is_due_before_the_tick() -> None:
    """Not a microsecond before; at the tick itself it is."""
    table = hourly()

    before = find_due(table, NOON - HOUR, NOON - timedelta(microseconds=1))
    at = find_due(table, NOON - HOUR, NOON)

    assert (before.run, before.missed) == ((), ())
    assert before.next is not None
    assert before.next.at == NOON
    assert names(at) == ["2026-05-01T12:00Z"]
    assert at.next is not None
    assert at.next.at == NOON + HOUR


def test_a_recorded_tick_is_never_due_again() -> None:
    """Asked again at the same moment, or at any later one before the next tick."""
    table = hourly()

    for later in (timedelta(0), SECOND, HOUR - SECOND):
        assert find_due(table, NOON, NOON + later).run == ()


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "UTC"])
@pytest.mark.parametrize("cron", ["*/7 * * * *", "30 1,2,3 * * *", "15 * * * * 30"])
@pytest.mark.parametrize("jitter_s", [0, 200])
def test_whoever_wakes_up_at_random_runs_each_tick_once_and_never_early(zone: str, cron: str, jitter_s: float) -> None:
    """Across changes of the clock, with a clock that is read at moments that have nothing to do with the ticks."""
    dice = random.Random(f"{zone} {cron}")
    for begin in (datetime(2026, 3, 7, 12, tzinfo=UTC), datetime(2026, 10, 3, 3, tzinfo=UTC)):
        table = Timetable("flights", cron=cron, zone=zone, catchup=Catchup.ALL, jitter_s=jitter_s)
        now, since = begin, begin
        run: list[Tick] = []
        while now < begin + 2 * DAY:
            found = find_due(table, since, now)
            assert found.missed == ()
            assert all(tick.at <= starts(table, tick) <= now for tick in found.run)
            assert found.next is not None
            assert starts(table, found.next) > now
            run += found.run
            since = max([since, *(tick.at for tick in found.run)])
            now += timedelta(seconds=dice.expovariate(1 / 900))

        assert run == [tick for tick in ticks(table, begin, now) if tick.at <= since]
        assert len(run) >= 4


# --- ticks that were missed


def test_the_latest_missed_tick_is_made_up_for() -> None:
    """The others are told, with how late they were noticed."""
    found = find_due(hourly(), NOON - 4 * HOUR, NOON + 30 * MINUTE)

    assert names(found) == ["2026-05-01T12:00Z"]
    assert [missed.tick.name[11:13] for missed in found.missed] == ["09", "10", "11"]
    assert found.missed[0].why == "noticed 3 h 30 min late, when a newer one had come (catchup=latest)"


def test_skip_makes_up_for_none_but_runs_what_has_just_come() -> None:
    """A tick is missed when it is noticed more than a minute late, or later than the misfire grace."""
    table = hourly(catchup=Catchup.SKIP)

    assert names(find_due(table, NOON - 2 * HOUR, NOON + 59 * SECOND)) == ["2026-05-01T12:00Z"]
    late = find_due(table, NOON - 2 * HOUR, NOON + 61 * SECOND)
    assert late.run == ()
    assert len(late.missed) == 2
    assert "catchup=skip" in late.missed[1].why
    assert names(find_due(hourly(catchup=Catchup.SKIP, misfire_grace_s=600), NOON - HOUR, NOON + 599 * SECOND)) != []


def test_all_makes_up_for_each_up_to_a_limit() -> None:
    """The newest so many, the oldest first; what is older is told."""
    found = find_due(hourly(catchup=Catchup.ALL, catchup_limit=3), NOON - 6 * HOUR, NOON)

    assert [name[11:13] for name in names(found)] == ["10", "11", "12"]
    assert [missed.tick.name[11:13] for missed in found.missed] == ["07", "08", "09"]
    assert "catchup_limit=3" in found.missed[0].why


@pytest.mark.parametrize("catchup", [Catchup.LATEST, Catchup.ALL])
def test_a_tick_that_is_later_than_the_misfire_grace_is_missed(catchup: Catchup) -> None:
    """Whatever is made up for otherwise."""
    table = hourly(catchup=catchup, misfire_grace_s=1800)

    found = find_due(table, NOON - 2 * HOUR, NOON + 31 * MINUTE)

    assert found.run == ()
    assert found.missed[-1].why == "noticed 31 min 00 s late, more than the misfire grace of 30 min 00 s"
    assert names(find_due(table, NOON - 2 * HOUR, NOON + 30 * MINUTE)) == ["2026-05-01T12:00Z"]


def test_missed_ticks_come_before_those_that_run() -> None:
    """So that they can be recorded in the order of time."""
    dice = random.Random(7)
    for _ in range(100):
        table = hourly(
            catchup=dice.choice(list(Catchup)),
            catchup_limit=dice.randint(1, 5),
            misfire_grace_s=dice.choice([None, 60, 7200]),
        )
        found = find_due(table, NOON - dice.randint(1, 12) * HOUR, NOON + dice.randint(0, 59) * MINUTE)

        order = [missed.tick for missed in found.missed] + list(found.run)
        assert order == sorted(order, key=lambda tick: tick.at)
        assert len(order) == len({tick.name for tick in order})


def test_a_paused_schedule_runs_nothing_and_says_why() -> None:
    """Its ticks are missed for that reason, and the next one is known."""
    found = find_due(
        hourly(catchup=Catchup.ALL), NOON - 2 * HOUR, NOON, paused="paused by Ann: the source is being fixed"
    )

    assert found.run == ()
    assert {missed.why for missed in found.missed} == {"paused by Ann: the source is being fixed"}
    assert found.next is not None


# --- clocks that are set


def test_nothing_is_due_while_the_clock_is_behind_the_last_recorded_tick() -> None:
    """A clock set back by hours repeats no tick, and says how far back it stands."""
    table = hourly(catchup=Catchup.ALL)

    found = find_due(table, NOON, NOON - 5 * HOUR)

    assert (found.run, found.missed) == ((), ())
    assert found.set_back == 5 * HOUR
    assert found.next is not None
    assert found.next.at == NOON + HOUR
    assert find_due(table, NOON, NOON).set_back == timedelta(0)


def test_a_clock_set_forward_is_like_a_time_in_which_nothing_ran() -> None:
    """The ticks it jumped over are missed or made up for, each once, also when it is set right again."""
    table = hourly()

    forward = find_due(table, NOON, NOON + 5 * HOUR)
    since = forward.run[-1].at
    right = find_due(table, since, NOON + SECOND)

    assert (len(forward.run), len(forward.missed)) == (1, 4)
    assert (right.run, right.missed) == ((), ())


# --- bounds


def test_an_ended_schedule_has_no_next_tick() -> None:
    """Its last ticks are still due."""
    table = hourly(end=NOON)

    found = find_due(table, NOON - HOUR, NOON + DAY)

    assert names(found) == ["2026-05-01T12:00Z"]
    assert found.next is None


def test_nothing_is_due_before_the_start() -> None:
    """However long ago the schedule was first loaded."""
    table = hourly(start=NOON, catchup=Catchup.ALL)

    assert find_due(table, NOON - DAY, NOON - SECOND).run == ()
    assert names(find_due(table, NOON - DAY, NOON)) == ["2026-05-01T12:00Z"]


@pytest.mark.parametrize("catchup", list(Catchup))
def test_years_of_missed_minutes_are_summed_up(catchup: Catchup) -> None:
    """The newest are listed; of the others it is told when they were, and about how many: it does not count them."""
    table = hourly(cron="* * * * *", catchup=catchup)

    found, calls = count_calls(lambda: find_due(table, NOON - 3650 * DAY, NOON))

    listed = [missed.tick.at for missed in found.missed] + [tick.at for tick in found.run]
    assert listed == [NOON - MINUTE * n for n in range(LISTED - 1, -1, -1)]
    assert len(found.run) == (100 if catchup is Catchup.ALL else 1)
    (older,) = found.older
    assert older == OlderTicks(first=NOON - 3650 * DAY + MINUTE, last=NOON - LISTED * MINUTE, about=5_300_000)
    assert found.next is not None
    assert found.next.at == NOON + MINUTE
    assert calls < 500 * LISTED, calls


def test_the_gap_that_is_just_too_long_to_list_has_one_older_tick() -> None:
    """None is lost between what is listed and what is summed up."""
    table = hourly()

    fits = find_due(table, NOON - LISTED * HOUR, NOON)
    longer = find_due(table, NOON - (LISTED + 1) * HOUR, NOON)

    assert fits.older == ()
    assert len(fits.missed) + len(fits.run) == LISTED
    assert longer.older == (OlderTicks(first=NOON - LISTED * HOUR, last=NOON - LISTED * HOUR, about=1),)
    assert len(longer.missed) + len(longer.run) == LISTED


def test_a_long_gap_with_jitter_runs_nothing_early() -> None:
    """The newest tick has come, and its jitter has not passed: it is the next one."""
    table = hourly(jitter_s=3600, catchup=Catchup.LATEST)
    found = find_due(table, NOON - 400 * HOUR, NOON)

    assert starts(table, found.run[-1]) <= NOON
    assert found.next is not None
    assert starts(table, found.next) > NOON


def test_a_thousand_schedules_are_decided_with_little_work() -> None:
    """For a thousand pipelines in several zones, what is due takes few calls; `benchmarks/scheduler.py` has the time."""
    zones = ["UTC", "America/New_York", "Europe/London", "Australia/Sydney", "Australia/Lord_Howe"]
    tables = [
        Timetable(f"p{n}", cron="* * * * *" if n % 2 else f"{n % 60} * * * *", zone=zones[n % 5], span=hours_before(1))
        for n in range(1000)
    ]

    for minute in range(3):
        now = NOON + minute * MINUTE
        found, calls = count_calls(lambda now=now: [find_due(table, now - MINUTE, now) for table in tables])
        assert sum(len(each.run) for each in found) >= 500
        assert calls < 300 * len(tables), calls
