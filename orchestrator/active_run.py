"""Active runs: one run on its way, from its first node to its recorded end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from spanwise.orchestrator.component import Component, Resolver
from spanwise.orchestrator.errors import Fenced, StoreError
from spanwise.orchestrator.executor import ExecutorEvent
from spanwise.orchestrator.job import FenceQuery, JobEnded, JobFailure, JobPlaced
from spanwise.orchestrator.lease import TTL_S
from spanwise.orchestrator.node_runner import ActiveJob, NodeResult, NodeRunner
from spanwise.orchestrator.placement import Placement, record_placement
from spanwise.orchestrator.pool import POLL_S, Slot
from spanwise.orchestrator.run import BaseRun, Execution, State
from spanwise.orchestrator.run_dir import remove_working_files
from spanwise.orchestrator.run_request import Event, EventName, Observer, RunOutcome, RunRequest
from spanwise.orchestrator.stop_request import find_stop
from spanwise.orchestrator.worklist import SkipNode, Worklist

log = logging.getLogger("spanwise.run")

_LONGEST_WAIT_S = 1.0
"""A stop through the store announces itself to nobody, so the store is asked this often."""


MOST_PREEMPTIONS = 20
"""A node whose machine is taken away more often fails: perhaps it is the node that breaks the machines."""


class ActiveRun:
    """A run that has been recorded and has not ended. `stop_signal` names the signal that has asked for its end."""

    def __init__(
        self, nodes: NodeRunner, request: RunRequest, observe: Observer, stop_signal: Callable[[], str]
    ) -> None:
        self.run = nodes.run
        self.closed = False  #: its end is recorded, and no execution of it is left open
        self._nodes = nodes
        self._request = request
        self._observe = observe
        self._stop_signal = stop_signal
        self._worklist = Worklist(nodes.pipeline, nodes.run.nodes)
        self._jobs: dict[int, ActiveJob] = {}  # by execution
        self._stop_command = ""
        self._stopping = ""  # by what, once jobs are being stopped
        self._preempted: Counter[str] = Counter()  # how often the machine of a node was taken away
        self._looked = 0.0  # when (monotonic) the last look for nodes to start began
        self._full: set[str] = set()  # nodes that wait for a slot of their pool

    def begin(self, supplied: BaseRun) -> None:
        """Announces the run and carries over what the base run supplies."""
        self._nodes.lease.describe(f"run {self.run.number}")
        self._announce("run-started")
        if supplied.run is not None:
            self._observe(Event(what="base-run-chosen", run=self.run, base=supplied))
        for execution in supplied.executions.values():
            self._worklist.end(self._nodes.carry_over(execution))

    @property
    def over(self) -> bool:
        """Whether no job is active and no node is left to start."""
        return not self._jobs and bool(self._stopping or not self._worklist.waiting)

    def start_ready(self) -> None:
        """Starts every node that waits for nothing, and skips those that cannot run any more."""
        waited, self._full = self._full, set()
        self._looked = time.monotonic()
        while self._has_room() and (step := self._worklist.next_step(self._looked, self._fits)) is not None:
            if isinstance(step, SkipNode):
                self._worklist.skip(step.node)
                self._announce("node-skipped", step.node)
            elif self._pool_of(step.node) and (slot := self._take_slot(step.node)) is None:
                self._full.add(step.node)
                if step.node not in waited:
                    self._announce("node-waiting", step.node, message=self._describe_pool(step.node))
            else:
                self._start(step.node, slot if self._pool_of(step.node) else None)

    def handle(self, event: ExecutorEvent) -> None:
        """Handles an event of the executor, if it is about a job of this run."""
        if event.id not in self._jobs:
            return
        if isinstance(event, FenceQuery):
            self._nodes.executor.answer(event.id, self._reason_to_hold_back())
        elif isinstance(event, JobPlaced):
            self._note_placement(self._jobs[event.id].execution, event.placement)
        elif isinstance(event, JobEnded):
            job = self._jobs.pop(event.id)
            if job.slot is not None and event.outputs is not None and self._nodes.pools.is_lost(job.slot):
                event = JobEnded(id=event.id, failure=JobFailure(message=_SLOT_LOST.format(slot=job.slot.place)))
            self._settle(self._nodes.finish(job, event, stopping=bool(self._stopping)))
            self._release(job.slot)

    def _note_placement(self, execution: Execution, placement: Placement) -> None:
        record_placement(self._nodes.store, execution, placement)
        where = f"{placement.place}  {placement.page_url}".rstrip()
        self._announce("node-placed", execution.node, execution, where)

    def enforce_limits(self) -> None:
        """Stops jobs of this run whose time is up, and all of them once somebody has asked to stop it."""
        self._stop_overdue()
        for id_, active in self._jobs.items():
            if active.slot is not None and self._nodes.pools.is_lost(active.slot):
                self._stop(id_, _SLOT_LOST.format(slot=active.slot.place))
        if not self._stopping:
            self._stop_command = find_stop(self._nodes.store, self.run)  # named even where its signal came before
            if self._stop_asked():
                self._stopping = self._stop_asked()
                self._announce("stop-requested", message=self._stopping)
        if self._stopping:
            for job in self._jobs:
                self._stop(job, f"The run was stopped by {self._stopping}.")

    def wait_s(self) -> float:
        """How long nothing is to be done unless a job reports something."""
        moments = [job.deadline for job in self._jobs.values() if job.deadline is not None]
        retry = self._worklist.next_retry(self._looked)
        if retry is not None and self._has_room():
            moments.append(retry)
        longest_s = POLL_S if self._full else _LONGEST_WAIT_S
        return max(0.0, min([longest_s, *(moment - time.monotonic() for moment in moments)]))

    def conclude(self) -> RunOutcome:
        """Records how the run ended.

        Raises:
            Fenced: whoever has taken over has recorded that it failed.
        """
        work = self._worklist
        if self._stopping:
            self._end(State.CANCELED, f"stopped by {self._stopping}")
        elif work.failed:
            self._end(State.FAILED, f"{', '.join(work.failed)} failed")
        else:
            self._end(State.COMPLETE, None)
        return RunOutcome(
            run=self.run,
            executions=work.executions,
            failed=tuple(work.failed),
            skipped=(*work.skipped, *work.waiting),
        )

    def abort(self, error: str) -> None:
        """Ends all jobs and records that the run failed, unless its end is recorded already."""
        if self.run.state.ended:
            return
        self._nodes.executor.close()
        with contextlib.suppress(Fenced):
            self._end(State.FAILED, error)

    def _has_room(self) -> bool:
        return len(self._nodes.executor.running) < self._request.jobs and not self._stop_asked()

    def _stop_asked(self) -> str:
        return self._stop_command or self._stop_signal()

    def _fits(self, node: str) -> bool:
        return node not in self._full and self._nodes.executor.has_room(node)

    def _pool_of(self, name: str) -> str:
        node = self._nodes.pipeline.nodes[name]
        return node.resources.pool if isinstance(node, Component) else ""

    def _take_slot(self, name: str) -> Slot | None:
        pool = self._pool_of(name)
        silence_s = TTL_S + self._nodes.executor.silence_s(name)
        return self._nodes.pools.take(pool, self._request.pools[pool], f"{self.run.name}/{name}", silence_s=silence_s)

    def _release(self, slot: Slot | None) -> None:
        if slot is not None:
            self._nodes.pools.release(slot)

    def _describe_pool(self, name: str) -> str:
        pool = self._pool_of(name)
        holders = self._nodes.pools.holders(pool, self._request.pools[pool])
        return f"the pool {pool!r} is full: {', '.join(slot.work for slot in holders)}"

    def _start(self, name: str, slot: Slot | None) -> None:
        work, node = self._worklist, self._nodes.pipeline.nodes[name]
        execution = self._nodes.begin(name, work.next_attempt(name))
        work.start(execution)
        self._announce("node-started", name, execution)
        inputs = work.inputs_of(node)
        mine = inputs if isinstance(node, Resolver) else {}
        if isinstance(node, Component):
            inputs = {**inputs, **dict.fromkeys(node.unread(self.run), ())}
        started = self._nodes.start(execution, inputs, mine, cache=self._request.cache)
        if isinstance(started, ActiveJob):
            started.slot = slot
            self._jobs[execution.id] = started
        else:
            self._settle(started)
            self._release(slot)

    def _settle(self, result: NodeResult) -> None:
        """Notes and announces how an execution ended, and lets a node that may be retried wait for its turn."""
        execution, message = result.execution, result.message
        self._worklist.end(execution)
        if execution.state is State.FAILED:
            if (wait_s := self._retry_wait_s(result)) is not None:
                self._worklist.retry(execution.node, time.monotonic() + wait_s)
                self._announce("retry-scheduled", execution.node, execution, f"{message}\nTried again in {wait_s:g} s.")
                return
            self._worklist.fail(execution.node)
        self._announce(_EVENT_OF[execution.state], execution.node, execution, message)

    def _retry_wait_s(self, result: NodeResult) -> float | None:
        """How long a failed node waits for its next attempt; None when it gets none."""
        node, attempt = self._nodes.pipeline.nodes[result.execution.node], result.execution.attempt
        if not result.may_retry or self._stopping or not isinstance(node, Component):
            return None
        if result.preempted and self._preempted[node.name] < MOST_PREEMPTIONS:
            self._preempted[node.name] += 1
            return node.retry.wait_s(self._preempted[node.name])
        failures = attempt - self._preempted[node.name]
        return node.retry.wait_s(failures) if failures <= node.retry.times else None

    def _stop_overdue(self) -> None:
        now = time.monotonic()
        for id_, job in self._jobs.items():
            if job.deadline is not None and now >= job.deadline:
                limit_s = self._nodes.pipeline.nodes[job.execution.node].timeout_s  # type: ignore[attr-defined]
                why = f"It took longer than its limit of {limit_s:g} s (timeout_s) and was stopped."
                self._stop(id_, why, timed_out=True)
                job.deadline = None

    def _stop(self, job: int, why: str, *, timed_out: bool = False) -> None:
        self._nodes.executor.stop(job, why, timed_out=timed_out, grace_s=self._request.grace_s)

    def _reason_to_hold_back(self) -> str | None:
        """Why a job may have no effect outside the store; None when it may."""
        try:
            self._nodes.lease.check()
        except Fenced as lost:
            return str(lost)
        return f"The run was stopped by {self._stopping}." if self._stopping else None

    def _end(self, state: State, error: str | None) -> None:
        """Records the end of the run; when that is impossible, the next run closes it. Raises Fenced if it has."""
        lease, store = self._nodes.lease, self._nodes.store
        ended = replace(self.run, state=state, error=error, ended=lease.now())
        left: list[Execution] = []
        fenced = None
        try:
            for execution in [e for e in self._worklist.executions.values() if not e.state.ended]:
                failed = self._nodes.fail(execution, error or "").execution
                self._worklist.end(failed)
                left.append(failed)
            lease.write(lambda place: store.update_run(ended, place))
            self.closed = True
        except (Fenced, StoreError) as unrecorded:
            log.warning("run-end-lost", extra={"run": ended.name, "reason": str(unrecorded)})
            if isinstance(unrecorded, Fenced):
                fenced = unrecorded
                ended = replace(ended, state=State.FAILED, error=str(fenced))
        self.run = ended
        remove_working_files(self._nodes.root, ended, store.archive)
        for execution in left:
            self._announce("node-failed", execution.node, execution, error or "")
        self._announce("run-ended", message=ended.error or "")
        if fenced is not None:
            raise fenced

    def _announce(self, what: EventName, node: str = "", execution: Execution | None = None, message: str = "") -> None:
        log.info(what, extra={"run": self.run.name, "node": node, "reason": message})
        self._observe(Event(what=what, run=self.run, node=node, execution=execution, message=message))


_SLOT_LOST = "Another run has taken over its slot {slot} of the pool, since this one was out of reach for too long."

_EVENT_OF: dict[State, EventName] = {
    State.CACHED: "node-reused",
    State.COMPLETE: "node-completed",
    State.CANCELED: "node-canceled",
    State.FAILED: "node-failed",
}
