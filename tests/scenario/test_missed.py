"""What a schedule has missed: every printed command works when pasted, and the list becomes empty."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from spanwise.orchestrator.calendar import Calendar
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_tick
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.schedule import Schedule, timetables_of
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import Tick, ticks
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scheduler.backfill.conftest import World, world  # noqa: F401
from tests.scheduler.conftest import _own_path, folder, spanwise  # noqa: F401

DAILY = Timetable("days", cron="0 3 * * *", span=days_before(1))
FAILED = TickEnd(outcome=TickOutcome.FAILED, why="it failed")
WINDOW = 'RollingWindow(check["examples"], size=3, since="2024-05-01")'
PAUSED = TickEnd(outcome=TickOutcome.MISSED, why="paused by ann: new disks", quiet=True)


def scheduled(place: World, *days: int, end: TickEnd = FAILED) -> None:
    """The metadata knows a daily schedule, whose ticks for these days of May came to this end."""
    first = datetime(2024, 5, 1, tzinfo=UTC)
    known = ScheduleRecord(timetable=DAILY, since=first - timedelta(days=9), source="days.py", calendar="day")
    with place.store() as store:
        put_schedule(store, known)
        for day in days:
            at = first + timedelta(days=day, hours=3)
            span = Calendar.DAY.parse(f"2024-05-{day:02}")
            tick = Tick(at=at, name=f"{at:%Y-%m-%dT%H:%M}", wall=at, span=span)
            assert claim_tick(store, "days", tick, holder=1, now=at, end=end)


def scheduled_by_parts(place: World, *missed: Tick) -> None:
    """The metadata knows a schedule by parts, whose runs of these ticks failed."""
    by_parts = Schedule(parts={"ingest": "0 * * * *", "train": "30 * * * *"}, span=days_before(1))
    with place.store() as store:
        for table in timetables_of(by_parts, "days"):
            since = datetime(2024, 4, 1, tzinfo=UTC)
            put_schedule(store, ScheduleRecord(timetable=table, since=since, source="days.py", calendar="day"))
        for tick in missed:
            assert claim_tick(store, f"days:{tick.part}", tick, holder=1, now=tick.at, end=FAILED)


def printed(out: str) -> list[str]:
    """The commands that an output suggests, without the name of the program."""
    return [line.strip().removeprefix("spanwise ") for line in out.splitlines() if line.startswith("  spanwise ")]


def paste(place: World, commands: Sequence[str]) -> list[int]:
    return [place(*shlex.split(command))[0] for command in commands]


def test_a_span_that_no_window_reads_any_more_is_closed_by_the_run_that_went_on(world: World) -> None:  # noqa: F811
    """Nobody has to do anything; who superseded it, and why, stays visible."""
    world.lived(3)
    scheduled(world, 2)
    assert world("schedule", "missed")[0] == 1

    for day in (4, 5, 6):
        world.arrive(day)
        assert world("run", "days.py", "--span", f"2024-05-{day:02}")[0] == 0

    code, out, _ = world("schedule", "missed")
    assert (code, out) == (0, "No ticks need backfilling.\n")
    code, out, _ = world("schedule", "missed", "--all", "--json")
    (listed,) = json.loads(out)
    assert code == 0
    assert (listed["closed"]["how"], listed["closed"]["run"]) == ("superseded", "days/5")
    reads = "RollingWindow reads 2024-05-03 to 2024-05-05"
    assert listed["closed"]["because"] == f"no window reads its span any more: {reads}"
    assert "superseded by days/5" in world("schedule", "ticks", "days", "--since", "2024-05-01")[1]


def test_a_span_that_a_window_needs_stays_listed_until_it_is_run(world: World) -> None:  # noqa: F811
    """And the printed command, pasted, empties the list."""
    world.lived(3)
    scheduled(world, 2, 3)

    code, out, _ = world("schedule", "missed")
    cures = [command for command in printed(out) if command.startswith("backfill")]
    assert code == 1
    assert cures == ["backfill days.py --span 2024-05-02", "backfill days.py --span 2024-05-03"]

    assert paste(world, cures) == [0, 0]
    assert world("schedule", "missed")[:2] == (0, "No ticks need backfilling.\n")


def test_the_tick_of_a_span_that_has_yet_to_settle_is_not_superseded(world: World) -> None:  # noqa: F811
    """The window of `skip=1` reads the missed day when the next one has come, and would fail without it."""
    world.rewrite("size=3,", "size=3, skip=1,")
    world.arrive(1)
    world("run", "days.py", "--span", "2024-05-01")  # its window is still empty
    world.arrive(2)
    scheduled(world, 3)
    assert world("run", "days.py", "--span", "2024-05-02")[0] == 0
    assert world("schedule", "missed")[0] == 1

    world.arrive(3)
    (cure, *_) = printed(world("schedule", "missed")[1])
    assert paste(world, [cure]) == [0]
    assert world("schedule", "missed")[0] == 0
    assert world.runs()[-1].span == Calendar.DAY.parse("2024-05-03")


def test_a_backfill_that_leaves_a_span_out_closes_its_tick(world: World) -> None:  # noqa: F811
    """A tick that ended after the window had gone on: the command says that nothing is to be done, and so it is."""
    world.lived(6)
    scheduled(world, 2)
    (cure, _) = printed(world("schedule", "missed")[1])
    assert paste(world, [f"{cure} --dry-run"]) == [0]
    assert world("schedule", "missed")[0] == 1

    code, out, _ = world(*shlex.split(cure))

    assert code == 0
    assert "1 missed tick closed as superseded, since no window reads the span." in out
    assert world("schedule", "missed")[0] == 0


@pytest.mark.parametrize("which", ["--span 2024-05-08", "--missed"])
def test_a_span_without_data_can_be_given_up(world: World, which: str) -> None:  # noqa: F811
    """The backfill that cannot help prints the command that does; who gave it up, and why, stays visible."""
    world.lived(3)
    scheduled(world, 8)

    code, out, err = world("backfill", "days.py", *which.split())
    assert code == 1
    assert paste(world, printed(out + err)) == [0]

    assert world("schedule", "missed")[0] == 0
    assert "acknowledged by" in world("schedule", "missed", "--all")[1]
    assert "acknowledged by" in world("schedule", "ticks", "days", "--since", "2024-05-01")[1]


def test_a_tick_that_stands_for_several_can_be_given_up(world: World) -> None:  # noqa: F811
    """One of its spans has no data: what has data is backfilled, and the command that is printed closes the tick."""
    world.lived(3)
    world.arrive(4)
    scheduled(world, 5, end=TickEnd(outcome=TickOutcome.MISSED, first_span=Calendar.DAY.parse("2024-05-04")))

    code, out, _ = world("backfill", "days.py", "--missed")
    assert code == 0
    assert world("schedule", "missed")[0] == 1
    assert paste(world, printed(out)) == [0]

    assert world("schedule", "missed")[0] == 0


def test_a_span_that_a_person_has_refused_is_a_gap_and_not_superseded(world: World) -> None:  # noqa: F811
    """A window wants it, so its tick stays listed until the span is accepted and run, or the tick is given up."""
    world.rewrite("class Check(Component):", "class Check(Gate):")
    world.rewrite("import Calendar, Component,", "import Calendar, Component, Gate,")
    world.rewrite('RollingWindow(ingest["examples"], size=3, since="2024-05-01", after=[check])', WINDOW)
    world.lived(4)
    scheduled(world, 3)
    assert world("refuse", "days.py", "--span", "2024-05-03", "--because", "the sensor was broken")[0] == 0
    assert world("backfill", "days.py", "--span", "2024-05-03")[0] == 1
    assert world("schedule", "missed")[0] == 1

    assert world("accept", "days.py", "--span", "2024-05-03", "--because", "it was not")[0] == 0
    (cure, _) = printed(world("schedule", "missed")[1])
    assert paste(world, [cure]) == [0]
    assert world("schedule", "missed")[0] == 0


def test_the_tick_of_a_part_that_trains_is_closed_by_a_training_alone(world: World) -> None:  # noqa: F811
    """A Pusher by hand, on what an older run has trained, has the last node of the part, and has trained nothing."""
    world.lived(2)
    at = datetime(2024, 5, 3, 3, 30, tzinfo=UTC)
    scheduled_by_parts(world, Tick(at=at, name="2024-05-03T03:30", wall=at, part="train"))

    assert world("run", "days.py", "--only", "Push", "--base-run", "1")[0] == 0
    assert "days:train: 1 missed tick needs backfilling" in world("schedule", "missed")[1]

    assert world("run", "days.py", "--from", "RollingWindow", "--param", "fail=true")[0] == 1
    assert world("resume", "days", "--param", "fail=false")[0] == 0
    assert world("schedule", "missed")[:2] == (0, "No ticks need backfilling.\n")


def test_a_backfill_recovers_the_ticks_of_each_part_that_it_has_done(world: World) -> None:  # noqa: F811
    """Ingestion is done though the training fails; the tick of the training stays until that is done."""
    world.lived(3)
    at = datetime(2024, 5, 3, 3, tzinfo=UTC)
    ingest = Tick(at=at, name="2024-05-03T03:00", wall=at, part="ingest", span=Calendar.DAY.parse("2024-05-02"))
    scheduled_by_parts(world, ingest, replace(ingest, part="train", span=None))

    backfill = ("backfill", "days.py", "--span", "2024-05-02", "--train-once", "--param", "fail=true")
    assert world(*backfill)[0] == 1
    assert [each["pipeline"] for each in json.loads(world("schedule", "missed", "--json")[1])] == ["days:train"]

    assert world("resume", "days", "--param", "fail=false")[0] == 0
    assert world("schedule", "missed")[:2] == (0, "No ticks need backfilling.\n")


def test_a_tick_of_the_whole_pipeline_is_recovered_once_a_backfill_has_trained(world: World) -> None:  # noqa: F811
    """Its spans are ingested one by one, and none of them alone is all that its tick was to do."""
    world.lived(3)
    scheduled(world, 1, 2)

    backfill = ("backfill", "days.py", "--missed", "--train-once")
    assert world(*backfill, "--param", "fail=true")[0] == 1
    assert "days: 2 missed ticks need backfilling" in world("schedule", "missed")[1]

    assert world("resume", "days", "--param", "fail=false")[0] == 0
    assert [each["span_label"] for each in json.loads(world("schedule", "missed", "--json")[1])] == ["2024-05-01"]
    assert world(*backfill)[0] == 0
    assert world("schedule", "missed")[:2] == (0, "No ticks need backfilling.\n")


def test_every_listed_tick_can_be_given_up_at_once(world: World) -> None:  # noqa: F811
    """Also those of a pause, of which nobody was alerted."""
    world.lived(3)
    scheduled(world, 2, 3, end=PAUSED)
    give_up = [command for command in printed(world("schedule", "missed")[1]) if "acknowledge" in command]

    assert len(give_up) == 1
    assert paste(world, give_up) == [0]
    assert world("schedule", "missed")[0] == 0


def test_of_many_ticks_whose_data_never_comes_a_few_are_given_up_at_a_time(world: World) -> None:  # noqa: F811
    """The commands for five were printed, and nothing said that there were more."""
    world.lived(1)
    scheduled(world, *range(2, 9))

    _, out, err = world("backfill", "days.py", "--missed")

    assert (out + err).count("schedule acknowledge days --span") == 5
    assert "  # … and 2 more like these\n" in out + err


def test_data_that_comes_after_all_is_ingested_though_its_tick_was_given_up(world: World) -> None:  # noqa: F811
    """An acknowledgement closes a tick, not a span; `--missed` leaves it out."""
    world.lived(3)
    scheduled(world, 2, 4)
    acknowledged = world("schedule", "acknowledge", "days.py", "--span", "2024-05-04", "--because", "no data")
    assert acknowledged[:2] == (0, "1 missed tick acknowledged: days@2024-05-05T03:00\n")
    world.arrive(4)

    assert world("backfill", "days.py", "--missed")[0] == 0
    assert [run.span for run in world.runs()[3:]] == [Calendar.DAY.parse("2024-05-02")]
    assert world("backfill", "days.py", "--span", "2024-05-04")[0] == 0
    assert world("schedule", "missed")[0] == 0
    (_, last) = json.loads(world("schedule", "missed", "--all", "--json")[1])
    assert last["closed"]["how"] == "acknowledged"


def test_the_tick_of_an_hour_that_comes_twice_is_given_up_by_its_name(world: World) -> None:  # noqa: F811
    """In the night in which clocks are set back: one tick, one name, as it is listed."""
    world.lived(1)
    zone = ZoneInfo("America/New_York")
    twice = Timetable("days", cron="30 1 * * *", zone="America/New_York", span=days_before(1))
    begin, end = (datetime(2025, 11, day, tzinfo=zone) for day in (1, 4))
    with world.store() as store:
        put_schedule(store, ScheduleRecord(timetable=twice, since=begin, source="days.py", calendar="day"))
        for tick in ticks(twice, begin, end):
            assert claim_tick(store, "days", tick, holder=1, now=tick.at, end=FAILED)
    names = [each["tick"] for each in json.loads(world("schedule", "missed", "--json")[1])]
    assert names == ["2025-11-01T01:30", "2025-11-02T01:30", "2025-11-03T01:30"]

    done = [world("schedule", "acknowledge", "days", "--tick", name, "--because", "a holiday")[0] for name in names]

    assert done == [0, 0, 0]
    assert world("schedule", "missed")[0] == 0
    again = world("schedule", "acknowledge", "days", "--tick", names[1], "--because", "again")
    assert (again[0], "it was acknowledged" in again[2]) == (2, True)


def test_what_cannot_be_acknowledged_is_refused(world: World) -> None:  # noqa: F811
    """Without a reason, without a tick, or where none is missed."""
    world.lived(2)
    scheduled(world, 2)
    refuse: Callable[..., tuple[int, str]] = lambda *words: world("schedule", "acknowledge", "days", *words)[::2]  # noqa: E731

    assert refuse("--because", "x") == refuse("--span", "2024-05-02", "--tick", "x", "--because", "x")
    assert "Give either --span, or --tick" in refuse("--because", "x")[1]
    assert "--because takes the reason" in refuse("--span", "2024-05-02", "--because", " ")[1]
    assert "missed are: days@2024-05-03T03:00" in refuse("--span", "2024-05-01", "--because", "x")[1]
    assert world("schedule", "missed")[0] == 1
