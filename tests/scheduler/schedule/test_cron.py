import calendar
import os
import random
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from spanwise.orchestrator import ScheduleError
from spanwise.scheduler.schedule.cron import CronExpression, parse_cron

EXPRESSIONS = int(os.environ.get("SPANWISE_TEST_CRON_DAYS", "40"))  # the full form: 4000

DAY = timedelta(days=1)
BEGIN, END = datetime(2027, 11, 1), datetime(2028, 11, 1)  # noqa: DTZ001  wall time, with a leap day

Fits = Callable[[datetime], bool]


def named(expression: CronExpression, begin: datetime, end: datetime) -> list[datetime]:
    """The wall times from one to, without, another; going back from there they are the same."""
    found = [begin - timedelta(seconds=1)]
    while found[-1] < end:
        found.append(expression.next_after(found[-1]))
    back = [end]
    while back[-1] >= begin:
        back.append(expression.last_before(back[-1]))
    assert back[1:-1] == found[-2:0:-1]
    return found[1:-1]


def last_day(wall: datetime) -> int:
    return calendar.monthrange(wall.year, wall.month)[1]


def weekday(wall: datetime) -> int:
    return wall.isoweekday() % 7


def nearest_working_day(wall: datetime, day: int) -> int:
    """The day of the month nearest to one, or to the last of a shorter month, that is in Monday to Friday."""
    last = last_day(wall)
    working = [n for n in range(1, last + 1) if weekday(wall.replace(day=n)) in range(1, 6)]
    return min(working, key=lambda n: abs(n - min(day, last)))


def day_of_month(dice: random.Random) -> tuple[str, Fits | None]:
    first, last = dice.sample(range(1, 32), 2)
    days = set(range(first, last + 1)) if first < last else {*range(first, 32), *range(1, last + 1)}
    forms: list[tuple[str, Fits | None]] = [
        ("*", None),
        (str(first), lambda wall: wall.day == first),
        (f"{first},{last},L", lambda wall: wall.day in (first, last, last_day(wall))),
        (f"{first}-{last}", lambda wall: wall.day in days),
        ("L", lambda wall: wall.day == last_day(wall)),
        (f"{first}W", lambda wall: wall.day == nearest_working_day(wall, first)),
    ]
    return dice.choice(forms)


def day_of_week(dice: random.Random) -> tuple[str, Fits | None]:
    first, last = dice.sample(range(7), 2)
    days = set(range(first, last + 1)) if first < last else {*range(first, 7), *range(last + 1)}
    week = dice.randint(1, 5)
    name = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"][first]
    forms: list[tuple[str, Fits | None]] = [
        ("*", None),
        (name, lambda wall: weekday(wall) == first),
        (f"{name}-{last}", lambda wall: weekday(wall) in days),
        (f"{name}#{week}", lambda wall: weekday(wall) == first and (wall.day + 6) // 7 == week),
        (f"{first}#1,{last}#{week}", lambda w: (weekday(w), (w.day + 6) // 7) in ((first, 1), (last, week))),
        (f"L{first}", lambda wall: weekday(wall) == first and wall.day + 7 > last_day(wall)),
    ]
    return dice.choice(forms)


def test_days_are_those_that_either_day_field_names() -> None:
    """In every form, `#`, `L` and `W` too, forward and back; where both fields are set, the days of either."""
    dice = random.Random(EXPRESSIONS)
    year = [BEGIN + DAY * number for number in range((END - BEGIN).days)]
    both = 0
    for _ in range(EXPRESSIONS):
        (day, on_day), (of_week, on_weekday) = day_of_month(dice), day_of_week(dice)
        fits = [each for each in (on_day, on_weekday) if each is not None]
        both += len(fits) == 2
        text = f"0 0 {day} * {of_week}"

        found = named(parse_cron(text, "flights"), BEGIN, END)

        assert found == [wall for wall in year if any(each(wall) for each in fits) or not fits], text
    assert both > EXPRESSIONS / 3


def test_an_expression_of_two_kinds_of_days_of_which_one_never_comes_fires_on_the_other() -> None:
    """There is no 31st of February, but a second Friday."""
    found = named(parse_cron("0 6 31 2 fri#2", "flights"), BEGIN, END)

    assert found == [datetime(2028, 2, 11, 6)]  # noqa: DTZ001


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("10-4/3", {10, 13, 16, 19, 22, 1, 4}),
        ("22-2/2", {22, 0, 2}),
        ("23-22/1", set(range(24))),
        ("5,20-1/5", {5, 20, 1}),
    ],
)
def test_a_range_over_the_end_of_its_field_goes_on_in_its_steps(field: str, meant: set[int]) -> None:
    """Three hours after 22 is 1, as after any other hour."""
    found = named(parse_cron(f"0 {field} * * *", "flights"), BEGIN, BEGIN + DAY)

    assert {wall.hour for wall in found} == meant


@pytest.mark.parametrize("cron", ["0 3-03 * * *", "0 0 * * 7-0", "0 0 * * 7-sun", "0 0 1 jan-1 *", "0 0 05-5/2 * *"])
def test_a_range_of_one_value_is_refused_however_it_is_written(cron: str) -> None:
    """Read as croniter reads it, it would be every value there is."""
    with pytest.raises(ScheduleError, match="would be read as every"):
        parse_cron(cron, "flights")


def test_a_week_from_sunday_to_sunday_has_all_its_days() -> None:
    """0 and 7 are both Sunday, and `0-7` is what people write for every day."""
    assert len(named(parse_cron("0 0 * * 0-7", "flights"), BEGIN, BEGIN + 14 * DAY)) == 14
