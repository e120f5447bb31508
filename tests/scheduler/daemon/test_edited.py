"""A schedule that is edited while it runs: its scheduler goes on with what the file says now, and loses nothing."""

import os
import random
from datetime import timedelta

import pytest

from spanwise.orchestrator.component import Retry
from spanwise.scheduler.daemon.description import ScheduleDescription
from spanwise.scheduler.ledger.schedule_status import explain_ticks, list_problems, read_status
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import list_ticks
from spanwise.scheduler.schedule.span_rule import SourceRule, days_before
from spanwise.scheduler.schedule.ticks import starts, ticks
from spanwise.scheduler.schedule.timetable import Catchup, Timetable
from tests.scheduler.daemon.test_pipeline_scheduler import HOUR, MIDNIGHT, World

EDITS = int(os.environ.get("SPANWISE_TEST_EDITS", "12"))  # the full form: 500

DAY = timedelta(days=1)
ZONES = ["UTC", "America/New_York", "America/Los_Angeles", "Asia/Tokyo", "Australia/Lord_Howe", "Pacific/Apia"]
CRONS = ["0 3 * * *", "0 */2 * * *", "0 * * * *", "30 1,2,3 * * *", "15 4 * * 1-5", "0 3 * * * 0"]


def edit(world: World, **terms: object) -> None:
    """Loads the file again with other terms."""
    world.terms |= terms
    described = ScheduleDescription(timetable=Timetable("p", **world.terms), source="/p.py:daily", calendar="day")
    known = put_schedule(world.records, ScheduleRecord(timetable=described.timetable, since=world.now))
    world.watched.update(described, known)


def work(world: World) -> None:
    """Steps, with runs that are over at once, until nothing is left to do."""
    started = -1
    while started < len(world.children):
        started = len(world.children)
        world.step()
        if world.children and world.child.run is None:
            world.child.begin()
            if world.child.run is not None:
                world.child.finish()
            world.step()


def pass_to(world: World, moment) -> None:
    """Goes on to a moment, and steps whenever a tick is due before."""
    while world.watched.due_at is not None and world.watched.due_at <= moment:
        world.step(world.watched.due_at - world.now)
        work(world)
    world.step(moment - world.now)


@pytest.mark.parametrize("catchup", Catchup)
def test_a_zone_further_west_runs_no_tick_again_and_goes_on(tmp_path, catchup):
    """Three o'clock comes again that day, under the name of the tick that ran; the next day has its own."""
    world = World(tmp_path, cron="0 3 * * *", zone="America/New_York", catchup=catchup)
    work(world)
    pass_to(world, MIDNIGHT + 9 * HOUR)

    edit(world, zone="America/Los_Angeles")
    work(world)
    status = read_status(world.records, "p", world.now)
    promised = MIDNIGHT + DAY + 11 * HOUR
    assert (status.next.name, status.next.at, world.watched.due_at) == ("2026-03-02T03:00", promised, promised)
    pass_to(world, MIDNIGHT + 12 * HOUR)
    status = read_status(world.records, "p", world.now)
    pass_to(world, MIDNIGHT + DAY + 12 * HOUR)

    assert list_problems(status) == []
    assert [child.job.tick for child in world.children] == ["2026-03-01T03:00", "2026-03-02T03:00"]
    assert world.told == []


def test_a_moment_that_was_taken_under_another_name_waits_for_nobody(tmp_path):
    """Three o'clock was a tick of fixed hours, and is one of every hour since: no scheduler will take it again."""
    world = World(tmp_path, cron="0 3 * * *")
    work(world)
    pass_to(world, MIDNIGHT + 3 * HOUR)
    work(world)

    edit(world, cron="0 * * * *")
    work(world)
    past = explain_ticks(world.records, world.watched.description.timetable, world.watched.record, MIDNIGHT, world.now)

    assert [(each.tick.name, each.outcome) for each in past if each.tick.at >= MIDNIGHT + 3 * HOUR] == [
        ("2026-03-01T03:00Z", "not taken"),
        ("2026-03-01T03:00", "ran"),
    ]


def rules(*days: int) -> dict[str, object]:
    """Rules that give clicks and prices the days so many before the tick."""
    each = tuple(SourceRule(node, days_before(back)) for node, back in zip(("clicks", "prices"), days, strict=True))
    return {"span": each[0].rule, "sources": each}


def test_a_retry_has_the_spans_of_the_first_attempt_whatever_becomes_of_the_rules(tmp_path):
    """Of each node, also under the scheduler that comes after; the next tick has those of the rules as they are."""
    world = World(tmp_path, cron="0 3 * * *", retry=Retry(times=2, backoff_s=60.0), **rules(1, 7))
    work(world)
    world.at(3)
    world.child.returncode = 1
    world.step()

    edit(world, **rules(3, 9))
    world.step(timedelta(minutes=2))
    world.child.returncode = 1
    world.die()
    world.step(timedelta(minutes=2))
    work(world)
    pass_to(world, MIDNIGHT + DAY + 3 * HOUR)

    first = {"clicks": 20512, "prices": 20506}
    assert [child.job.by_node for child in world.children] == [*[first] * 3, {"clicks": 20511, "prices": 20505}]


def test_a_schedule_that_is_edited_at_any_time_takes_every_tick_of_what_it_says_then(tmp_path):
    """Whatever is edited: no name twice, no tick left, none overdue."""
    dice = random.Random(EDITS)
    world = World(tmp_path, cron=CRONS[0])
    work(world)
    for number in range(EDITS):
        edit(
            world,
            cron=dice.choice(CRONS),
            zone=dice.choice(ZONES),
            catchup=dice.choice(list(Catchup)),
            misfire_grace_s=dice.choice([None, 60]),
            jitter_s=dice.choice([0, 0, 1800]),
        )
        work(world)
        edited, about = world.now, f"edit {number}: {world.terms}"
        pass_to(world, edited + dice.choice([HOUR, 5 * HOUR, DAY, 4 * DAY]) + timedelta(minutes=dice.randrange(60)))

        table = world.watched.description.timetable
        taken = {record.tick.name: record for record in list_ticks(world.records, "p")}
        come = [tick for tick in ticks(table, edited, world.now) if starts(table, tick) <= world.now]
        assert [tick.name for tick in come if tick.name not in taken] == [], about
        assert all(record.end is not None for record in taken.values()), about
        assert list_problems(read_status(world.records, "p", world.now)) == [], about
    names = [record.tick.name for record in list_ticks(world.records, "p")]
    assert len(set(names)) == len(names) > EDITS
