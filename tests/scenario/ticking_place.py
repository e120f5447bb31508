"""A place where the pipeline of `ticking.py` is scheduled, and what must hold of its ticks whatever happens there."""

import itertools
import json
import shlex
import time
from contextlib import closing
from pathlib import Path

from spanwise.orchestrator import State
from spanwise.orchestrator.mlmd import open_store
from spanwise.scheduler.ledger.ticks import list_ticks
from spanwise.scheduler.schedule.outcome import Closing, TickOutcome
from tests import warm
from tests.scenario.processes import Marked

FILE = Path(__file__).with_name("ticking.py")
SOON_S = 300.0  # on a machine that does other things too


class Place:
    """A folder with a root, and what happened in it."""

    program = "spanwise"
    schedule = f"{FILE}:often"
    pipeline = "ticking"

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

    def start(self, *words, command="start"):
        with (self.folder / f"log.{len(self.started)}").open("w") as log:
            one = Marked(*self.scheduler(command), *words, stderr=log, stdout=log)
        self.started.append(one)
        return one

    def scheduler(self, command):
        """The module that is started, and its first arguments."""
        return self.program, "schedule", command, self.schedule, "--root", self.root

    def tick(self):
        """One one-shot, to its end; its exit code."""
        return self.start(command="tick").process.wait(SOON_S)

    @property
    def metadata(self):
        """Where the metadata is, once there is any."""
        file = self.root / "metadata.db"
        return str(file) if file.exists() else None

    def entries(self):
        with closing(open_store(self.metadata, root=self.root)) as store:
            return list(list_ticks(store, self.pipeline))[::-1]

    def runs(self):
        with closing(open_store(self.metadata, root=self.root)) as store:
            return list(store.runs(self.pipeline))[::-1]

    def until(self, holds, within_s=SOON_S):
        """Waits until it holds of the entries."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if self.metadata and holds(self.entries()):
                return
            time.sleep(0.2)
        raise AssertionError(f"not within {within_s} s: {self.entries()}\n{self.logs()}")

    def settle(self):
        """Has a last scheduler take over what is open, and end; nothing is left of any that was on this host."""
        self.every(None)
        self.set(sleep="0")
        last = self.start()
        self.until(lambda entries: "schedule-loaded" in self.logs(-1) and all(e.end for e in entries))
        last.process.terminate()
        assert last.process.wait(SOON_S) == 0
        for one in self.started:
            assert not isinstance(one, Marked) or one.gone_within(SOON_S) == []

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
        assert [e.tick.name for e in entries if e.end is None and (settled or e.attempts)] == []
        completed = [r.cause for r in runs if r.state is State.COMPLETE]
        assert sorted(completed) == sorted(set(completed)), "a tick that ran twice"
        assert set(completed) == {e.tick.name for e in entries if e.end and e.end.outcome is TickOutcome.RAN}
        stamps = self.stamps()
        for earlier, later in itertools.pairwise(stamps):
            assert earlier["seen"] <= later["began"], f"{earlier} overlaps {later}"

    def give_up_missed(self):
        """Pastes the commands that give up what is missed; the list is empty then, and says who did it and why."""
        lost = {e.tick.name for e in self.entries() if e.end and e.end.outcome.abnormal and e.closed is None}
        out = self.type("schedule", "missed", code=1 if lost else 0)
        for line in [line for line in out.splitlines() if line.startswith("  spanwise schedule acknowledge")]:
            self.type(*shlex.split(line)[1:], code=0)
        assert self.type("schedule", "missed", code=0) == "No ticks need backfilling.\n"
        closed = {e.tick.name for e in self.entries() if e.closed and e.closed.how is Closing.ACKNOWLEDGED}
        assert lost <= closed

    def type(self, *words, code):
        """Types a command; what it printed."""
        options = [] if "--root" in words else ["--root", str(self.root)]
        done = warm.run(*words, *options, timeout_s=SOON_S)
        assert done.returncode == code, f"{words} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def end(self):
        for one in self.started:
            one.end()
