"""A pipeline with its root in object storage and its nodes in pods that see no file of the controller, when both die."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from spanwise.orchestrator.storage import open_bucket, parse_url
from spanwise.pipelines.demo_servers import serve_s3
from tests.contract.executor_jobs import is_gone
from tests.contract.kubernetes_cluster import KubernetesCluster

pytestmark = pytest.mark.skipif(
    not {"SPANWISE_TEST_KUBERNETES", "SPANWISE_TEST_VERSITYGW"} <= set(os.environ), reason="make test-engines"
)
PIPELINE = """
import os
import time
from pathlib import Path

from spanwise import Component, ExampleGen, Examples, Input, Model, Output, Pipeline


class Count(Component):
    def run(self, examples: Input[Examples], model: Output[Model], place: str) -> None:
        with Path(place, "pids").open("a") as file:
            file.write(f"{os.getpid()}\\n")
        print("counting", flush=True)
        while not Path(place, "go").exists():
            time.sleep(0.05)
        (model.path / "rows").write_text(str(sum(examples.rows.values())))


def rows(place: str) -> Pipeline:
    ingest = ExampleGen(pattern="s3://lake/data/{SPAN}/*.csv")
    return Pipeline("rows", [ingest, Count(examples=ingest["examples"], place=place)])
"""
SETTINGS = """
root = "s3://lake/root"

[executor]
name = "kubernetes"

[executor.kubernetes]
image = "registry.example.com/rows:1"
template = "pod.yaml"
service_account = "spanwise-node"
secrets = ["spanwise-storage"]
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a pipeline and its settings."""
    (tmp_path / "rows.py").write_text(PIPELINE)
    (tmp_path / "spanwise.toml").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def storage(project, monkeypatch):
    """A bucket with a day of data."""
    (project / "s3").mkdir()
    with serve_s3(Path(os.environ["SPANWISE_TEST_VERSITYGW"]), project / "s3", "lake") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        (project / "rows.csv").write_text("a,b\n1,2\n3,4\n")
        day = parse_url("s3://lake/data/1/rows.csv")
        open_bucket(day.home).upload(project / "rows.csv", day.key)
        yield variables


@pytest.fixture
def cluster(project, storage, monkeypatch):
    """A cluster of one machine; pods have the keys as a Secret, and not the folder where the controller has its copies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    with contextlib.closing(KubernetesCluster("a")) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.limited_kubeconfig()))
        secret = {"metadata": {"name": "spanwise-storage"}, "stringData": storage}
        cluster.call("POST", "/api/v1/namespaces/default/secrets", secret)
        pod = yaml.safe_load(cluster.write_template().read_text())
        pod["spec"]["volumes"] = [{"name": "apart", "emptyDir": {}}]
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "apart", "mountPath": str(project / "cache")}]
        (project / "pod.yaml").write_text(yaml.safe_dump(pod))
        yield cluster


def start(project):
    command = [sys.executable, "-m", "spanwise", "run", "rows.py", "--param", f"place={project}"]
    return subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def pids(project):
    file = project / "pids"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def until(condition, run=None, within_s=240.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        assert run is None or run.poll() is None, run.communicate()[0]
        time.sleep(0.05)


def test_a_run_goes_on_after_its_controller_and_its_pod(project, cluster):
    """The first run's controller is killed, the second run's pod evicted; ingest is done once, and nothing is local."""
    first = start(project)
    until(lambda: len(pids(project)) == 1, first)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    until(lambda: is_gone(pids(project)[0]))

    second = start(project)
    until(lambda: len(pids(project)) == 2, second)
    pods = "/api/v1/namespaces/default/pods"
    (pod,) = (p for p in cluster.call("GET", pods)["items"] if p["status"]["phase"] == "Running")
    name = pod["metadata"]["name"]
    cluster.call(
        "POST", f"{pods}/{name}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    )
    until(lambda: len(pids(project)) == 3, second)
    assert is_gone(pids(project)[1])
    (project / "go").touch()
    said, _ = second.communicate(timeout=240)

    assert second.returncode == 0, said
    assert "Its machine was taken away" in said
    local = {file.name for file in (project / "cache").rglob("*") if file.is_file()}
    assert not {name for name in local if name.endswith((".parquet", "rows"))}, sorted((project / "cache").rglob("*"))
    assert shown(project) == {"ExampleGen": ["cached"], "Count": ["failed", "complete"]}
    (rows,) = (project / "s3" / "objects" / "lake" / "root").glob("rows/Count/model/*/rows")
    assert rows.read_text() == "2"


def shown(project):
    """The states of each node's attempts in the last run."""
    command = [sys.executable, "-m", "spanwise", "show", "rows", "--json"]
    said = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for each in sorted(json.loads(said)["executions"], key=lambda each: each["attempt"]):
        found.setdefault(each["node"], []).append(each["state"])
    return found
