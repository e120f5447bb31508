"""The run loop: parents first, independent nodes side by side, every outcome recorded, nothing left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, Self, TypeAlias

from spanwise.orchestrator import process, publisher
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.base_run import StandIns, stand_ins
from spanwise.orchestrator.component import Component, Node, Resolver, defaulted
from spanwise.orchestrator.driver import Artifacts, Execute, Reuse, drive
from spanwise.orchestrator.errors import Fenced, NodeFailed, SpanwiseError, StoreError, UsageError
from spanwise.orchestrator.executor import GRACE_S, Ended, Executor, FenceAsked, Job
from spanwise.orchestrator.lease import Clock, acquire
from spanwise.orchestrator.pipeline import Pipeline, Selection
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.orchestrator.store import Claim, Store

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
    cause: str = ""
    claims: tuple[Claim, ...] = ()  #: inserted in the transaction that begins the run; one that exists prevents it
    span: int | None = None
    calendar: str = "number"
    from_scratch: bool = False
    as_of: datetime | None = None
    base: int | None = None  #: the run that stands in for nodes left out; None is the newest that has them
    parameters: Mapping[str, object] = field(default_factory=dict)
    typed: tuple[str, ...] = ()
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
        AlreadyClaimed: one of the request's claims exists; nothing was recorded.
        UsageError: no job at all may run, or a node left out has no earlier outputs to stand in for it; nothing was
            recorded.
        Fenced: the lease was lost on the way; what was published before stays, nothing was published after.
        NodeFailed: the process that starts the nodes died.
    """
    request = request or Request()
    if request.jobs < 1:
        raise UsageError(f"A run needs at least one job at a time, not {request.jobs}: --jobs 1")
    with Controller(pipeline, executor=executor, store=store, root=root, observe=observe, clock=clock) as controller:
        return controller.run(request)


class Controller:
    """Holds a pipeline's lease and makes runs of it: one after another, or some side by side.

    Between its runs nobody else's can begin. Entering it takes the lease and puts right what dead holders left;
    `doing` is what whoever finds the pipeline held is told. SIGINT, SIGTERM and SIGHUP are noted in `asked` and end
    the runs that go on. For what is raised see `run`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        executor: Executor,
        store: Store,
        root: Path,
        observe: Observer = lambda _event: None,
        clock: Clock | None = None,
        doing: str = "a run",
    ) -> None:
        self.pipeline = pipeline
        self.executor = executor
        self.store = store
        self.root = root.absolute()
        self.observe = observe
        self.asked = ""  #: who asked to stop, such as SIGTERM; set by signal handlers
        self._clock = clock
        self._doing = doing
        self._abandoned: list[Run] = []
        self._open = 0  # runs whose records may be open
        self._restoring = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.lease = acquire(self.store, self.pipeline.name, self._doing, clock=self._clock)
        self._open = 1  # what an earlier holder left
        try:
            self.lease.keep(self.executor.mark, self.executor.wake)
            self._abandoned = publisher.put_right(self.store, self.lease, self.root)
            for run in self._abandoned:
                sweep(self.root, run)
            self._restoring.enter_context(self._signals())
        except BaseException:
            self._let_go(failed=True)
            raise
        self._open = 0
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._let_go(failed=kind is not None)

    def run(self, request: Request) -> Outcome:
        """Makes one run, and returns what became of it."""
        (outcome,) = self.together([request])
        return outcome

    def together(self, requests: Iterable[Request], *, at_once: int = 1) -> Iterator[Outcome]:
        """Makes a run of each request, up to `at_once` of them side by side, and gives each outcome as it comes.

        Whether their nodes touch each other is for the caller to know. When asked to stop, it begins no further run.
        """
        waiting = iter(requests)
        going: list[_Loop] = []
        first = True
        try:
            while True:
                while len(going) < at_once and (first or not self.asked):
                    request = next(waiting, None)
                    if request is None:
                        break
                    going.append(self._begin(request))
                    first = False
                if not going:
                    return
                yield from self._turn(going)
        except BaseException as error:
            for loop in going:
                loop.abort(str(error) if isinstance(error, SpanwiseError) else f"{type(error).__name__}: {error}")
            raise

    def closed(self) -> None:
        """Notes that one of its runs has left nothing open in the records."""
        self._open -= 1

    def _begin(self, request: Request) -> _Loop:
        loop = _Loop(self, request)
        standing_in = loop.stand_ins()
        self._open += 1
        loop.begin(standing_in, self._abandoned)
        self._abandoned = []
        return loop

    def _turn(self, going: list[_Loop]) -> Iterator[Outcome]:
        for loop in list(going):
            loop.start_ready()
            if loop.over:
                outcome = loop.conclude()
                going.remove(loop)
                yield outcome
        if not going:
            return
        for event in self._events(min(loop.patience() for loop in going)):
            for loop in going:
                loop.take(event)
        if self.lease.lost:
            self.lease.check()
        for loop in going:
            loop.watch()

    def _events(self, timeout_s: float) -> Sequence[Ended | FenceAsked]:
        try:
            return self.executor.wait(timeout_s)
        except NodeFailed:
            self.lease.check()  # whoever took it over has ended our processes too
            raise

    def _let_go(self, *, failed: bool) -> None:
        """Gives the lease back; not while a process of ours would not die, and where that cannot be recorded.

        Then the next run finds its holder dead, and looks after what is left.
        """
        self._restoring.close()
        if failed:
            self.executor.close()  # before the lease is given back: nothing of ours may run beside the next run
        if left := self.executor.sweep():
            log.error("lease-not-released", extra={"pipeline": self.pipeline.name, "reason": process.named(left)})
            self.lease.abandon()
            return
        try:
            self.lease.release(closed=not self._open)
        except (Fenced, StoreError) as error:
            log.warning("lease-not-released", extra={"pipeline": self.pipeline.name, "reason": str(error)})

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turns signals into a request to stop, while the loop goes on. Only the main thread may take signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def take(number: signal.Signals) -> None:
            self.asked = self.asked or number.name
            self.executor.wake()

        with process.asked_to_end(take):
            yield


@dataclass
class _Started:
    execution: Execution
    inputs: Artifacts
    plan: Execute
    deadline: float | None  #: monotonic


class _Loop:
    """One run on its way."""

    def __init__(self, controller: Controller, request: Request) -> None:
        self._controller = controller
        self._pipeline = controller.pipeline
        self._executor = controller.executor
        self._store = controller.store
        self._root = controller.root
        self._lease = controller.lease
        self._request = request
        self._selection = request.selection or controller.pipeline.select()
        self._made: dict[str, Artifacts] = {}  # by node: what it, or its stand-in, has published
        self._last: dict[str, Execution] = {}
        self._failed: list[str] = []
        self._skipped: list[str] = []
        self._todo = list(self._selection.run)
        self._again: dict[str, float] = {}  # by node: when (monotonic) it may be tried again
        self._started: dict[int, _Started] = {}
        self._asked = ""  # who asked this run to stop
        self._stopping = ""

    def stand_ins(self) -> StandIns:
        """What stands in for the nodes left out; nothing is recorded when something lacks."""
        request = self._request
        return stand_ins(self._store, self._pipeline, self._selection, request.base, source=request.source)

    def begin(self, standing_in: StandIns, abandoned: Sequence[Run]) -> None:
        self._run = self._recorded(base=standing_in.base)
        try:
            self._lease.tell(f"run {self._run.number}")
            for run in abandoned:
                self._tell("abandoned-run-closed", message=run.name)
            self._tell("run-started")
            self._carry_over(standing_in.executions)
        except BaseException as error:
            self.abort(str(error) if isinstance(error, SpanwiseError) else f"{type(error).__name__}: {error}")
            raise

    @property
    def over(self) -> bool:
        """Whether nothing goes on and nothing is to be begun."""
        return not self._started and bool(self._stopping or not self._todo)

    def take(self, event: Ended | FenceAsked) -> None:
        """Deals with what happened to a job, when it is one of this run's."""
        if event.id not in self._started:
            return
        if isinstance(event, FenceAsked):
            self._executor.answer(event.id, self._fence())
        else:
            self._finish(self._started.pop(event.id), event)

    def _recorded(self, base: int | None) -> Run:
        request, me = self._request, self._lease.who
        wanted = Run(
            pipeline=self._pipeline.name,
            trigger=request.trigger,
            cause=request.cause,
            span=request.span,
            calendar=request.calendar,
            from_scratch=request.from_scratch,
            as_of=request.as_of,
            base=base,
            nodes=self._selection.run,
            parameters={
                n: v if isinstance(v, bool | int | float | str) else str(v) for n, v in request.parameters.items()
            },
            typed=request.typed,
            source=request.source,
            token=self._lease.token,
            host=me.host,
            pid=me.pid,
        )
        return self._lease.write(lambda place: self._store.begin_run(wanted, place, *request.claims))

    def _carry_over(self, executions: Mapping[str, Execution]) -> None:
        """Records, for each node left out, the base run's outputs as this run's own, so that lineage stays whole."""
        for node, earlier in executions.items():
            begun = publisher.begin(self._store, self._lease, self._new(node, 1))
            plan = Reuse(outputs=earlier.outputs, reason=f"stands in from {earlier.name}", execution=earlier.id)
            self._made[node] = earlier.outputs
            self._last[node] = publisher.reuse(self._store, self._lease, begun, earlier.inputs, plan)

    def start_ready(self) -> None:
        """Starts what waits for nothing."""
        progress = True
        while progress:  # a reused node may make others ready at once
            progress = False
            for node in list(self._todo):
                if len(self._executor.running) >= self._request.jobs or self._asked_by:
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
                snapshots=str(self._root / "snapshots"),
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

    def watch(self) -> None:
        """Looks after what does not announce itself: time limits, a lost lease, a request to stop."""
        now = time.monotonic()
        for job, started in self._started.items():
            if started.deadline is not None and now >= started.deadline:
                limit = self._pipeline.nodes[started.execution.node].timeout_s  # type: ignore[attr-defined]
                why = f"It took longer than its limit of {limit:g} s (timeout_s) and was stopped."
                self._executor.stop(job, why, timed_out=True, grace_s=self._request.grace_s)
                started.deadline = None
        if not self._stopping and self._store.claimed("stop", self._run.name) is not None:
            self._asked = "`spanwise stop`"  # also where its signal was quicker than this look
        if self._asked_by and not self._stopping:
            self._stopping = self._asked_by
            self._tell("run-stopping", message=self._stopping)
        if self._stopping:
            for job in self._executor.running:
                self._executor.stop(job, f"The run was stopped by {self._stopping}.", grace_s=self._request.grace_s)

    @property
    def _asked_by(self) -> str:
        return self._asked or self._controller.asked

    def _fence(self) -> str | None:
        try:
            self._lease.check()
        except Fenced as lost:
            return str(lost)
        return f"The run was stopped by {self._stopping}." if self._stopping else None

    def patience(self) -> float:
        """How long nothing happens unless a job does something."""
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

    def conclude(self) -> Outcome:
        """Records the end."""
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

    def abort(self, error: str) -> None:
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
            self._controller.closed()
        except (Fenced, StoreError) as unrecorded:
            log.warning("run-end-not-recorded", extra={"run": ended.name, "reason": str(unrecorded)})
        self._run = ended
        sweep(self._root, ended)
        self._tell("run-ended", message=error or "")

    def _tell(self, what: Happening, node: str = "", execution: Execution | None = None, message: str = "") -> None:
        log.info(what, extra={"run": self._run.name, "node": node, "reason": message})
        self._controller.observe(Event(what=what, run=self._run, node=node, execution=execution, message=message))


def room(root: Path, run: Run) -> Path:
    """The folder of a run: its logs, scratch and checkpoints."""
    return root / run.pipeline / ".runs" / str(run.number)


def sweep(root: Path, run: Run) -> None:
    """Removes what only a run that goes on has a use for: scratch and checkpoints. The logs stay."""
    for kind in ("scratch", "checkpoints"):
        for folder in room(root, run).glob(f"*.{kind}"):
            shutil.rmtree(folder, ignore_errors=True)
