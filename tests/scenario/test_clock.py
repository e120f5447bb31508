"""The clock on real processes: each tick once, no two runs at once, whatever is killed, frozen, locked or set."""

import contextlib
import fcntl
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator import State
from spanwise.scheduler.schedule.outcome import TickOutcome
from tests.scenario.compressed import Compressed
from tests.scenario.processes import kill
from tests.scenario.ticking_place import SOON_S, Place

KILLS = int(os.environ.get("SPANWISE_TEST_KILLS", "1"))  # the full form: 50
PAIRS = int(os.environ.get("SPANWISE_TEST_PAIRS", "2"))  # the full form: 100
LOCKED_S = float(os.environ.get("SPANWISE_TEST_LOCKED_S", "3"))  # the full form: 35, more than a write waits for
DISK_KIB = 4096
NOON = datetime(2025, 3, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class HourlyPlace(Place):
    """A tick each hour, by a clock that the test puts forward."""

    jump_s = 1e7

    def __init__(self, folder, monkeypatch):
        super().__init__(folder, monkeypatch)
        self.clock = Compressed(folder)
        self.clock.set(NOON + HOUR / 2, pace=1)
        monkeypatch.setenv("SPANWISE_COMPRESSED", str(folder))
        monkeypatch.setenv("SPANWISE_TICKING_CRON", "0 * * * *")

    def scheduler(self, command):
        return "tests.scenario.compressed", self.schedule, self.root, self.jump_s

    def start_loaded(self, *words):
        """Starts a scheduler, and waits until it has loaded its file: it takes the ticks from then on."""
        one = self.start(*words)
        self.until(lambda _: "schedule-loaded" in self.logs(-1))
        return one

    def strike(self, hours):
        """So many hours after noon."""
        self.clock.set(NOON + hours * HOUR, pace=1)


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = Place(tmp_path, monkeypatch)
    yield made
    made.end()


@pytest.fixture
def hourly(tmp_path, monkeypatch):
    made = HourlyPlace(tmp_path, monkeypatch)
    yield made
    made.end()


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "sleep"), [("allowtocomplete", "0.1"), ("killandrun", "1.5")])
def test_a_scheduler_killed_at_any_moment_loses_no_tick(place, policy, sleep):
    """SIGKILL at random moments while ticks fall due: afterwards each tick has one outcome and ran at most once."""
    dice = random.Random(os.environ.get("SPANWISE_TEST_SEED", "spanwise"))
    place.set(sleep=sleep)
    place.every(1 if policy == "allowtocomplete" else 3, policy)
    place.start()
    place.until(lambda entries: entries)
    for _ in range(KILLS):
        before = place.started[-1]
        kill(before.pid, signal.SIGKILL)
        before.process.wait()
        place.start()
        time.sleep(dice.uniform(0.5, 4.0))
    count = len(place.entries())
    place.until(lambda entries: len(entries) > count)
    kill(place.started[-1].pid, signal.SIGKILL)

    place.settle()

    place.check()
    place.give_up_missed()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["allowtocomplete", "killandrun"])
def test_a_run_that_succeeded_ran_although_its_lineage_server_never_answers(hourly, policy):
    """A server that accepts and is silent makes the process slow to exit, and nothing else of it."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        hourly.monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        hourly.monkeypatch.setenv("SPANWISE_TICKING_POLICY", policy)
        hourly.set(sleep="0")
        scheduler = hourly.start_loaded("--let-finish")
        for count in (1, 2):  # the second while the process of the first exits
            hourly.strike(count)
            hourly.until(lambda _, count=count: sum(run.state is State.COMPLETE for run in hourly.runs()) == count)
        scheduler.process.terminate()
        assert scheduler.process.wait(SOON_S) == 0

    hourly.check()
    complete = {run.cause for run in hourly.runs() if run.state is State.COMPLETE}
    assert len(complete) > 1
    outcomes = {entry.tick.name: entry.end.outcome for entry in hourly.entries()}
    assert {outcomes[tick] for tick in complete} == {TickOutcome.RAN}
    assert [entry.end.why for entry in hourly.entries() if "had not ended" in entry.end.why] == []
    assert [entry.end.why for entry in hourly.entries() if "before its run had begun" in entry.end.why] == []


@pytest.mark.slow
def test_two_schedulers_started_at_once_run_no_tick_twice(place):
    """Each tick is taken by one of them, however close they come."""
    place.every(1)
    for _ in range(PAIRS):
        pair = [place.start(), place.start()]
        count = len(place.entries()) if place.metadata else 0
        place.until(lambda entries, count=count: len(entries) > count)
        place.until(lambda _: all("schedule-loaded" in place.logs(n) for n in (-1, -2)))  # both take signals by then
        for one in pair:
            one.process.terminate()
        for one in pair:
            assert one.process.wait(SOON_S) == 0

    place.settle()

    place.check()


@pytest.mark.slow
def test_an_overrun_kills_all_of_the_old_run_before_the_new_begins(hourly):
    """Also when it ignores SIGTERM and has left a daemon in a session of its own: `killandrun`."""
    hourly.monkeypatch.setenv("SPANWISE_GRACE_S", "0.5")
    hourly.set(sleep="600", stubborn="", daemon="")
    hourly.monkeypatch.setenv("SPANWISE_TICKING_POLICY", "killandrun")
    one = hourly.start_loaded()
    hourly.strike(1)
    hourly.until(lambda entries: len(hourly.stamps()) == 1)
    hourly.set(sleep="0.1")
    for name in ("stubborn", "daemon"):
        (hourly.folder / name).unlink()

    hourly.strike(2)
    hourly.until(lambda entries: any(e.end and e.end.outcome is TickOutcome.RAN for e in entries))

    killed, following = hourly.entries()
    assert killed.end.why == f"ended for the tick {following.tick.name} (overrun policy killandrun)"
    assert hourly.runs()[0].error.startswith(f"stopped by the scheduler, for the tick {following.tick.name}")
    assert [killed.end.outcome, following.end.outcome] == [TickOutcome.KILLED, TickOutcome.RAN]
    one.process.terminate()
    assert one.process.wait(SOON_S) == 0
    assert one.gone_within(SOON_S) == []
    hourly.check(settled=False)
    assert "overrun" in "".join(path.read_text() for path in (hourly.root / "alerts").rglob("*.json"))


@pytest.mark.slow
def test_an_overrun_leaves_the_old_run_alone(hourly):
    """And records the tick as skipped: `allowtocomplete`."""
    hourly.set(sleep="2")
    one = hourly.start_loaded()
    hourly.strike(1)
    hourly.until(lambda entries: hourly.stamps())

    hourly.strike(2)
    hourly.until(lambda entries: {TickOutcome.SKIPPED, TickOutcome.RAN} <= {e.end.outcome for e in entries if e.end})

    one.process.terminate()
    assert one.process.wait(SOON_S) == 0
    hourly.check(settled=False)
    first = hourly.entries()[0]
    assert first.end.outcome is TickOutcome.RAN


@pytest.mark.slow
def test_a_run_outlives_its_scheduler_and_is_taken_over(hourly):
    """The run of a scheduler that was killed goes on, and the next scheduler records how it ended."""
    hourly.set(sleep="3")
    hourly.start_loaded()
    hourly.strike(1)
    hourly.until(lambda entries: hourly.stamps())
    kill(hourly.started[0].pid, signal.SIGKILL)
    settled = hourly.stamps()[0]["tick"]

    hourly.start()
    hourly.until(lambda entries: all(e.end for e in entries if e.tick.name == settled))

    (entry,) = [e for e in hourly.entries() if e.tick.name == settled]
    assert (entry.end.outcome, entry.attempts) == (TickOutcome.RAN, 1)


@pytest.mark.slow
def test_a_stopped_scheduler_ends_the_runs_that_it_has_adopted(hourly):
    """SIGTERM leaves nothing: neither a run that an earlier scheduler began, nor an open tick of it."""
    hourly.set(sleep="600")
    first = hourly.start_loaded()
    hourly.strike(1)
    hourly.until(lambda entries: hourly.stamps())
    kill(first.pid, signal.SIGKILL)
    first.process.wait()
    second = hourly.start()
    hourly.until(lambda entries: "tick-adopted" in hourly.logs(-1))

    second.process.terminate()
    assert second.process.wait(SOON_S) == 0

    (run,) = hourly.runs()
    (entry,) = [entry for entry in hourly.entries() if entry.attempts]
    assert (entry.end.outcome, entry.end.why) == (TickOutcome.FAILED, "the scheduler was stopped")
    assert (run.state, run.error) == (State.CANCELED, "stopped by the scheduler: the scheduler was stopped")
    assert [one.gone_within(SOON_S) for one in hourly.started] == [[], []]


@pytest.mark.slow
def test_a_killed_run_is_closed_and_an_alert_says_so(hourly):
    """SIGKILL of a run: its tick has failed, its records are closed, and an alert says so."""
    hourly.set(sleep="600")
    hourly.start_loaded()
    hourly.strike(1)
    hourly.until(lambda entries: hourly.stamps())
    (run,) = hourly.runs()[:1]
    hourly.set(sleep="0")
    kill(run.pid, signal.SIGKILL)

    hourly.until(lambda entries: entries[0].end is not None)

    (entry,) = hourly.entries()[:1]
    assert entry.end.outcome is TickOutcome.FAILED
    assert hourly.runs()[0].state is State.FAILED
    assert "failure" in "".join(path.read_text() for path in (hourly.root / "alerts").rglob("*.json"))


@contextlib.contextmanager
def disk(where):
    """A small disk of its own. Tests of it are `needs_mount`."""
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "spanwise-test", where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)


needs_mount = pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("unshare") is None
    or subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0,
    reason="only root may mount a small disk, and not in every container",
)


@needs_mount
@pytest.mark.slow
def test_a_full_disk_loses_no_tick(place):
    """The scheduler goes on, and once there is room, so do the runs; what could not be done is told and listed."""
    with disk(place.root):
        place.every(1)
        one = place.start()
        place.until(lambda entries: any(e.end for e in entries))
        fill(place.root / "ballast")
        wait_for_trouble(place)
        assert one.process.poll() is None
        (place.root / "ballast").unlink()
        count = sum(run.state is State.COMPLETE for run in place.runs())

        place.until(lambda entries: sum(run.state is State.COMPLETE for run in place.runs()) > count + 1)

        one.process.terminate()
        assert one.process.wait(SOON_S) == 0
        place.settle()
        place.check()


def fill(file):
    """Takes all the room there is."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(1024))


def wait_for_trouble(place):
    """Until the scheduler has said more than once that it cannot work."""
    deadline = time.monotonic() + SOON_S
    while sum(place.logs().count(word) for word in ("metadata-failed", "pipeline-failed", "outcome=failed")) < 3:
        assert time.monotonic() < deadline, place.logs()
        time.sleep(0.1)


@pytest.mark.slow
def test_a_locked_database_is_waited_for(place):
    """However long that takes, the scheduler goes on afterwards with all that came meanwhile."""
    place.every(1)
    one = place.start()
    place.until(lambda entries: len(entries) > 1)
    with (place.root / "metadata.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        time.sleep(LOCKED_S)
        assert one.process.poll() is None
    count = len(place.entries())

    place.until(lambda entries: len(entries) > count + 2)

    one.process.terminate()
    assert one.process.wait(SOON_S) == 0
    place.settle()
    place.check()
    missing = [
        later.tick.at
        for earlier, later in itertools.pairwise(place.entries())
        if later.tick.at - earlier.tick.at > timedelta(seconds=1)
    ]
    assert missing == []


@pytest.mark.slow
def test_a_clock_that_is_set_by_hours_runs_nothing_twice(hourly):
    """Forward: the newest tick that it passed over runs, the others are missed. Back: nothing runs until it is again
    as late as it was.
    """
    hourly.jump_s = 30
    scheduler, clock = hourly.start_loaded(), hourly.clock

    hourly.strike(5.5)
    hourly.until(lambda entries: len([e for e in entries if e.settled]) == 5)
    clock.set(NOON + 2 * HOUR - timedelta(seconds=20), pace=10)  # the tick of 14:00 comes again in two seconds
    hourly.until(lambda entries: "clock-changed by_s=-12" in hourly.logs())
    hourly.until(lambda entries: clock.now() > NOON + 2 * HOUR + timedelta(seconds=10))
    assert len(hourly.entries()) == 5
    hourly.strike(6.01)
    hourly.until(lambda entries: len([e for e in entries if e.settled]) == 6)

    scheduler.process.terminate()
    assert scheduler.process.wait(SOON_S) == 0
    assert [e.end.outcome for e in hourly.entries()] == [*[TickOutcome.MISSED] * 4, TickOutcome.RAN, TickOutcome.RAN]
    assert [run.cause for run in hourly.runs()] == ["2025-03-05T17:00Z", "2025-03-05T18:00Z"]
    hourly.check()
