"""The child that makes one attempt: real processes on a real database."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spanwise.orchestrator import Pipeline, State
from spanwise.orchestrator.errors import ScheduleError
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.store import Store
from spanwise.scheduler.daemon import scheduled_run
from spanwise.scheduler.daemon.scheduled_run import ScheduledJob
from spanwise.scheduler.ledger.pauses import pause_schedule
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_tick, end_tick, read_overrun, read_tick
from spanwise.scheduler.main import main
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scheduler.ledger.test_ticks import THREE
from tests.scheduler.run.test_tick_recovery import Days

FILE = """
import time
from pathlib import Path
from spanwise.orchestrator import Component, Input, Output, Pipeline, Report
from spanwise.scheduler import Schedule, days_before


class Read(Component):
    def run(self, report: Output[Report]) -> None:
        (report.path / "a").write_text("x")

    def available(self, spans=None):
        return {span: None for span in spans if Path(f"span-{span}").exists()}


class Work(Component):
    cacheable = False

    def run(self, report: Input[Report], made: Output[Report]) -> None:
        while Path("slow").exists():
            time.sleep(0.01)
        if Path("fail").exists():
            raise ValueError("as asked for")


def steps() -> Pipeline:
    read = Read()
    return Pipeline("steps", [read, Work(report=read["report"])])


daily = Schedule(steps, cron="@daily", span=days_before(1))
"""

TICK = Tick(at=THREE, name="2026-03-01", wall=THREE, span=5)
MISSED = TickEnd(outcome=TickOutcome.MISSED, why="asked for")


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()
        (folder / "steps.py").write_text(FILE)
        self.job = ScheduledJob(
            source=f"{folder / 'steps.py'}:daily", pipeline="steps", tick=TICK.name, span=5, attempt=1,
            root=str(self.root),
        )  # fmt: skip

    @property
    def store(self) -> Store:
        return open_store(str(self.root / "metadata.db"))

    def run(self, **changes: object) -> int:
        """The exit code of a child with this job."""
        child = scheduled_run.start(replace(self.job, **changes))
        return child.wait(timeout=300)

    def said(self, attempt: int = 1) -> str:
        return scheduled_run.last_error(scheduled_run.log_path(self.root, "steps", TICK.name, attempt))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.chdir(tmp_path)
    made = Place(tmp_path)
    store = made.store
    assert claim_tick(store, "steps", TICK, holder=1, now=THREE)
    store.close()
    return made


def test_an_attempt_is_a_run_of_its_tick(place: Place) -> None:
    """With the span of the tick; a second process with the same job does nothing."""
    assert place.run() == 0
    assert place.run() == scheduled_run.TAKEN

    (run,) = place.store.runs("steps")
    assert (run.trigger, run.cause, run.span, run.state) == (Trigger.SCHEDULE, TICK.name, 5, State.COMPLETE)
    entry = read_tick(place.store, "steps", TICK.name)
    assert entry is not None
    assert entry.attempts == 1


def test_the_log_of_a_tick_never_holds_two_histories(place: Place) -> None:
    """After a restore of the metadata the tick is taken again: what the first one printed stays, in a file of its own."""
    log = scheduled_run.log_path(place.root, "steps", TICK.name, 1)
    assert place.run(taken="2026-03-01T03:00:00.5+00:00") == 0
    first = log.read_text()
    assert place.run(taken="2026-03-01T03:00:00.5+00:00") == scheduled_run.TAKEN  # the same taking
    assert log.read_text().startswith(first)
    first = log.read_text()

    place.run(taken="2026-03-01T03:07:00.5+00:00")

    assert log.with_name(f"{log.name}~1").read_text() == first
    assert "Run steps/1" in first
    assert "Run steps/1" not in log.read_text()
    assert "Tick taken" not in place.said()


def test_a_tick_that_has_ended_is_not_run(place: Place) -> None:
    """By a process that was slow to start."""
    entry = read_tick(place.store, "steps", TICK.name)
    assert entry is not None
    end_tick(place.store, entry, MISSED, now=THREE)

    assert place.run() == scheduled_run.TAKEN
    assert list(place.store.runs("steps")) == []


def test_the_next_attempt_takes_up_what_failed(place: Place) -> None:
    """What was done is not done again."""
    (place.folder / "fail").touch()
    assert place.run() == 1
    (place.folder / "fail").unlink()

    assert place.run(attempt=2, base=1) == 0

    again, failed = place.store.runs("steps")
    assert (failed.nodes, again.nodes, again.base) == (("Read", "Work"), ("Work",), 1)
    assert (again.trigger, again.cause, again.span) == (Trigger.SCHEDULE, TICK.name, 5)


def test_the_next_attempt_in_another_folder_runs_all_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that was started elsewhere has other data: one run does not have half of each."""
    (place.folder / "fail").touch()
    assert place.run() == 1
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    assert place.run(attempt=2, base=1) == 0

    assert next(place.store.runs("steps")).nodes == ("Read", "Work")


def test_the_next_attempt_runs_all_again_when_something_newer_exists(place: Place) -> None:
    """Read was run again meanwhile with other code: what the failed attempt had read is out of date."""
    (place.folder / "fail").touch()
    assert place.run() == 1
    (place.folder / "fail").unlink()
    file = place.folder / "steps.py"
    file.write_text(file.read_text().replace('write_text("x")', 'write_text("other")'))
    assert main(["run", f"{file}:steps", "--to", "Read", "--root", str(place.root)]) == 0

    assert place.run(attempt=2, base=1) == 0

    again, *_ = place.store.runs("steps")
    assert (again.nodes, again.base, again.span) == (("Read", "Work"), None, 5)


def test_a_tick_does_not_run_where_the_span_of_a_node_is_not_known(place: Place) -> None:
    """Each has its own, and one was renamed since; it is not given that of another, and what is said tells what to type."""
    both = Pipeline("p", [Days(name="Clicks"), Days(name="Costs")])
    job = replace(place.job, source="p.py:daily", by_node={"Clicks": 20512, "Prices": 20506})

    with pytest.raises(ScheduleError, match="that of Costs is not known") as refused:
        scheduled_run._spans_by_node(job, both)

    assert str(refused.value).endswith("spanwise run p.py:daily --span Clicks=2026-02-28 --span Costs=SPAN")
    with pytest.raises(ScheduleError, match="that of Clicks, Costs is not known"):
        scheduled_run._spans_by_node(replace(job, by_node=None), both)
    assert scheduled_run._spans_by_node(replace(job, by_node={}), both) == {}
    known = {"Clicks": 20512, "Costs": 20506}
    assert scheduled_run._spans_by_node(replace(job, by_node={**known, "Prices": 1}), both) == known


def test_a_run_that_is_in_the_way_is_ended_first(place: Place) -> None:
    """And that it was ended for this tick is announced before."""
    (place.folder / "slow").touch()
    later = Tick(at=THREE.replace(day=2), name="2026-03-02", wall=THREE.replace(day=2), span=6)
    old = scheduled_run.start(place.job)
    while not any(True for _ in place.store.runs("steps")):
        assert old.poll() is None
    claim_tick(place.store, "steps", later, holder=1, now=THREE)

    new = scheduled_run.start(replace(place.job, tick=later.name, span=6, end_others=True))
    assert old.wait(timeout=300) == 1
    (place.folder / "slow").unlink()
    assert new.wait(timeout=300) == 0

    ran, ended = place.store.runs("steps")
    assert (ended.state, ran.state) == (State.CANCELED, State.COMPLETE)
    assert ended.ended is not None
    assert ran.started is not None
    assert ended.ended <= ran.started
    assert read_overrun(place.store, "steps", TICK.name).tick == later.name


def test_a_run_that_is_not_to_be_ended_is_respected(place: Place) -> None:
    """The scheduler decides anew."""
    (place.folder / "slow").touch()
    old = scheduled_run.start(place.job)
    while not any(True for _ in place.store.runs("steps")):
        assert old.poll() is None

    assert place.run(attempt=2) == scheduled_run.HELD
    (place.folder / "slow").unlink()
    assert old.wait(timeout=300) == 0


def test_the_input_is_waited_for(place: Place) -> None:
    """Until it lies there."""
    child = scheduled_run.start(replace(place.job, wait_until="2999-01-01T00:00:00+00:00", poll_s=0.05))
    log = scheduled_run.log_path(place.root, "steps", TICK.name, 1)
    while "waiting for span 5" not in (log.read_text() if log.exists() else ""):
        assert child.poll() is None
    (place.folder / "span-5").touch()

    assert child.wait(timeout=300) == 0


def test_input_that_comes_in_a_pause_starts_no_run(place: Place) -> None:
    """The scheduler makes the attempt after the pause."""
    child = scheduled_run.start(replace(place.job, wait_until="2999-01-01T00:00:00+00:00", poll_s=0.05))
    log = scheduled_run.log_path(place.root, "steps", TICK.name, 1)
    while "waiting for span 5" not in (log.read_text() if log.exists() else ""):
        assert child.poll() is None
    pause_schedule(place.store, "steps", who="ann", why="new disks", now=THREE)
    (place.folder / "span-5").touch()

    assert child.wait(timeout=300) == scheduled_run.PAUSED
    assert log.read_text().endswith("The schedule is paused by ann: new disks; nothing was done.\n")
    assert list(place.store.runs("steps")) == []


def test_no_run_is_ended_for_a_tick_whose_schedule_is_paused(place: Place) -> None:
    """It was paused after the tick was taken, and a run that is active continues."""
    (place.folder / "slow").touch()
    old = scheduled_run.start(place.job)
    while not any(True for _ in place.store.runs("steps")):
        assert old.poll() is None
    pause_schedule(place.store, "steps", who="ann", why="new disks", now=THREE)

    assert place.run(tick="2026-03-02", end_others=True) == scheduled_run.PAUSED
    (place.folder / "slow").unlink()
    assert old.wait(timeout=300) == 0


def test_input_that_does_not_come_in_time_is_a_failure(place: Place) -> None:
    """Before any run has begun; what was said tells what to type."""
    assert place.run(wait_until="2026-01-01T00:00:00+00:00") == 1

    assert "Read found no span 5 until" in place.said()
    assert "spanwise backfill" in place.said()
    assert list(place.store.runs("steps")) == []


def test_input_of_a_part_that_does_not_come_in_time_is_run_by_this_part_alone(place: Place) -> None:
    """What comes after it has a clock of its own."""
    table = Timetable("steps", cron="@daily")
    put_schedule(place.store, ScheduleRecord(timetable=table, since=THREE, last=("Read",)))

    assert place.run(wait_until="2026-01-01T00:00:00+00:00") == 1

    assert place.said().endswith("spanwise run steps.py:daily --span 5 --to Read")


def test_a_file_that_does_not_import_says_so(place: Place) -> None:
    """In the words that the alert will have."""
    (place.folder / "steps.py").write_text("import nothing_of_that_name")

    assert place.run() == 2
    assert "No module named 'nothing_of_that_name'\nIf it is a library, install its package:" in place.said()
