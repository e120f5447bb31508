"""Node runners: what happens to one node of a run, from its first record to its published outcome."""

from __future__ import annotations

import contextlib
import itertools
import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spanwise.orchestrator import publisher
from spanwise.orchestrator.artifact import Artifact, Judgement, Model
from spanwise.orchestrator.calendar import Calendar, Version
from spanwise.orchestrator.collection import channel_of
from spanwise.orchestrator.component import Component, Node, Resolver, list_defaults
from spanwise.orchestrator.driver import Artifacts, Execute, Reuse, drive
from spanwise.orchestrator.edited_spans import find_edited_spans
from spanwise.orchestrator.errors import Fenced, Refused, SpanwiseError, StorageError, StoreError
from spanwise.orchestrator.executor import Executor
from spanwise.orchestrator.gate import Gate, describe_accept, describe_fixes, ingested_calendar
from spanwise.orchestrator.history import span_of, version_of
from spanwise.orchestrator.job import JobEnded, NodeJob
from spanwise.orchestrator.lease import Lease
from spanwise.orchestrator.lineage import may_hold_rows
from spanwise.orchestrator.log_uploads import LogUploads
from spanwise.orchestrator.making import name_spans
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.pool import Pools, Slot
from spanwise.orchestrator.run import Execution, Run, State, quote_pipeline
from spanwise.orchestrator.run_command import format_run_command
from spanwise.orchestrator.run_dir import run_dir, set_aside
from spanwise.orchestrator.signature import ModelOrigin, read_signature
from spanwise.orchestrator.span_resolver import SpanResolver
from spanwise.orchestrator.store import Store
from spanwise.orchestrator.verdict import Verdict, find_standing_of_model, judges_of, verdict_of, verdicts_of

log = logging.getLogger("spanwise.run")


@dataclass
class ActiveJob:
    """An execution whose work has started in a process of its own."""

    execution: Execution
    inputs: Artifacts
    plan: Execute
    deadline: float | None  #: monotonic; None when the node has no time limit, or was stopped at it
    slot: Slot | None = None  #: of the node's pool


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """An execution that has ended, as it was published."""

    execution: Execution
    message: str = ""  #: why it failed or was canceled
    may_retry: bool = False  #: the work failed, not what comes before it
    preempted: bool = False  #: its machine was taken away, so that the failure does not count


@dataclass(frozen=True, kw_only=True)
class NodeRunner:
    """Takes the nodes of one run, each by itself, through begin, drive, execute and publish."""

    run: Run
    pipeline: Pipeline
    executor: Executor
    store: Store
    lease: Lease
    root: Path
    pools: Pools
    logs: LogUploads | None = None  #: where the root is in object storage
    verified: set[int] = field(default_factory=set)  #: artifacts that this run has written or read whole
    cleared: set[int] = field(default_factory=set)  #: the run, once its folder in the archive has nothing of another

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
        self.executor.spare(earlier.node)
        execution = self.begin(earlier.node, 1)
        plan = Reuse(outputs=earlier.outputs, reason=f"supplied by {earlier.name}", execution=earlier.id)
        return publisher.reuse(self.store, self.lease, execution, earlier.inputs, plan)

    def start(self, execution: Execution, inputs: Artifacts, mine: Artifacts, *, cache: bool) -> ActiveJob | NodeResult:
        """Drives a node, then publishes what it reuses or starts its work; `mine` is as in `drive`."""
        node = self.pipeline.nodes[execution.node]
        try:
            scopes = self.pipeline.scopes.get(node.name)
            plan = drive(node, self.run, self.store, inputs, mine, cache=cache, scopes=scopes)
            if isinstance(plan, Execute):
                return self._execute(execution, inputs, plan)
            if isinstance(node, Resolver):  # it reads what it chose, no more
                self._warn_edited(node, plan)
                return NodeResult(execution=publisher.reuse(self.store, self.lease, execution, plan.outputs, plan))
            self.executor.spare(node.name)
            return NodeResult(execution=self._reuse(execution, inputs, plan))
        except (Fenced, StoreError):
            raise
        except Refused as error:
            if isinstance(node, Gate):
                return self._refuse(replace(execution, inputs=inputs), str(error))
            message = str(error)
        except SpanwiseError as error:
            message = str(error)
        except Exception as error:  # a user's `prepare` or `resolve`
            log.exception("driver-failed", extra={"node": node.name})
            message = f"{type(error).__name__}: {error}"
        return self.fail(replace(execution, inputs=inputs), message)

    def finish(self, job: ActiveJob, ended: JobEnded, *, stopping: bool) -> NodeResult:
        """Publishes what a job made, or how it failed; while the run is stopping, it was canceled."""
        if self.logs is not None:
            self.logs.end(Path(job.execution.log))
        execution = replace(
            publisher.with_plan(job.execution, job.plan), inputs=job.inputs, work_ended=self.lease.now()
        )
        node = self.pipeline.nodes[execution.node]
        if ended.outputs is not None:
            passed = {node.judged: job.inputs[node.judged]} if isinstance(node, Gate) else {}
            outputs = {**passed, **ended.outputs}
            verdicts = self._verdicts(execution, outputs)
            done = publisher.complete(self.store, self.lease, execution, job.inputs, job.plan, outputs, verdicts)
            self._remove_checkpoints(node)
            spared = node.may_be_damaged() if isinstance(node, Component) else ()
            whole = [found for name, found in job.inputs.items() if name not in spared]
            self.verified.update(a.id for a in itertools.chain(*whole, *done.outputs.values()))
            return NodeResult(execution=done)
        assert ended.failure is not None
        read = itertools.chain(*job.inputs.values())
        self.verified.difference_update(artifact.id for artifact in read)  # it may have written there
        if ended.failure.refused and isinstance(node, Gate):
            return self._refuse(execution, ended.failure.message)
        if stopping and not ended.failure.timed_out:
            return self.fail(execution, ended.failure.message, state=State.CANCELED)
        message = f"{ended.failure.message}\n{ended.failure.trace}".rstrip()
        preempted = ended.failure.cause == "preempted"
        return replace(self.fail(execution, message), may_retry=True, preempted=preempted)

    def fail(
        self, execution: Execution, message: str, *, state: State = State.FAILED, verdicts: Sequence[Verdict] = ()
    ) -> NodeResult:
        """Publishes that an execution failed or was canceled, and removes its files."""
        try:
            self._set_aside()
        except StorageError as error:
            log.warning("folder-not-set-aside", extra={"run": self.run.name, "reason": str(error)})
        failed = publisher.fail(self.store, self.lease, self.root, execution, state, message, verdicts)
        return NodeResult(execution=failed, message=message)

    def _refuse(self, execution: Execution, why: str) -> NodeResult:
        """Publishes that a gate has refused its span. What a person has said of it is not said again."""
        node = self.pipeline.nodes[execution.node]
        assert isinstance(node, Gate)
        judged = execution.inputs[node.judged][0]
        refusal = [] if self.run.replay else [self._verdict(execution, judged, given=False, because=why)]
        return self.fail(execution, f"{why}\n{self._describe_fixes(judged)}", verdicts=refusal)

    def _reuse(self, execution: Execution, inputs: Artifacts, plan: Reuse) -> Execution:
        node = self.pipeline.nodes[execution.node]
        passed = node.judged if isinstance(node, Gate) else None  # a gate gives nothing anew
        made = [] if self.run.replay else [a for key, found in plan.outputs.items() if key != passed for a in found]
        verdicts = self._verdicts(execution, plan.outputs, because=plan.reason if plan.execution is None else "")
        verdicts = self._say_again(verdicts, inputs, plan)
        return publisher.reuse(self.store, self.lease, execution, inputs, plan, renewed=made, verdicts=verdicts)

    def _verdicts(self, execution: Execution, outputs: Artifacts, because: str = "") -> list[Verdict]:
        """What a node has decided: about other artifacts by its outputs, and about what it passes on as a gate.

        `because` is what a gate follows instead of its own judgement.

        A replay of the past says nothing about today.
        """
        if self.run.replay:
            return []
        node = self.pipeline.nodes[execution.node]
        made = [a.as_kind(node.outputs[key].kind) for key, found in outputs.items() for a in found]
        said = verdicts_of(made, judge=execution.node, run=execution.run_name)
        if not isinstance(node, Gate):
            return said
        return [*said, self._verdict(execution, outputs[node.judged][0], because=because)]

    def _say_again(self, verdicts: Sequence[Verdict], inputs: Artifacts, plan: Reuse) -> list[Verdict]:
        """The verdicts of a reused result, about what this run reads: the same may have been published again since."""
        earlier = self.store.execution(plan.execution).inputs if verdicts and plan.execution is not None else {}
        now = {
            then.name: read.name
            for key, found in earlier.items()
            for then, read in zip(found, inputs.get(key, ()), strict=False)
        }
        return [replace(verdict, artifact=now.get(verdict.artifact, verdict.artifact)) for verdict in verdicts]

    def _verdict(self, execution: Execution, artifact: Artifact, *, given: bool = True, because: str = "") -> Verdict:
        judgement = Judgement(mark="accepted", artifact=artifact.name, given=given, because=because)
        return verdict_of(judgement, judge=execution.node, run=execution.run_name)

    def _personal_verdicts(self, models: Sequence[Artifact]) -> dict[str, Verdict]:
        """What people have said of these models, or of those that they were made of, by their names."""
        found = {m.name: find_standing_of_model(self.store, m, as_of=self.run.heard_until).personal for m in models}
        return {name: verdict for name, verdict in found.items() if verdict is not None}

    def _describe_fixes(self, artifact: Artifact) -> str:
        """What to type when a gate has refused a span."""
        calendar = Calendar.from_name(artifact.properties.get("calendar") or self.run.calendar)
        asked = self.run
        if asked.span is None:
            asked = replace(asked, span=span_of(artifact), calendar=calendar.value)
        nodes = {*self.run.nodes, *self.pipeline.ancestors(*self.run.nodes)}
        apart = bool(asked.spans) and set(asked.spans) <= set(self.run.nodes) < nodes  # others have no span here
        first = self.pipeline.first_of(self.run.nodes) if apart else ()
        last = self.pipeline.last_of(nodes) if len(nodes) < len(self.pipeline.order) else ()
        accept = describe_accept(
            quote_pipeline(self.run),
            calendar.label(span_of(artifact)),
            node="" if self.pipeline.judged[0].alone else artifact.name.split("/")[1],
        )
        return describe_fixes(format_run_command(asked, self.pipeline.name, first=first, last=last), accept)

    def _execute(self, execution: Execution, inputs: Artifacts, plan: Execute) -> ActiveJob:
        node = self.pipeline.nodes[execution.node]
        assert isinstance(node, Component)
        for left in publisher.folders(self.root, execution):
            set_aside(left)
        self._set_aside()
        unverified = self._unverified(inputs)
        execution = replace(execution, work_started=self.lease.now())
        self.executor.start(
            NodeJob(
                id=execution.id,
                node=node.name,
                inputs=inputs,
                verify=unverified,
                judges={a.name: found for a in unverified if (found := self._judges(a))},
                spans={a.name: named for a in unverified if (named := self._name_spans(a))},
                origins={m.name: _origin_of(self.store.producer(m)) for m in _models(inputs)},
                verdicts=self._personal_verdicts(_models(inputs)),
                prepared=plan.prepared,
                outputs={
                    key: str(publisher.place(self.root, execution, key))
                    for key in node.outputs
                    if not (isinstance(node, Gate) and key == node.judged)
                },
                run=self.run,
                attempt=execution.attempt,
                log=execution.log,
                scratch=str(self._folder / f"{node.name}.scratch"),
                archive=self.store.archive,
                gang=node.gang,
                checkpoints=str(self._folder / f"{node.name}.checkpoints"),
                snapshots=str(self.root / "snapshots") if self.store.archive is None else self.store.archive.snapshots,
            )
        )
        if self.logs is not None:
            self.logs.begin(Path(execution.log))
        deadline = None if node.timeout_s is None else time.monotonic() + node.timeout_s
        return ActiveJob(execution, inputs, plan, deadline)

    def _warn_edited(self, node: Resolver, plan: Reuse) -> None:
        """Warns of spans of a window that were made before an edit; a replay reads what there was."""
        if not isinstance(node, SpanResolver) or self.run.replay:
            return
        chosen = list(itertools.chain(*plan.outputs.values()))
        for edited in find_edited_spans(self.store, self.run, self.pipeline, chosen):
            log.warning("edited-since: %s reads %s", node.name, edited.describe(self.run))

    def _set_aside(self) -> None:
        """Before the run has a log: that of a forgotten run may be in the archive. A run that only reuses has none."""
        if self.store.archive is not None and not self.cleared:
            self.store.archive.set_aside(self._folder)
            self.cleared.add(self.run.number)

    def _remove_checkpoints(self, node: Node) -> None:
        folder = self._folder / f"{node.name}.checkpoints"
        shutil.rmtree(folder, ignore_errors=True)
        if self.store.archive is not None and read_signature(type(node)).attempt is not None:
            with contextlib.suppress(StorageError):  # gc finds them
                self.store.archive.remove_checkpoints(folder)

    def _unverified(self, inputs: Artifacts) -> tuple[Artifact, ...]:
        """The inputs that no node of this run has verified yet."""
        read = itertools.chain(*inputs.values())
        return tuple({a.id: a for a in read if a.id not in self.verified}.values())

    def _judges(self, artifact: Artifact) -> tuple[str, ...]:
        """The gates that have judged an artifact and are still there."""
        if "span" not in artifact.properties:
            return ()
        return tuple(name for name in judges_of(self.store, "accepted", artifact) if name in self.pipeline.nodes)

    def _name_spans(self, artifact: Artifact) -> str:
        """The options that name the spans that an artifact was made of, where several nodes ingest for it."""
        node = artifact.name.split("/")[1]
        above = self.pipeline.ancestors(node) if node in self.pipeline.nodes else ()
        if sum(ingested_calendar(self.pipeline.nodes[name]) is not None for name in above) <= 1:
            return ""
        return name_spans(self.store, artifact, calendar=self.run.calendar)

    @property
    def _folder(self) -> Path:
        return run_dir(self.root, self.run)


def _origin_of(maker: Execution) -> ModelOrigin:
    spans: dict[str, set[tuple[int, Version]]] = defaultdict(set)
    for artifact in itertools.chain(*maker.inputs.values()):
        if may_hold_rows(artifact) and isinstance(artifact.properties.get("span"), int):
            spans[channel_of(artifact)].add((span_of(artifact), version_of(artifact)))
    return ModelOrigin(maker.run_name, {channel: frozenset(found) for channel, found in spans.items()})


def _models(inputs: Artifacts) -> list[Artifact]:
    return [artifact for artifact in itertools.chain(*inputs.values()) if artifact.is_a(Model)]
