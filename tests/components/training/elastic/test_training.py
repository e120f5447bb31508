"""Trainings by processes: they are killed, stopped and started again, and every row counts once."""

import os
import random
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spanwise.components.training.elastic import training
from spanwise.orchestrator.errors import NodeFailed
from tests.components.training.elastic import jobs
from tests.components.training.elastic.jobs import SUM

WHOLE = {"rows": 180, "sum": 2 * sum(range(90))}


def killed_once(folder, at):
    """A gradient whose worker is killed when it comes to a number, once for each file that is there."""

    def gradient(parameters, batch):
        if at in batch["x"]:
            for kill in Path(folder).glob("kill-*"):
                kill.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return jobs.gradient(parameters, batch)

    return gradient


@pytest.mark.slow
def test_a_worker_that_dies_is_followed_by_another(tmp_path, caplog):
    """Killed in the middle of a task: the batches that counted count once, and the sums are those of a quiet run."""
    task = jobs.task_of(tmp_path, workers=2)
    (tmp_path / "kill-1").touch()

    outcome = training.run_job(replace(SUM, gradient=killed_once(str(tmp_path), 30)), task)

    assert outcome.parameters == WHOLE
    assert (task.model_dir / "rows").read_text() == "180"
    assert [r.reason for r in caplog.records if r.message == "worker-died"] == ["was killed by SIGKILL"]


@pytest.mark.slow
def test_workers_that_die_too_often_end_the_training(tmp_path, monkeypatch):
    """With what is known of the last of them."""
    monkeypatch.setattr(training, "RESTARTS", 1)
    task = jobs.task_of(tmp_path)
    for number in range(2):
        (tmp_path / f"kill-{number}").touch()

    with pytest.raises(NodeFailed, match=r"2 workers died, .* worker 1 \(2\), was killed by SIGKILL with the tasks \d"):
        training.run_job(replace(SUM, gradient=killed_once(str(tmp_path), 30)), task)


KILLS = int(os.environ.get("SPANWISE_TEST_ELASTIC_KILLS", "3"))  # the full form: 100
EPOCHS = 2 * KILLS


@pytest.mark.slow
def test_workers_killed_at_any_moment_change_nothing_but_the_time(tmp_path, monkeypatch, caplog):
    """Whichever is killed, and whenever: every row counts once an epoch, and each evaluation is of all rows."""
    monkeypatch.setattr(training, "RESTARTS", 10**6)
    dice = random.Random(os.environ.get("SPANWISE_TEST_SEED", "spanwise"))
    at_work = tmp_path / "at-work"  # the ids of workers that compute
    at_work.mkdir()
    last = tmp_path / "last-kill"

    def gradient(parameters, batch):
        (at_work / str(os.getpid())).touch()
        time.sleep(0.005)
        while parameters["rows"] > 180 * (EPOCHS - 1) and not last.exists():
            time.sleep(0.005)  # the last epoch ends when all kills are done
        return jobs.gradient(parameters, batch)

    job = replace(jobs.EVALUATED, gradient=gradient, epochs=EPOCHS)
    task = jobs.task_of(tmp_path, workers=3)
    over = threading.Event()
    killed = []

    def kill():
        while len(killed) < KILLS and not over.wait(dice.uniform(0.0, 0.3)):
            busy = [pid for pid in (int(file.name) for file in sorted(at_work.iterdir())) if pid not in killed]
            if busy:
                killed.append(dice.choice(busy))
                os.kill(killed[-1], signal.SIGKILL)
        last.touch()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        outcome = training.run_job(job, task)
    finally:
        over.set()
        killer.join()

    assert outcome.parameters["rows"] == 180 * job.epochs
    assert {found.rows for found in outcome.evaluations} == {90}
    assert outcome.evaluations[-1].metrics["trained"] == 180 * job.epochs
    assert len(killed) == KILLS
    deaths = [r.reason for r in caplog.records if r.message == "worker-died"]
    assert deaths == ["was killed by SIGKILL"] * KILLS
