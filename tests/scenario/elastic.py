"""An elastic training inside a run, for tests that kill it: `python -m tests.scenario.elastic ROOT [forever|step]`.

The model is the sum of the rows that were trained on. While a file `kill` is in the folder, the worker that comes so
far kills the Trainer; `forever` has the training go on until somebody ends it; `step` trains by a function that is called in two processes.
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
from spanwise.orchestrator import Retry
from tests.components.flow import Bench, Lake, only

say = partial(print, flush=True)

ROWS = {span: {"x": list(range(300))} for span in (1, 2)}


def init(task):
    return {"rows": np.zeros((), np.int64), "sum": np.zeros((), np.int64)}


def batches(rows):
    return rows.batch(10).as_numpy()


def apply(parameters, gradient):
    return {name: parameters[name] + gradient[name] for name in parameters}


def save(task, outcome):
    said = {name: int(value) for name, value in outcome.parameters.items()}
    (task.model_dir / "sums.json").write_text(json.dumps({**said, "version": outcome.version}))


def job_of(root: Path, *, forever: bool) -> ElasticJob:
    kill, working = root / "kill", root / "working"

    def gradient(parameters, batch):
        working.touch()
        time.sleep(0.005)
        if parameters["rows"] > 200 and kill.exists():
            kill.unlink()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        return {"rows": np.array(len(batch["x"])), "sum": batch["x"].sum()}

    return ElasticJob(
        dataset_fn=batches,
        init=init,
        gradient=gradient,
        apply=apply,
        save=save,
        task_rows=50,
        epochs=100_000 if forever else 2,
        checkpoint_s=0.0,
    )


def in_step(task):
    ranks = task.gather(os.environ["RANK"])
    (task.model_dir / "ranks").write_text(json.dumps(ranks))


def step(root: Path) -> None:
    lake = Lake(rows=ROWS, splits=["train"])
    outcome = Bench(root).run(lake, Trainer(examples=lake["examples"], run_fn=in_step, replicas=2))
    model = only(outcome.executions["Trainer"], "model")
    say((model.path / "ranks").read_text())


def main(root: Path, *, forever: bool = False) -> None:
    lake = Lake(rows=ROWS, splits=["train"])
    job = job_of(root, forever=forever)
    trainer = Trainer(examples=lake["examples"], run_fn=job, workers=2, retry=Retry(times=1, backoff_s=0))
    outcome = Bench(root).run(lake, trainer)
    execution = outcome.executions["Trainer"]
    sums = json.loads((only(execution, "model").path / "sums.json").read_text())
    say(json.dumps({"state": execution.state.value, "attempt": execution.attempt, **sums}))


if __name__ == "__main__":
    if "step" in sys.argv:
        step(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), forever="forever" in sys.argv)
