"""The run loop: parents first, independent nodes side by side, every outcome recorded, nothing left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Literal, TypeAlias

from orchestrator import publisher
from orchestrator.artifact import Artifact
from orchestrator.base_run import stand_ins
from orchestrator.component import Component, Node, Resolver, defaulted
from orchestrator.driver import Artifacts, Execute, Reuse, drive
from orchestrator.errors import Fenced, NodeFailed, SpanwiseError, StoreError, UsageError
from orchestrator.executor import GRACE_S, Ended, Executor, FenceAsked, Job
from orchestrator.lease import Clock, Lease, acquire
from orchestrator.pipeline import Pipeline, Selection
from orchestrator.run import Execution, Run, State, Trigger
from orchestrator.store import Store

log = logging.getLogger("spanwise.run")

Happening: TypeAlias = Literal[
    "run-started", "abandoned-run-closed", "node-started", "node-reused", "node-completed", "node-failed",
    "node-retrying", "node-canceled", "node-skipped", "run-stopping", "run-ended",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run, as it happens; for progress displays and logs."""

    what: Happening
    run: Run
    node: str = ""
    execution: Execution | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a run; see Run for the fields of the same names."""

    selection: Selection | None = None  #: None is every node
    trigger: Trigger = Trigger.MANUAL
    span: int | None = None
    calendar: str = "number"
    as_of: datetime | None = None
    base: int | None = None  #: the run that stands in for nodes left out; None is the newest that has them
    parameters: Mapping[str, object] = field(default_factory=dict)
    source: str = ""
    cache: bool = True
    jobs: int = field(default_factory=lambda: max(2, os.cpu_count() or 2))  #: nodes at once
    grace_s: float = GRACE_S


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run."""

    run: Run
    executions: Mapping[str, Execution]  #: the last of each node that was reached
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  #: never reached, because something before them failed

    @property
    def succeeded(self) -> bool:
        return self.run.state is State.COMPLETE


Observer: TypeAlias = Callable[[Event], None]


def run(
    pipeline: Pipeline,
    *,
    executor: Executor,
    store: Store,
    root: Path,
    request: Request | None = None,
    observe: Observer = lambda _event: None,
    clock: Clock | None = None,
) -> Outcome:
    """Runs a pipeline, or the part of it that the request selects, and returns what became of it.

    A node that fails does not raise: its dependants are skipped, the rest goes on, and the outcome says so. SIGINT,
    SIGTERM and SIGHUP end the run: nodes are stopped, recorded as canceled, and the lease is given back.
    The executor can serve one run after another; it is closed here only when the run raises. `clock` is the lease's.

    Raises:
        Held: another run has the pipeline; nothing was recorded.
        UsageError: no job at all may run, or a node left out has no earlier outputs to stand in for it; nothing was
            recorded.
        Fenced: the lease was lost on the way; what was published before stays, nothing was published after.
        NodeFailed: the process that starts the nodes died.
    """
    request = request or Request()
    if request.jobs < 1:
        raise UsageError(f"A run needs at least one job at a time, not {request.jobs}: --jobs 1")
    selection = request.selection or pipeline.select()
    lease = acquire(store, pipeline.name, "a run", clock=clock)
    loop = _Loop(pipeline, executor, store, root.absolute(), request, observe, lease, selection)
    try:
        return loop.go()
    except BaseException:
        executor.close()  # before the lease is given back: nothing of ours may run beside the next run
        raise
    finally:
        loop.let_go()


@dataclass
class _Started:
    execution: Execution
    inputs: Artifacts
    plan: Execute
    deadline: float | None  #: monotonic


class _Loop:
    def __init__(
        self,
        pipeline: Pipeline,
        executor: Executor,
        store: Store,
        root: Path,
        request: Request,
        observe: Observer,
        lease: Lease,
        selection: Selection,
    ) -> None:
        self._pipeline = pipeline
        self._executor = executor
        self._store = store
        self._root = root
        self._request = request
        self._observe = observe
        self._lease = lease
        self._selection = selection
        self._made: dict[str, Artifacts] = {}  # by node: what it, or its stand-in, has published
        self._last: dict[str, Execution] = {}
        self._failed: list[str] = []
        self._skipped: list[str] = []
        self._todo = list(self._selection.run)
        self._again: dict[str, float] = {}  # by node: when (monotonic) it may be tried again
        self._started: dict[int, _Started] = {}
        self._asked = ""  # who asked us to stop; set by signal handlers
        self._stopping = ""
        self._closed = False  # nothing is left open in the records, by this run or by one before it

    def go(self) -> Outcome:
        self._lease.keep(self._executor.session, self._executor.wake)
        abandoned = publisher.put_right(self._store, self._lease, self._root)
        for run in abandoned:
            sweep(self._root, run)
        self._closed = True
        stands_in = stand_ins(
            self._store, self._pipeline, self._selection, self._request.base, source=self._request.source
        )
        self._closed = False
        self._run = self._begin(base=stands_in.base)
        try:
            self._lease.tell(f"run {self._run.number}")
            for run in abandoned:
                self._tell("abandoned-run-closed", message=run.name)
            self._tell("run-started")
            with self._signals():
                self._carry_over(stands_in.executions)
                self._loop()
            return self._conclude()
        except SpanwiseError as error:
            self._abort(str(error))
            raise
        except BaseException as error:
            self._abort(f"{type(error).__name__}: {error}")
            raise

    def let_go(self) -> None:
        """Gives the lease back; where that cannot be recorded, the next run finds its holder dead."""
        try:
            self._lease.release(closed=self._closed)
        except (Fenced, StoreError) as error:
            log.warning("lease-not-released", extra={"pipeline": self._pipeline.name, "reason": str(error)})

    def _begin(self, base: int | None) -> Run:
        request, me = self._request, self._lease.who
        wanted = Run(
            pipeline=self._pipeline.name,
            trigger=request.trigger,
            span=request.span,
            calendar=request.calendar,
            as_of=request.as_of,
            base=base,
            nodes=self._selection.run,
            parameters={
                n: v if isinstance(v, bool | int | float | str) else str(v) for n, v in request.parameters.items()
            },
            source=request.source,
            token=self._lease.token,
            host=me.host,
            pid=me.pid,
        )
        return self._lease.write(lambda place: self._store.begin_run(wanted, place))

    def _carry_over(self, executions: Mapping[str, Execution]) -> None:
        """Records, for each node left out, the base run's outputs as this run's own, so that lineage stays whole."""
        for node, earlier in executions.items():
            begun = publisher.begin(self._store, self._lease, self._new(node, 1))
            plan = Reuse(outputs=earlier.outputs, reason=f"stands in from {earlier.name}", execution=earlier.id)
            self._made[node] = earlier.outputs
            self._last[node] = publisher.reuse(self._store, self._lease, begun, earlier.inputs, plan)

    def _loop(self) -> None:
        while True:
            self._start_ready()
            if not self._started and (self._stopping or not self._todo):
                return
            for event in self._events():
                if isinstance(event, FenceAsked):
                    self._executor.answer(event.id, self._fence())
                else:
                    self._finish(self._started.pop(event.id), event)
            self._watch()

    def _events(self) -> Sequence[Ended | FenceAsked]:
        try:
            return self._executor.wait(self._patience())
        except NodeFailed:
            self._lease.check()  # whoever took it over has ended our processes too
            raise

    def _start_ready(self) -> None:
        progress = True
        while progress:  # a reused node may make others ready at once
            progress = False
            for node in list(self._todo):
                if len(self._started) >= self._request.jobs or self._asked:
                    return
                if self._doomed(node):
                    self._todo.remove(node)
                    self._skipped.append(node)
                    self._tell("node-skipped", node)
                    progress = True
                elif self._ready(node):
                    self._todo.remove(node)
                    self._start(self._pipeline.nodes[node])
                    progress = True

    def _ready(self, node: str) -> bool:
        above = all(p in self._made or p not in self._selection.run for p in self._pipeline.parents(node))
        return above and time.monotonic() >= self._again.get(node, 0.0)

    def _doomed(self, node: str) -> bool:
        return any(p in self._failed or p in self._skipped for p in self._pipeline.parents(node))

    def _start(self, node: Node) -> None:
        before = self._last.get(node.name)
        attempt = before.attempt + 1 if before is not None and node.name in self._again else 1
        execution = publisher.begin(self._store, self._lease, self._new(node.name, attempt))
        self._last[node.name] = execution
        self._tell("node-started", node.name, execution)
        inputs: Artifacts = {}
        try:
            inputs = {n: tuple(a for c in cs for a in self._read(c.node, c.key)) for n, cs in node.inputs.items()}
            mine = self._read(node.source.node, node.source.key) if isinstance(node, Resolver) else ()
            plan = drive(node, self._run, self._store, inputs, mine, cache=self._request.cache)
            if isinstance(plan, Execute):
                self._execute(node, execution, inputs, plan)
            else:  # what a resolver reads is what it chose, not all that lies on the channel
                self._reuse(execution, plan.outputs if isinstance(node, Resolver) else inputs, plan)
        except (Fenced, StoreError):
            raise
        except SpanwiseError as error:
            self._fail(replace(execution, inputs=inputs), str(error))
        except Exception as error:  # a user's `prepare` or `resolve`
            log.exception("driver-failed", extra={"node": node.name})
            self._fail(replace(execution, inputs=inputs), f"{type(error).__name__}: {error}")

    def _reuse(self, execution: Execution, inputs: Artifacts, plan: Reuse) -> None:
        ended = publisher.reuse(self._store, self._lease, execution, inputs, plan)
        self._made[ended.node] = ended.outputs
        self._last[ended.node] = ended
        self._tell("node-reused", ended.node, ended)

    def _execute(self, node: Node, execution: Execution, inputs: Artifacts, plan: Execute) -> None:
        assert isinstance(node, Component)
        places = {key: publisher.place(self._root, execution, key) for key in node.outputs}
        publisher.clear(self._root, execution)
        room = self._room()
        self._executor.start(
            Job(
                id=execution.id,
                node=node.name,
                inputs=inputs,
                prepared=plan.prepared,
                outputs={key: str(where) for key, where in places.items()},
                run=self._run,
                attempt=execution.attempt,
                log=execution.log,
                scratch=str(room / f"{node.name}.scratch"),
                checkpoints=str(room / f"{node.name}.checkpoints"),
            )
        )
        deadline = None if node.timeout_s is None else time.monotonic() + node.timeout_s
        self._started[execution.id] = _Started(execution, inputs, plan, deadline)

    def _finish(self, started: _Started, ended: Ended) -> None:
        execution = replace(publisher.described(started.execution, started.plan), inputs=started.inputs)
        if ended.outputs is not None:
            done = publisher.complete(self._store, self._lease, execution, started.inputs, started.plan, ended.outputs)
            shutil.rmtree(self._room() / f"{done.node}.checkpoints", ignore_errors=True)
            self._made[done.node] = done.outputs
            self._last[done.node] = done
            self._tell("node-completed", done.node, done)
            return
        assert ended.failure is not None
        if self._stopping and not ended.failure.timed_out:
            canceled = publisher.fail(
                self._store, self._lease, self._root, execution, State.CANCELED, ended.failure.message
            )
            self._last[canceled.node] = canceled
            self._tell("node-canceled", canceled.node, canceled, ended.failure.message)
            return
        message = f"{ended.failure.message}\n{ended.failure.trace}".rstrip()
        self._fail(execution, message, retry=True)

    def _fail(self, execution: Execution, message: str, *, retry: bool = False) -> None:
        failed = publisher.fail(self._store, self._lease, self._root, execution, State.FAILED, message)
        self._last[failed.node] = failed
        node = self._pipeline.nodes[failed.node]
        if retry and isinstance(node, Component) and failed.attempt <= node.retry.times and not self._stopping:
            wait_s = node.retry.wait_s(failed.attempt)
            self._again[node.name] = time.monotonic() + wait_s
            self._todo.append(node.name)
            self._tell("node-retrying", node.name, failed, f"{message}\nTried again in {wait_s:g} s.")
            return
        self._failed.append(failed.node)
        self._tell("node-failed", failed.node, failed, message)

    def _watch(self) -> None:
        """Looks after what does not announce itself: time limits, a lost lease, a request to stop."""
        now = time.monotonic()
        for job, started in self._started.items():
            if started.deadline is not None and now >= started.deadline:
                limit = self._pipeline.nodes[started.execution.node].timeout_s  # type: ignore[attr-defined]
                why = f"It took longer than its limit of {limit:g} s (timeout_s) and was stopped."
                self._executor.stop(job, why, timed_out=True, grace_s=self._request.grace_s)
                started.deadline = None
        if self._lease.lost:
            self._lease.check()
        if not self._stopping and self._store.claimed("stop", self._run.name) is not None:
            self._asked = "`spanwise stop`"  # also where its signal was quicker than this look
        if self._asked and not self._stopping:
            self._stopping = self._asked
            self._tell("run-stopping", message=self._stopping)
        if self._stopping:
            for job in self._executor.running:
                self._executor.stop(job, f"The run was stopped by {self._stopping}.", grace_s=self._request.grace_s)

    def _fence(self) -> str | None:
        try:
            self._lease.check()
        except Fenced as lost:
            return str(lost)
        return f"The run was stopped by {self._stopping}." if self._stopping else None

    def _patience(self) -> float:
        now = time.monotonic()
        moments = [s.deadline for s in self._started.values() if s.deadline is not None]
        if len(self._started) < self._request.jobs:
            moments += [self._again[n] for n in self._todo if n in self._again]
        return max(0.0, min([1.0, *(m - now for m in moments)]))

    def _read(self, node: str, key: str) -> tuple[Artifact, ...]:
        return tuple(self._made.get(node, {}).get(key, ()))

    def _new(self, node: str, attempt: int) -> Execution:
        return Execution(
            pipeline=self._run.pipeline,
            run=self._run.number,
            node=node,
            attempt=attempt,
            component=type(self._pipeline.nodes[node]).__name__,
            defaults=defaulted(self._pipeline.nodes[node]),
            log=str(self._room() / "logs" / f"{node}.{attempt}.log"),
        )

    def _room(self) -> Path:
        return room(self._root, self._run)

    def _conclude(self) -> Outcome:
        if self._stopping:
            self._end(State.CANCELED, f"stopped by {self._stopping}")
        elif self._failed:
            self._end(State.FAILED, f"{', '.join(self._failed)} failed")
        else:
            self._end(State.COMPLETE, None)
        return Outcome(
            run=self._run,
            executions=self._last,
            failed=tuple(self._failed),
            skipped=(*self._skipped, *self._todo),
        )

    def _abort(self, error: str) -> None:
        """Ends what runs and records that it failed."""
        if self._run.state.ended:
            return
        self._executor.close()
        self._end(State.FAILED, error)

    def _end(self, state: State, error: str | None) -> None:
        """Records the end of the run; when that cannot be recorded, the next run will close it."""
        ended = replace(self._run, state=state, error=error, ended=self._lease.now())
        try:
            for open_ in [e for e in self._last.values() if not e.state.ended]:
                failed = publisher.fail(self._store, self._lease, self._root, open_, State.FAILED, error or "")
                self._last[failed.node] = failed
            self._lease.write(lambda place: self._store.update_run(ended, place))
            self._closed = True
        except (Fenced, StoreError) as unrecorded:
            log.warning("run-end-not-recorded", extra={"run": ended.name, "reason": str(unrecorded)})
        self._run = ended
        sweep(self._root, ended)
        self._tell("run-ended", message=error or "")

    def _tell(self, what: Happening, node: str = "", execution: Execution | None = None, message: str = "") -> None:
        log.info(what, extra={"run": self._run.name, "node": node, "reason": message})
        self._observe(Event(what=what, run=self._run, node=node, execution=execution, message=message))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turns signals into a request to stop, while the loop goes on. Only the main thread may take signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def take(number: int, _frame: FrameType | None) -> None:
            self._asked = self._asked or signal.Signals(number).name
            self._executor.wake()

        # What our starter has us ignore stays ignored: SIGHUP under nohup, SIGINT in the background of a script.
        numbers = [n for n in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {n: signal.signal(n, take) for n in (signal.SIGTERM, *numbers)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def room(root: Path, run: Run) -> Path:
    """The folder of a run: its logs, scratch and checkpoints."""
    return root / run.pipeline / ".runs" / str(run.number)


def sweep(root: Path, run: Run) -> None:
    """Removes what only a run that goes on has a use for: scratch and checkpoints. The logs stay."""
    for kind in ("scratch", "checkpoints"):
        for folder in room(root, run).glob(f"*.{kind}"):
            shutil.rmtree(folder, ignore_errors=True)
