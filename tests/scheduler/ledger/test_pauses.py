"""Pauses: whoever has paused or resumed a schedule is heard at once, on every host."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from spanwise.orchestrator.store import Claim, MemoryStore
from spanwise.scheduler.ledger.pauses import (
    continue_pause,
    current_pause,
    extend_pause,
    list_pauses,
    pause_schedule,
    resume_schedule,
)

NOW = datetime(2024, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


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


class Interrupted(MemoryStore):
    """Lets something else happen right before it writes, once."""

    meanwhile: Callable[[], object] | None = None

    def amend(self, claim: Claim) -> None:
        self._interrupt()
        super().amend(claim)

    def claim(self, *claims: Claim) -> None:
        self._interrupt()
        super().claim(*claims)

    def _interrupt(self) -> None:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()


def test_a_pause_that_is_resumed_while_its_backfill_extends_it_is_over() -> None:
    """Whoever writes last."""
    store = Interrupted()
    begun = pause_schedule(store, "flights", who="backfill 1", why="", now=NOW, until=NOW + MINUTE)

    store.meanwhile = lambda: resume_schedule(store, "flights", who="ann", now=NOW)
    extend_pause(store, "flights", begun, until=NOW + timedelta(minutes=10))

    assert current_pause(store, "flights", NOW + MINUTE) is None
    (known,) = list_pauses(store, "flights", since=NOW - MINUTE)
    assert (known.resumed, known.resumed_by) == (NOW, "ann")


def test_of_two_who_resume_a_pause_the_first_has_done_so() -> None:
    """The other is told that it was not paused."""
    store = Interrupted()
    pause_schedule(store, "flights", who="ann", why="", now=NOW)
    store.meanwhile = lambda: resume_schedule(store, "flights", who="ann", now=NOW)

    assert resume_schedule(store, "flights", who="bob", now=NOW + MINUTE) is None
    (known,) = list_pauses(store, "flights", since=NOW - MINUTE)
    assert (known.resumed, known.resumed_by) == (NOW, "ann")


def test_whoever_resumes_a_schedule_resumes_what_has_continued_its_pause_meanwhile() -> None:
    """As a backfill continues a pause that is about to end by itself; whichever of both is recorded first."""
    store = Interrupted()
    begun = pause_schedule(store, "flights", who="ann", why="", now=NOW, until=NOW + MINUTE)
    until = NOW + 10 * MINUTE
    going_on = partial(continue_pause, store, "flights", begun, who="backfill 1", why="", now=NOW, until=until)

    store.meanwhile = going_on
    assert resume_schedule(store, "flights", who="ann", now=NOW) is not None
    assert current_pause(store, "flights", NOW) is None

    begun = pause_schedule(store, "flights", who="ann", why="", now=NOW, until=NOW + MINUTE)
    store.meanwhile = lambda: resume_schedule(store, "flights", who="ann", now=NOW)
    assert continue_pause(store, "flights", begun, who="backfill 1", why="", now=NOW, until=until) is None
    assert current_pause(store, "flights", NOW) is None
