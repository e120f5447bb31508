"""The chart's scheduler in a pod on a real machine of Kubernetes, its nodes in pods, and both killed while a run goes on."""

import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spanwise.orchestrator import State, process
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.storage import forget_buckets, open_bucket, parse_url
from spanwise.pipelines import nycflights
from spanwise.pipelines.demo_servers import serve_postgresql, serve_s3
from tests.contract.kubernetes_cluster import DEPLOY, KubernetesCluster
from tests.contract.node_images import IMAGE
from tests.scenario.relay import relayed
from tests.servers import eventually

pytestmark = pytest.mark.skipif(
    not {"SPANWISE_TEST_KUBERNETES_NODES", "SPANWISE_TEST_VERSITYGW"} <= set(os.environ), reason="make test-kubernetes"
)
SOON_S = 900.0
FIRST_DAY = (nycflights.FIRST - dt.date(1970, 1, 1)).days
TICKS = 2


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def client(name, *words):
    """What kubectl or helm says."""
    return run(Path(os.environ["SPANWISE_TEST_KUBERNETES"]).with_name(name), *words)


@pytest.fixture(scope="module")
def cluster():
    with contextlib.closing(KubernetesCluster("a")) as cluster:
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        yield cluster
        del os.environ["KUBECONFIG"]


@pytest.fixture
def servers(cluster, monkeypatch):
    """Object storage with days of the demo's data, and a database, which pods reach; the variables that name them."""
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="servers-", dir="/tmp")))
        place.chmod(0o755)  # PostgreSQL may be another user's
        (place / "s3").mkdir()
        variables = stack.enter_context(
            serve_s3(Path(os.environ["SPANWISE_TEST_VERSITYGW"]).absolute(), place / "s3", "lake")
        )
        metadata = stack.enter_context(serve_postgresql(place / "postgresql", durable=False))
        storage, variables["AWS_ENDPOINT_URL"] = relayed(variables["AWS_ENDPOINT_URL"], cluster.network.address)
        database, theirs = relayed(metadata, cluster.network.address)
        stack.callback(storage.close)
        stack.callback(database.close)
        for name, value in {**variables, "XDG_CACHE_HOME": str(place / "cache")}.items():
            monkeypatch.setenv(name, value)
        forget_buckets()
        lake = parse_url("s3://lake/flights")
        for file in nycflights.lay_out(place / "lake", days=TICKS):
            open_bucket(lake.home).upload(file, (lake / file.relative_to(place / "lake").as_posix()).key)
        yield variables, metadata, theirs
        forget_buckets()


@pytest.fixture
def installed(servers):
    """The chart is installed as the documentation says, with a schedule whose ticks begin soon; the URL of its metadata."""
    variables, metadata, theirs = servers
    keys = [f"--from-literal={name}={value}" for name, value in variables.items()]
    client("kubectl", "create", "secret", "generic", "spanwise-storage", *keys)
    first = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0) + dt.timedelta(minutes=2)
    client(
        "kubectl", "create", "secret", "generic", "spanwise", f"--from-literal=SPANWISE_METADATA={theirs}",
        f"--from-literal=FIRST_TICK={first.isoformat()}",
    )  # fmt: skip
    client(
        "helm", "install", "spanwise", DEPLOY / "chart", "--set", f"image={IMAGE}", "--set", "root=s3://lake/rides",
        "--set", "folder=/srv/rides", "--set", "schedules={often.py}", "--set", "resources.requests.cpu=100m",
        "--set", "graceSeconds=30",
    )  # fmt: skip
    return metadata


class Watcher:
    """What the cluster and the metadata say."""

    def __init__(self, cluster, metadata):
        self._cluster, self._metadata = cluster, metadata

    def scheduler(self):
        """The pod of the scheduler that runs, if there is one."""
        pods = json.loads(client("kubectl", "get", "pods", "-l", "app.kubernetes.io/name=spanwise", "-o", "json"))
        running = [
            pod for pod in pods["items"]
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
            and any("running" in each["state"] for each in pod["status"].get("containerStatuses", []))
        ]  # fmt: skip
        return running[0]["metadata"]["name"] if running else None

    def runs(self):
        with contextlib.closing(open_store(self._metadata)) as store:
            if not store.pipelines():
                return []
            return sorted(store.runs("flights"), key=lambda each: each.number)

    def at_work(self, after):
        """Whether a run with a higher number has a node at work in a pod."""
        with contextlib.closing(open_store(self._metadata)) as store:
            newest = next(store.runs("flights"), None) if store.pipelines() else None
            return newest is not None and newest.number > after and any(
                e.state is State.RUNNING and e.node in ("StatisticsGen", "Transform", "Trainer")
                for e in store.executions(newest)
            )  # fmt: skip

    def newest(self):
        return max((each.number for each in self.runs()), default=0)

    def ticks(self):
        said = run(
            sys.executable, "-m", "spanwise", "schedule", "ticks", "flights", "--json", "--root", "s3://lake/rides"
        )
        return [tick for pipeline in json.loads(said) for tick in pipeline["ticks"]]

    def has_ended(self):
        """Whether all ticks have an outcome."""
        found = self.ticks()
        return len(found) == TICKS and all(each["outcome"] in ("ran", "skipped", "failed") for each in found)

    def describe(self):
        with contextlib.suppress(AssertionError):
            pods = client("kubectl", "get", "pods", "-o", "wide")
            logs = client("kubectl", "logs", "deployment/spanwise", "--tail=60")
            events = client("kubectl", "get", "events", "--sort-by=.lastTimestamp")
            return f"{pods}\n{logs}\n{events[-3000:]}"


def test_a_scheduler_in_a_pod_loses_and_doubles_no_tick(cluster, installed, monkeypatch):
    """Killed in its first run, its pod deleted in the second: the next one takes over, and each day is learned from once."""
    monkeypatch.setenv("SPANWISE_METADATA", installed)
    watcher = Watcher(cluster, installed)

    def until(condition):
        try:
            eventually(condition, SOON_S, 0.5)
        except AssertionError as error:
            raise AssertionError(watcher.describe()) from error

    until(watcher.scheduler)
    until(lambda: watcher.at_work(0))
    first = watcher.newest()
    (pid,) = cluster.nodes["a"].pids("schedule", "start")
    os.kill(pid, signal.SIGKILL)
    until(lambda: watcher.at_work(first))
    deleted = watcher.scheduler()
    (pid,) = cluster.nodes["a"].pids("schedule", "start")
    process.send(
        [pid, *process.descendants(pid)], signal.SIGSTOP
    )  # so that it does not hear SIGTERM, as on a dead machine
    client("kubectl", "delete", "pod", deleted, "--grace-period=0", "--force", "--wait=false")
    until(lambda: watcher.scheduler() not in (None, deleted))
    until(watcher.has_ended)

    ticks, runs = watcher.ticks(), watcher.runs()
    outcomes = {each["span"]: each["outcome"] for each in ticks}
    complete = [run.span for run in runs if run.state is State.COMPLETE]
    assert len(ticks) == len(outcomes) == TICKS, watcher.describe()
    assert outcomes[FIRST_DAY] == "ran", watcher.describe()
    assert set(outcomes.values()) <= {"ran", "skipped"}, watcher.describe()  # a tick may come while a run goes on
    assert sorted(complete) == sorted(span for span, outcome in outcomes.items() if outcome == "ran")
    assert [run.state for run in runs[:2]] == [State.FAILED] * 2
    assert {run.cause for run in runs[:3]} == {runs[0].cause}
