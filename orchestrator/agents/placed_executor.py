"""Placed executors: some nodes are executed on this machine, others on an engine."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Self

from spanwise.orchestrator.agents.agent_executor import KEPT_S, SILENCE_S, AgentExecutor
from spanwise.orchestrator.agents.engine import AgentEngine, GangEngine
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import PipelineError
from spanwise.orchestrator.executor import ExecutorEvent
from spanwise.orchestrator.job import GRACE_S, NodeJob
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.process import Survivor
from spanwise.orchestrator.resources import Machine


class PlacedExecutor:
    """Runs the jobs of the nodes in `away` on an engine, all others here; see Executor."""

    def __init__(
        self,
        pipeline: Pipeline,
        engine: AgentEngine,
        *,
        root: Path | None,
        away: Collection[str],
        machine: Machine | None = None,
        page_url: str = "",
        kept_s: float = KEPT_S,
    ) -> None:
        """Forks; do this early. Without a root, the jobs read and write no files of the controller.

        Raises:
            PipelineError: a node asks for what it cannot get where it is placed.
            ParameterError: the pipeline cannot be sent to another machine.
        """
        self._away = frozenset(away)
        for node in pipeline:
            if isinstance(node, Component) and node.name in self._away:
                engine.refuse(node.name, node.resources)
                _refuse_spread(node, engine)
        self._here = LocalExecutor(pipeline, machine, nodes=set(pipeline.order) - self._away)
        try:
            self.engine = engine.name
            self._there = AgentExecutor(
                pipeline,
                engine,
                root=root and root.absolute(),
                mark=self._here.mark,
                report=self._here.wake,
                page_url=page_url,
                kept_s=kept_s,
            )
        except BaseException:
            self._here.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def mark(self) -> int:
        return self._here.mark

    @property
    def running(self) -> tuple[int, ...]:
        return (*self._here.running, *self._there.running)

    def has_room(self, node: str) -> bool:
        return node in self._away or self._here.has_room(node)

    def start(self, job: NodeJob) -> None:
        if job.node in self._away:
            self._there.start(job)
        else:
            self._here.start(job)

    def stop(self, job: int, why: str, *, timed_out: bool = False, grace_s: float = GRACE_S) -> None:
        if job in self._there.running:
            self._there.stop(job, why, timed_out=timed_out, grace_s=grace_s)
        else:
            self._here.stop(job, why, timed_out=timed_out, grace_s=grace_s)

    def answer(self, job: int, reply: object) -> None:
        if job in self._there.running:
            self._there.answer(job, reply)
        else:
            self._here.answer(job, reply)

    def silence_s(self, node: str) -> float:
        return SILENCE_S if node in self._away else 0.0

    def spare(self, node: str) -> None:
        self._here.spare(node)

    def wait(self, timeout_s: float) -> list[ExecutorEvent]:
        found = self._there.events()
        found += self._here.wait(0.0 if found else timeout_s)
        return [*found, *self._there.events()]

    def wake(self) -> None:
        self._here.wake()

    def sweep(self) -> list[Survivor]:
        return [*self._there.sweep(), *self._here.sweep()]

    def close(self) -> None:
        self._there.close()
        self._here.close()


def _refuse_spread(node: Component, engine: AgentEngine) -> None:
    if node.resources.spread and node.gang.size > 1 and not isinstance(engine, GangEngine):
        raise PipelineError(
            f"{node.name} asks for a machine for each of its {node.gang.size} replicas, which {engine.name} cannot "
            f"promise. Leave spread=True out."
        )
