"""Elastic trainings inside a run: what is killed goes on where it was, and nothing of it is left."""

import json
import signal

import pytest

from tests.scenario.processes import Marked, kill
from tests.servers import eventually


@pytest.mark.slow
def test_a_killed_trainer_goes_on_with_the_tasks_that_are_left(tmp_path):
    """The second attempt has the parameters and the table that were saved together: every row counts once an epoch."""
    (tmp_path / "kill").touch()
    run = Marked("tests.scenario.elastic", tmp_path)
    try:
        told, _ = run.process.communicate(timeout=300)
    finally:
        run.end()

    found = json.loads(told.splitlines()[-1])
    assert found == {"state": "complete", "attempt": 2, "rows": 1200, "sum": 4 * sum(range(300)), "version": 120}
    logs = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert "job-resumed version=" in logs
    assert "job-resumed version=0 " not in logs


@pytest.mark.slow
def test_a_trainer_calls_its_function_in_as_many_processes_as_it_has_replicas(tmp_path):
    """Each with its rank."""
    run = Marked("tests.scenario.elastic", tmp_path, "step")
    try:
        told, _ = run.process.communicate(timeout=120)
    finally:
        run.end()

    assert json.loads(told.splitlines()[-1]) == ["0", "1"]


@pytest.mark.slow
def test_workers_end_with_their_run(tmp_path):
    """Whoever is killed, the controller or the Trainer's node: no worker lives on."""
    run = Marked("tests.scenario.elastic", tmp_path, "forever")
    try:
        eventually((tmp_path / "working").exists, within_s=120)
        kill(run.pid, signal.SIGKILL)
        assert run.gone_within(300) == []
    finally:
        run.end()
