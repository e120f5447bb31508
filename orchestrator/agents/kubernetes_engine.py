"""Kubernetes: an agent is a Job of one pod, and the streams of its container are the line to it.

The API server passes them on, so no port is opened. When the controller ends, however it ends, the container's standard
input closes, and the agent ends with its pod. Another controller finds the pods by their labels. That each has ended,
as the kubelet of its machine has said, proves that nothing is left.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from spanwise.orchestrator.agents import pod_manifest
from spanwise.orchestrator.agents.engine import AgentLost
from spanwise.orchestrator.agents.kubernetes_api import ContainerStreams, KubernetesApi
from spanwise.orchestrator.agents.messages import Command, Ping, Prepare, Ready, Report
from spanwise.orchestrator.agents.piped_line import decode, encode
from spanwise.orchestrator.agents.pod_manifest import AGENT_LABEL, CONTAINER, MARK_LABEL, Manifest
from spanwise.orchestrator.agents.pod_settings import PodSettings
from spanwise.orchestrator.agents.pod_status import PodStatus
from spanwise.orchestrator.errors import NodeFailed, PipelineError, SettingsError
from spanwise.orchestrator.resources import Resources, format_memory

_PROOF_S: Final = 90.0
"""How long a pod may take to end. One whose machine does not answer ends itself meanwhile: it hears nothing."""

_POLL_S: Final = 0.5
_LOOK_S: Final = 10.0
"""How often the pods of lines that are open are looked at: a machine that dies closes no streams."""

_NO_POD_S: Final = 5.0
_ANSWER_S: Final = 60.0
_LOG_LINES: Final = 20
_JOB_LABEL: Final = "batch.kubernetes.io/job-name"


class KubernetesEngine:
    """A namespace of a cluster; without a name, the one that the configuration has."""

    def __init__(self, address: str = "", settings: PodSettings | None = None) -> None:
        """`address` is NAMESPACE, or NAMESPACE@UID: then another one of this name is refused."""
        try:
            import kubernetes  # noqa: F401  no use; the error belongs here
        except ImportError as error:
            raise SettingsError(
                "The executor 'kubernetes' needs its client, which is not installed: pip install 'spanwise[kubernetes]'"
            ) from error
        self._settings = settings or PodSettings()
        self._template = {} if self._settings.template is None else pod_manifest.read_template(self._settings.template)
        self._pools = {name: pod_manifest.read_template(file) for name, file in self._settings.pools.items()}
        self._api = KubernetesApi()
        namespace, _, self._uid = address.partition("@")
        self._namespace = namespace or self._api.namespace
        self._pods: dict[str, PodStatus] = {}
        self._looked_s = 0.0
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """With what identifies the namespace: whoever asks another cluster would find no pods there."""
        return f"kubernetes:{self._namespace}@{self._identify()}"

    def refuse(self, node: str, asked: Resources) -> None:
        if not (asked.image or self._settings.image or pod_manifest.container_of(self._merged(asked)).get("image")):
            raise PipelineError(
                f"{node} would run on Kubernetes, and no image is named. Build one with spanwise and your pipeline's "
                f"libraries, and name it in spanwise.toml: [executor.kubernetes] image = 'REGISTRY/NAME:TAG', or for "
                f"this node: resources=Resources(image=…)"
            )

    def launch(self, mark: int, number: int, asked: Resources) -> KubernetesLine:
        manifest = pod_manifest.job(mark, number, asked, self._settings, self._merged(asked))
        try:
            self._api.create_job(self._namespace, manifest)
        except NodeFailed as error:
            raise AgentLost(f"No pod can be asked for in the namespace {self._namespace}: {error}") from error
        name = manifest["metadata"]["name"]
        return KubernetesLine(self._api, self._namespace, name, lambda age_s: self._look(mark, age_s).get(name))

    def end_all(self, mark: int) -> list[str]:
        if self._uid and (here := self._api.identify(self._namespace)) != self._uid:
            raise NodeFailed(
                f"The namespace {self._namespace} at {self._api.server} is another one ({here}) than where the dead "
                f"controller's nodes ran ({self._uid}). Let KUBECONFIG name that cluster."
            )
        labels = f"{MARK_LABEL}={mark}"

        def delete() -> None:
            for each in self._api.list_jobs(self._namespace, labels):
                self._api.delete_job(self._namespace, each["metadata"]["name"])

        return _prove(delete, lambda: self._api.list_pods(self._namespace, labels))

    def close(self) -> None:
        self._api.close()

    def _merged(self, asked: Resources) -> Manifest:
        merged: Manifest = pod_manifest.merge(self._template, self._pools.get(asked.pool, {}))
        return merged

    def _identify(self) -> str:
        if not self._uid:
            self._uid = self._api.identify(self._namespace)
        return self._uid

    def _look(self, mark: int, age_s: float) -> dict[str, PodStatus]:
        """The pods of a controller by their Jobs, as they were at most `age_s` ago: one question for all lines."""
        with self._lock:
            if time.monotonic() - self._looked_s > age_s:
                found = [PodStatus(each) for each in self._api.list_pods(self._namespace, f"{MARK_LABEL}={mark}")]
                self._pods = {f"spanwise-{mark}-{each.labels[AGENT_LABEL]}": each for each in found}
                self._looked_s = time.monotonic()
            return self._pods


class KubernetesLine:
    """The line to an agent in a pod."""

    def __init__(self, api: KubernetesApi, namespace: str, job: str, look: Callable[[float], PodStatus | None]) -> None:
        self._api = api
        self._namespace = namespace
        self._job = job
        self._look = look
        self._asked_s = time.monotonic()
        self._streams: ContainerStreams | None = None
        self._attached_s = 0.0
        self._refused_s = 0.0
        self._looked_s = 0.0
        self._begun = b""
        self._greeted = False
        self._pod: PodStatus | None = None  #: as it was seen last

    @property
    def place(self) -> str:
        return "" if self._pod is None else f"{self._pod.machine} (pod {self._pod.name})"

    @property
    def agent(self) -> str:
        return "" if self._pod is None else self._pod.name

    page_url = ""  #: Kubernetes has none

    def wait_started(self, timeout_s: float) -> bool:
        if self._streams is None and not self._attach():
            time.sleep(timeout_s)
            return False
        if self._receive(timeout_s):
            self._greeted = True
            return True
        if time.monotonic() - self._attached_s > _ANSWER_S:
            raise AgentLost(f"Its pod runs and does not answer ({self.place}). {self._last_words()}")
        return False

    def send(self, message: Command | Prepare) -> None:
        assert self._streams is not None
        try:
            self._streams.write(encode(message))
        except OSError as error:
            raise self._lost() from error

    def receive(self, timeout_s: float) -> list[Report]:
        self.send(Ping())
        self._watch()
        return self._receive(timeout_s)

    def end(self, started: Ready | None) -> list[str]:  # noqa: ARG002  the port's signature
        """Whatever it has started ends with its pod."""
        if self._streams is not None:
            self._streams.close()

        def delete() -> None:
            self._api.delete_job(self._namespace, self._job)

        return _prove(delete, lambda: self._api.list_pods(self._namespace, f"{_JOB_LABEL}={self._job}"))

    def _attach(self) -> bool:
        """Whether its container runs, and we are attached to it."""
        try:
            found = self._look(_POLL_S)
        except NodeFailed:
            return False  # the API server may come back
        if found is None:
            self._refuse_podless()
            return False
        self._pod = found
        if found.trouble:
            raise AgentLost(f"Its pod {found.name} does not start: {found.trouble}")
        if found.has_ended or found.is_disrupted:
            raise self._lost()
        if not found.is_running:
            return False
        try:
            self._streams = self._api.attach(self._namespace, found.name, CONTAINER)
            self._streams.write(encode(Ping()))
        except (NodeFailed, OSError):  # it has ended since
            if self._streams is not None:
                self._streams.close()
                self._streams = None
            self._refused_s = self._refused_s or time.monotonic()
            if time.monotonic() - self._refused_s > _LOOK_S and not self._until_ended(_POLL_S):
                raise
            return False
        self._attached_s = time.monotonic()
        return True

    def _refuse_podless(self) -> None:
        """Kubernetes tells nobody but its events that it can never make the pod of a Job."""
        if time.monotonic() - self._asked_s < _NO_POD_S:
            return
        self._asked_s = time.monotonic()
        with contextlib.suppress(NodeFailed):  # events may be forbidden
            for event in self._api.list_events(self._namespace, "Job", self._job):
                said = str(event.get("message"))
                if event.get("reason") == "FailedCreate" and "exceeded quota" not in said:
                    raise AgentLost(f"Kubernetes makes no pod for it: {said}")

    def _receive(self, timeout_s: float) -> list[Any]:
        assert self._streams is not None
        try:
            *lines, self._begun = (self._begun + self._streams.read(timeout_s)).split(b"\n")
        except EOFError as error:
            raise self._lost() from error
        return [decode(line) for line in lines if line]

    def _watch(self) -> None:
        """Notices that the machine has died, which closes no streams."""
        if time.monotonic() - self._looked_s < _LOOK_S:
            return
        self._looked_s = time.monotonic()
        with contextlib.suppress(NodeFailed):  # the streams are what counts
            self._pod = self._look(_LOOK_S) or self._pod
        if self._pod is not None and self._pod.is_disrupted and self._pod.is_deleted_for_s > _LOOK_S:
            raise self._lost()

    def _lost(self) -> AgentLost:
        """Why the streams have closed, as Kubernetes says."""
        ended = self._until_ended(_PROOF_S)
        pod = self._pod
        if pod is None:
            return AgentLost("Its pod was deleted before it ran.", "died")
        if pod.is_disrupted:
            return AgentLost(f"Its machine was taken away ({self.place}): {pod.disruption}", "preempted")
        if pod.ran_out_of_memory:
            limit = f" of {format_memory(pod.memory_limit)}" if pod.memory_limit else ""
            return AgentLost(f"Kubernetes has killed it: its pod used more memory than its limit{limit}.", "memory")
        if not ended or (self._greeted and pod.left_by_itself):
            return AgentLost(
                f"The line to it broke, though its pod ran ({self.place}): the API server, or what lies between, has "
                f"closed it.",
                "preempted",
            )
        return AgentLost(f"{pod.end} ({self.place}). {self._last_words()}".strip(), "died" if self._greeted else "")

    def _until_ended(self, within_s: float) -> bool:
        """Whether its pod ends, or is gone; remembers what it was like."""
        deadline = time.monotonic() + within_s
        while True:
            with contextlib.suppress(NodeFailed):
                found = [PodStatus(each) for each in self._api.list_pods(self._namespace, f"{_JOB_LABEL}={self._job}")]
                if not found:
                    if self._pod is not None:
                        self._pod = self._pod.gone()
                    return True
                self._pod = found[0]
                if self._pod.has_ended or (self._pod.is_disrupted and self._pod.is_deleted_for_s > _LOOK_S):
                    return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        if self._streams is not None and self._streams.stderr:
            return self._streams.stderr.decode(errors="replace").strip()
        if self._pod is None or self._greeted:  # after that, the log holds our messages
            return ""
        with contextlib.suppress(NodeFailed):
            return self._api.read_log(self._namespace, self._pod.name, CONTAINER, lines=_LOG_LINES).strip()
        return ""


def _prove(delete: Callable[[], None], list_pods: Callable[[], list[Manifest]]) -> list[str]:
    """Deletes what is to be deleted, and returns the pods that have not ended after a while.

    Raises:
        NodeFailed: the API server does not answer.
    """
    deadline = time.monotonic() + _PROOF_S
    while True:
        try:
            delete()
            left = [pod for pod in map(PodStatus, list_pods()) if not pod.has_ended]
        except NodeFailed:
            if time.monotonic() > deadline:
                raise
        else:
            if not left or time.monotonic() > deadline:
                return [f"the pod {pod.name} at {pod.machine or 'no machine'}" for pod in left]
        time.sleep(_POLL_S)
