"""The clock on real processes: each tick once, no two runs at once, whatever is killed, frozen, locked or set."""

import itertools
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from orchestrator import State
from orchestrator.mlmd import open_store
from scheduler import ledger
from scheduler.ledger import Outcome
from tests.scenario.processes import Marked, kill

KILLS = int(os.environ.get("SPANWISE_TEST_KILLS", "2"))  # the full form: 50
PAIRS = int(os.environ.get("SPANWISE_TEST_PAIRS", "5"))  # the full form: 100
FILE = Path(__file__).with_name("ticking.py")
SOON_S = 60.0


class Place:
    """A folder with a root, and what happened in it."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.root = folder / "root"
        (folder / "stamps").mkdir()
        self.monkeypatch = monkeypatch
        monkeypatch.setenv("SPANWISE_TICKING", str(folder))
        monkeypatch.chdir(folder)
        self.set(sleep="0.1")
        self.started = []

    def set(self, **contents):
        for name, text in contents.items():
            (self.folder / name).write_text(text)

    def every(self, seconds, policy="allowtocomplete"):
        """What the schedulers that are started from now on go by."""
        self.monkeypatch.setenv("SPANWISE_TICKING_CRON", f"* * * * * */{seconds}" if seconds else "@yearly")
        self.monkeypatch.setenv("SPANWISE_TICKING_POLICY", policy)

    def start(self, *words, command="start", root=None):
        reference = [f"{FILE}:often", "--root", root or self.root]
        with (self.folder / f"log.{len(self.started)}").open("w") as log:
            one = Marked("scheduler", "schedule", command, *reference, *words, stderr=log, stdout=log)
        self.started.append(one)
        return one

    def tick(self):
        """One one-shot, to its end; its exit code."""
        return self.start(command="tick").process.wait(SOON_S)

    def entries(self):
        store = open_store(str(self.root / "metadata.db"))
        found = list(ledger.entries(store, "ticking"))[::-1]
        store.close()
        return found

    def runs(self):
        store = open_store(str(self.root / "metadata.db"))
        found = list(store.runs("ticking"))[::-1]
        store.close()
        return found

    def until(self, holds):
        """Waits until it holds of the entries."""
        deadline = time.monotonic() + SOON_S
        while time.monotonic() < deadline:
            if (self.root / "metadata.db").exists() and holds(self.entries()):
                return
            time.sleep(0.1)
        raise AssertionError(f"not within {SOON_S} s: {self.entries()}\n{self.logs()}")

    def logs(self, which=slice(None)):
        texts = [(self.folder / f"log.{n}").read_text() for n in range(len(self.started))]
        return texts[which] if isinstance(which, int) else "\n".join(texts[which])

    def stamps(self):
        found = [json.loads(path.read_text()) for path in (self.folder / "stamps").glob("*.json")]
        return sorted(found, key=lambda stamp: stamp["began"])

    def check(self, *, settled=True):
        """What holds after anything: each tick ended once and in order, each ran at most once, no two runs at once."""
        entries, runs = self.entries(), self.runs()
        assert [e.number for e in entries] == list(range(1, len(entries) + 1))
        assert [e.tick.at for e in entries] == sorted({e.tick.at for e in entries})
        assert [e.tick.name for e in entries if e.ending is None and (settled or e.attempts)] == []
        completed = [r.cause for r in runs if r.state is State.COMPLETE]
        assert sorted(completed) == sorted(set(completed)), "a tick that ran twice"
        assert set(completed) == {e.tick.name for e in entries if e.ending and e.ending.outcome is Outcome.RAN}
        stamps = self.stamps()
        for earlier, later in itertools.pairwise(stamps):
            assert earlier["seen"] <= later["began"], f"{earlier} overlaps {later}"

    def end(self):
        for one in self.started:
            one.end()


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = Place(tmp_path, monkeypatch)
    yield made
    made.end()


def settle(place):
    """Has a last scheduler take over what is open, and end."""
    place.every(None)
    place.set(sleep="0")
    last = place.start()
    place.until(lambda entries: "schedule-loaded" in place.logs(-1) and all(e.ending for e in entries))
    last.process.terminate()
    assert last.process.wait(SOON_S) == 0
    for one in place.started:
        assert one.gone_within(SOON_S) == []


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

    settle(place)

    place.check()


@pytest.mark.slow
def test_two_schedulers_started_at_once_run_no_tick_twice(place):
    """Each tick is taken by one of them, however close they come; each has a root of its own, on one database."""
    place.monkeypatch.setenv("SPANWISE_METADATA", str(place.root / "metadata.db"))
    place.root.mkdir()
    place.every(1)
    for _ in range(PAIRS):
        pair = [place.start(), place.start(root=place.folder / "other")]
        count = len(place.entries()) if (place.root / "metadata.db").exists() else 0
        place.until(lambda entries, count=count: len(entries) > count)
        place.until(lambda _: all("schedule-loaded" in place.logs(n) for n in (-1, -2)))  # both take signals by then
        for one in pair:
            one.process.terminate()
        for one in pair:
            assert one.process.wait(SOON_S) == 0

    settle(place)

    place.check()


@pytest.mark.slow
def test_an_overrun_kills_all_of_the_old_run_before_the_new_begins(place):
    """Also when it ignores SIGTERM and has left a daemon in a session of its own: `killandrun`."""
    place.monkeypatch.setenv("SPANWISE_GRACE_S", "0.5")
    place.set(sleep="600", stubborn="", daemon="")
    place.every(6, "killandrun")
    one = place.start()
    place.until(lambda entries: len(place.stamps()) == 1)
    place.set(sleep="0.1")
    for name in ("stubborn", "daemon"):
        (place.folder / name).unlink()

    place.until(lambda entries: [e.ending.outcome for e in entries if e.ending][:2] == [Outcome.KILLED, Outcome.RAN])

    killed, ran = place.entries()[:2]
    assert killed.ending.why == f"ended for the tick {ran.tick.name}"
    one.process.terminate()
    assert one.process.wait(SOON_S) == 0
    assert one.gone_within(SOON_S) == []
    place.check(settled=False)
    assert "overrun" in "".join(path.read_text() for path in (place.root / "alerts").rglob("*.json"))


@pytest.mark.slow
def test_an_overrun_leaves_the_old_run_alone(place):
    """And records the tick as skipped: `allowtocomplete`."""
    place.set(sleep="3")
    place.every(2)
    one = place.start()

    place.until(lambda entries: {Outcome.SKIPPED, Outcome.RAN} <= {e.ending.outcome for e in entries if e.ending})

    one.process.terminate()
    assert one.process.wait(SOON_S) == 0
    place.check(settled=False)
    first = place.entries()[0]
    assert first.ending.outcome is Outcome.RAN


@pytest.mark.slow
def test_a_run_outlives_its_scheduler_and_is_taken_over(place):
    """The run of a scheduler that was killed goes on, and the next scheduler records how it ended."""
    place.set(sleep="4")
    place.every(2)
    place.start()
    place.until(lambda entries: place.stamps())
    kill(place.started[0].pid, signal.SIGKILL)
    settled = place.stamps()[0]["tick"]
    place.every(None)

    place.start()
    place.until(lambda entries: all(e.ending for e in entries if e.tick.name == settled))

    (entry,) = [e for e in place.entries() if e.tick.name == settled]
    assert (entry.ending.outcome, entry.attempts) == (Outcome.RAN, 1)


@pytest.mark.slow
def test_a_killed_run_is_closed_and_told(place):
    """SIGKILL of a run: its tick has failed, its records are closed, and an alert says so."""
    place.set(sleep="600")
    place.every(4)
    place.start()
    place.until(lambda entries: place.stamps())
    (run,) = place.runs()[:1]
    place.set(sleep="0")
    kill(run.pid, signal.SIGKILL)

    place.until(lambda entries: entries[0].ending is not None)

    (entry,) = place.entries()[:1]
    assert entry.ending.outcome is Outcome.FAILED
    assert place.runs()[0].state is State.FAILED
    assert "failure" in "".join(path.read_text() for path in (place.root / "alerts").rglob("*.json"))
