"""Runs that make good what a schedule has missed, in a real ledger and outbox."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.alerts import alert, outbox
from spanwise.scheduler.ledger import ticks
from spanwise.scheduler.ledger.recovery import make_good
from spanwise.scheduler.ledger.ticks import Ending, Outcome, Scheduled
from spanwise.scheduler.schedule.schedule import Tick

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def missing(*spans: int) -> MemoryStore:
    """A schedule whose ticks of these spans were missed."""
    store = MemoryStore()
    ticks.put_schedule(store, Scheduled(pipeline="p", timetable={}, since=NOON))
    for hour, span in enumerate(spans):
        at = NOON + timedelta(hours=hour)
        tick = Tick(at=at, name=f"{at:%H}", wall=at, span=span)
        ticks.claim_tick(store, "p", tick, holder=1, now=at, ending=Ending(outcome=Outcome.MISSED))
    return store


def complain(root: Path) -> None:
    outbox.put(root, alert.missed("p", at=NOON, site=alert.here(), ticks=["12", "13"], why="nothing ran"))


def told(root: Path) -> list[str]:
    return [letter.alert.subject for letter in outbox.waiting(root) if letter.alert.kind == "recovery"]


def test_a_recovery_is_told_once_all_is_made_good(tmp_path: Path) -> None:
    """The first of two missed spans alone is not."""
    store = missing(1, 2)
    complain(tmp_path)

    make_good(store, store.begin_run(Run(pipeline="p", span=1)), [1], tmp_path)
    assert told(tmp_path) == []

    make_good(store, store.begin_run(Run(pipeline="p", span=2)), [2], tmp_path)
    assert told(tmp_path) == ["p is good again: p/2 is complete"]
    assert ticks.missed(store, "p") == []


def test_one_run_may_make_good_several_spans(tmp_path: Path) -> None:
    """As the last of a backfill does that trains once."""
    store = missing(1, 2)
    complain(tmp_path)

    make_good(store, store.begin_run(Run(pipeline="p")), [1, 2], tmp_path)

    assert told(tmp_path) == ["p is good again: p/1 is complete"]


def test_what_nobody_complained_of_is_made_good_in_silence(tmp_path: Path) -> None:
    """Nor is anybody told of a run that makes nothing good."""
    store = missing(1)

    make_good(store, store.begin_run(Run(pipeline="p", span=1)), [1], tmp_path)
    complain(tmp_path)
    make_good(store, store.begin_run(Run(pipeline="p", span=1)), [1], tmp_path)

    assert told(tmp_path) == []
