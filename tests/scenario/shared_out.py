"""Trainings on hosts that see nothing of the root but object storage: `python -m … ROOT HOW URL NOTES NAME:MARK …`.

HOW is `workers`, an elastic job with two of them, or `replicas`, of which rank 1 is killed in the first attempt. In NOTES
each process says how far it is. Prints what becomes of the node, then the model.
"""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from spanwise.components import Trainer
from spanwise.components.training.elastic.job import ElasticJob
from spanwise.orchestrator import Pipeline, Retry
from spanwise.orchestrator.agents.placed_executor import PlacedExecutor
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.storage import BucketArchive, parse_url
from spanwise.orchestrator.store import MemoryStore
from tests.components.flow import Lake, only
from tests.scenario.hosts_engine import HostsEngine

say = partial(print, flush=True)

ROWS = {span: {"x": list(range(300))} for span in (1, 2)}
EPOCHS = 3


def batches(rows):
    return rows.batch(10).as_numpy()


def init(task):
    return {"rows": np.zeros((), np.int64), "sum": np.zeros((), np.int64)}


def apply(parameters, gradient):
    return {name: parameters[name] + gradient[name] for name in parameters}


def save(task, outcome):
    said = {name: int(value) for name, value in outcome.parameters.items()}
    (task.model_dir / "model.json").write_text(json.dumps(said))


def job_of(notes):
    def gradient(parameters, batch):
        (notes / f"{os.uname().nodename}-{int(parameters['rows']) // 100}").touch()
        time.sleep(0.05)
        return {"rows": np.array(len(batch["x"])), "sum": batch["x"].sum()}

    return ElasticJob(
        dataset_fn=batches, init=init, gradient=gradient, apply=apply, save=save, task_rows=50, epochs=EPOCHS,
        checkpoint_s=0.5, lease_s=6.0,
    )  # fmt: skip


def add_up(task):
    """Each step adds a number of each replica; rank 1 is killed after the third of the first attempt."""
    iterator = task.share("train", ["x"]).batch(30).as_numpy().iterator()
    say("copied", *(each.span for each in task.examples if Path(each.uri).exists()))
    steps = task.load_checkpoint(iterator) or []
    say(f"{os.uname().nodename} begins at step {len(steps)} of {task.coordinator}")
    for batch in iterator:
        steps.append(sum(task.gather(int(batch["x"].sum()))))
        task.save_checkpoint(steps, iterator)
        if (task.attempt, task.rank, len(steps)) == (1, 1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
    (task.model_dir / "model.json").write_text(json.dumps(steps))


def main(root, how, url, notes, places):
    lake = Lake(rows=ROWS, splits=["train"])
    elastic = {"run_fn": job_of(notes), "workers": 2, "place_workers": True}
    what = elastic if how == "workers" else {"run_fn": add_up, "replicas": 2}
    trainer = Trainer(examples=lake["examples"], retry=Retry(times=2, backoff_s=0.5), timeout_s=300, **what)
    pipeline = Pipeline("p", [lake, trainer])

    def observe(event):
        if event.node == "Trainer":
            say(event.what, json.dumps(event.message))

    store = MemoryStore(archive=BucketArchive(root, parse_url(url)))
    with PlacedExecutor(pipeline, HostsEngine(places, hidden=root), root=root, away=["Trainer"]) as executor:
        outcome = run(pipeline, executor=executor, store=store, root=root, request=RunRequest(), observe=observe)
    execution = outcome.executions["Trainer"]
    say("attempt", execution.attempt)
    if execution.outputs:
        say("model", (only(execution, "model").path / "model.json").read_text())


if __name__ == "__main__":
    places = [tuple(each.split(":", 1)) for each in sys.argv[5:]]
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), places)
