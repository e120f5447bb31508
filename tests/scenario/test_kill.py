"""Law 6 and law 10: a run killed at any moment leaves nothing half done, and the next one goes through."""

import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest

from spanwise.orchestrator import State, fingerprint
from spanwise.orchestrator.lease import current
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Address
from spanwise.orchestrator.verdict import is_given, read_verdicts
from tests.scenario.processes import Marked, kill

KILLS = int(os.environ.get("SPANWISE_TEST_KILLS", "6"))  # the full form: 50
TWICE = 0.3
DEADLINE_S = 120.0  # of waits for an end; on a quiet machine they take about a second
STEPS = 19  # of a run after its start: nine nodes start and complete, one chooses
OUTPUTS = {
    "Make": {"first", "second"},
    **{node: {"report"} for node in ("Copy0", "Copy1", "Copy2", "Copy3", "Last")},
    "Day": {"examples", "model"},
    "Judge": {"blessing"},
}
PLACES = [(node, key) for node, keys in OUTPUTS.items() for key in keys]
VERDICTS = {"Check": ("accepted", "examples"), "Judge": ("blessed", "model")}  #: what is judged, by node


def killed(root, dice, busy_s):
    """Starts a run and kills it at a random moment, in a random way; returns what was killed, and when.

    The moment lies after a random step of the run, and before its next one, as far as `busy_s`, the time a whole run
    takes from its first record to its last, says when that comes.
    """
    run = Marked("tests.scenario.controller", root)
    try:
        if dice.random() < 0.85:  # most of them after the imports, where the run does something
            step, wait_s = dice.randrange(STEPS), dice.uniform(0.0, busy_s / STEPS)
            run.read_until("run-started")
            run.read_lines(step)
            moment = f"step {step} and {wait_s:.3f} s"
        else:
            wait_s = dice.uniform(0.0, 1.0)
            moment = f"{wait_s:.3f} s"
        time.sleep(wait_s)
        server, keeper = run.server, run.keeper
        whom = dice.choice(["controller", "server", "keeper", "all"])
        victims = {"controller": [run.pid], "server": [server], "keeper": [keeper], "all": [run.pid, server, keeper]}[
            whom
        ]
        dice.shuffle(victims)
        for pid in filter(None, victims):
            kill(pid, signal.SIGKILL)
        run.process.wait(timeout=DEADLINE_S)
        assert run.gone_within(DEADLINE_S) == [], f"after killing {whom}"
        return f"{whom} after {moment}"
    finally:
        run.end()


def succeed(root):
    """Runs to the end, and returns how long it was busy."""
    run = Marked("tests.scenario.controller", root)
    try:
        run.read_until("run-started")
        begun = time.monotonic()
        run.read_until("end complete")
        return time.monotonic() - begun
    finally:
        run.end()


def check(root, store, what, *, after):
    """Holds that every record since run `after` has ended, and that what is visible is whole."""
    for run in store.runs("branching"):
        if run.number <= after:
            return
        assert run.state.ended, f"{run.name} after {what}"
        for execution in store.executions(run):
            assert execution.state.ended, f"{execution.name} after {what}"
            if execution.node in OUTPUTS:
                made = OUTPUTS[execution.node] if execution.state is State.COMPLETE else set()
                assert set(execution.outputs) == made, f"{execution.name} after {what}"
            for artifact in itertools.chain(*execution.outputs.values()):
                assert whole(artifact), f"{artifact} after {what}"
        check_verdicts(store, run, what)


def check_verdicts(store, run, what):
    """Holds that what a judge has published is judged once, and what it has not published not at all."""
    done = {e.node: e for e in store.executions(run) if e.state is State.COMPLETE}
    for judge, (mark, key) in VERDICTS.items():
        for artifact in done["Day"].outputs[key] if "Day" in done else ():
            found = [(v.judge, v.by, v.given) for v in read_verdicts(store, mark, artifact.name)]
            given = mark == "accepted" or run.number % 2 == 1
            assert found == [(judge, run.name, given)] * (judge in done), f"{artifact} after {what}"
    if "Judge" in done:  # it has learned from accepted spans only
        accepted = [span for span in store.spans(Address("branching", "Day", "examples")) if is_accepted(store, span)]
        (read,) = [e for e in store.executions(run) if e.node == "LatestSpans"]
        chosen = [a.properties["span"] for a in read.outputs["examples"]]
        assert chosen == sorted(s for s in accepted if s <= run.number)[-3:], what


def is_accepted(store, span):
    (artifact,) = store.of_span(Address("branching", "Day", "examples"), span)
    return is_given(store, "accepted", artifact)


def whole(artifact):
    return fingerprint.of_tree(artifact.path).digest == artifact.content


def visible(store):
    """Everything that can be found at the addresses of the pipeline, by name."""
    places = [Address("branching", node, key) for node, key in PLACES]
    found = [a for place in places for a in store.newest(place)]
    found += [a for place in places for span in store.spans(place) for a in store.of_span(place, span)]
    return {artifact.name: artifact for artifact in found}


def folders(root):
    return {str(f) for node, key in PLACES for f in Path(root, "branching", node, key).glob("*")}


@pytest.mark.slow
def test_a_run_killed_at_any_moment_leaves_nothing_half_done(tmp_path):
    """Killed anywhere, in any of its processes: nothing runs on, nothing is half visible, no verdict is recorded without
    its judge's outputs or the other way round, and the next run succeeds.
    """
    dice = random.Random(os.environ.get("SPANWISE_TEST_SEED", "spanwise"))
    busy_s = succeed(tmp_path)
    seen, newest, hits = {}, 0, 0

    for _ in range(KILLS):
        what = killed(tmp_path, dice, busy_s)
        if dice.random() < TWICE:  # the second is killed while it puts right what the first has left
            what += f", then {killed(tmp_path, dice, busy_s)}"
        busy_s = succeed(tmp_path)
        store = open_store(str(tmp_path / "metadata.db"))
        check(tmp_path, store, what, after=newest)
        hits += any(run.number > newest and run.state is not State.COMPLETE for run in store.runs("branching"))
        newest = next(store.runs("branching")).number
        now = visible(store)
        assert folders(tmp_path) == {a.uri for a in now.values()}, what
        assert {name: a.content for name, a in now.items() if name in seen} == seen, what
        seen = {name: a.content for name, a in now.items()}
        assert current(store, "branching").released, what
        store.close()

    assert hits > KILLS / 2, "most kills came before the run began or after it had ended, so they tried nothing"
    store = open_store(str(tmp_path / "metadata.db"))
    assert all(whole(artifact) for artifact in visible(store).values())
    store.close()
