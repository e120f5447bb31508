"""Node runners: what happens to one node of a run, from its first record to its published outcome."""

from __future__ import annotations

import itertools
import logging
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from spanwise.orchestrator import publisher
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.component import Component, Resolver, list_defaults
from spanwise.orchestrator.driver import Artifacts, Execute, Reuse, drive
from spanwise.orchestrator.errors import Fenced, SpanwiseError, StoreError
from spanwise.orchestrator.executor import Executor
from spanwise.orchestrator.job import JobEnded, NodeJob
from spanwise.orchestrator.lease import Lease
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.run_dir import run_dir
from spanwise.orchestrator.store import Store
from spanwise.orchestrator.verdict import Verdict, verdicts_of

log = logging.getLogger("spanwise.run")


@dataclass
class ActiveJob:
    """An execution whose work has started in a process of its own."""

    execution: Execution
    inputs: Artifacts
    plan: Execute
    deadline: float | None  #: monotonic; None when the node has no time limit, or was stopped at it


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """An execution that has ended, as it was published."""

    execution: Execution
    message: str = ""  #: why it failed or was canceled
    may_retry: bool = False  #: the work failed, not what comes before it


@dataclass(frozen=True, kw_only=True)
class NodeRunner:
    """Takes the nodes of one run, each by itself, through begin, drive, execute and publish."""

    run: Run
    pipeline: Pipeline
    executor: Executor
    store: Store
    lease: Lease
    root: Path
    verified: set[int] = field(default_factory=set)  #: artifacts that this run has written or read whole

    def begin(self, node: str, attempt: int) -> Execution:
        """Records an execution, so that the store knows it before anything can fail."""
        execution = Execution(
            pipeline=self.run.pipeline,
            run=self.run.number,
            node=node,
            attempt=attempt,
            replay=self.run.replay,
            component=type(self.pipeline.nodes[node]).__name__,
            defaults=list_defaults(self.pipeline.nodes[node]),
            log=str(self._folder / "logs" / f"{node}.{attempt}.log"),
        )
        return publisher.begin(self.store, self.lease, execution)

    def carry_over(self, earlier: Execution) -> Execution:
        """Records an execution of the base run as this run's own, so that lineage stays whole."""
        execution = self.begin(earlier.node, 1)
        plan = Reuse(outputs=earlier.outputs, reason=f"supplied by {earlier.name}", execution=earlier.id)
        return publisher.reuse(self.store, self.lease, execution, earlier.inputs, plan)

    def start(
        self, execution: Execution, inputs: Artifacts, mine: tuple[Artifact, ...], *, cache: bool
    ) -> ActiveJob | NodeResult:
        """Drives a node, then publishes what it reuses or starts its work; `mine` is as in `drive`."""
        node = self.pipeline.nodes[execution.node]
        try:
            plan = drive(node, self.run, self.store, inputs, mine, cache=cache)
            if isinstance(plan, Execute):
                return self._execute(execution, inputs, plan)
            if isinstance(node, Resolver):  # it reads what it chose, no more
                return NodeResult(execution=publisher.reuse(self.store, self.lease, execution, plan.outputs, plan))
            done = publisher.reuse(self.store, self.lease, execution, inputs, plan, renew=not self.run.replay)
            return NodeResult(execution=done)
        except (Fenced, StoreError):
            raise
        except SpanwiseError as error:
            message = str(error)
        except Exception as error:  # a user's `prepare` or `resolve`
            log.exception("driver-failed", extra={"node": node.name})
            message = f"{type(error).__name__}: {error}"
        return self.fail(replace(execution, inputs=inputs), message)

    def finish(self, job: ActiveJob, ended: JobEnded, *, stopping: bool) -> NodeResult:
        """Publishes what a job made, or how it failed; while the run is stopping, it was canceled."""
        execution = replace(publisher.with_plan(job.execution, job.plan), inputs=job.inputs)
        if ended.outputs is not None:
            verdicts = self._verdicts(execution, ended.outputs)
            done = publisher.complete(self.store, self.lease, execution, job.inputs, job.plan, ended.outputs, verdicts)
            shutil.rmtree(self._folder / f"{done.node}.checkpoints", ignore_errors=True)
            self.verified.update(a.id for a in itertools.chain(*job.inputs.values(), *done.outputs.values()))
            return NodeResult(execution=done)
        assert ended.failure is not None
        if stopping and not ended.failure.timed_out:
            return self.fail(execution, ended.failure.message, state=State.CANCELED)
        message = f"{ended.failure.message}\n{ended.failure.trace}".rstrip()
        return replace(self.fail(execution, message), may_retry=True)

    def fail(self, execution: Execution, message: str, *, state: State = State.FAILED) -> NodeResult:
        """Publishes that an execution failed or was canceled, and removes its files."""
        failed = publisher.fail(self.store, self.lease, self.root, execution, state, message)
        return NodeResult(execution=failed, message=message)

    def _verdicts(self, execution: Execution, outputs: Artifacts) -> list[Verdict]:
        """What the outputs of a node say of other artifacts; a replay of the past says nothing about today."""
        if self.run.replay:
            return []
        return verdicts_of(itertools.chain(*outputs.values()), judge=execution.node, run=execution.run_name)

    def _execute(self, execution: Execution, inputs: Artifacts, plan: Execute) -> ActiveJob:
        node = self.pipeline.nodes[execution.node]
        assert isinstance(node, Component)
        publisher.clear(self.root, execution)
        self.executor.start(
            NodeJob(
                id=execution.id,
                node=node.name,
                inputs=inputs,
                verify=self._unverified(inputs),
                prepared=plan.prepared,
                outputs={key: str(publisher.place(self.root, execution, key)) for key in node.outputs},
                run=self.run,
                attempt=execution.attempt,
                log=execution.log,
                scratch=str(self._folder / f"{node.name}.scratch"),
                checkpoints=str(self._folder / f"{node.name}.checkpoints"),
                snapshots=str(self.root / "snapshots"),
            )
        )
        deadline = None if node.timeout_s is None else time.monotonic() + node.timeout_s
        return ActiveJob(execution, inputs, plan, deadline)

    def _unverified(self, inputs: Artifacts) -> tuple[Artifact, ...]:
        """The inputs that no node of this run has verified yet."""
        read = itertools.chain(*inputs.values())
        return tuple({a.id: a for a in read if a.id not in self.verified}.values())

    @property
    def _folder(self) -> Path:
        return run_dir(self.root, self.run)
