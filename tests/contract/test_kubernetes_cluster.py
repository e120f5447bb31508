"""Kubernetes' engine on a real API server: what only Kubernetes does to a node; and what we give to Kubernetes."""

import contextlib
import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import requests
import yaml

from spanwise.orchestrator import Resources
from spanwise.orchestrator.agents.engines import end_on_engine, open_engine
from spanwise.orchestrator.agents.placed_executor import PlacedExecutor
from spanwise.orchestrator.agents.pod_settings import PodSettings
from tests.contract.executor_jobs import Bench, Work, is_gone, until_ended, until_logged
from tests.contract.kubelet import VERSION_2
from tests.contract.kubernetes_cluster import DEPLOY, REAL, KubernetesCluster, path_of

pytestmark = pytest.mark.skipif("SPANWISE_TEST_KUBERNETES" not in os.environ, reason="make test-engines")
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def cluster():
    """A machine, and one that has what pods of the pool `gpu` want."""
    with contextlib.closing(KubernetesCluster("a")) as cluster:
        cluster.add("b", 4, "accelerator=yes")
        yield cluster


@pytest.fixture(autouse=True)
def limited(cluster, monkeypatch):
    """Whoever runs nodes has the rights that the manifest says."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.limited_kubeconfig()))


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@contextlib.contextmanager
def opened(cluster, bench, *, host_pid=True, adds=None, **settings):
    """An executor whose pods have this template."""
    template = cluster.write_template(host_pid)
    if adds:
        pod = yaml.safe_load(template.read_text())
        pod["spec"]["containers"][0].update(adds)
        template = bench.root / "pod.yaml"
        template.write_text(yaml.safe_dump(pod))
    engine = open_engine("kubernetes:", PodSettings(template=template, **settings))
    with PlacedExecutor(bench.pipeline, engine, root=bench.root, away=bench.pipeline.order) as executor:
        yield executor


def running_pod(cluster):
    """The name of the only pod that runs."""
    (pod,) = (p for p in cluster.call("GET", PODS)["items"] if p["status"]["phase"] == "Running")
    return pod["metadata"]["name"]


def test_an_evicted_node_was_taken_away(cluster, bench):
    """As a drained machine does it; such an end is retried without counting."""
    with opened(cluster, bench) as executor:
        job = bench.job("hangs")
        executor.start(job)
        until_logged(executor, job, "hanging\n")
        name = running_pod(cluster)
        cluster.call(
            "POST", f"{PODS}/{name}/eviction",
            {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}},
        )  # fmt: skip
        ended = until_ended(executor)

    assert ended.failure.cause == "preempted"
    assert re.match(rf"Its machine was taken away \(. \(pod {name}\)\): Eviction API: evicting", ended.failure.message)


@pytest.mark.skipif(not REAL, reason="make test-kubernetes")
def test_a_node_of_a_machine_that_is_drained_is_done_by_another_machine(cluster, bench):
    """As by whoever mends the machine, with `kubectl drain`."""
    kubectl = Path(os.environ["SPANWISE_TEST_KUBERNETES"]).with_name("kubectl")

    def run(*words):
        subprocess.run([kubectl, f"--kubeconfig={cluster.kubeconfig}", *words], check=True, capture_output=True)

    with opened(cluster, bench) as executor:
        job = bench.job("hangs")
        executor.start(job)
        until_logged(executor, job, "hanging\n")
        machine = cluster.call("GET", f"{PODS}/{running_pod(cluster)}")["spec"]["nodeName"]
        run("drain", machine, "--ignore-daemonsets", "--timeout=120s")
        ended = until_ended(executor)
        job = bench.job("hangs")
        executor.start(job)
        until_logged(executor, job, "hanging\n")
        other = cluster.call("GET", f"{PODS}/{running_pod(cluster)}")["spec"]["nodeName"]
        executor.stop(job.id, "enough", grace_s=0.0)
        until_ended(executor)
        run("uncordon", machine)

    assert ended.failure.cause == "preempted", ended.failure.message
    assert {machine, other} == {"a", "b"}


def test_a_pod_that_somebody_deletes_fails_its_node(cluster, bench):
    """That was no accident, so it is not tried again by itself."""
    with opened(cluster, bench) as executor:
        job = bench.job("hangs")
        executor.start(job)
        until_logged(executor, job, "hanging\n")
        cluster.call("DELETE", f"{PODS}/{running_pod(cluster)}")
        ended = until_ended(executor)

    assert ended.failure.cause == "died"
    assert ended.failure.message.startswith("Somebody has deleted its pod (")


def test_what_kubernetes_kills_for_memory_is_named(cluster, bench):
    """Where the node asked for none, and the template limits it. With cgroups of version 1 the agent lives to tell it."""
    with opened(cluster, bench, adds={"resources": {"limits": {"memory": str(400 << 20)}}}) as executor:
        executor.start(bench.job("uses_too_much"))
        ended = until_ended(executor)

    assert ended.failure.cause == "memory"
    assert ended.failure.message == (
        "It was killed by SIGKILL, since this machine, or the container, ran out of memory."
        if REAL and not VERSION_2
        else "Kubernetes has killed it: its pod used more memory than its limit of 400 MiB."
    )


@pytest.mark.parametrize(
    ("adds", "settings", "says"),
    [
        ({"image": "missing/rides:1"}, {}, "does not start: ImagePullBackOff: Back-off pulling image"),
        ({}, {"secrets": ("absent",)}, 'does not start: CreateContainerConfigError: secret "absent" not found'),
        ({}, {"service_account": "absent"}, "Kubernetes makes no pod for it: .*serviceaccount .*absent.* not found"),
        ({"command": ["false"]}, {}, "Its pod ended with exit status 1"),
        ({"command": ["python3", "-c", "raise SystemExit('no spanwise here')"]}, {}, "status 1 .*no spanwise here"),
    ],
)
def test_a_pod_that_cannot_start_fails_its_node_with_the_reason(cluster, bench, adds, settings, says):
    with opened(cluster, bench, adds=adds, **settings) as executor:
        executor.start(bench.job())
        ended = until_ended(executor)

    assert (ended.failure.cause, ended.outputs) == ("", None)
    assert re.search(says, ended.failure.message), ended.failure.message


def test_a_secret_is_the_environment_of_a_node(cluster, bench):
    """And so are the variables of object storage in the settings, which are no secrets."""
    cluster.call(
        "POST", "/api/v1/namespaces/default/secrets",
        {"metadata": {"name": "keys"}, "stringData": {"OMP_NUM_THREADS": "7"}},
    )  # fmt: skip
    settings = {"secrets": ("keys",), "environment": {"POLARS_MAX_THREADS": "5"}}
    with opened(cluster, bench, **settings) as executor:
        executor.start(bench.job("counts_its_threads"))
        (tally,) = until_ended(executor).outputs["tally"]

    assert tally.note.startswith("7 5 ")


def test_the_nodes_of_a_pool_have_a_template_of_their_own(cluster, tmp_path):
    """So a pool is where its machines are."""
    bench = Bench(tmp_path, Work(how="well", name="Work", resources=Resources(pool="gpu")))
    (tmp_path / "gpu.yaml").write_text("spec: {nodeSelector: {accelerator: 'yes'}}")
    with opened(cluster, bench, pools={"gpu": tmp_path / "gpu.yaml"}) as executor:
        job = bench.job("hangs")
        executor.start(job)
        until_logged(executor, job, "hanging\n")
        pod = cluster.call("GET", f"{PODS}/{running_pod(cluster)}")
        executor.stop(job.id, "enough", grace_s=0.0)
        until_ended(executor)

    assert pod["spec"]["nodeName"] == "b"


def test_an_agent_is_the_first_process_of_its_container(cluster, bench):
    """As in a real container: it has no parent, adopts what is orphaned, and hears SIGTERM."""
    with opened(cluster, bench, host_pid=False) as executor:
        executor.start(bench.job("leaves_a_daemon"))
        assert until_ended(executor).failure is None
        job = bench.job("ends_in_its_grace")
        executor.start(job)
        until_logged(executor, job, "hanging\n")
        executor.stop(job.id, "The run was stopped.", grace_s=1000.0)
        assert until_ended(executor).failure.message == "The run was stopped."
        executor.start(bench.job("killed"))
        assert "It was killed by SIGKILL." in until_ended(executor).failure.message
        assert executor.sweep() == []


def test_a_line_that_breaks_ends_its_node_which_is_tried_again(cluster, bench):
    """An API server that is replaced takes all lines with it; the next node finds the new one."""
    with opened(cluster, bench) as executor:
        job = bench.job("hangs")
        executor.start(job)
        until_logged(executor, job, "hanging\n")
        cluster.stop("apiserver")
        cluster.restart("apiserver")
        ended = until_ended(executor, within_s=240.0)
        executor.start(bench.job())
        after = until_ended(executor)

    assert ended.failure.cause == "preempted", ended.failure.message
    assert after.failure is None


def test_another_cluster_proves_nothing(cluster, bench):
    """A namespace of the same name elsewhere has no pods of a dead controller, which says nothing about those."""
    with opened(cluster, bench) as executor:
        name, mark = executor.engine, executor.mark

    assert end_on_engine(name, mark) == []
    (said,) = end_on_engine("kubernetes:default@of-another-cluster", mark)
    assert "is another one" in said
    assert "Let KUBECONFIG name that cluster." in said


def test_a_pod_whose_controller_was_lost_is_ended_by_another(cluster, bench):
    """It finds the pod by its label, and says that nothing is left once its processes have ended."""
    with opened(cluster, bench) as executor:
        job = bench.job("names_itself_and_hangs")
        executor.start(job)
        pid = int(until_logged(executor, job, "pid ").split()[1])

        assert end_on_engine(executor.engine, executor.mark) == []
        assert is_gone(pid)
        assert until_ended(executor).failure is not None


def test_a_controller_may_do_what_it_needs_and_no_more(cluster):
    """It makes no pods of its own choice beside Jobs, and reads no Secrets."""
    configuration = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    token = configuration["users"][0]["user"]["token"]
    for method, path in (
        ("POST", PODS), ("GET", "/api/v1/namespaces/default/secrets"), ("GET", "/api/v1/namespaces/kube-system/pods"),
        ("GET", "/api/v1/namespaces"), ("GET", "/apis/batch/v1/namespaces/kube-system/jobs"),
    ):  # fmt: skip
        answer = requests.request(
            method, cluster.address + path, json={}, verify=cluster.authority.file, timeout=30,
            headers={"Authorization": f"Bearer {token}"},
        )  # fmt: skip
        assert answer.status_code == 403, (method, path)


def dry_run(cluster, manifests):
    """What the server has against manifests; it makes nothing of them."""
    for manifest in filter(None, manifests):
        path = f"{path_of(manifest, 'default')}?dryRun=All&fieldValidation=Strict"
        answer = cluster.call("POST", path, manifest)
        taken = answer.get("kind") == manifest["kind"] or answer.get("reason") == "AlreadyExists"
        assert taken, (manifest["kind"], answer)


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.yaml")), ids=lambda file: file.name)
def test_the_server_takes_the_manifests(cluster, file):
    """By a dry run, in which it checks and defaults all, and refuses names that it does not know."""
    dry_run(cluster, yaml.safe_load_all(file.read_text()))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"nodes": {"enabled": False}},
        {"root": "/srv/spanwise", "volumeClaim": "lake"},
        {
            "nodes": {
                "template": {"spec": {"nodeSelector": {"disk": "ssd"}}},
                "pools": {"gpu": {"spec": {"nodeSelector": {"accelerator": "yes"}}}},
                "sizes": {"gpu": 2},
            }
        },
    ],
    ids=["as it is", "without nodes", "on a volume", "with a pool"],
)
def test_the_server_takes_what_the_chart_makes(cluster, tmp_path, values):
    """In each form; and the settings in it are settings of ours."""
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    helm = Path(os.environ["SPANWISE_TEST_KUBERNETES"]).with_name("helm")
    made = subprocess.run(
        [helm, "template", "rides", DEPLOY / "chart", "--namespace=default", f"--values={tmp_path}/values.yaml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not made.returncode, made.stderr
    manifests = list(filter(None, yaml.safe_load_all(made.stdout)))

    dry_run(cluster, manifests)

    (deployment,) = (each for each in manifests if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    written = {each["name"]: each["value"] for each in container["env"]}
    assert ("SPANWISE_EXECUTOR" in written) == values.get("nodes", {}).get("enabled", True)
    if "SPANWISE_EXECUTOR" in written:
        check_settings(written["SPANWISE_EXECUTOR"], manifests, tmp_path)
        theirs = json.loads(written["SPANWISE_EXECUTOR"])["kubernetes"]["secrets"]
        assert {*theirs} < {each["secretRef"]["name"] for each in container["envFrom"]}, "it reads the same root"


def check_settings(executor, manifests, folder):
    """The settings are read, and the templates that they name are in the ConfigMap."""
    from spanwise.orchestrator.agents.pod_manifest import read_template
    from spanwise.scheduler.project import settings

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPANWISE_EXECUTOR", executor)
        pods = settings.read(folder=folder).executor.pods
    (texts,) = (each["data"] for each in manifests if each["kind"] == "ConfigMap")
    for file in (pods.template, *pods.pools.values()):
        (folder / file.name).write_text(texts[file.name])
        read_template(folder / file.name)


def test_nothing_is_left_on_the_server(cluster):
    """Jobs are deleted by their controllers, and their pods by the cluster."""
    deadline = time.monotonic() + 60
    while cluster.call("GET", PODS)["items"] or cluster.call("GET", "/apis/batch/v1/namespaces/default/jobs")["items"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
