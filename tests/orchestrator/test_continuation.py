"""What a run has done together with the runs that it continues."""

from dataclasses import replace

import pytest

from spanwise.orchestrator.continuation import attempted_nodes, completed_nodes
from spanwise.orchestrator.run import Run, State, Trigger
from spanwise.orchestrator.store import MemoryStore

NODES = ("Ingest", "Learn", "Push")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def ran(store: MemoryStore, *nodes: str, state: State = State.COMPLETE, **facts: object) -> Run:
    begun = store.begin_run(Run(pipeline="p", nodes=nodes, **facts))  # type: ignore[arg-type]
    store.update_run(ended := replace(begun, state=state))
    return ended


def test_a_run_that_is_resumed_twice_has_done_it_all(store: MemoryStore) -> None:
    """Each attempt does what the one before has left."""
    first = ran(store, *NODES, state=State.FAILED)
    second = ran(store, "Learn", "Push", state=State.FAILED, trigger=Trigger.RESUME, cause=first.name, base=1)
    third = ran(store, "Push", trigger=Trigger.RESUME, cause=second.name, base=2)

    assert completed_nodes(store, second) == frozenset()
    assert completed_nodes(store, third) == set(NODES)


def test_a_retry_of_a_tick_has_done_what_its_first_attempt_has(store: MemoryStore) -> None:
    """A run of another tick, or by hand, that reads the same base run has not."""
    ran(store, *NODES, state=State.FAILED, trigger=Trigger.SCHEDULE, cause="2026-03-01T03:00")

    again = ran(store, "Push", trigger=Trigger.SCHEDULE, cause="2026-03-01T03:00", base=1)
    later = ran(store, "Push", trigger=Trigger.SCHEDULE, cause="2026-03-02T03:00", base=1)
    by_hand = ran(store, "Push", base=1)

    assert completed_nodes(store, again) == set(NODES)
    assert completed_nodes(store, later) == {"Push"}
    assert completed_nodes(store, by_hand) == {"Push"}


def test_the_training_of_a_backfill_has_done_what_its_ingestion_has(store: MemoryStore) -> None:
    """Also when a person resumes it; that of another backfill has not."""
    ran(store, "Ingest", trigger=Trigger.BACKFILL, cause="backfill p/1", span=1)
    failed = ran(store, "Learn", "Push", state=State.FAILED, trigger=Trigger.BACKFILL, cause="backfill p/1", base=1)
    rest = ran(store, "Push", trigger=Trigger.RESUME, cause=failed.name, base=failed.number)
    other = ran(store, "Learn", "Push", trigger=Trigger.BACKFILL, cause="backfill p/2", base=1)

    assert completed_nodes(store, rest) == set(NODES)
    assert completed_nodes(store, other) == {"Learn", "Push"}


def test_a_replay_and_a_push_by_name_complete_nothing(store: MemoryStore) -> None:
    """One repeats what was; the other puts into service what was trained at another time."""
    assert completed_nodes(store, ran(store, *NODES, replay=True)) == frozenset()
    assert completed_nodes(store, ran(store, "Push", trigger=Trigger.PUSH)) == frozenset()


def test_a_run_that_is_gone_is_continued_by_nothing(store: MemoryStore) -> None:
    """After the metadata were restored, say: what is left says only what the last attempt did."""
    last = ran(store, "Push", trigger=Trigger.RESUME, cause="p/7", base=7)

    assert attempted_nodes(store, last) == {"Push"}
