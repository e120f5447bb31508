"""`spanwise watch`: real runs of a real pipeline, in real processes, started because data has come."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from spanwise.orchestrator import State
from spanwise.scheduler.ledger.heartbeat import list_living
from spanwise.scheduler.ledger.pauses import pause_schedule
from spanwise.scheduler.ledger.ticks import TickRecord, list_ticks
from spanwise.scheduler.schedule.outcome import TickOutcome
from tests.scheduler.backfill import conftest as lake
from tests.scheduler.backfill.conftest import World
from tests.scheduler.conftest import start_warm

world = lake.world
pytestmark = pytest.mark.slow  # each starts several processes

ONCE = ("watch", "days.py", "--once", "--settle", "0", "--poll", "0.5")


def ticks(world: World) -> list[TickRecord]:
    with world.store() as store:
        return list(list_ticks(store, "days:data"))[::-1]


def outcomes(world: World) -> list[tuple[str, TickOutcome | None]]:
    """What became of each tick, under its span and version."""
    return [(e.tick.name.rpartition(".")[0][-5:], None if e.end is None else e.end.outcome) for e in ticks(world)]


def learned(world: World) -> list[str]:
    return list(json.loads(world.serving)["learned"])


def until(what: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ended(world: World, count: int) -> Callable[[], bool]:
    def now() -> bool:
        if not (world.folder / ".spanwise" / "metadata.db").exists():
            return False
        found = ticks(world)
        return len(found) >= count and all(entry.end is not None for entry in found)

    return now


def test_a_new_span_starts_a_run_of_it(world: World) -> None:
    """And once it has run, nothing is left to do."""
    world.lived(3)
    world.arrive(4)

    code, out, _ = world(*ONCE)

    assert code == 0
    assert "span 2024-05-04: ran, days/4" in out
    assert learned(world) == ["2024-05-02 v1", "2024-05-03 v1", "2024-05-04 v1"]
    assert not world.runs()[-1].from_scratch
    assert world(*ONCE)[:2] == (0, "No new data has arrived.\n")


def test_a_new_version_of_a_span_in_the_window_trains_anew(world: World) -> None:
    """From scratch, on the latest window; a span outside every window is told and left."""
    world.lived(4)
    world.arrive(3, version=2)
    world.arrive(1, version=2)

    code, _, err = world(*ONCE)

    assert code == 0
    assert "spans-ignored" in err
    assert "2024-05-01" in err
    assert learned(world) == ["2024-05-02 v1", "2024-05-03 v2", "2024-05-04 v1"]
    assert outcomes(world) == [("03.v2", TickOutcome.RAN)]
    assert world.runs()[-1].from_scratch


def test_several_spans_at_once_are_ingested_each_and_trained_on_once(world: World) -> None:
    """The oldest first; the last of them in the run that trains."""
    world.lived(4)
    for day in (2, 3):
        world.arrive(day, version=2)
    world.arrive(5)

    assert world(*ONCE)[0] == 0

    assert [run.nodes for run in world.runs()[4:]] == [
        ("Ingest", "Check"),
        ("Ingest", "Check", "RollingWindow", "Train", "Push"),
    ]
    assert learned(world) == ["2024-05-03 v2", "2024-05-04 v1", "2024-05-05 v1"]


def test_a_failed_run_is_not_started_again_until_its_input_changes(world: World) -> None:
    """It is told, and the command that makes it good is known."""
    world.lived(3)
    world.arrive(4, rows="broken")

    code, _, err = world(*ONCE)
    assert code == 1
    assert "WARNING alert-raised kind=failure" in err
    assert world(*ONCE)[:2] == (0, "No new data has arrived.\n")
    assert "spanwise backfill days.py --span 2024-05-04" in world("schedule", "missed", "days")[1]

    (world.folder / "data" / "2024-05-04" / "v1" / "rows").write_text("4 mended")
    world.rewrite('prepared = ("span", "version")', MARKED)
    assert world(*ONCE)[0] == 0
    assert outcomes(world) == [("04.v1", TickOutcome.FAILED), ("04.v1", TickOutcome.RAN)]
    assert world("schedule", "missed", "days")[0] == 0


MARKED = """prepared = ("span", "version")

    def mark(self, span):
        return str([p.stat().st_size for p in Path(self.parameters["data"]).glob(f"{Calendar.DAY.label(span)}/*/*")])
"""


def test_what_was_ingested_is_trained_on_though_another_span_is_broken(world: World) -> None:
    """A day that cannot be read keeps no other from being learned."""
    world.lived(4)
    world.arrive(3, version=2)
    world.arrive(4, version=2, rows="broken")

    assert world(*ONCE)[0] == 1

    assert [entry.tick.part for entry in ticks(world)] == ["ingest", "", "train"]
    assert learned(world) == ["2024-05-02 v1", "2024-05-03 v2", "2024-05-04 v1"]


def test_a_pause_holds_for_data_too(world: World) -> None:
    """What has come meanwhile is started when it has ended."""
    world.lived(3)
    assert world(*ONCE)[0] == 0
    with world.store() as store:
        pause_schedule(store, "days", who="ann", why="new disks", now=datetime.now(UTC))
    world.arrive(4)

    assert world(*ONCE)[:2] == (0, "No new data has arrived.\n")
    assert world("schedule", "resume", "days")[0] == 0
    assert world(*ONCE)[0] == 0

    assert outcomes(world) == [("04.v1", TickOutcome.RAN)]


def test_what_another_run_has_ingested_is_not_run_again(world: World) -> None:
    """The run that holds the pipeline is waited for, and what it has ingested has no longer come."""
    world.lived(3)
    world.rewrite("work_s: float = 0.0", "work_s: float = 2.0")
    world.arrive(4)
    other = start_warm("run", "days.py", "--span", "2024-05-04", cwd=world.folder)
    until(lambda: len(world.runs()) == 4, other)

    code, out, _ = world(*ONCE)

    other.communicate()
    assert other.returncode == 0
    assert (code, out) == (0, "No new data has arrived.\n")
    assert len(world.runs()) == 4


def test_two_watchers_start_it_once(world: World) -> None:
    """Whoever is first; SIGTERM ends each cleanly."""
    world.lived(3)
    words = ("watch", "days.py", "--settle", "0.5", "--poll", "0.5")
    both = [start_warm(*words, cwd=world.folder) for _ in range(2)]
    until(lambda: len(_schedulers(world)) == 2, both[0])

    world.arrive(4)
    until(ended(world, 1), both[0])
    time.sleep(1)  # for the other to do it again, if it would
    for each in both:
        each.send_signal(signal.SIGTERM)

    assert [each.wait(300) for each in both] == [0, 0]
    for each in both:
        each.communicate()
    assert outcomes(world) == [("04.v1", TickOutcome.RAN)]
    assert len(world.runs()) == 4


def test_a_watcher_that_is_killed_loses_and_doubles_nothing(world: World) -> None:
    """Its run goes on, and the next watcher sees to its end."""
    world.lived(3)
    world.rewrite("work_s: float = 0.0", "work_s: float = 1.0")
    world.arrive(4)
    first = start_warm("watch", "days.py", "--settle", "0", "--poll", "0.5", cwd=world.folder)
    until(lambda: len(world.runs()) == 4, first)

    first.kill()
    first.communicate()
    assert world(*ONCE)[0] == 0

    assert outcomes(world) == [("04.v1", TickOutcome.RAN)]
    assert [state for _, state in world.states()] == [State.COMPLETE] * 4


def _schedulers(world: World) -> list[object]:

    with world.store() as store:
        return list(list_living(store))
