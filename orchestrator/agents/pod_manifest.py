"""Manifests of pods: the Job in which an agent runs, from the team's template and what its node asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from spanwise.orchestrator.agents.pod_settings import PodSettings
from spanwise.orchestrator.errors import SettingsError
from spanwise.orchestrator.rendezvous import ADDRESS
from spanwise.orchestrator.resources import Resources

Manifest: TypeAlias = dict[str, Any]

CONTAINER: Final = "agent"
"""The container of ours; a template may say more about it under this name, and have others beside it."""

MARK_LABEL: Final = "spanwise-mark"
AGENT_LABEL: Final = "spanwise-agent"
AGENT_BYTES: Final = 512 << 20
"""What a pod is given beyond its node's memory: the agent says who used too much before the kernel kills them both."""

_GRACE_S: Final = 15
_FORGET_S: Final = 300
"""A Job whose controller is gone is deleted so long after its end; others are deleted by their controllers."""

_ARGUMENTS: Final = ["-P", "-m", "spanwise.orchestrator.agents.piped_agent", "attached"]


def read_template(file: Path) -> Manifest:
    """A manifest of a pod.

    Raises:
        SettingsError: it cannot be read, or is no such manifest.
    """
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{file}, a template of [executor.kubernetes], cannot be read: {error}") from error
    if not isinstance(found, dict) or not set(found) <= {"apiVersion", "kind", "metadata", "spec"}:
        raise SettingsError(
            f"{file}, a template of [executor.kubernetes], is no manifest of a pod; write what it adds:\n"
            f"kind: Pod\nspec:\n  nodeSelector: {{disk: ssd}}"
        )
    return found


def job(mark: int, number: int, asked: Resources, settings: PodSettings, template: Manifest) -> Manifest:
    """The Job of one agent."""
    labels = {MARK_LABEL: str(mark), AGENT_LABEL: str(number), "app.kubernetes.io/managed-by": "spanwise"}
    pod: Manifest = {"spec": {"containers": [], "terminationGracePeriodSeconds": _GRACE_S}}
    pod = merge(pod, template)
    pod = merge(pod, {"metadata": {"labels": labels}, "spec": _spec(asked, settings)})
    if asked.spread:
        pod = merge(pod, _apart(mark))
    container = container_of(pod)
    container.setdefault("command", ["python"])
    container["args"] = _ARGUMENTS
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"spanwise-{mark}-{number}", "labels": labels},
        "spec": {
            "backoffLimit": 0,  # whether a node is tried again is not for the cluster to say
            "ttlSecondsAfterFinished": _FORGET_S,
            "template": {"metadata": pod["metadata"], "spec": pod["spec"]},
        },
    }


def _spec(asked: Resources, settings: PodSettings) -> Manifest:
    container: Manifest = {
        "name": CONTAINER,
        "stdin": True,
        "stdinOnce": True,  # the agent hears the end of its controller
        "tty": False,
        "resources": _resources(asked, settings),
        "env": [
            {"name": ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": name, "value": value} for name, value in settings.environment.items()),
        ],
    }
    if image := asked.image or settings.image:
        container["image"] = image
    if settings.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in settings.secrets]
    spec: Manifest = {"restartPolicy": "Never", "containers": [container]}
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    return spec


def _apart(mark: int) -> Manifest:
    """What keeps a pod off the machines that others of its controller keep for themselves."""
    labels = {MARK_LABEL: str(mark), "spanwise-spread": "true"}
    rule = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    return {"metadata": {"labels": {"spanwise-spread": "true"}}, "spec": {"affinity": affinity}}


def _resources(asked: Resources, settings: PodSettings) -> Manifest:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if asked.cpus is not None:
        requests["cpu"] = f"{math.ceil(asked.cpus * 1000)}m"
    if asked.memory_bytes is not None:
        requests["memory"] = limits["memory"] = str(asked.memory_bytes + AGENT_BYTES)
    if asked.gpus:
        limits[settings.gpu] = str(asked.gpus)
    return {"requests": requests, "limits": limits}


def container_of(pod: Manifest) -> Manifest:
    """What a manifest says of our container; empty if nothing."""
    containers = (pod.get("spec") or {}).get("containers") or []
    return next((each for each in containers if each.get("name") == CONTAINER), {})


def merge(base: Any, added: Any) -> Any:
    """What both say; where they differ, what is added counts. Lists of what has names are merged by name."""
    if isinstance(base, Mapping) and isinstance(added, Mapping):
        return {**base, **{name: merge(base[name], each) if name in base else each for name, each in added.items()}}
    if isinstance(base, list) and isinstance(added, list):
        if not all(isinstance(each, Mapping) and "name" in each for each in (*base, *added)):
            return [*base, *added]
        named = {each["name"]: each for each in base}
        return list({**named, **{n: merge(named.get(n, {}), each) for each in added for n in [each["name"]]}}.values())
    return added
