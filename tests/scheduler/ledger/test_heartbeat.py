from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator import process
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.store import MemoryStore, Store
from spanwise.scheduler.ledger.heartbeat import (
    HeartbeatWatch,
    beat,
    list_living,
    list_unended,
    mark_ended,
    read_scheduler,
    register,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ELSEWHERE = Identity("elsewhere/0/0", 1, 1)
DEAD_HERE = Identity(process.machine(), 2**22 + 1, 1)


@pytest.fixture(params=["memory", "mlmd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = MemoryStore() if request.param == "memory" else open_store(str(tmp_path / "metadata.db"))
    yield opened
    opened.close()


def test_each_scheduler_has_a_number(store: Store) -> None:
    """And is listed until it leaves."""
    first, second = register(store, NOW), register(store, NOW)
    assert [one.number for one in list_living(store)] == [1, 2]

    mark_ended(store, first)

    assert [one.number for one in list_living(store)] == [second.number]
    assert read_scheduler(store, 3) is None


def test_a_beat_is_seen_by_others(store: Store) -> None:
    """With the time of the clock of the one that lives."""
    me = register(store, NOW)

    beat(store, me, NOW + timedelta(seconds=3))

    (seen,) = list_living(store)
    assert (seen.beat, seen.beaten) == (1, NOW + timedelta(seconds=3))


def test_one_that_was_taken_for_dead_comes_back_under_another_number(store: Store) -> None:
    """It was frozen; what it held may have been taken over."""
    me = register(store, NOW)
    mark_ended(store, me)

    assert beat(store, me, NOW).number == 2


def test_those_that_have_left_are_not_looked_at_again(store: Store) -> None:
    """A one-shot a minute makes half a million of them in a year."""
    for _ in range(40):
        mark_ended(store, register(store, NOW))
    list_unended(store)
    living = register(store, NOW)
    asked: list[str] = []
    claimed = store.find_claim
    store.find_claim = lambda kind, name: (asked.append(name), claimed(kind, name))[1]  # type: ignore[method-assign]

    assert list_unended(store, seen=living.number) == [living]
    assert len(asked) < 8


def test_a_dead_process_on_this_machine_is_known_at_once() -> None:
    """No heartbeat is waited for."""
    assert HeartbeatWatch(15.0).is_dead("a", DEAD_HERE, beat=1, monotonic=0.0)


def test_a_scheduler_whose_process_is_dead_is_not_listed_among_the_living(store, monkeypatch) -> None:
    """`schedule status` and the page called one that was killed alive, for days. Of one elsewhere, nobody knows."""
    for who in (DEAD_HERE, ELSEWHERE, process.identity()):
        monkeypatch.setattr(process, "identity", lambda who=who: who)
        register(store, NOW)

    assert [one.number for one in list_living(store)] == [2, 3]
    assert [one.number for one in list_unended(store)] == [1, 2, 3]


def test_one_elsewhere_is_dead_once_its_beat_has_stood_still_for_long_enough() -> None:
    """By the watcher's own clock; each new beat begins the time anew."""
    watch = HeartbeatWatch(15.0)
    beats = [(0.0, 1), (14.0, 1), (16.0, 2), (30.0, 2)]

    assert not any(watch.is_dead("a", ELSEWHERE, beat, at) for at, beat in beats)
    assert watch.is_dead("a", ELSEWHERE, beat=2, monotonic=31.0)


def test_one_that_is_frozen_here_is_dead_as_well() -> None:
    """Its process is there, and does nothing."""
    watch = HeartbeatWatch(15.0)
    assert not watch.is_dead("a", process.identity(), beat=1, monotonic=0.0)

    assert watch.is_dead("a", replace(process.identity()), beat=1, monotonic=15.0)
