"""`spanwise service worker --on kubernetes`: workers in pods, with addresses of their own, on a real machine of Kubernetes."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.config import DispatcherConfig
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.requests import GetStatus
from tests.contract.kubernetes_cluster import KubernetesCluster
from tests.contract.node_images import IMAGE
from tests.pipelines.input.service.wire.test_security import Authority
from tests.servers import eventually

pytestmark = [
    pytest.mark.skipif("SPANWISE_TEST_KUBERNETES_NODES" not in os.environ, reason="make test-kubernetes"),
    pytest.mark.slow,
]
ELEMENTS = 200
NAME = "spanwise-service"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def cluster():
    with contextlib.closing(KubernetesCluster("a")) as cluster:
        yield cluster


@pytest.fixture
def security(tmp_path):
    return replace(Authority(tmp_path).security("server", made_out_to=NAME), name=NAME)


@pytest.fixture
def dispatcher(cluster, security):
    """At an address that pods reach."""
    config = DispatcherConfig(host=cluster.network.address, security=security, worker_timeout_s=5.0)
    with DispatchServer(config) as dispatcher:
        yield dispatcher


@contextlib.contextmanager
def command(cluster, folder, target, security):
    """`spanwise service worker --on kubernetes`, of a project that names the image, with the least rights."""
    (folder / "spanwise.toml").write_text(f'root = "root"\n[executor.kubernetes]\nimage = "{IMAGE}"\n')
    shown = {name: getattr(security, name.lower()) for name in ("TOKEN", "CERTIFICATE", "KEY", "AUTHORITY", "NAME")}
    variables = {f"SPANWISE_SERVICE_{name}": value for name, value in shown.items()}
    line = [sys.executable, "-m", "spanwise", "service", "worker", target, "--on", "kubernetes", "--workers", "2"]
    with (folder / "said").open("w") as said:
        running = subprocess.Popen(
            line, cwd=folder, stdout=said, stderr=said,
            env={**os.environ, **variables, "KUBECONFIG": str(cluster.limited_kubeconfig())},
        )  # fmt: skip
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def workers(target, security):
    there = ServiceConnection(target, security).ask(GetStatus())[0].workers
    return {each.worker: each.address for each in there}


def read(target, security, meanwhile=lambda: None):
    """All elements, each with the name of the pod that has made it."""

    def placed(number):  # by value: the image does not have this file
        import socket
        import time

        time.sleep(0.01)
        return number, socket.gethostname()

    found = []
    dataset = inputs.range(ELEMENTS).map(placed).distribute(target, "exactly_once", security=security)
    with dataset.iterator() as elements:
        for element in elements:
            found.append(element)
            if len(found) == 20:
                meanwhile()
    return found


def pods_of_workers(cluster):
    found = cluster.call("GET", f"{PODS}?labelSelector=app.kubernetes.io/managed-by%3Dspanwise")["items"]
    return {
        each["metadata"]["name"]: each["status"].get("podIP") for each in found if each["status"]["phase"] == "Running"
    }


def test_workers_in_pods_are_read_from_replaced_and_ended(cluster, dispatcher, security, tmp_path):
    """Each has its pod's address. When a pod is deleted, another comes, and no element is lost or there twice."""
    with command(cluster, tmp_path, dispatcher.target, security) as running:

        def there():
            assert running.poll() is None, (tmp_path / "said").read_text()
            return workers(dispatcher.target, security)

        eventually(lambda: len(there()) == 2, 240.0, 0.2)
        first, pods = there(), pods_of_workers(cluster)
        one = next(iter(pods))
        before = read(dispatcher.target, security, lambda: cluster.call("DELETE", f"{PODS}/{one}?gracePeriodSeconds=0"))
        eventually(lambda: len(there()) == 2 and there() != first, 240.0, 0.2)
        after = read(dispatcher.target, security)
        second = pods_of_workers(cluster)
        running.send_signal(signal.SIGKILL)
        running.wait()
        eventually(lambda: not pods_of_workers(cluster), 120.0, 0.2)

    assert {address.split(":")[-2].strip("/") for address in first.values()} == {*pods.values()}
    assert Counter(number for number, _ in before) == Counter(number for number, _ in after) == one_each()
    assert {place for _, place in before} <= pods.keys() | second.keys()
    assert {place for _, place in after} <= second.keys()
    assert len(second.keys() - pods.keys()) == 1
    assert "worker-lost" in (tmp_path / "said").read_text()


def one_each():
    return dict.fromkeys(range(ELEMENTS), 1)
