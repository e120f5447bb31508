"""A Trainer with two replicas in pods on a real machine of Kubernetes, of which one is killed."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spanwise.orchestrator.storage import forget_buckets, open_bucket, parse_url
from spanwise.pipelines.demo_servers import serve_s3
from tests.contract.kubernetes_cluster import KubernetesCluster
from tests.contract.node_images import IMAGE
from tests.scenario.relay import relayed

pytestmark = pytest.mark.skipif(
    not {"SPANWISE_TEST_KUBERNETES_NODES", "SPANWISE_TEST_VERSITYGW"} <= set(os.environ), reason="make test-kubernetes"
)
ROWS = 600
PIPELINE = """
import json
import os
import signal
import socket

from spanwise import ExampleGen, Pipeline, Retry, Trainer


def add_up(task):
    iterator = task.share("train", ["x"]).batch(30).as_numpy().iterator()
    steps = task.load_checkpoint(iterator) or []
    print("begins at step", len(steps), "in", socket.gethostname(), "of", task.coordinator, flush=True)
    for batch in iterator:
        steps.append(sum(task.gather(int(batch["x"].sum()))))
        task.save_checkpoint(steps, iterator)
        if (task.attempt, task.rank, len(steps)) == (1, 1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
    (task.model_dir / "model.json").write_text(json.dumps(steps))


def sums() -> Pipeline:
    ingest = ExampleGen(patterns={"train": "s3://lake/data/{SPAN}/*.csv"})
    trainer = Trainer(examples=ingest["examples"], run_fn=add_up, replicas=2, retry=Retry(times=2, backoff_s=0.5))
    return Pipeline("sums", [ingest, trainer])
"""


@pytest.fixture
def cluster():
    with contextlib.closing(KubernetesCluster("a")) as cluster:
        yield cluster


@pytest.fixture
def project(cluster, tmp_path, monkeypatch):
    """A pipeline with its root in object storage that pods reach, and nothing else."""
    settings = {"image": IMAGE, "service_account": "spanwise-node", "secrets": ["spanwise-storage"]}
    kubernetes = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (tmp_path / "spanwise.toml").write_text(
        f'root = "s3://lake/root"\n[executor]\nname = "kubernetes"\n[executor.kubernetes]\n{kubernetes}'
    )
    (tmp_path / "sums.py").write_text(PIPELINE)
    (tmp_path / "s3").mkdir()
    with serve_s3(Path(os.environ["SPANWISE_TEST_VERSITYGW"]).absolute(), tmp_path / "s3", "lake") as variables:
        relay, variables["AWS_ENDPOINT_URL"] = relayed(variables["AWS_ENDPOINT_URL"], cluster.network.address)
        kubeconfig = str(cluster.limited_kubeconfig())
        for name, value in {**variables, "XDG_CACHE_HOME": str(tmp_path / "cache"), "KUBECONFIG": kubeconfig}.items():
            monkeypatch.setenv(name, value)
        secret = {"metadata": {"name": "spanwise-storage"}, "stringData": variables}
        cluster.call("POST", "/api/v1/namespaces/default/secrets", secret)
        forget_buckets()
        (tmp_path / "rows.csv").write_text("x\n" + "".join(f"{row}\n" for row in range(ROWS)))
        day = parse_url("s3://lake/data/1/rows.csv")
        open_bucket(day.home).upload(tmp_path / "rows.csv", day.key)
        with contextlib.closing(relay):
            yield tmp_path
        forget_buckets()


def test_replicas_in_pods_continue_after_one_was_killed(project):
    """Each in a pod of its own: they meet at the address of rank 0's, and go on from the checkpoint in object storage."""
    command = [sys.executable, "-m", "spanwise", "run", "sums.py"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=900, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    (model,) = (project / "s3" / "objects" / "lake" / "root").glob("sums/Trainer/model/*/model.json")
    halves = [list(range(ROWS // 2)), list(range(ROWS // 2, ROWS))]
    assert json.loads(model.read_text()) == [
        sum(sum(half[at : at + 30]) for half in halves) for at in range(0, 300, 30)
    ]
    began = re.findall(r"\[rank (.)\] begins at step (\d+) in (\S+) of (\S+):\d+", done.stdout + done.stderr)
    assert sorted((rank, step) for rank, step, *_ in began) == [("0", "0"), ("0", "3"), ("1", "0"), ("1", "3")], began
    assert len({pod for _, _, pod, _ in began}) >= 2
