"""Engines: the port to what runs processes on other machines. An engine knows nothing of nodes and jobs.

It starts agents, carries messages, says how an agent was lost, and proves that nothing of a controller is left. All
that nodes need beyond that is done by the agent.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from spanwise.orchestrator.agents.messages import Command, Prepare, Ready, Report
from spanwise.orchestrator.job import FailureCause
from spanwise.orchestrator.resources import Resources


class AgentLost(Exception):
    """An agent has ended without having said so."""

    def __init__(self, why: str, cause: FailureCause = "") -> None:
        super().__init__(why)
        self.cause = cause  #: empty where no agent can be started at all


class AgentLine(Protocol):
    """The line to one agent. Two threads use it: one sends, the other receives."""

    @property
    def place(self) -> str:
        """Where the agent runs, for people; known once it has answered."""

    @property
    def agent(self) -> str:
        """What the engine calls the agent; known once it has answered."""

    @property
    def page_url(self) -> str:
        """The engine's own page about the agent; empty where it has none, or it is not known."""

    def wait_started(self, timeout_s: float) -> bool:
        """Whether the agent runs; waits for at most `timeout_s`. Raises AgentLost."""

    def send(self, message: Command | Prepare) -> None:
        """Sends a message; returns once it has arrived. Raises AgentLost."""

    def receive(self, timeout_s: float) -> list[Report]:
        """What the agent has reported since the last time; waits for at most `timeout_s`. Raises AgentLost."""

    def end(self, started: Ready | None) -> list[str]:
        """Ends the agent, and returns what is left of it and could not be ended.

        `started` says what to look for; None when it has started nothing.

        Raises:
            NodeFailed: the engine cannot say whether it has ended.
        """


class Reservation(Protocol):
    """Places for all replicas of a gang, which the engine gives together or not at all."""

    def launch(self, rank: int, number: int) -> AgentLine:
        """Asks for the agent of a rank in its place; see `AgentEngine.launch`."""

    def release(self) -> None:
        """Gives the places back, once all agents in them have ended. Releasing twice does nothing."""


@runtime_checkable
class GangEngine(Protocol):
    """An engine that places several agents together. On others those of a gang start one by one, and wait."""

    def reserve(self, mark: int, number: int, asked: Resources, count: int) -> Reservation:
        """Asks for places for so many agents, each on a machine of its own if `asked` says spread.

        The places end with the controller, however that ends.

        Raises:
            AgentLost: they could not be asked for.
        """


class AgentEngine(Protocol):
    """One engine at one address."""

    @property
    def name(self) -> str:
        """`kind:address`, by which another controller opens it again."""

    def refuse(self, node: str, asked: Resources) -> None:
        """Refuses what resources cannot mean here. Raises PipelineError."""

    def launch(self, mark: int, number: int, asked: Resources) -> AgentLine:
        """Asks for an agent of the controller with this mark; it starts once there is a machine for it.

        Raises:
            AgentLost: it could not be asked for.
        """

    def end_all(self, mark: int) -> list[str]:
        """Ends every agent of a controller, and returns what could not be ended; empty proves that nothing is left.

        Raises:
            NodeFailed: the engine cannot say.
        """

    def close(self) -> None:
        """Ends the use of the engine."""
