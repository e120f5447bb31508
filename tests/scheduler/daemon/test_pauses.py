"""Pauses, and schedulers that come and go meanwhile: a tick is quietly missed if it fell into one, and else not."""

import os
import random
from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator.component import Retry
from spanwise.scheduler.daemon import scheduled_run
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.pauses import PAUSED, pause_schedule, resume_schedule
from spanwise.scheduler.ledger.schedule_status import read_status
from spanwise.scheduler.ledger.ticks import list_ticks
from spanwise.scheduler.schedule.outcome import TickOutcome
from spanwise.scheduler.schedule.timetable import Catchup
from tests.scheduler.daemon.test_pipeline_scheduler import HOUR, MIDNIGHT, World

DAYS = int(os.environ.get("SPANWISE_TEST_PAUSED_DAYS", "3"))  # the full form: 200

MINUTE = timedelta(minutes=1)
NEVER = datetime.max.replace(tzinfo=UTC)


def work(world):
    """Steps, with runs that are over at once."""
    started = -1
    while started < len(world.children):
        started = len(world.children)
        world.step()
        if world.children and world.child.run is None:
            world.child.begin().finish()
            world.step()


def test_what_fell_into_a_pause_is_missed_for_it_and_nothing_else_is(tmp_path):
    """Whoever notices it, and when: in the pause, or after it; what came before it is told with its own reason."""
    dice = random.Random(DAYS)
    outcomes = set()
    for day in range(DAYS):
        world = World(tmp_path / str(day), cron="*/15 * * * *", catchup=dice.choice(list(Catchup)))
        work(world)
        pauses, away = [], False
        for _ in range(160):
            world.now += 3 * MINUTE
            match dice.random():
                case chance if chance < 0.06:
                    until = None if dice.random() < 0.5 else world.now + MINUTE * dice.randint(1, 90)
                    pauses[-1:] = [(since, min(end, world.now)) for since, end in pauses[-1:]]
                    pauses.append((world.now, until or NEVER))
                    pause_schedule(world.records, "p", who="ann", why="disks", now=world.now, until=until)
                case chance if chance < 0.14:
                    if resume_schedule(world.records, "p", who="ann", now=world.now) is not None:
                        pauses[-1] = (pauses[-1][0], world.now)
                case chance if chance < 0.2:
                    away = not away
            if not away:
                work(world)
        work(world)

        taken = list(list_ticks(world.records, "p"))
        for tick in taken:
            held = any(since <= tick.tick.at < end for since, end in pauses)
            for_a_pause = tick.end.outcome is TickOutcome.MISSED and tick.end.why.startswith(PAUSED)
            assert for_a_pause == held == tick.end.quiet, (day, tick.tick.name, tick.end, pauses)
            outcomes.add((tick.end.outcome.value, held))
        lost = [tick.tick.name for tick in taken if tick.end.outcome.abnormal]
        assert {tick.tick.name for tick in list_missed(world.records, "p")} == set(lost)
        assert read_status(world.records, "p", world.now).missed == len(lost)
        loud = any(not tick.end.quiet for tick in taken if tick.end.outcome.abnormal)
        assert {kind for kind, _ in world.told} == ({"missed"} if loud else set())
    assert outcomes == {("ran", False), ("missed", False), ("missed", True)}


def test_a_tick_that_came_before_the_pause_is_told_as_missed(tmp_path):
    """The schedule was paused by the time a scheduler looked: that is not why the tick was missed."""
    world = World(tmp_path)
    world.step()
    world.now = MIDNIGHT + 2 * HOUR
    pause_schedule(world.records, "p", who="ann", why="disks", now=world.now)

    world.step(HOUR)

    assert [(each.end.why, each.end.quiet) for each in list_missed(world.records, "p")] == [
        ("it had not run when the schedule was paused by ann: disks", False),
        ("paused by ann: disks", True),
        ("paused by ann: disks", True),
    ]
    assert [kind for kind, _ in world.told] == ["missed"]


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("code", [1, scheduled_run.HELD, scheduled_run.PAUSED])
def test_a_tick_from_before_a_pause_runs_after_it(tmp_path, code, dies):
    """It waits for its retry, for another run, or for its input; a scheduler that comes in the pause begins none either."""
    world = World(tmp_path, retry=Retry(times=3, backoff_s=60.0))
    world.at(1)
    pause_schedule(world.records, "p", who="ann", why="disks", now=world.now)
    world.child.returncode = code
    world.at(1, 1)
    if dies:
        world.die()
    for hour in (1, 2, 3):
        world.at(hour, 10)
    assert len(world.children) == 1
    assert not world.watched.busy, "a one-shot leaves the tick to the next"

    resume_schedule(world.records, "p", who="ann", now=world.now)
    world.at(3, 11)
    assert world.watched.busy
    world.child.begin().finish()
    world.at(3, 12)

    assert [child.job.tick for child in world.children] == ["2026-03-01T01:00Z"] * 2
    assert world.outcomes == {1: "ran", 2: "missed", 3: "missed"}
    assert [kind for kind, _ in world.told] == []


def test_a_run_that_has_begun_goes_on_in_a_pause(tmp_path):
    """Its tick ends as it does; only its retry waits."""
    world = World(tmp_path, retry=Retry(times=1, backoff_s=60.0))
    world.at(1)
    world.child.begin()
    pause_schedule(world.records, "p", who="ann", why="disks", now=world.now)
    world.at(1, 1)

    world.child.finish()
    world.at(1, 2)

    assert world.outcomes == {1: "ran"}
