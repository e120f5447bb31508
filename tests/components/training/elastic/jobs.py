"""Jobs for tests: one whose parameters are the sums of the rows that were trained on, so that each row can be counted."""

import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from spanwise.components.training.elastic.job import ElasticJob
from spanwise.components.training.elastic.master import Master
from spanwise.components.training.elastic.training import plan_of, readings_of
from spanwise.components.training.elastic.worker import MasterClient, TrainingWorker
from spanwise.components.training.prepared_spans import SnapshotTally
from spanwise.components.training.trainer_task import ExamplesWindow, TrainerTask
from tests.components.flow import written


def init(task):
    return {"rows": np.zeros((), np.int64), "sum": np.zeros((), np.int64)}


def batches(rows):
    return rows.batch(7).as_numpy()


def gradient(parameters, batch):
    return {"rows": np.array(len(batch["x"])), "sum": batch["x"].sum()}


def apply(parameters, gradient):
    return {name: parameters[name] + gradient[name] for name in parameters}


def evaluate(parameters, batch):
    return {"mean": float(batch["x"].mean()), "trained": float(parameters["rows"])}


def predict(parameters, batch):
    return {"doubled": batch["x"] * 2}


def save(task, outcome):
    (task.model_dir / "rows").write_text(str(outcome.parameters["rows"]))


SUM = ElasticJob(dataset_fn=batches, init=init, save=save, gradient=gradient, apply=apply, task_rows=20, lease_s=5.0)
EVALUATED = replace(SUM, evaluate=evaluate)
EVALUATION = replace(EVALUATED, gradient=None, apply=None)
PREDICTION = replace(EVALUATION, evaluate=None, predict=predict)


def task_of(folder: Path, *, spans=2, rows=90, workers=1, checkpoints=None) -> TrainerTask:
    """A window with the numbers from 0 on, in each span and split."""
    table = pa.table({"x": np.arange(rows), "unused": ["…"] * rows})
    examples = tuple(
        written(folder / f"span-{span}", span, {"train": table, "eval": table.slice(0, rows // 2)})
        for span in range(1, spans + 1)
        if not (folder / f"span-{span}").exists()
    )
    for name in ("model", "checkpoints"):
        (folder / name).mkdir(exist_ok=True)
    return TrainerTask(
        examples=ExamplesWindow(artifacts=examples, snapshots=folder / "snapshots", tally=SnapshotTally()),
        model_dir=folder / "model",
        checkpoints=checkpoints or folder / "checkpoints",
        workers=workers,
    )


def master_of(job: ElasticJob, task: TrainerTask) -> Master:
    """A real one, which listens."""
    return Master(job, plan_of(job, readings_of(job, task)), lambda: job.init(task), task.checkpoints / "elastic")


def client_of(master: Master, name="worker") -> MasterClient:
    return MasterClient(name, master.target, master.security)


def worker_of(job, task, master, name="worker", client=MasterClient) -> TrainingWorker:
    return TrainingWorker(job, readings_of(job, task), client(name, master.target, master.security))


@contextmanager
def at_work(*workers):
    """The loops of these workers, each in a thread; joined at the end."""
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def done(job, task, workers=1):
    """The outcome of a job whose workers are threads of this process."""
    with master_of(job, task) as master:
        with at_work(*(worker_of(job, task, master, f"w{number}") for number in range(workers))):
            pass
        return master.outcome()
