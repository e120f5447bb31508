"""Metadata that are away for a moment, while a scheduler lives on: nothing is left open, untold or counted twice."""

import os
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from spanwise.orchestrator.component import Retry
from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.scheduler.daemon.pipeline_scheduler import PipelineScheduler
from spanwise.scheduler.ledger.ticks import list_ticks, list_unsettled
from spanwise.scheduler.schedule.timetable import OverrunPolicy
from tests.scheduler.daemon.test_pipeline_scheduler import World, advance, lived, recovered

EVERY = int(os.environ.get("SPANWISE_TEST_AWAY_EVERY", "23"))  # question that is not answered; the full form: 1
QUESTIONS = 400  # at most so many are asked in the hours that are lived through


class Away:
    """A store whose n-th question is not answered; it may have been done all the same."""

    def __init__(self, store, at, *, landed):
        self.store, self.left, self.landed = store, at, landed

    def __getattr__(self, name):
        verb = getattr(self.store, name)
        if not callable(verb):
            return verb

        def ask(*arguments, **options):
            self.left -= 1
            if not self.left and not self.landed:
                raise StoreUnavailable("away")
            answer = verb(*arguments, **options)
            if not self.left:
                raise StoreUnavailable("away")
            return answer

        return ask


class Counted(World):
    """Counts the ends of ticks as the metrics do, and steps again as the loop does when the store was away."""

    def __init__(self, root, **terms):
        self.counted = Counter()
        super().__init__(root, **terms)

    def open(self):
        super().open()
        scheduler, known = self.watched, self.watched.record
        services = replace(scheduler._services, measure=self.count)
        self.watched = PipelineScheduler(scheduler.description, known, services, scheduler._observer._watch)

    def count(self, _store, record):
        self.counted[record.tick.name, record.end.outcome] += 1

    def step(self, by=timedelta(0), **options):
        with suppress(StoreUnavailable):
            super().step(by, **options)
            return
        super().step(**options)


@pytest.mark.parametrize("policy", OverrunPolicy)
@pytest.mark.parametrize("landed", [False, True])
def test_a_question_that_is_not_answered_leaves_nothing_untold(tmp_path, policy, landed):
    """Whichever it is, in hours with a failure, an overrun and a missed tick: each tick ends, and each alert is sent."""
    expected = play(Counted(tmp_path / "whole", overrun=policy, retry=Retry(times=1, backoff_s=60.0)), 0, landed=landed)
    for at in range(EVERY, QUESTIONS, EVERY):
        world = Counted(tmp_path / str(at), overrun=policy, retry=Retry(times=1, backoff_s=60.0))
        left = play(world, at, landed=landed).store.left
        if left > 0:
            break

        about = f"question {at} was not answered"
        assert list_unsettled(world.records, "p") == [], about
        assert len(world.told) >= len(expected.told), about
        lost = {(r.tick.name, r.end.outcome): 1 for r in list_ticks(world.records, "p") if r.end.outcome.abnormal}
        assert {end: count for end, count in world.counted.items() if end[1].abnormal} == lost, about
    assert {"missed"} < set(expected.outcomes.values())
    assert expected.counted == {(r.tick.name, r.end.outcome): 1 for r in list_ticks(expected.records, "p")}


def play(world, at, *, landed):
    """Lives through the hours; 0 is no question."""
    world.step()
    world.store = Away(world.records, at, landed=landed)
    with suppress(IndexError):  # the first run has not begun, as it was to have
        lived(world)
    recovered(world)
    for minute in (58, 59):
        world.at(4, minute)
        advance(world)
    world.at(4, 59, 30)
    return world
