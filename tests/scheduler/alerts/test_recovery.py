"""Runs that recover what a schedule has missed, in a real ledger and outbox."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.alerts import alert, outbox
from spanwise.scheduler.alerts.recovery import record_closing, record_recovery
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_tick
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.outcome import Closing, TickClosure, TickEnd, TickOutcome
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def missing(*spans: int, store: MemoryStore | None = None, key: str = "p") -> MemoryStore:
    """A schedule whose ticks of these spans were missed."""
    store = store or MemoryStore()
    put_schedule(store, ScheduleRecord(timetable=Timetable(key, cron="@hourly"), since=NOON))
    for hour, span in enumerate(spans):
        at = NOON + timedelta(hours=hour)
        tick = Tick(at=at, name=f"{at:%H}", wall=at, span=span)
        claim_tick(store, key, tick, holder=1, now=at, end=TickEnd(outcome=TickOutcome.MISSED))
    return store


def send_alert(root: Path, key: str = "p") -> None:
    outbox.put(root, alert.missed_alert(key, at=NOON, site=alert.local_site(), ticks=["12", "13"], why="nothing ran"))


def announced(root: Path) -> list[str]:
    return [letter.alert.subject for letter in outbox.list_waiting(root) if letter.alert.kind == "recovery"]


def test_a_recovery_is_announced_once_every_tick_is_recovered(tmp_path: Path) -> None:
    """The first of two missed spans alone is not."""
    store = missing(1, 2)
    send_alert(tmp_path)

    record_recovery(store, store.begin_run(Run(pipeline="p", span=1)), [1], tmp_path)
    assert announced(tmp_path) == []

    record_recovery(store, store.begin_run(Run(pipeline="p", span=2)), [2], tmp_path)
    assert announced(tmp_path) == ["p recovered: run 2 succeeded"]
    assert list_missed(store, "p") == []


def test_one_run_may_recover_several_spans(tmp_path: Path) -> None:
    """As the last of a backfill does that trains once."""
    store = missing(1, 2)
    send_alert(tmp_path)

    record_recovery(store, store.begin_run(Run(pipeline="p")), [1, 2], tmp_path)

    assert announced(tmp_path) == ["p recovered: run 1 succeeded"]


def test_what_was_not_alerted_is_recovered_in_silence(tmp_path: Path) -> None:
    """Nor is a run announced that recovers nothing."""
    store = missing(1)

    record_recovery(store, store.begin_run(Run(pipeline="p", span=1)), [1], tmp_path)
    send_alert(tmp_path)
    record_recovery(store, store.begin_run(Run(pipeline="p", span=1)), [1], tmp_path)

    assert announced(tmp_path) == []


def test_a_tick_that_a_person_gives_up_ends_the_alert(tmp_path: Path) -> None:
    """Once it was the last; the recovery says who did it."""
    store = missing(1, 2)
    send_alert(tmp_path)
    given_up = TickClosure(how=Closing.ACKNOWLEDGED, at=NOON, who="ann@host", because="a holiday")

    first, second = list_missed(store, "p")
    record_closing(store, [first], given_up, tmp_path)
    assert announced(tmp_path) == []

    assert record_closing(store, [first, second], given_up, tmp_path) != []
    assert announced(tmp_path) == ["p recovered: the last missed tick was acknowledged by ann@host"]


def test_ticks_of_several_pipelines_that_a_person_gives_up_end_the_alerts_of_each(tmp_path: Path) -> None:
    """As those of a file with two pipelines: the alert about the second stayed open for ever."""
    store = missing(1, store=missing(1), key="q")
    for key in ("p", "q"):
        send_alert(tmp_path, key)

    given_up = TickClosure(how=Closing.ACKNOWLEDGED, at=NOON, who="ann@host", because="a holiday")
    record_closing(store, [*list_missed(store, "p"), *list_missed(store, "q")], given_up, tmp_path)

    assert [text.partition(":")[0] for text in announced(tmp_path)] == ["p recovered", "q recovered"]


@pytest.mark.parametrize("last", ["p", "p:train"])
def test_the_recovery_of_a_schedule_that_was_replaced_is_announced(tmp_path: Path, last: str) -> None:
    """By whichever tick is the last that was missed, of the schedule before or of the new one."""
    store = missing(1)
    send_alert(tmp_path)
    for part in ("ingest", "train"):
        timetable = Timetable(f"p:{part}", cron="@hourly", division=HALVES)
        put_schedule(store, ScheduleRecord(timetable=timetable, since=NOON))
    at = NOON + timedelta(days=1)
    tick = Tick(at=at, name="next", wall=at, span=2)
    claim_tick(store, "p:train", tick, holder=1, now=at, end=TickEnd(outcome=TickOutcome.MISSED))
    given_up = TickClosure(how=Closing.ACKNOWLEDGED, at=NOON, who="ann@host", because="a holiday")

    for key in sorted(["p", "p:train"], key=lambda key: key == last):
        assert announced(tmp_path) == []
        record_closing(store, list_missed(store, key), given_up, tmp_path)

    assert announced(tmp_path) == ["p recovered: the last missed tick was acknowledged by ann@host"]
