"""What of Kubernetes' engine needs no cluster; `make test-engines` runs the rest on a real one."""

import sys

import pytest

from spanwise.orchestrator import Resources, SettingsError
from spanwise.orchestrator.agents import pod_manifest
from spanwise.orchestrator.agents.engines import open_engine
from spanwise.orchestrator.agents.pod_settings import PodSettings
from spanwise.orchestrator.agents.pod_status import PodStatus


def job(asked=None, settings=None, template=None):
    """What is said of the pod, and of our container in it."""
    made = pod_manifest.job(7, 3, asked or Resources(), settings or PodSettings(image="rides:1"), template or {})
    pod = made["spec"]["template"]
    return pod, pod_manifest.container_of(pod)


def pod(phase="Running", *, state=None, deleted=None, machine="m", **status):
    """A pod as the API server shows it."""
    states = [] if state is None else [{"name": "agent", "state": state}]
    return PodStatus(
        {
            "metadata": {"name": "p", **({"deletionTimestamp": deleted} if deleted else {})},
            "spec": {
                "nodeName": machine,
                "containers": [{"name": "agent", "resources": {"limits": {"memory": "1Gi"}}}],
            },
            "status": {"phase": phase, "containerStatuses": states, **status},
        }
    )


def test_without_the_client_the_way_out_is_said(monkeypatch):
    """The settings name Kubernetes where its client is not installed."""
    monkeypatch.setitem(sys.modules, "kubernetes", None)

    with pytest.raises(SettingsError, match=r"pip install 'spanwise\[kubernetes\]'"):
        open_engine("kubernetes:")


def test_resources_become_requests_and_limits():
    """The agent gets memory of its own, so that it can say who used too much before the kernel kills both."""
    _, container = job(Resources(cpus=1.5, memory="1GiB", gpus=2, image="train:2"))

    assert container["image"] == "train:2"
    assert container["resources"] == {
        "requests": {"cpu": "1500m", "memory": str(1536 << 20)},
        "limits": {"memory": str(1536 << 20), "nvidia.com/gpu": "2"},
    }


def test_a_node_that_asks_for_nothing_gets_what_the_template_says():
    """Only what a node asks for is put over it."""
    _, container = job(
        template={"spec": {"containers": [{"name": "agent", "resources": {"limits": {"memory": "9Gi"}}}]}}
    )

    assert container["resources"] == {"requests": {}, "limits": {"memory": "9Gi"}}


def test_replicas_that_are_spread_keep_off_each_others_machines():
    """Also where the template has affinities of its own."""
    own = {"spec": {"affinity": {"nodeAffinity": {"some": "rule"}}}}
    made, _ = job(Resources(spread=True), template=own)

    (rule,) = made["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"].items() <= made["metadata"]["labels"].items()
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert made["spec"]["affinity"]["nodeAffinity"] == {"some": "rule"}


def test_a_template_adds_to_the_pod_and_cannot_take_away_what_the_line_needs():
    """Volumes, variables, sidecars, a Python of its own: all stay; the streams and the program are ours."""
    template = {
        "metadata": {"labels": {"team": "rides"}},
        "spec": {
            "restartPolicy": "Always",
            "nodeSelector": {"disk": "ssd"},
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {
                    "name": "agent", "command": ["/opt/python"], "args": ["-c", "pass"], "stdin": False,
                    "env": [{"name": "A", "value": "1"}, {"name": "AWS_REGION", "value": "there"}],
                    "envFrom": [{"configMapRef": {"name": "common"}}],
                },
            ],
        },
    }  # fmt: skip
    settings = PodSettings(
        image="rides:1", secrets=("keys",), environment={"AWS_REGION": "here"}, service_account="nodes"
    )
    made, container = job(settings=settings, template=template)

    assert made["metadata"]["labels"] == {
        "team": "rides", "spanwise-mark": "7", "spanwise-agent": "3", "app.kubernetes.io/managed-by": "spanwise",
    }  # fmt: skip
    spec = made["spec"]
    assert (spec["restartPolicy"], spec["nodeSelector"], spec["serviceAccountName"]) == (
        "Never",
        {"disk": "ssd"},
        "nodes",
    )
    assert [each["name"] for each in spec["containers"]] == ["proxy", "agent"]
    assert (container["command"], container["stdin"], container["args"][-1]) == (["/opt/python"], True, "attached")
    address = {"name": "SPANWISE_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert container["env"] == [{"name": "A", "value": "1"}, {"name": "AWS_REGION", "value": "here"}, address]
    assert container["envFrom"] == [{"configMapRef": {"name": "common"}}, {"secretRef": {"name": "keys"}}]
    assert template["spec"]["containers"][1]["stdin"] is False  # it is used again


@pytest.mark.parametrize("text", ["- a list\n", "spec: [\n", "nodeSelector: {disk: ssd}\n"])
def test_a_template_that_is_none_is_refused(tmp_path, text):
    """With its file, and what it should look like."""
    (tmp_path / "pod.yaml").write_text(text)

    with pytest.raises(SettingsError, match=r"pod\.yaml, a template of \[executor\.kubernetes\]"):
        pod_manifest.read_template(tmp_path / "pod.yaml")


def test_a_pod_has_ended_once_its_kubelet_says_so():
    """Not when it was only told to, or may yet start; a pod that no machine took has nothing to end."""
    assert not pod("Pending").has_ended
    assert not pod("Running", state={"running": {}}, deleted="2026-01-01T00:00:00Z").has_ended
    assert pod("Running", state={"terminated": {"exitCode": 0}}).has_ended  # beside a sidecar that runs on
    assert pod("Failed").has_ended
    assert pod("Pending", machine="", deleted="2026-01-01T00:00:00Z").has_ended


def test_a_disruption_is_told_apart_from_an_end():
    """The cluster's own reasons are a condition of the pod, or a reason of older kubelets."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for another"}

    assert pod(conditions=[target]).is_disrupted
    assert pod(conditions=[target]).disruption == "for another"
    assert pod("Failed", reason="NodeShutdown", message="shutting down").is_disrupted
    assert not pod("Failed", state={"terminated": {"exitCode": 1}}).is_disrupted
    assert not pod("Failed", reason="Evicted", message="used too much of its disk").is_disrupted
    assert "as Evicted: used too much" in pod("Failed", reason="Evicted", message="used too much of its disk").end


def test_what_the_kernel_killed_for_memory_is_named():
    """With the limit that the pod had."""
    killed = pod("Failed", state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})

    assert (killed.ran_out_of_memory, killed.memory_limit) == (True, 1 << 30)


def test_what_can_never_start_is_told_apart_from_what_waits():
    """An image is pulled again and again; a container that is being made is not in trouble."""
    assert pod("Pending", state={"waiting": {"reason": "ContainerCreating"}}).trouble == ""
    assert pod("Pending", state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}).trouble == (
        "ImagePullBackOff: no such image"
    )
