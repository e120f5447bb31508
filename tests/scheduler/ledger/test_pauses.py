"""Pauses: whoever has paused or resumed a schedule is heard at once, on every host."""

from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.ledger.pauses import current_pause, pause_schedule, resume_schedule

NOW = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("ahead_s", [-120, 0, 120])
def test_a_pause_holds_whatever_the_clock_of_its_host_says(ahead_s: int) -> None:
    """From when it is recorded until it is recorded that it has ended; another host can end it."""
    store = MemoryStore()
    theirs = NOW + timedelta(seconds=ahead_s)
    begun = pause_schedule(store, "flights", who="ann", why="the source moves", now=theirs)

    assert current_pause(store, "flights", NOW) == begun
    assert resume_schedule(store, "flights", who="bob", now=NOW) is not None
    assert current_pause(store, "flights", NOW) is None
    pause_schedule(store, "flights", who="bob", why="again", now=NOW)
    resume_schedule(store, "flights", who="ann", now=theirs)
    assert current_pause(store, "flights", NOW) is None


def test_a_pause_with_an_end_ends_by_itself() -> None:
    """That of a backfill whose process has died."""
    store = MemoryStore()
    pause_schedule(store, "flights", who="backfill 1", why="", now=NOW, until=NOW + timedelta(minutes=10))

    assert current_pause(store, "flights", NOW + timedelta(minutes=9)) is not None
    assert current_pause(store, "flights", NOW + timedelta(minutes=10)) is None
