"""What the ledger costs: ticks that are due in the same second, and recovering missed ones one run at a time."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.figures import Figure, Timed, at_most, growth, show
from spanwise.orchestrator import Run, State
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts.recovery import record_recovery
from spanwise.scheduler.ledger.missed import MissedTicks, list_missed
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_ended_ticks, claim_tick
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DUE = (250, 500, 1000)
MISSED = (125, 250, 500)


def measured() -> Iterator[Figure]:
    taken = [_in_a_store(_take, count) for count in DUE]
    yield at_most(f"{DUE[-1]:,} ticks due in the same second, taken, on SQLite", taken[-1].wall_s, "s", 2)
    yield Figure(name="the same: processor", value=taken[-1].cpu_s, unit="s")
    yield growth(f"ticks due at once, {DUE[0]:,} to {DUE[-1]:,}", DUE, [t.cpu_s for t in taken])
    recovered = [_in_a_store(_recover, count) for count in MISSED]
    yield Figure(
        name=f"{MISSED[-1]} missed ticks recovered, a run each: processor", value=recovered[-1].cpu_s, unit="s"
    )
    yield growth(f"missed ticks recovered, {MISSED[0]} to {MISSED[-1]}", MISSED, [t.cpu_s for t in recovered])


def _in_a_store(work: Callable[[Store, Path, int], Callable[[], None]], count: int) -> Timed:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(str(Path(folder) / "metadata.db"))
        timed = Timed.of(work(store, Path(folder), count))
        store.close()
    return timed


def _take(store: Store, _: Path, count: int) -> Callable[[], None]:
    ticks = [Tick(name="2026-03-01T12", at=NOON, wall=NOON, span=20_512)] * count

    def take() -> None:
        for number, tick in enumerate(ticks):
            assert claim_tick(store, f"p{number}", tick, holder=1, now=NOON) is not None

    return take


def _recover(store: Store, home: Path, count: int) -> Callable[[], None]:
    put_schedule(store, ScheduleRecord(timetable=Timetable("p", cron="@daily", span=days_before(1)), since=NOON))
    days = [NOON + timedelta(days=n) for n in range(count)]
    missed = TickEnd(outcome=TickOutcome.MISSED, quiet=True)
    ends = [(Tick(name=f"{at:%Y-%m-%d}", at=at, wall=at, span=n), missed) for n, at in enumerate(days)]
    claim_ended_ticks(store, "p", ends, holder=1, now=NOON)
    run = store.begin_run(Run(pipeline="p", state=State.COMPLETE))

    def recover() -> None:
        missed = MissedTicks(store)
        for span in range(count):
            record_recovery(store, run, [span], home, missed=missed)
        assert not list_missed(store, "p")

    return recover


if __name__ == "__main__":
    sys.exit(show(measured()))
