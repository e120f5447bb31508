"""A training fed by a data service: its jobs, its checkpoints, and its retry."""

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

from spanwise.components import Trainer
from spanwise.components.training.prepared_spans import SnapshotTally
from spanwise.components.training.trainer_task import ExamplesWindow, TrainerTask
from spanwise.components.training.training_input import TrainingInput
from spanwise.orchestrator import Retry
from spanwise.orchestrator.errors import StateMismatch
from spanwise.orchestrator.fingerprint import of_tree
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import col
from tests.components.flow import Bench, Lake, only, written
from tests.pipelines.input.service.servers import Service

ROWS = list(range(200))


class Killed(Exception):
    """As if by SIGKILL: nothing of the attempt is closed."""


def attempt(folder, service, number, window, killed_at=None):
    """One attempt at a training of two epochs; what the model has learned."""
    reads = TrainingInput(f"p/7 Trainer attempt {number}")
    examples = ExamplesWindow(artifacts=(window,), snapshots=folder / "snapshots", tally=SnapshotTally(), input=reads)
    task = TrainerTask(examples=examples, model_dir=folder, checkpoints=folder, attempt=number)
    rows = task.examples.dataset("train", prepare=lambda rows: rows, service=service.target)
    batches = rows.distribute(service.target, "exactly_once").shuffle(50, seed=3).batch(10)
    iterator = batches.iterator(epoch=0)
    learned, epoch, steps = task.load_checkpoint(iterator) or ([], 0, 0)
    while epoch < 2:
        for batch in iterator:
            learned.append(batch["n"].to_pylist())
            steps += 1
            if steps % 3 == 0:
                task.save_checkpoint((learned, epoch, steps), iterator)
            if steps == killed_at:
                raise Killed
        epoch += 1
        iterator = batches.iterator(epoch=epoch)
    return learned, {job["name"] for job in service.dispatcher.status()["jobs"]}, reads


def test_a_retry_continues_in_the_jobs_of_the_attempt_that_was_killed(tmp_path):
    """In the middle of an epoch, with nothing learned twice and nothing left out; without a checkpoint it starts anew."""
    with Service(2, client_timeout_s=60) as service:
        window = written(tmp_path / "span", 1, {"train": pa.table({"n": ROWS})})
        window = window.with_content(of_tree(window.uri).digest, 1)
        held = []
        for number, killed_at in ((1, 2), (2, 10), (3, 29)):
            with pytest.raises(Killed) as killed:
                attempt(tmp_path, service, number, window, killed_at)
            held.append(killed)  # and with it the iterator, which nobody closes
        learned, jobs, reads = attempt(tmp_path, service, 4, window)

    epochs = [sorted(itertools.chain(*learned[at : at + 20])) for at in (0, 20)]
    assert epochs == [ROWS, ROWS]
    assert {name.rpartition(" ")[0] for name in jobs} <= {f"p/7 Trainer attempt {number}" for number in (1, 2, 3, 4)}
    assert not reads.empty_passes


@pytest.mark.parametrize(
    ("iterators", "replicas", "message"),
    [(0, 1, "has the places of 1 iterators, and 0 were passed"), (1, 2, "was stored by 1 replicas; now there are 2")],
)
def test_a_checkpoint_of_other_iterators_is_refused(tmp_path, iterators, replicas, message):
    """Before any of them has moved."""
    examples = ExamplesWindow(artifacts=(), snapshots=tmp_path, tally=SnapshotTally())
    task = TrainerTask(examples=examples, model_dir=tmp_path, checkpoints=tmp_path)
    task.save_checkpoint("learned", inputs.range(3).iterator())

    with pytest.raises(StateMismatch, match=message):
        replace(task, replicas=replicas).load_checkpoint(*[inputs.range(3).iterator() for _ in range(iterators)])


def empty(task):
    """Trains on nothing."""
    assert task.examples.dataset("train").filter(col("x") > 100).to_arrow().num_rows == 0
    (task.model_dir / "model").write_text("of nothing")


def test_a_training_that_got_no_rows_fails(tmp_path):
    """A model of nothing is not published."""
    lake = Lake(rows={1: {"x": [1, 2]}}, splits=["train"])
    outcome = Bench(tmp_path).run(lake, Trainer(examples=lake["examples"], run_fn=empty))

    assert outcome.failed == ("Trainer",)
    assert "run_fn empty got no rows: each of its 1 passes" in outcome.executions["Trainer"].error


def die_behind_the_last_row(task):
    """The first attempt ends when all is learned and stored, before the model is written."""
    iterator = task.examples.dataset("train").batch(1).as_numpy().iterator(epoch=0)
    learned = task.load_checkpoint(iterator) or 0
    for batch in iterator:
        learned += int(batch["x"][0])
    task.save_checkpoint(learned, iterator)
    if task.attempt == 1:
        raise Killed
    (task.model_dir / "learned").write_text(str(learned))


def test_a_retry_that_continues_behind_the_last_row_succeeds(tmp_path):
    """It has nothing left to read, and what the attempt before it has read is in its model."""
    lake = Lake(rows={1: {"x": [1, 2]}}, splits=["train"])
    trainer = Trainer(examples=lake["examples"], run_fn=die_behind_the_last_row, retry=Retry(times=1, backoff_s=0))

    outcome = Bench(tmp_path).run(lake, trainer)

    assert (only(outcome.executions["Trainer"], "model").path / "learned").read_text() == "3"
