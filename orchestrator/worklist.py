"""Worklists: which nodes of a run wait, have ended, failed or were skipped, and which one is next. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.component import Node
from spanwise.orchestrator.driver import Artifacts
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Execution


@dataclass(frozen=True)
class StartNode:
    """All that the node waits for has ended well."""

    node: str


@dataclass(frozen=True)
class SkipNode:
    """Something that the node waits for has failed or was skipped."""

    node: str


NextStep: TypeAlias = StartNode | SkipNode


@dataclass
class Worklist:
    """The nodes of one run. `nodes` are those that run, parents first; the base run supplies the rest."""

    pipeline: Pipeline
    nodes: Sequence[str]
    waiting: list[str] = field(init=False)
    outputs: dict[str, Artifacts] = field(default_factory=dict)  #: published by each node in this run, or supplied
    executions: dict[str, Execution] = field(default_factory=dict)  #: the last one of each node
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    retry_at: dict[str, float] = field(default_factory=dict)  #: when (monotonic) a node that failed may start again

    def __post_init__(self) -> None:
        self.waiting = list(self.nodes)

    def next_step(self, now: float, fits: Callable[[str], bool] = lambda _node: True) -> NextStep | None:
        """What may happen next, or None while all that waits has to wait; a node that does not fit now is passed by."""
        for node in self.waiting:
            parents = self.pipeline.parents(node)
            if any(p in self.failed or p in self.skipped for p in parents):
                return SkipNode(node)
            ready = all(p in self.outputs or p not in self.nodes for p in parents)
            if ready and now >= self.retry_at.get(node, 0.0) and fits(node):
                return StartNode(node)
        return None

    def next_retry(self, now: float) -> float | None:
        """The next moment (monotonic) at which a waiting retry may start; one that may already waits for more."""
        return min((at for node in self.waiting if (at := self.retry_at.get(node, 0.0)) > now), default=None)

    def next_attempt(self, node: str) -> int:
        """The number of the node's next attempt."""
        return self.executions[node].attempt + 1 if node in self.retry_at else 1

    def published(self, node: str, key: str) -> tuple[Artifact, ...]:
        """What a node has published under a key in this run; nothing before it has ended."""
        return tuple(self.outputs.get(node, {}).get(key, ()))

    def inputs_of(self, node: Node) -> Artifacts:
        """What is published on the channels that a node reads."""
        return {
            name: tuple(artifact for channel in channels for artifact in self.published(channel.node, channel.key))
            for name, channels in node.inputs.items()
        }

    def skip(self, node: str) -> None:
        self.waiting.remove(node)
        self.skipped.append(node)

    def start(self, execution: Execution) -> None:
        self.waiting.remove(execution.node)
        self.executions[execution.node] = execution

    def end(self, execution: Execution) -> None:
        """Notes an execution that has ended; one that succeeded makes its outputs readable."""
        self.executions[execution.node] = execution
        if execution.state.succeeded:
            self.outputs[execution.node] = execution.outputs

    def retry(self, node: str, at: float) -> None:
        """Lets a node that failed wait for its next attempt."""
        self.retry_at[node] = at
        self.waiting.append(node)

    def fail(self, node: str) -> None:
        """Notes that a node has failed for good."""
        self.failed.append(node)
