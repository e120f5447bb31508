"""Pools over pipelines: real runs in processes of their own, on one store."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spanwise.orchestrator import Attempt, Component, Output, Pipeline, PipelineError, Report, Resources, Retry
from spanwise.orchestrator.lease import acquire
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.pool import POLL_S, Pools
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.testing import Trial
from tests.contract.executor_jobs import is_gone

pytestmark = pytest.mark.slow


def start(root, name, work_s):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.scenario.pooled", root, name, str(work_s)],
        cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def diary_of(root):
    file = root / "diary"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def until(condition, within_s=120.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nodes_of_a_pool_of_one_never_overlap(tmp_path):
    """Nine nodes of three pipelines, each in a process of its own: one at a time."""
    open_store(str(tmp_path / "metadata.db")).close()
    runs = [start(tmp_path, name, 0.1) for name in ("a", "b", "c")]
    said = [run.communicate(timeout=300)[0] for run in runs]

    assert [run.returncode for run in runs] == [0, 0, 0], said
    diary = diary_of(tmp_path)
    assert len(diary) == 18
    for begin, end in zip(diary[::2], diary[1::2], strict=True):
        assert (begin[0], end[0], begin[1]) == ("begin", "end", end[1])
    assert any("node-waiting" in text and "the pool 'gpu' is full: " in text for text in said)


def test_the_slot_of_a_killed_run_comes_back(tmp_path):
    """A controller that is SIGKILLed in mid-node: its node dies with it, and only then the next begins."""
    open_store(str(tmp_path / "metadata.db")).close()
    dying = start(tmp_path, "dying", 1000.0)
    until(lambda: diary_of(tmp_path))
    waiting = start(tmp_path, "waiting", 0.01)
    assert any(line.startswith("node-waiting") for line in waiting.stdout)
    held = int(diary_of(tmp_path)[0][2])

    os.kill(dying.pid, signal.SIGKILL)
    dying.communicate()
    waiting.communicate(timeout=120)

    assert waiting.returncode == 0
    assert is_gone(held)
    ended = sorted(line[1] for line in diary_of(tmp_path) if line[0] == "end")
    assert ended == [f"waiting/Train{n}" for n in range(3)]


class Make(Component):
    def run(self, report: Output[Report]) -> None: ...


def test_a_pool_without_a_size_is_refused_before_anything_is_recorded(tmp_path):
    """The message says which line the settings need."""
    trial = Trial(tmp_path)
    with pytest.raises(PipelineError, match=r"\[executor\.pools\] gpu = 1"):
        trial.run(Pipeline("p", [Make(resources=Resources(pool="gpu"))]))

    assert list(trial.store.runs("p")) == []


def test_the_slot_of_a_node_that_outlives_its_controller_says_how_long(tmp_path):
    """So that nobody takes it while an agent on an engine still waits for word of a dead controller."""

    class Elsewhere(LocalExecutor):
        def silence_s(self, node):
            return 60.0 if node == "Make" else 0.0

    trial = Trial(tmp_path)
    gpu = Resources(pool="gpu")
    pipeline = Pipeline("p", [Make(resources=gpu), Make(resources=gpu, name="Here")])
    with Elsewhere(pipeline) as executor:
        request = RunRequest(pools={"gpu": 1}, jobs=1)
        run(pipeline, executor=executor, store=trial.store, root=trial.root, request=request)

    slots = [trial.store.find_claim("slot", f"gpu/1#{token}").facts for token in (1, 2)]
    assert {slot["work"]: slot["silence_s"] for slot in slots} == {"p/1/Make": 75.0, "p/1/Here": 15.0}


class Flaky(Component):
    def run(self, report: Output[Report], attempt: Attempt) -> None:
        assert attempt.number > 1


def test_a_retry_that_waits_for_a_slot_lets_the_processor_rest(tmp_path):
    """Its moment has come and gone; the loop asked the store again and again without a pause."""
    trial = Trial(tmp_path)
    others = Pools(trial.store, acquire(trial.store, "other", "a run"))
    said, pauses, held = [], [], []

    class Watched(LocalExecutor):
        def wait(self, timeout_s):
            if said[-1] == "retry-scheduled" and not held:
                held.append(others.take("gpu", 1, "other/1/Make"))
            if said[-1] == "node-waiting":
                pauses.append(timeout_s)
            if len(pauses) == 3:
                others.release(held[0])
            return super().wait(timeout_s)

    def observe(event):
        said.append(event.what)

    retried = Flaky(resources=Resources(pool="gpu"), retry=Retry(times=1, backoff_s=0.1))
    pipeline = Pipeline("p", [retried])
    with Watched(pipeline) as executor:
        request = RunRequest(pools={"gpu": 1})
        ran = run(pipeline, executor=executor, store=trial.store, root=trial.root, request=request, observe=observe)

    assert ran.succeeded
    assert {*pauses} == {POLL_S}


def test_a_cached_node_takes_no_slot_for_longer_than_a_look(tmp_path):
    """After a run from the cache the pool is free."""
    trial = Trial(tmp_path)
    pipeline = Pipeline("p", [Make(resources=Resources(pool="gpu"))])
    request = RunRequest(pools={"gpu": 1})
    trial.run(pipeline, request)

    second = trial.run(pipeline, request)

    assert second["Make"].reused is not None
    assert trial.store.find_claim("slot", "gpu/1#2").facts["released"] is True
