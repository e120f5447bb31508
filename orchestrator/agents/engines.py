"""Engines by name, as settings and leases have them: `kubernetes:NAMESPACE`, `ray:ADDRESS`, `slurm:PARTITION`."""

from __future__ import annotations

from typing import Final

from spanwise.orchestrator.agents.engine import AgentEngine, AgentLost
from spanwise.orchestrator.agents.pod_settings import PodSettings
from spanwise.orchestrator.errors import NodeFailed, SettingsError

ENGINES: Final = ("kubernetes", "ray", "slurm")
"""The kinds of engines."""


def open_engine(name: str, pods: PodSettings | None = None) -> AgentEngine:
    """Opens an engine, `kind:address`; `pods` is only needed where agents are launched in some.

    Raises:
        SettingsError: there is no such kind, or its library is not installed.
    """
    kind, _, address = name.partition(":")
    if kind == "ray":
        from spanwise.orchestrator.agents.ray_engine import RayEngine

        return RayEngine(address or "auto")
    if kind == "slurm":
        from spanwise.orchestrator.agents.slurm_engine import SlurmEngine

        return SlurmEngine(address)
    if kind == "kubernetes":
        from spanwise.orchestrator.agents.kubernetes_engine import KubernetesEngine

        return KubernetesEngine(address, pods)
    raise SettingsError(f"There is no executor {kind!r}. There are: local, {', '.join(ENGINES)}.")


def end_on_engine(name: str, mark: int, gone: str = "") -> list[str]:
    """Ends all that a dead controller has left on an engine, and returns what is left, or why that is unknown.

    Nothing is left on the engine that is `gone`, if it does not answer.
    """
    try:
        engine = open_engine(name)
        try:
            return engine.end_all(mark)
        finally:
            engine.close()
    except (AgentLost, NodeFailed, SettingsError) as error:
        return [] if name == gone else [str(error)]
