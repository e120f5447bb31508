"""Status of pods: what has become of one, as the API server shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from spanwise.orchestrator.agents.pod_manifest import CONTAINER, Manifest, container_of
from spanwise.orchestrator.resources import parse_memory

_HOPELESS: Final = {
    "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName",
    "RunContainerError",
}  # fmt: skip
_DISRUPTED: Final = {"NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated", "NodeAffinity"}
"""Reasons of kubelets that do not set the condition."""


class PodStatus:
    """One pod at one moment."""

    def __init__(self, pod: Manifest, *, gone: bool = False) -> None:
        self._pod = pod
        self._gone = gone
        self._status: dict[str, Any] = pod.get("status") or {}
        containers = self._status.get("containerStatuses") or []
        ours: Manifest = next((each for each in containers if each.get("name") == CONTAINER), {})
        self._state: dict[str, Any] = ours.get("state") or {}

    def gone(self) -> PodStatus:
        """The same pod, which is not listed any more."""
        return PodStatus(self._pod, gone=True)

    @property
    def name(self) -> str:
        return str(self._pod["metadata"]["name"])

    @property
    def labels(self) -> dict[str, str]:
        return self._pod["metadata"].get("labels") or {}

    @property
    def machine(self) -> str:
        return str(self._pod["spec"].get("nodeName") or "")

    @property
    def is_running(self) -> bool:
        """Whether our container runs."""
        return "running" in self._state and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether nothing of our container runs, and nothing will: kubelets say so after the last process."""
        return (
            self._gone
            or self._status.get("phase") in ("Succeeded", "Failed")
            or "terminated" in self._state
            or (self.is_deleted and not self.machine)
        )

    @property
    def is_deleted(self) -> bool:
        """Whether somebody wants it to be gone."""
        return bool(self._pod["metadata"].get("deletionTimestamp"))

    @property
    def is_deleted_for_s(self) -> float:
        """How long it should be gone already: its grace is over by then."""
        if not self.is_deleted:
            return float("-inf")
        when = datetime.fromisoformat(self._pod["metadata"]["deletionTimestamp"])
        return (datetime.now(UTC) - when).total_seconds()

    @property
    def is_disrupted(self) -> bool:
        """Whether the cluster has ended it for its own reasons."""
        return bool(self._disruption) or self._status.get("reason") in _DISRUPTED

    @property
    def disruption(self) -> str:
        """Why it did."""
        found = self._disruption
        return str(found.get("message") or found.get("reason") or self._status.get("message") or "").strip()

    @property
    def _disruption(self) -> dict[str, Any]:
        conditions = self._status.get("conditions") or []
        return next((each for each in conditions if (each["type"], each["status"]) == ("DisruptionTarget", "True")), {})

    @property
    def ran_out_of_memory(self) -> bool:
        return (self._state.get("terminated") or {}).get("reason") == "OOMKilled"

    @property
    def left_by_itself(self) -> bool:
        """Whether our container ended well, and not because somebody wanted it to."""
        return (self._state.get("terminated") or {}).get("exitCode") == 0 and not self.is_deleted

    @property
    def memory_limit(self) -> int:
        """In bytes; 0 for none."""
        limits = (container_of(self._pod).get("resources") or {}).get("limits") or {}
        return parse_memory(str(limits["memory"])) if "memory" in limits else 0

    @property
    def trouble(self) -> str:
        """Why it can never start; empty while it may."""
        waiting = self._state.get("waiting") or {}
        if waiting.get("reason") not in _HOPELESS:
            return ""
        return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")

    @property
    def end(self) -> str:
        """How it ended, in a sentence without its full stop."""
        ended = self._state.get("terminated") or {}
        if self._status.get("reason"):
            return f"Kubernetes has ended its pod as {self._status['reason']}: {self._status.get('message', '')}"
        if self.is_deleted or self._gone:
            return "Somebody has deleted its pod"
        code = ended.get("exitCode")
        return f"Its pod ended with exit status {code}" if code is not None else "Its pod has ended"
