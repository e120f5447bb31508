"""Runs on engines when something dies: real clusters of several machines, which are processes here."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from spanwise.orchestrator import State
from spanwise.orchestrator.mlmd import open_store
from tests.contract.executor_jobs import is_gone


class OnRay:
    def __init__(self, monkeypatch):
        from tests.contract.ray_cluster import start_ray

        own = ExitStack()
        self._cluster = own.enter_context(start_ray(cpus=0))
        self.engine = f"ray:{self._cluster.address}"
        self.close = own.close
        self.kill = self._cluster.kill

    def add(self, name):
        self._cluster.add(name, cpus=1)


class OnSlurm:
    def __init__(self, monkeypatch):
        from tests.contract.slurm_cluster import SlurmCluster

        self._cluster = SlurmCluster("one", "other", running=())
        monkeypatch.setenv("SLURM_CONF", str(self._cluster.configuration))
        self.engine = "slurm:"
        self.close = self._cluster.close
        self.kill = self._cluster.kill
        self.add = self._cluster.add


class OnKubernetes:
    """Its controllers have the rights of docs/deploy/kubernetes-nodes.yaml, and no more."""

    def __init__(self, monkeypatch):
        from tests.contract.kubernetes_cluster import KubernetesCluster

        self._cluster = KubernetesCluster()
        monkeypatch.setenv("KUBECONFIG", str(self._cluster.limited_kubeconfig()))
        self.engine = f"kubernetes:default#{self._cluster.write_template()}"
        self.close = self._cluster.close
        self.kill = self._cluster.kill
        self.add = self._cluster.add


def on(engine):
    """Skipped where the engine is not asked for."""
    return pytest.param(
        engine,
        id=engine.__name__,
        marks=pytest.mark.skipif(
            f"SPANWISE_TEST_{engine.__name__[2:].upper()}" not in os.environ, reason="make test-engines"
        ),
    )


@pytest.fixture(params=[on(OnRay), on(OnSlurm), on(OnKubernetes)])
def cluster(request, monkeypatch):
    """A cluster without machines."""
    cluster = request.param(monkeypatch)
    yield cluster
    cluster.close()


def start(root, cluster):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.scenario.on_engine", root, cluster.engine],
        cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def pids_of(root):
    file = root / "pids"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def until(condition, within_s=600.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def executions_of(root):
    store = open_store(str(root / "metadata.db"))
    found = {
        run.number: (run.state, [(e.attempt, e.state) for e in store.executions(run)]) for run in store.runs("away")
    }
    store.close()
    return found


def test_a_killed_controller_leaves_nothing_on_the_cluster(tmp_path, cluster):
    """Its node ends with it, nothing of it is published, and the next run begins once that is proven."""
    cluster.add("one")
    run = start(tmp_path, cluster)
    until(lambda: pids_of(tmp_path) or run.poll() is not None)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()

    until(lambda: is_gone(pids_of(tmp_path)[0]))
    (tmp_path / "go").touch()
    after = start(tmp_path, cluster)
    said, _ = after.communicate(timeout=900)

    assert after.returncode == 0, said
    assert executions_of(tmp_path) == {
        1: (State.FAILED, [(1, State.FAILED)]),
        2: (State.COMPLETE, [(1, State.COMPLETE)]),
    }


def test_a_node_whose_machine_is_taken_away_is_tried_again_without_counting(tmp_path, cluster):
    """It allows no retry, and yet it succeeds on another machine."""
    cluster.add("one")
    run = start(tmp_path, cluster)
    until(lambda: pids_of(tmp_path) or run.poll() is not None)

    cluster.kill("one")
    (tmp_path / "go").touch()
    cluster.add("other")
    said, _ = run.communicate(timeout=900)

    assert run.returncode == 0, said
    assert re.search("retry-scheduled Wait Its machine (is gone|was taken away)", said)
    (state, attempts) = executions_of(tmp_path)[1]
    assert (state, sorted(attempts, key=str)) == (State.COMPLETE, [(1, State.FAILED), (2, State.COMPLETE)])
