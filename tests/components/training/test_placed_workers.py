"""Elastic jobs whose workers the executor places: they come and go, and every row counts once an epoch."""

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from spanwise.components import Trainer
from spanwise.components.training.elastic.job import ElasticJob
from spanwise.components.training.elastic.master_security import NAME, clients_of, secure
from spanwise.orchestrator import Retry
from spanwise.orchestrator.errors import PipelineError
from tests.components.flow import Bench, Lake, only

ROWS = {span: {"x": list(range(100))} for span in (1, 2)}
EXPECTED = {"rows": 400, "sum": 4 * sum(range(100))}


def batches(rows):
    return rows.batch(5).as_numpy()


def apply(parameters, gradient):
    return {name: parameters[name] + gradient[name] for name in parameters}


def save(task, outcome):
    said = {name: int(value) for name, value in outcome.parameters.items()}
    (task.model_dir / "sums.json").write_text(json.dumps(said))


def job_of(folder, disturb):
    """`disturb` is called with the parameters before each gradient; `folder` gets the process id of the master."""

    def init(task):
        (folder / "master").write_text(str(os.getpid()))
        return {"rows": np.zeros((), np.int64), "sum": np.zeros((), np.int64)}

    def gradient(parameters, batch):
        disturb(parameters)
        return {"rows": np.array(len(batch["x"])), "sum": batch["x"].sum()}

    return ElasticJob(
        dataset_fn=batches, init=init, gradient=gradient, apply=apply, save=save, task_rows=20, epochs=2, checkpoint_s=0.0
    )  # fmt: skip


def trained(folder, disturb, **changes):
    lake = Lake(rows=ROWS, splits=["train"])
    arguments = {"run_fn": job_of(folder, disturb), "workers": 2, "place_workers": True, **changes}
    return Bench(folder).run(lake, Trainer(examples=lake["examples"], **arguments)).executions["Trainer"]


def sums(execution):
    return json.loads((only(execution, "model").path / "sums.json").read_text())


def once(flag):
    """Whether this process is the first to ask."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def test_workers_that_are_placed_do_the_job(tmp_path):
    """Each row counts once an epoch, whichever worker read it; both had tasks."""
    execution = trained(tmp_path, lambda _: time.sleep(0.002))

    log = Path(execution.log).read_text()
    assert sums(execution) == EXPECTED
    assert 'worker-joined worker="worker 1"' in log
    assert 'worker-joined worker="worker 2"' in log


def test_a_worker_that_is_killed_is_replaced_and_its_tasks_are_given_again(tmp_path):
    """Without waiting for its lease: the successor says who has died."""

    def die_once(parameters):
        if parameters["rows"] >= 50 and once(tmp_path / "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.002)

    execution = trained(tmp_path, die_once)

    assert sums(execution) == EXPECTED
    assert re.search(r'worker-joined worker="worker [12] \(2\)"', Path(execution.log).read_text())


def test_workers_that_die_each_time_fail_the_node(tmp_path):
    """The error says which was the last, and of what it died."""
    execution = trained(tmp_path, lambda _: os.kill(os.getpid(), signal.SIGKILL), workers=1)

    assert execution.error.startswith(
        "worker 1 of 1 was the last that was left, and was replaced too often: It was killed"
    )


def test_when_the_master_is_killed_the_next_attempt_continues(tmp_path):
    """From the checkpoint of its tasks and parameters; the workers of the first attempt have ended with it."""

    def kill_the_master(parameters):
        if parameters["rows"] >= 150 and once(tmp_path / "killed"):
            os.kill(int((tmp_path / "master").read_text()), signal.SIGKILL)
        time.sleep(0.002)

    execution = trained(tmp_path, kill_the_master, retry=Retry(times=1, backoff_s=0))

    log = Path(execution.log).read_text()
    assert execution.attempt == 2
    assert sums(execution) == EXPECTED
    assert "job-resumed version=" in log
    assert "job-resumed version=0 " not in log


def test_a_master_that_others_reach_speaks_tls():
    """Workers get what they need to trust it, and not its key."""
    server = secure("10.0.0.5")
    client = clients_of(server)

    assert server.is_tls
    assert (client.name, client.authority, client.token) == (NAME, server.certificate, server.token)
    assert (client.key, client.certificate) == (None, None)
    assert not secure("127.0.0.1").is_tls


def test_only_an_elastic_job_has_workers_to_place():
    """When the pipeline is written."""
    lake = Lake(rows=ROWS, splits=["train"])
    with pytest.raises(PipelineError, match="only an ElasticJob has workers"):
        Trainer(examples=lake["examples"], run_fn=print, place_workers=True)
