import bisect
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from zoneinfo import ZoneInfo

import pytest

from spanwise.orchestrator import Calendar, Component, Pipeline, Report, Retry, ScheduleError
from spanwise.orchestrator.record import from_plain, to_plain
from spanwise.orchestrator.signature import Output
from spanwise.scheduler.schedule.schedule import Schedule, timetable_of
from spanwise.scheduler.schedule.span_rule import (
    CustomSpanRule,
    days_before,
    hours_before,
    months_before,
    quarters_before,
    weeks_before,
)
from spanwise.scheduler.schedule.ticks import Tick, jitter_of, latest, span_of, starts, ticks
from spanwise.scheduler.schedule.timetable import Catchup, OverrunPolicy, Timetable

EXPRESSIONS = int(os.environ.get("SPANWISE_TEST_CRON", "100"))  # the full form: 20000

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

#: Zones, and days on which their clocks are changed: forward first, then back.
CHANGES = {
    "America/New_York": (date(2026, 3, 8), date(2026, 11, 1)),
    "Europe/London": (date(2026, 3, 29), date(2026, 10, 25)),
    "Australia/Sydney": (date(2026, 10, 4), date(2026, 4, 5)),
    "Australia/Lord_Howe": (date(2026, 10, 4), date(2026, 4, 5)),  # by half an hour
}
ODD = {
    "America/Nuuk": (date(2026, 3, 28), date(2026, 10, 24)),  # shortly before midnight
    "Africa/Cairo": (date(2026, 4, 24), date(2026, 10, 29)),  # at midnight
    "America/Santiago": (date(2026, 9, 6), date(2026, 4, 4)),
    "Africa/Casablanca": (date(2026, 3, 22), date(2026, 2, 15)),  # summer time that is ended for Ramadan
    "Europe/Dublin": (date(2026, 3, 29), date(2026, 10, 25)),  # winter time is the exception in its rules
    "America/St_Johns": (date(2006, 4, 2), date(2006, 10, 29)),  # a minute past midnight
    "Pacific/Apia": (date(2011, 12, 30),),  # a day that never was
    "Asia/Kolkata": (date(2026, 1, 1),),  # never
    "UTC": (date(2026, 2, 28),),
}


def timetable(cron: str, zone: str = "UTC", **terms: object) -> Timetable:
    return Timetable("flights", cron=cron, zone=zone, **terms)  # type: ignore[arg-type]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(found: list[Tick], zone: str) -> list[str]:
    """What the clocks of the zone show when the ticks come."""
    return [tick.at.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes") for tick in found]


def around(cron: str, zone: str, day: date, *, days: int = 1, **terms: object) -> list[Tick]:
    """The ticks of a local day and so many on either side."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    return list(ticks(timetable(cron, zone, **terms), midnight - days * DAY, midnight + (days + 1) * DAY))


# --- an oracle that knows nothing but the clock: it looks at each minute, or second, of some days


Fits = Callable[[datetime], bool]


@dataclass(frozen=True)
class Expression:
    text: str
    fits: Fits  #: whether it names a wall time
    every_hour: bool


@dataclass(frozen=True)
class Days:
    """Some days of a zone, step by step."""

    moments: list[datetime]
    walls: list[datetime]  #: what the clock shows at each
    furthest: list[datetime]  #: the furthest it has shown by then
    calendar: list[datetime]  #: every wall time between the first and the last, also those that no clock shows


@lru_cache(maxsize=64)
def days(zone: str, day: date, step: timedelta) -> Days:
    margin = DAY + 13 * HOUR if step == MINUTE else 3 * HOUR
    middle = datetime(day.year, day.month, day.day, 2, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    if step == SECOND:
        middle += HOUR
    count = 2 * margin // step
    moments = [middle - margin + step * i for i in range(count)]
    walls = [m.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0) for m in moments]
    furthest = list(accumulate(walls, max))
    named = [walls[0] + step * i for i in range((furthest[-1] - walls[0]) // step + 1)]
    return Days(moments=moments, walls=walls, furthest=furthest, calendar=named)


def expected(expression: Expression, seen: Days) -> list[tuple[datetime, datetime]]:
    """Wall times and moments: of every hour, each moment that shows it; else the first by which the clock got there."""
    if expression.every_hour:
        return [(wall, at) for wall, at in zip(seen.walls, seen.moments, strict=True) if expression.fits(wall)]
    named = [wall for wall in seen.calendar if expression.fits(wall)]
    by_moment = {seen.moments[bisect.bisect_left(seen.furthest, wall)]: wall for wall in named}
    return [(wall, at) for at, wall in by_moment.items()]


def random_field(dice: random.Random, low: int, high: int) -> tuple[str, set[int]]:
    """A field that does not name all its values, and those that it names."""
    kind = dice.choice(["one", "some", "range", "steps", "range in steps", "from in steps"])
    first, last = sorted(dice.sample(range(low, high + 1), 2))
    last -= first == low and last == high
    step = dice.randint(2, high - low)
    if kind == "one":
        return str(first), {first}
    if kind == "some":
        chosen = dice.sample(range(low, high + 1), dice.randint(2, 4))
        return ",".join(map(str, chosen)), set(chosen)
    if kind == "range":
        return f"{first}-{last}", set(range(first, last + 1))
    if kind == "steps":
        return f"*/{step}", set(range(low, high + 1, step))
    if kind == "range in steps":
        return f"{first}-{last}/{step}", set(range(first, last + 1, step))
    return f"{first}/{step}", set(range(first, high + 1, step))


def random_day(dice: random.Random) -> tuple[str, Fits]:
    """The fields day, month and weekday."""
    kind = dice.random()
    if kind < 0.5:
        return "* * *", lambda _: True
    if kind < 0.6:
        return "L * *", lambda wall: (wall + DAY).month != wall.month
    if kind < 0.7:
        weekday, week = dice.randrange(7), dice.randint(1, 4)
        return f"* * {weekday}#{week}", lambda w: w.isoweekday() % 7 == weekday and (w.day - 1) // 7 == week - 1
    day, named_days = random_field(dice, 1, 31) if dice.random() < 0.6 else ("*", set(range(1, 32)))
    month, months = random_field(dice, 1, 12) if dice.random() < 0.2 and min(named_days) < 29 else ("*", range(1, 13))
    weekday_text, weekdays = random_field(dice, 0, 6) if dice.random() < 0.6 else ("*", set(range(7)))
    both = "*" not in (day, weekday_text)

    def fits(wall: datetime) -> bool:
        on_day, on_weekday = wall.day in named_days, wall.isoweekday() % 7 in weekdays
        return wall.month in months and (on_day or on_weekday if both else on_day and on_weekday)

    return f"{day} {month} {weekday_text}", fits


def random_expression(dice: random.Random, *, seconds: bool) -> Expression:
    day_text, day_fits = random_day(dice)
    minute, minutes = random_field(dice, 0, 59)
    hour, hours = random_field(dice, 0, 23) if dice.random() < 0.6 else ("*", set(range(24)))
    second, chosen_seconds = random_field(dice, 0, 59) if seconds else ("", {0})
    return Expression(
        text=f"{minute} {hour} {day_text} {second}".strip(),
        fits=lambda w: w.minute in minutes and w.hour in hours and w.second in chosen_seconds and day_fits(w),
        every_hour=len(hours) == 24,
    )


def test_ticks_are_those_that_a_brute_force_oracle_finds() -> None:
    """Random expressions in many zones around changes of the clock: the same moments and names, from any moment on."""
    dice = random.Random(f"cron {EXPRESSIONS}")
    nights = [(zone, day) for zone, found in (CHANGES | ODD).items() for day in found]
    checked = 0
    for number in range(EXPRESSIONS):
        zone, day = nights[number % len(nights)]
        seconds = number % 10 == 0 and zone in CHANGES
        seen = days(zone, day, SECOND if seconds else MINUTE)
        expression = random_expression(dice, seconds=seconds)
        right = expected(expression, seen)
        after, until = seen.moments[0] - SECOND, seen.moments[-1]
        schedule = timetable(expression.text, zone)

        found = list(ticks(schedule, after, until))

        about = f"{expression.text} in {zone} around {day}"
        assert [(tick.wall.replace(tzinfo=None, fold=0), tick.at) for tick in found] == right, about
        assert len({tick.name for tick in found}) == len(found), about
        assert all(later.at > tick.at for tick, later in pairwise(found)), about
        at = dice.choice(seen.moments)
        assert next(ticks(schedule, at, until), None) == next((t for t in found if t.at > at), None), about
        if before := [t for t in found if t.at <= at]:
            assert latest(schedule, at) == before[-1], about
        checked += len(found)
    assert checked > EXPRESSIONS


# --- changes of the clock, by hand


@pytest.mark.parametrize(
    ("zone", "cron", "expected_local"),
    [
        ("America/New_York", "30 2 * * *", "2026-03-08T03:00-04:00"),
        ("Europe/London", "30 1 * * *", "2026-03-29T02:00+01:00"),
        ("Australia/Sydney", "30 2 * * *", "2026-10-04T03:00+11:00"),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-04T02:30+11:00"),
    ],
)
def test_a_tick_in_the_gap_comes_once_at_the_first_moment_after_it(zone: str, cron: str, expected_local: str) -> None:
    """Where the clock is put forward over a tick, the tick comes right then, and says so."""
    found = around(cron, zone, CHANGES[zone][0], span=days_before(1))

    assert [tick.note[:4] for tick in found] == ["", "gap:", ""]
    assert local(found, zone)[1] == expected_local
    assert found[1].name == f"{CHANGES[zone][0]}T{found[1].wall:%H:%M}"
    assert [Calendar.DAY.label(tick.span or 0) for tick in found] == [
        str(CHANGES[zone][0] - DAY * n) for n in (2, 1, 0)
    ]


@pytest.mark.parametrize(
    ("zone", "cron", "expected_local"),
    [
        ("America/New_York", "30 1 * * *", "2026-11-01T01:30-04:00"),
        ("Europe/London", "30 1 * * *", "2026-10-25T01:30+01:00"),
        ("Australia/Sydney", "30 2 * * *", "2026-04-05T02:30+11:00"),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05T01:45+11:00"),
    ],
)
def test_a_tick_in_the_fold_comes_once_at_its_first_occurrence(zone: str, cron: str, expected_local: str) -> None:
    """Where the clock is put back over a tick, the wall time that comes again is the same tick, and does not run."""
    found = around(cron, zone, CHANGES[zone][1])

    assert [tick.note[:5] for tick in found] == ["", "fold:", ""]
    assert local(found, zone)[1] == expected_local


@pytest.mark.parametrize(
    ("zone", "hours_forward", "hours_back"),
    [("America/New_York", 23, 25), ("Europe/London", 23, 25), ("Australia/Sydney", 23, 25)],
)
def test_an_hourly_schedule_counts_real_hours(zone: str, hours_forward: int, hours_back: int) -> None:
    """As many ticks as the day has hours, an hour apart, each with a name of its own."""
    for day, hours in zip(CHANGES[zone], (hours_forward, hours_back), strict=True):
        found = around("20 * * * *", zone, day)
        of_the_day = [tick for tick in found if tick.wall.date() == day]

        assert len(of_the_day) == hours
        assert {later.at - tick.at for tick, later in pairwise(found)} == {HOUR}
        assert len({tick.name for tick in found}) == len(found)
        assert all(tick.name.endswith("Z") for tick in found)


def test_an_hourly_schedule_says_what_the_clock_did_to_it() -> None:
    """The first tick after the gap says which time did not exist; those of the fold say which of the two they are."""
    forward = around("*/30 * * * *", "America/New_York", date(2026, 3, 8))
    back = around("0 * * * *", "America/New_York", date(2026, 11, 1))

    assert [(t.name, t.note) for t in forward if t.note] == [
        ("2026-03-08T07:00Z", "gap: 02:30 does not exist that day, no time passes there")
    ]
    assert [(t.name, t.note) for t in back if t.note] == [
        ("2026-11-01T05:00Z", "fold: 01:00 comes twice, this is the first"),
        ("2026-11-01T06:00Z", "fold: 01:00 comes twice, this is the second"),
    ]


def test_at_lord_howe_an_hour_of_ninety_minutes_has_one_tick_and_one_of_half_an_hour_none() -> None:
    """Clocks there are changed by half an hour, so that an hourly tick may fall into neither half."""
    forward = around("15 * * * *", "Australia/Lord_Howe", date(2026, 10, 4))
    back = around("15 * * * *", "Australia/Lord_Howe", date(2026, 4, 5))

    assert [later.at - tick.at for tick, later in pairwise(forward)].count(90 * MINUTE) == 1
    assert [later.at - tick.at for tick, later in pairwise(back)].count(90 * MINUTE) == 1


def test_ticks_that_meet_at_the_end_of_a_gap_are_one() -> None:
    """A schedule of 02:00 and 03:00 runs once when 02:00 becomes 03:00, under the name that the clock shows."""
    found = around("0 2,3 * * *", "America/New_York", date(2026, 3, 8), days=0)

    assert [tick.name for tick in found] == ["2026-03-08T03:00"]
    assert found[0].note == "gap: 02:00 does not exist that day, it falls together with this"


def test_a_gap_that_ends_at_midnight_does_not_move_the_span() -> None:
    """In Nuuk 23:30 becomes 00:00 of the next day once a year; the tick still means the day that it names."""
    found = around("30 23 * * *", "America/Nuuk", date(2026, 3, 28), span=days_before(0))

    assert local(found, "America/Nuuk")[1] == "2026-03-29T00:00-01:00"
    assert [Calendar.DAY.label(tick.span or 0) for tick in found] == ["2026-03-27", "2026-03-28", "2026-03-29"]


def test_days_before_names_the_right_day_in_the_nights_of_23_and_25_hours() -> None:
    """At 00:30 after a change, the day before is the day before, though it was an hour shorter or longer."""
    for zone, changed in CHANGES.items():
        for day in changed:
            found = around("30 0 * * *", zone, day, days=2, span=days_before(1))

            assert [Calendar.DAY.label(tick.span or 0) for tick in found] == [
                str(tick.wall.date() - DAY) for tick in found
            ]
            assert len({tick.span for tick in found}) == len(found)


def test_hours_before_names_each_hour_of_data_once_where_the_clock_is_put_forward() -> None:
    """After 01:00 comes 03:00, whose span is 01; there is no hour 02 and none is named."""
    found = around("5 * * * *", "America/New_York", date(2026, 3, 8), days=0, span=hours_before(1))

    labels = [Calendar.HOUR.label(tick.span or 0) for tick in found]
    assert labels[:4] == ["2026-03-07T23", "2026-03-08T00", "2026-03-08T01", "2026-03-08T03"]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("cron", "rule", "labels"),
    [
        ("0 6 * * mon", weeks_before(1), ["2026-W49", "2026-W50", "2026-W51", "2026-W52", "2026-W53", "2027-W01"]),
        ("0 6 1 * *", months_before(1), ["2026-11", "2026-12", "2027-01"]),
        ("0 6 1 * *", months_before(12), ["2025-12", "2026-01", "2026-02"]),
        ("0 6 1 1,4,7,10 *", quarters_before(1), ["2026-Q4"]),
    ],
)
def test_weeks_months_and_quarters_before_go_on_over_the_end_of_the_year(cron, rule, labels) -> None:
    """Each tick means the period that has ended, by the zone's date, and neighbours differ by one."""
    table = timetable(cron, zone="Pacific/Auckland", span=rule)
    found = [tick.span for tick in ticks(table, moment("2026-11-30T12"), moment("2027-02-10")) if tick.span is not None]

    assert [rule.calendar.label(span) for span in found][: len(labels)] == labels
    assert all(b - a == 1 for a, b in pairwise(found))


def test_hours_before_is_exact_in_utc() -> None:
    """Each hour has its span, all year round."""
    found = list(ticks(timetable("0 * * * *", span=hours_before(1)), moment("2026-03-28"), moment("2026-03-31")))

    assert [b.span - a.span for a, b in pairwise(found)] == [1] * (len(found) - 1)  # type: ignore[operator]


# --- what a tick is


def test_ticks_come_after_a_moment_up_to_another() -> None:
    """The first bound is left out and the last is in; nothing comes before its second."""
    daily = timetable("0 3 * * *")

    found = list(ticks(daily, moment("2026-05-01T03:00"), moment("2026-05-03T03:00")))
    late = next(ticks(daily, moment("2026-05-01T02:59:59.999999")))

    assert [tick.name for tick in found] == ["2026-05-02T03:00", "2026-05-03T03:00"]
    assert late.at == moment("2026-05-01T03:00")
    assert latest(daily, moment("2026-05-01T02:59:59.999999")) == next(ticks(daily, moment("2026-04-30")))


def test_names_of_schedules_with_seconds_have_seconds() -> None:
    """So that two ticks of one minute have two names."""
    found = list(islice(ticks(timetable("0 3 * * * */20"), moment("2026-05-01")), 3))

    assert [tick.name for tick in found] == ["2026-05-01T03:00:00", "2026-05-01T03:00:20", "2026-05-01T03:00:40"]


def test_a_schedule_has_a_start_and_an_end() -> None:
    """Dates are whole days of the schedule's zone, both included: the last one's ticks still come."""
    schedule = Schedule(
        cron="0 2 * * *", zone="America/New_York", start=date(2026, 5, 1), end=date(2026, 5, 31), span=days_before(1)
    )
    may = timetable_of(schedule, "flights")

    found = list(ticks(may, moment("2020-01-01")))

    assert len(found) == 31
    assert (found[0].name, found[-1].name) == ("2026-05-01T02:00", "2026-05-31T02:00")
    assert latest(may, moment("2026-05-01T05:59")) is None
    assert latest(may, moment("2030-01-01")) == found[-1]


def test_bounds_without_a_zone_are_wall_time() -> None:
    """A datetime means the schedule's zone, unless it says another; a bound that is a tick is in."""
    nine = datetime(2026, 5, 1, 9)  # noqa: DTZ001
    naive = Schedule(cron="0 * * * *", zone="Asia/Kolkata", start=nine, end=moment("2026-05-01T05:30"))

    found = list(ticks(timetable_of(naive, "flights"), moment("2026-01-01")))

    assert local(found, "Asia/Kolkata") == [
        "2026-05-01T09:00+05:30",
        "2026-05-01T10:00+05:30",
        "2026-05-01T11:00+05:30",
    ]


@pytest.mark.parametrize(
    ("nickname", "spelled"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_nicknames_mean_what_cron_means_by_them(nickname: str, spelled: str) -> None:
    """Midnight is midnight, in a schedule with hashed fields elsewhere too."""
    start = moment("2026-05-01")

    assert list(islice(ticks(timetable(nickname), start), 5)) == list(islice(ticks(timetable(spelled), start), 5))


def test_hashed_fields_spread_pipelines_and_stay_where_they_are() -> None:
    """H is derived from the pipeline's name: another for another pipeline, the same in every process."""
    hashed = [replace(timetable("H H * * *"), pipeline=name) for name in ("flights", "flights", "taxi")]

    flights, again, taxi = (next(ticks(table, moment("2026-05-01"))).name for table in hashed)

    assert flights == again == "2026-05-01T21:18"
    assert taxi != flights


def test_jitter_is_the_same_for_everybody_and_within_its_bound() -> None:
    """It depends on the pipeline and the tick alone, spreads, and only ever makes a run later."""
    table = timetable("0 * * * *", jitter_s=600)
    found = list(islice(ticks(table, moment("2026-05-01")), 200))

    jitters = [jitter_of(table, tick).total_seconds() for tick in found]

    assert jitters == [jitter_of(timetable("0 * * * *", jitter_s=600), tick).total_seconds() for tick in found]
    assert jitters[0] == pytest.approx(jitter_of(table, found[0]).total_seconds())
    assert min(jitters) >= 0
    assert max(jitters) < 600
    assert 250 < sum(jitters) / len(jitters) < 350
    assert all(starts(table, tick) >= tick.at for tick in found)
    assert starts(timetable("0 * * * *"), found[0]) == found[0].at


# --- spans


def test_a_span_rule_can_be_any_function_of_the_tick() -> None:
    """It gets the wall time in the schedule's zone; the timetable knows that there is one, and that it has to be asked."""

    def week(tick: datetime) -> int:
        return tick.isocalendar().week

    schedule = Schedule(cron="0 3 * * 1", zone="Asia/Kolkata", span=week)
    table = timetable_of(schedule, "flights")
    tick = next(ticks(table, moment("2026-05-01")))

    assert isinstance(table.span, CustomSpanRule)
    assert table.span.name.endswith("week")
    assert tick.span is None
    assert span_of(week, tick) == 19
    assert tick.wall.isoformat() == "2026-05-04T03:00:00+05:30"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda tick: tick.day / 2, "gave 1.0"),
        (lambda tick: True, "gave True"),
        (lambda tick: tick.dya, "AttributeError"),
    ],
)
def test_a_span_rule_that_gives_no_number_is_told(rule: Callable[[datetime], int], said: str) -> None:
    """With the tick it was asked about."""
    tick = next(ticks(timetable("0 3 2 * *"), moment("2026-05-01")))

    with pytest.raises(ScheduleError, match="2026-05-02T03:00") as error:
        span_of(rule, tick)

    assert said in str(error.value)


def test_a_rule_says_how_its_spans_are_counted() -> None:
    """So that they can be shown as people write them."""
    assert timetable("@daily", span=days_before(1)).calendar is Calendar.DAY
    assert timetable("@hourly", span=hours_before(1)).calendar is Calendar.HOUR
    assert timetable("@daily").calendar is Calendar.NUMBER


def test_what_is_probably_not_intended_is_warned_of() -> None:
    """No span at all, and a day of the month beside a day of the week, which cron takes for either."""
    assert [doubt[:19] for doubt in timetable("0 3 13 * 5").warnings] == ["It has no span=, so", "cron '0 3 13 * 5' n"]
    assert timetable("0 3 13 * *", span=days_before(1)).warnings == ()


# --- plain data


def test_a_timetable_can_be_described_and_read_back() -> None:
    """Through JSON, with every field; what a newer program may add is passed over."""
    schedule = Schedule(
        cron="H 3 * * *",
        zone="Europe/London",
        span=hours_before(2),
        overrun=OverrunPolicy.KILL_AND_RUN,
        start=date(2026, 1, 1),
        end=datetime(2027, 1, 1, tzinfo=UTC),
        jitter_s=30,
        catchup=Catchup.ALL,
        catchup_limit=7,
        misfire_grace_s=3600,
        retry=Retry(times=2, backoff_s=60),
        freshness=timedelta(days=2),
        stall_after=timedelta(hours=1),
        wait_for_input=timedelta(hours=6),
        poll_s=30,
    )
    table = timetable_of(schedule, "flights")

    data = json.loads(json.dumps(to_plain(table)))

    assert from_plain(Timetable, {**data, "of a newer version": 1}) == table
    assert from_plain(Timetable, json.loads(json.dumps(to_plain(timetable("@daily"))))) == timetable("@daily")
    assert table.start == moment("2026-01-01")


@pytest.mark.parametrize("rule", [None, days_before(3), hours_before(2), CustomSpanRule("week")])
def test_every_span_rule_survives_being_described(rule: object) -> None:
    """A custom one as its name."""
    assert from_plain(Timetable, to_plain(timetable("@daily", span=rule))).span == rule


# --- what cannot mean anything


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"cron": "0 25 * * *"}, ["'0 25 * * *'", "the hour is '25'; valid is 0 to 23", "'0 3 * * *'"]),
        ({"cron": "61 * * * *"}, ["the minute is '61'"]),
        ({"cron": "0 3 * * mo"}, ["the day of the week is 'mo'"]),
        ({"cron": "0 3 0 * *"}, ["the day of the month is '0'"]),
        ({"cron": "0 3 * * * 60"}, ["the second is '60'"]),
        ({"cron": "0 3 * *"}, ["has 4 fields; write five"]),
        ({"cron": "0 3 * * * 0 2026"}, ["has 7 fields"]),
        ({"cron": ""}, ["has 0 fields"]),
        ({"cron": "@dayly"}, ["Did you mean '@daily'?"]),
        ({"cron": "@reboot"}, ["known are @hourly"]),
        ({"cron": "0 0 31 2 *"}, ["no date at all", "day 31 in month 2"]),
        ({"cron": "0 0 30,31 feb *"}, ["no date at all"]),
        ({"cron": "*/90 * * * *"}, ["steps by 90", "would not run every 90"]),
        ({"cron": "0 3-3 * * *"}, ["the range 3-3", "Write 3."]),
        ({"cron": "0 3 * * 2,mon-mon"}, ["the range mon-mon"]),
        ({"cron": "R 3 * * *"}, ["R draws the minute anew", "jitter_s"]),
        ({"cron": "R(0-9) 3 * * *"}, ["draws the minute anew"]),
        ({"cron": 5}, ["cron=5 is no text"]),
        ({"zone": "America/NewYork"}, ["'America/NewYork'", "'America/New_York'"]),
        ({"zone": "new york"}, ["'America/New_York'"]),
        ({"zone": "Europe"}, ["is no IANA time zone"]),
        ({"zone": "../../etc/passwd"}, ["is no IANA time zone"]),
        ({"zone": ""}, ["is no IANA time zone"]),
        ({"start": date(2026, 5, 2), "end": date(2026, 5, 1)}, ["is before start"]),
        ({"cron": "@yearly", "start": date(2026, 2, 1), "end": date(2026, 3, 1)}, ["has no tick from"]),
        ({"start": "2026-05-01"}, ["start='2026-05-01' is no date", "date(2026, 3, 1)"]),
        ({"span": 1}, ["span=1 cannot be called", "days_before(1)"]),
        ({"overrun": "killandrun"}, ["OverrunPolicy.KILL_AND_RUN"]),
        ({"catchup": True}, ["Catchup.LATEST"]),
        ({"catchup_limit": 0}, ["from 1 up"]),
        ({"jitter_s": -1}, ["from 0 up"]),
        ({"jitter_s": float("nan")}, ["from 0 up"]),
        ({"jitter_s": 7200}, ["more than the 3600 s between two ticks"]),
        ({"misfire_grace_s": "1h"}, ["misfire_grace_s='1h'"]),
        ({"freshness": 3600}, ["timedelta(hours=6)"]),
        ({"stall_after": timedelta(0)}, ["stall_after"]),
        ({"retry": 3}, ["retry=3", "Retry(times=2"]),
    ],
)
def test_a_schedule_that_cannot_mean_anything_is_refused_when_it_is_made(
    terms: dict[str, object], said: list[str]
) -> None:
    """With what was found, and what would do."""
    with pytest.raises(ScheduleError) as error:
        Schedule(**{"cron": "0 * * * *", **terms})  # type: ignore[arg-type]

    for part in said:
        assert part in str(error.value)


def test_whatever_is_typed_is_read_or_refused_in_our_words() -> None:
    """No error of croniter, nor any that it did not foresee, comes through."""
    dice = random.Random(1)
    words = [
        "*",
        "0",
        "5",
        "60",
        "*/5",
        "*/0",
        "1-5",
        "5-1",
        "1-",
        "-1",
        "L",
        "W",
        "15W",
        "LW",
        "1#2",
        "fri#6",
        "#",
        "H",
        "H(0-5)",
        "h(5-1)",
        "R",
        "?",
        "jan",
        "sun-7",
        "1,,2",
        "1.5",
        "a-b",
        "0x1",
        "٣",
    ]
    refused = 0
    for _ in range(1500):
        cron = " ".join(dice.choice(words) for _ in range(dice.choice([5, 5, 6])))
        try:
            assert next(ticks(timetable(cron), moment("2026-05-01"))).at > moment("2026-05-01")
        except ScheduleError:
            refused += 1

    assert 1000 < refused < 1500


@pytest.mark.parametrize("rule", [days_before, hours_before])
def test_a_span_rule_takes_a_whole_number(rule: Callable[[object], object]) -> None:
    """Half a day names no span."""
    for wrong in (0.5, "1", True, None):
        with pytest.raises(ScheduleError, match="takes a whole number"):
            rule(wrong)


def test_a_schedule_is_made_for_a_pipeline_or_for_the_only_one_in_its_file() -> None:
    """A function that makes one, a pipeline, or nothing; all else is by name."""

    class Make(Component):
        def run(self, report: Output[Report]) -> None: ...

    def flights() -> Pipeline:
        return Pipeline("flights", [Make()])

    assert Schedule(flights, cron="@daily").pipeline is flights
    assert Schedule(flights(), cron="@daily").zone == "UTC"
    assert Schedule(cron="@daily").pipeline is None
    with pytest.raises(ScheduleError, match="'flights' is no pipeline"):
        Schedule("flights", cron="@daily")  # type: ignore[arg-type]
