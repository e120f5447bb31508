"""Engines by name, as settings and leases have them: `ray:ADDRESS`, `slurm:PARTITION`."""

from __future__ import annotations

from typing import Final

from spanwise.orchestrator.agents.engine import AgentEngine, AgentLost
from spanwise.orchestrator.errors import NodeFailed, SettingsError

ENGINES: Final = ("ray", "slurm")
"""The kinds of engines."""


def open_engine(name: str) -> AgentEngine:
    """Opens an engine, `kind:address`.

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
    raise SettingsError(f"There is no executor {kind!r}. There are: local, {', '.join(ENGINES)}.")


def end_on_engine(name: str, mark: int) -> list[str]:
    """Ends all that a dead controller has left on an engine, and returns what is left, or why that is unknown."""
    try:
        engine = open_engine(name)
        try:
            return engine.end_all(mark)
        finally:
            engine.close()
    except (AgentLost, NodeFailed, SettingsError) as error:
        return [str(error)]
