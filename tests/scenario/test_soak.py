"""A soak: days of daily ticks in moments, under both overrun policies, while schedulers and runs are killed at random."""

import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator import Calendar, State, lease, process
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Address
from spanwise.orchestrator.verdict import is_given
from spanwise.scheduler.ledger.ticks import list_ticks
from spanwise.scheduler.schedule.outcome import Closing, TickOutcome
from tests import warm
from tests.scenario.compressed import Compressed
from tests.scenario.processes import Marked, kill

DAYS = int(os.environ.get("SPANWISE_TEST_SOAK_DAYS", "4"))  # the full form: 30
START = datetime(2025, 3, 5, 12, tzinfo=UTC)  # the fourth night from then on has no 02:30 in New York
ONE_DAY = timedelta(days=1)
MONTHS_S = 1e7
SHORTEST_DAY_S = 1.4
SOON_S = 300.0  # on a machine that does other things too
FILE = Path(__file__).with_name("soaked.py")
POLICIES = ("killandrun", "allowtocomplete")
ACTS = (
    "kill a scheduler",
    "end a scheduler",
    "start another",
    "strike a run",
    "strike a run",
    "leave",
    "give up",
    "overrule",
    *["wait"] * 3,
)


class Soak:
    """A folder with two pipelines in it, and whoever looks after them."""

    def __init__(self, folder, seed, monkeypatch):
        self.folder, self.root = folder, folder / "root"
        self.dice = random.Random(seed)
        self.clock = Compressed(folder)
        self.clock.set(START, pace=0)
        self.started = []
        self.acts = Counter()
        self.given_up = set()
        (folder / "stamps").mkdir()
        (folder / "seed").write_text(seed)
        monkeypatch.setenv("SPANWISE_COMPRESSED", str(folder))
        monkeypatch.setenv("SPANWISE_SOAK_DAYS", str(DAYS))
        monkeypatch.setenv("SPANWISE_GRACE_S", "0.2")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        monkeypatch.chdir(folder)

    @property
    def days(self):
        """How many have gone by."""
        return (self.clock.now() - START) / ONE_DAY

    def start(self):
        with (self.folder / f"log.{len(self.started)}").open("w") as log:
            one = Marked("tests.scenario.compressed", FILE, self.root, MONTHS_S, stdout=log, stderr=log)
        self.started.append(one)

    @property
    def living(self):
        return [one for one in self.started if one.process.poll() is None]

    def logs(self):
        return "\n".join((self.folder / f"log.{n}").read_text() for n in range(len(self.started)))

    def until(self, holds):
        deadline = time.monotonic() + SOON_S
        while not holds():
            assert time.monotonic() < deadline, f"not within {SOON_S} s\n{self.logs()}"
            time.sleep(0.05)

    def begin(self):
        """Has a first scheduler know the schedules, then lets the clock go, the slower the busier the machine is."""
        began = time.monotonic()
        self.start()
        self.until(lambda: self.logs().count("schedule-loaded") == len(POLICIES))
        self.day_s = max(SHORTEST_DAY_S, time.monotonic() - began)
        (self.folder / "day_s").write_text(str(self.day_s))
        self.clock.set(START, pace=ONE_DAY.total_seconds() / self.day_s)

    def play(self):
        """Does as the dice say, until the last day is over; whoever has died comes back after a while."""
        deck = []
        while self.days < DAYS:
            self.wait(self.dice.uniform(0.1, 0.6))
            if not self.living:
                self.start()
                continue
            deck = deck or self.dice.sample(ACTS, len(ACTS))
            self.act(deck.pop())

    def wait(self, days):
        until = self.days + days
        while self.days < until:
            time.sleep(0.01)

    def act(self, act):
        self.acts[act] += 1
        match act:
            case "kill a scheduler":
                kill(self.dice.choice(self.living).pid)
            case "end a scheduler":
                kill(self.dice.choice(self.living).pid, signal.SIGTERM)
            case "start another":
                if len(self.living) < 2:
                    self.start()
            case "strike a run":
                self.strike()
            case "leave":
                for one in self.living:
                    kill(one.pid)
                self.wait(1.6)
            case "give up" | "overrule":
                getattr(self, act.replace(" ", "_"))()
            case "wait":
                self.wait(0.4)

    def strike(self):
        schedulers = {one.pid for one in self.started}
        at_work = sorted({pid for one in self.started for pid in one.alive()} - schedulers)
        if at_work:
            kill(self.dice.choice(at_work))

    def give_up(self):
        """A person acknowledges a missed tick, while schedulers come and go."""
        missed = [entry for policy in POLICIES for entry in self.entries(policy) if is_missed(entry)]
        if missed:
            chosen = self.dice.choice(missed)
            given = ("--tick", chosen.tick.name, "--because", "so the dice said")
            code, done, errors = self.command("schedule", "acknowledge", chosen.key, *given)
            assert (code, [each["tick"] for each in done]) == (0, [chosen.tick.name]), errors
            self.given_up.add(chosen.name)

    def overrule(self):
        """A person accepts or refuses a span that was published, whatever the gate has said."""
        there = [(p, span) for p in POLICIES for span in self.reading(lambda s, p=p: list(s.spans(ingested(p))))]
        if there:
            policy, span = self.dice.choice(there)
            verb = self.dice.choice(["accept", "refuse"])
            code, _, errors = self.command(
                verb, f"{FILE}:{policy}", "--span", Calendar.DAY.label(span), "--because", "so the dice said"
            )
            assert code == 0, errors

    def settle(self):
        """Has one scheduler come to an end with all that is left; all of them are gone then."""

        def over():
            if not self.living:
                self.start()
            return all(len(self.ended(policy)) == DAYS for policy in POLICIES)

        self.until(over)
        for one in self.living:
            one.process.terminate()
        for one in self.started:
            assert one.process.wait(SOON_S) in (0, -signal.SIGTERM, -signal.SIGKILL)

    def reading(self, read):
        store = open_store(str(self.root / "metadata.db"))
        try:
            return read(store)
        finally:
            store.close()

    def entries(self, policy):
        return self.reading(lambda store: list(list_ticks(store, policy)))[::-1]

    def ended(self, policy):
        return [entry for entry in self.entries(policy) if entry.settled]

    def runs(self, policy):
        return self.reading(lambda store: list(store.runs(policy)))[::-1]

    def leases(self, policy):
        def read(store):
            newest = lease.current(store, policy)
            return [lease.read(store, policy, token) for token in range(1, newest.token + 1)]

        return self.reading(read)

    def stamps(self, policy):
        found = [json.loads(path.read_text()) for path in (self.folder / "stamps").glob(f"{policy}.*.json")]
        return sorted(found, key=lambda stamp: stamp["began"])

    def command(self, *words):
        done = warm.run(*words, "--root", self.root, "--json", timeout_s=SOON_S + DAYS * SOON_S / 6)
        return done.returncode, json.loads(done.stdout), done.stderr

    def end(self):
        for one in self.started:
            one.end()


@pytest.fixture
def soak(tmp_path, monkeypatch):
    seed = os.environ.get("SPANWISE_TEST_SEED", "spanwise")
    sys.stdout.write(f"SPANWISE_TEST_SEED={seed}\n")
    made = Soak(tmp_path, seed, monkeypatch)
    yield made
    made.end()


@pytest.mark.slow
def test_daily_ticks_come_to_one_end_each_whatever_happens(soak):
    """Overruns, kills, restarts, times with two schedulers and with none, people who overrule a gate: each tick ends
    once, no two runs overlap, nothing is left, nothing is learned from a span that was not accepted then, and what was
    lost is listed and made good by one backfill.
    """
    soak.begin()
    soak.play()
    soak.settle()

    for policy in POLICIES:
        check_ledger(soak, policy)
        check_runs(soak, policy)
    check_nothing_left(soak)
    make_good(soak)
    check_nothing_left(soak)
    for policy in POLICIES:
        check_verdicts(soak, policy)
    tell(soak)


def check_ledger(soak, policy):
    """Each day has its tick, with one outcome, and each attempt at it was one run."""
    entries, runs = soak.entries(policy), soak.runs(policy)
    days = [START.date() + ONE_DAY * (1 + n) for n in range(DAYS)]
    assert [entry.tick.name for entry in entries] == [f"{day}T02:30" for day in days]
    assert [entry.number for entry in entries] == list(range(1, DAYS + 1))
    causes = Counter(run.cause for run in runs)
    assert {entry.tick.name: entry.attempts for entry in entries if entry.attempts} == causes
    complete = sorted(run.cause for run in runs if run.state is State.COMPLETE)
    assert complete == [entry.tick.name for entry in entries if entry.end.outcome is TickOutcome.RAN]
    lost = {"killandrun": TickOutcome.SKIPPED, "allowtocomplete": TickOutcome.KILLED}[policy]
    assert lost not in {entry.end.outcome for entry in entries}


def check_runs(soak, policy):
    """By the runs' own stamps: none began before the one before it was last at work; none is in the ledger alone."""
    stamps = soak.stamps(policy)
    for earlier, later in itertools.pairwise(stamps):
        assert earlier["seen"] < later["began"], f"{earlier} overlaps {later}"
    attempts = {entry.tick.name: entry.attempts for entry in soak.entries(policy)}
    at_work = Counter(stamp["tick"] for stamp in stamps)
    assert {tick: count for tick, count in at_work.items() if count > attempts[tick]} == {}
    assert {run.number for run in soak.runs(policy) if run.state is State.COMPLETE} <= {s["run"] for s in stamps}


def check_verdicts(soak, policy):
    """Nothing was learned from a span that was not accepted by then, nor compared with a model that was not blessed."""

    def read(store):
        for run in store.runs(policy):
            executions = {e.node: e for e in store.executions(run) if e.state.succeeded}
            for judge, mark in (("LatestSpans", "accepted"), ("LatestBlessed", "blessed")):
                if (chosen := executions.get(judge)) is not None:
                    for artifact in itertools.chain(*chosen.outputs.values()):
                        assert is_given(store, mark, artifact, as_of=chosen.ended), f"{artifact} in {run.name}"
            judged = {e.node for e in executions.values() if e.node in ("Check", "Judge")}
            if run.state is State.COMPLETE:
                assert judged == {"Check", "Judge"}, run.name

    soak.reading(read)


def ingested(policy):
    return Address(policy, "Ingest", "examples")


def check_nothing_left(soak):
    """No process, no lease, no open record, of any run there ever was."""
    assert [pid for one in soak.started for pid in one.gone_within(SOON_S)] == []
    for policy in POLICIES:
        leases = soak.leases(policy)
        assert [held.name for held in leases if not (held.released or held.closed)] == []
        assert [left for held in leases if held.mark for left in process.find_survivors(held.mark)] == []
        assert [run.name for run in soak.runs(policy) if not run.state.ended] == []


def is_missed(entry):
    """Whether a tick needs backfilling."""
    return entry.end is not None and entry.end.outcome.abnormal and entry.closed is None


def make_good(soak):
    """What did not run is listed, and is run by one command for each pipeline."""
    lost = {p: [e.tick.name for e in soak.entries(p) if is_missed(e)] for p in POLICIES}
    code, listed, _ = soak.command("schedule", "missed")
    assert code == any(lost.values())
    assert {p: sorted(each["tick"] for each in listed if each["pipeline"] == p) for p in POLICIES} == lost

    for policy in [policy for policy in POLICIES if lost[policy]]:
        code, done, errors = soak.command("backfill", f"{FILE}:{policy}", "--missed")
        if code:  # what the gate refuses
            for each in done["failed"]:
                label = Calendar.DAY.label(each["span"]) if isinstance(each, dict) else each
                assert soak.command("accept", f"{FILE}:{policy}", "--span", label, "--because", "a holiday")[0] == 0
            code, done, errors = soak.command("backfill", "--resume", done["backfill"])
        assert (code, done["stage"]) == (0, "complete"), errors

    assert soak.command("schedule", "missed")[:2] == (0, [])
    for policy in POLICIES:
        good = {run.number: run for run in soak.runs(policy) if run.state is State.COMPLETE}
        for entry in soak.entries(policy):
            if entry.name in soak.given_up:
                assert (entry.closed.how, entry.closed.because) == (Closing.ACKNOWLEDGED, "so the dice said")
                continue
            made = good[entry.closed.run if entry.closed else entry.end.run]
            assert made.span == entry.tick.span


def tell(soak):
    """For whoever runs it with -s."""
    lines = [f"{soak.day_s:.1f} s a day; {len(soak.started)} schedulers; {dict(soak.acts)}"]
    for policy in POLICIES:
        outcomes = Counter(entry.end.outcome.value for entry in soak.entries(policy))
        gap_s = min(later["began"] - earlier["seen"] for earlier, later in itertools.pairwise(soak.stamps(policy)))
        lines.append(f"{policy}: {dict(outcomes)}; {len(soak.runs(policy))} runs, the closest two {gap_s:.2f} s apart")
    sys.stdout.write("\n".join(lines) + "\n")
