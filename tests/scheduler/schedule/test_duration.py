import random
import statistics

import pytest

from spanwise.orchestrator import UsageError
from spanwise.scheduler.schedule.duration import Duration, parse_length


@pytest.mark.parametrize(
    ("text", "length_s"),
    [("90s", 90), ("30m", 1800), ("30min", 1800), ("2h", 7200), ("1h30m", 5400), ("1.5d", 129600), (" 1h 5s ", 3605)],
)
def test_a_length_is_read_as_people_write_it(text: str, length_s: float) -> None:
    """Parts add up."""
    assert parse_length(text).total_seconds() == length_s


@pytest.mark.parametrize("text", ["", "2", "2 hours", "h2", "-1h", "2h!", "1h,2h"])
def test_what_is_no_length_is_refused_with_an_example(text: str) -> None:
    """A number without a unit too: it could be anything."""
    with pytest.raises(UsageError, match="1h30m"):
        parse_length(text)


@pytest.mark.parametrize(
    ("text", "middle_s", "spread"),
    [
        ("2h", 7200, (7200, 7200)),
        ("normal(2h,30m)", 7200, (1, 16200)),
        ("uniform(1h, 3h)", 7200, (3600, 10800)),
        ("lognormal(2h,5h)", 7200, (1, 400_000)),
    ],
)
def test_durations_are_drawn_from_their_distribution(text: str, middle_s: float, spread: tuple[float, float]) -> None:
    """The median of many is the middle, and none is outside what can be."""
    dice = random.Random(1)
    duration = Duration.parse(text)

    drawn_s = [duration.draw(dice).total_seconds() for _ in range(2000)]

    assert statistics.median(drawn_s) == pytest.approx(middle_s, rel=0.05)
    assert spread[0] <= min(drawn_s) <= max(drawn_s) <= spread[1]


def test_a_lognormal_has_the_percentile_that_it_names() -> None:
    """One in twenty runs takes longer than five hours."""
    dice = random.Random(1)
    duration = Duration.parse("lognormal(2h,5h)")

    long = sum(duration.draw(dice).total_seconds() > 5 * 3600 for _ in range(4000))

    assert 150 < long < 250


def test_a_history_is_drawn_from_as_it_was() -> None:
    """Each length as likely as the others, and no other."""
    dice = random.Random(1)
    duration = Duration.of([60.0, 120.0, 600.0])

    assert {duration.draw(dice).total_seconds() for _ in range(100)} == {60.0, 120.0, 600.0}
    assert str(duration) == "as long as one of the last 3 runs"


def test_no_run_takes_less_than_a_second() -> None:
    """A normal distribution has no lower end."""
    dice = random.Random(1)
    duration = Duration.parse("normal(1s,1h)")

    assert min(duration.draw(dice).total_seconds() for _ in range(100)) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gamma(1h,2h)", "no distribution 'gamma'"),
        ("normal(2h)", "is not a duration"),
        ("normal(2h,30m", "is not a duration"),
        ("uniform(3h,1h)", "the smaller first"),
        ("lognormal(5h,2h)", "median and 95th percentile"),
        ("lognormal(0s,2h)", "lognormal takes"),
        ("normal(2,1)", "'2' is not a length of time"),
    ],
)
def test_what_is_no_duration_is_refused(text: str, said: str) -> None:
    """With what was found; there has to be a history to draw from one."""
    with pytest.raises(UsageError) as error:
        Duration.parse(text)

    assert said in str(error.value)
    with pytest.raises(UsageError, match="no complete run"):
        Duration.of([])
