"""One function in several processes that go in step."""

import json
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from spanwise.components import Trainer
from spanwise.components.training.elastic import replicas
from spanwise.components.training.elastic.replicas import run_replicas
from spanwise.orchestrator.errors import NodeFailed, PipelineError
from tests.components.flow import Lake
from tests.components.training.elastic import jobs

TORCH = os.environ.get("SPANWISE_TEST_TORCH", "/tmp/torch")
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


def note(task):
    """Every replica says who it is."""
    said = {name: os.environ[name] for name in VARIABLES}
    (task.model_dir / str(task.rank)).write_text(json.dumps(said))


def die_once(task):
    """The second replica is killed in its first life; the first waits for it, as all-reduce does."""
    lives = task.checkpoints / "lives"
    if task.rank == 1:
        lives.write_text(lives.read_text() + "x" if lives.exists() else "x")
        if lives.read_text() == "x":
            os.kill(os.getpid(), signal.SIGKILL)
    while not lives.exists() or lives.read_text() == "x":
        time.sleep(0.01)
    (task.model_dir / f"done-{task.rank}").touch()


def die(task):
    os.kill(os.getpid(), signal.SIGKILL)


def raise_in_one(task):
    if task.rank == 1:
        raise ValueError("a mistake of mine")
    signal.pause()


def average(task):
    """Linear regression by PyTorch: each replica takes its rows of each batch, and gradients are averaged."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    weights = torch.zeros(1, requires_grad=True, dtype=torch.float64)
    rows = task.examples.dataset("train", ["x"]).shard(task.workers, task.rank)
    for _ in range(3):
        for batch in rows.batch(10, drop_remainder=True).as_numpy():  # as many batches in each replica
            x = torch.tensor(batch["x"], dtype=torch.float64) / 100
            loss = ((x * weights - 3 * x) ** 2).mean()
            loss.backward()
            distributed.all_reduce(weights.grad)
            with torch.no_grad():
                weights -= 0.5 * weights.grad / task.workers
                weights.grad.zero_()
    if task.rank == 0:
        np.save(task.model_dir / "weights.npy", weights.detach().numpy())
    distributed.destroy_process_group()


def averaged_alone(x):
    """The same in one process."""
    weight = 0.0
    for _ in range(3):
        for at in range(0, len(x), 20):
            some = x[at : at + 20] / 100
            weight -= 0.5 * (2 * some * (some * weight - 3 * some)).mean()
    return weight


@pytest.mark.slow
def test_each_replica_knows_its_rank_and_where_the_others_are(tmp_path):
    """By its task, and by the variables of `torchrun`."""
    task = jobs.task_of(tmp_path, workers=2)

    run_replicas(note, task)

    said = [json.loads((task.model_dir / str(rank)).read_text()) for rank in range(2)]
    assert [tuple(each.values()) for each in said] == [
        (str(rank), "2", str(rank), "2", "127.0.0.1") for rank in range(2)
    ]


def test_a_trainer_without_workers_is_refused():
    """When the pipeline is written."""
    lake = Lake(rows={}, splits=["train"])

    with pytest.raises(PipelineError, match="at least 1 worker; found workers=0"):
        Trainer(examples=lake["examples"], run_fn=note, workers=0)


@pytest.mark.slow
def test_when_one_is_killed_all_begin_again(tmp_path):
    """They need each other, so none goes on alone."""
    task = jobs.task_of(tmp_path, workers=2)

    run_replicas(die_once, task)

    assert sorted(path.name for path in task.model_dir.iterdir()) == ["done-0", "done-1"]
    assert (task.checkpoints / "lives").read_text() == "xx"


@pytest.mark.slow
def test_those_that_are_killed_each_time_end_the_training(tmp_path, monkeypatch):
    """After so many lives, with what ended the last."""
    monkeypatch.setattr(replicas, "RESTARTS", 0)

    with pytest.raises(NodeFailed, match=r"started 1 times, .* the last, worker 1, was killed by SIGKILL"):
        run_replicas(die, replace(jobs.task_of(tmp_path), workers=1))


@pytest.mark.slow
def test_what_one_of_them_raises_is_not_tried_again(tmp_path):
    """It would be raised again; the message is the function's own."""
    with pytest.raises(NodeFailed, match="worker 2: ValueError: a mistake of mine"):
        run_replicas(raise_in_one, jobs.task_of(tmp_path, workers=2))


@pytest.mark.slow
def test_gradients_are_averaged_by_pytorch(tmp_path):
    """Two replicas with half of each batch come to the same weights as one process with all of it."""
    pytest.importorskip("torch", exc_type=ImportError)
    task = jobs.task_of(tmp_path, spans=1, rows=100, workers=2)

    run_replicas(average, task)

    weights = np.load(task.model_dir / "weights.npy")
    assert weights == pytest.approx([averaged_alone(np.arange(100.0))])
