"""The run loop: parents first, independent nodes side by side, every outcome recorded, no process left behind."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

from spanwise.orchestrator import process, publisher
from spanwise.orchestrator.active_run import ActiveRun
from spanwise.orchestrator.base_run import find_base_run
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import Fenced, NodeFailed, SpanwiseError, StoreError, UsageError
from spanwise.orchestrator.executor import Executor, ExecutorEvent
from spanwise.orchestrator.gang_executor import GangExecutor
from spanwise.orchestrator.lease import Clock, acquire
from spanwise.orchestrator.log_uploads import LogUploads, uploading
from spanwise.orchestrator.node_runner import NodeRunner
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.pool import Pools
from spanwise.orchestrator.resources import refuse_unknown_pools
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.run_dir import remove_working_files, run_dir, set_aside
from spanwise.orchestrator.run_request import Event, Observer, RunOutcome, RunRequest
from spanwise.orchestrator.store import Store

log = logging.getLogger("spanwise.run")


def run(
    pipeline: Pipeline,
    *,
    executor: Executor,
    store: Store,
    root: Path,
    request: RunRequest | None = None,
    observe: Observer = lambda _event: None,
    clock: Clock | None = None,
) -> RunOutcome:
    """Runs a pipeline, or the part of it that the request selects, and returns how it ended.

    A node that fails does not raise: its dependants are skipped, the rest goes on, and the outcome says so. SIGINT,
    SIGTERM and SIGHUP end the run: jobs are stopped, recorded as canceled, and the lease is released.
    The executor can serve one run after another; it is closed here only when the run raises. `clock` is the lease's.

    Raises:
        Held: another run holds the pipeline; nothing was recorded.
        AlreadyClaimed: one of the request's claims exists; nothing was recorded.
        PipelineError: a node takes a slot of a pool that the request gives no size; nothing was recorded.
        UsageError: the request allows no job at all, or no earlier run can supply the outputs of a node left out;
            nothing was recorded.
        Fenced: the lease was lost on the way; what was published before stays, nothing was published after.
        NodeFailed: the process that starts the nodes died.
    """
    request = request or RunRequest()
    if request.jobs < 1:
        raise UsageError(f"A run needs at least one job at a time, not {request.jobs}: --jobs 1")
    with Controller(pipeline, executor=executor, store=store, root=root, observe=observe, clock=clock) as controller:
        return controller.run(request)


class Controller:
    """Holds a pipeline's lease and makes runs of it, one after another or some side by side.

    No other run can begin between its runs. Entering it takes the lease and closes the runs that dead holders
    abandoned; `purpose` is what Held says to others. SIGINT, SIGTERM and SIGHUP are noted in `stop_signal` and end
    the active runs. For what is raised see `run`.
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
        purpose: str = "a run",
    ) -> None:
        self.pipeline = pipeline
        self.executor = GangExecutor(executor)
        self.store = store
        self.root = root.absolute()
        self.observe = observe
        self.stop_signal = ""  #: which signal asked to stop, such as SIGTERM; set by signal handlers
        self._clock = clock
        self._purpose = purpose
        self._unclosed = 0  # runs whose records may be open
        self._signals = contextlib.ExitStack()
        self._logs: LogUploads | None = None

    def __enter__(self) -> Self:
        self.lease = acquire(self.store, self.pipeline.name, self._purpose, clock=self._clock)
        self._pools = Pools(self.store, self.lease)
        self._unclosed = 1  # what an earlier holder left
        try:
            self.lease.start_heartbeat(self.executor.mark, self.executor.wake, self.executor.engine)
            for run in publisher.close_abandoned_runs(self.store, self.lease, self.root):
                remove_working_files(self.root, run, self.store.archive)
                self.observe(Event(what="abandoned-run-closed", run=run, message=run.name))
            self._signals.enter_context(self._catch_signals())
            self._logs = self._signals.enter_context(uploading(self.store.archive))
        except BaseException:
            self._release(failed=True)
            raise
        self._unclosed = 0
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._release(failed=kind is not None)

    def run(self, request: RunRequest) -> RunOutcome:
        """Makes one run, and returns how it ended."""
        (outcome,) = self.run_all([request])
        return outcome

    def run_all(self, requests: Iterable[RunRequest], *, parallel: int = 1) -> Iterator[RunOutcome]:
        """Makes a run of each request, up to `parallel` of them side by side, and yields each outcome as it comes.

        The caller has to know that nodes of parallel runs do not touch each other. Once asked to stop, it begins no
        further run.
        """
        waiting = iter(requests)
        active: list[ActiveRun] = []
        first = True
        try:
            while True:
                while len(active) < parallel and (first or not self.stop_signal):
                    request = next(waiting, None)
                    if request is None:
                        break
                    self._begin(request, active)
                    first = False
                if not active:
                    return
                yield from self._advance(active)
        except BaseException as error:
            for run in active:
                run.abort(str(error) if isinstance(error, SpanwiseError) else f"{type(error).__name__}: {error}")
                self._unclosed -= run.closed
            raise

    def _begin(self, request: RunRequest, active: list[ActiveRun]) -> None:
        """Records a run and adds it to the active ones; nothing is recorded when no base run supplies what it needs."""
        selection = request.selection or self.pipeline.select()
        wanted = ((name, self.pipeline.nodes[name]) for name in selection.run)
        refuse_unknown_pools({n: node.resources for n, node in wanted if isinstance(node, Component)}, request.pools)
        supplied = request.supplied or find_base_run(self.store, self.pipeline, selection, request)
        self._unclosed += 1
        nodes = NodeRunner(
            run=self._record(request, selection.run, supplied.number),
            pipeline=self.pipeline,
            executor=self.executor,
            store=self.store,
            lease=self.lease,
            root=self.root,
            pools=self._pools,
            logs=self._logs,
        )
        active.append(ActiveRun(nodes, request, self.observe, lambda: self.stop_signal))
        active[-1].begin(supplied)

    def _record(self, request: RunRequest, nodes: tuple[str, ...], base: int | None) -> Run:
        wanted = Run(
            pipeline=self.pipeline.name,
            trigger=request.trigger,
            cause=request.cause,
            span=request.span,
            calendar=request.calendar,
            spans=request.spans,
            exclude=request.exclude,
            from_scratch=request.from_scratch,
            as_of=request.as_of,
            replay=request.replay,
            base=base,
            behind=request.behind,
            nodes=nodes,
            unselected=tuple(name for name in self.pipeline.order if name not in nodes),
            parameters=request.recorded_parameters,
            beam=request.beam,
            typed=request.typed,
            source=request.source,
            folder=str(Path.cwd()),
            token=self.lease.token,
            host=self.lease.who.host,
            pid=self.lease.who.pid,
        )
        begun = self.lease.write(lambda place: self.store.begin_run(wanted, place, *request.claims))
        set_aside(run_dir(self.root, begun))
        return begun

    def _advance(self, active: list[ActiveRun]) -> Iterator[RunOutcome]:
        """One turn of the loop: start what is ready, conclude what is over, then wait for something to happen."""
        for run in list(active):
            run.start_ready()
            if run.over:
                outcome = run.conclude()
                active.remove(run)
                self._unclosed -= run.closed
                yield outcome
        if not active:
            return
        for event in self._wait(min(run.wait_s() for run in active)):
            for run in active:
                run.handle(event)
        if self.lease.lost:
            self.lease.check()
        for run in active:
            run.enforce_limits()

    def _wait(self, timeout_s: float) -> Sequence[ExecutorEvent]:
        try:
            return self.executor.wait(timeout_s)
        except NodeFailed:
            self.lease.check()  # whoever took it over has ended our processes too
            raise

    def _release(self, *, failed: bool) -> None:
        """Releases the lease, unless a process of ours would not die or the store cannot record it.

        Then the next run finds the holder dead, and deals with what is left.
        """
        self._signals.close()
        if failed:
            self.executor.close()  # before the lease is released: nothing of ours may run beside the next run
        if left := self.executor.sweep():
            log.error(
                "lease-release-failed", extra={"pipeline": self.pipeline.name, "reason": process.format_survivors(left)}
            )
            self.lease.abandon()
            return
        try:
            self.lease.release(closed=not self._unclosed)
        except (Fenced, StoreError) as error:
            log.warning("lease-release-failed", extra={"pipeline": self.pipeline.name, "reason": str(error)})

    @contextlib.contextmanager
    def _catch_signals(self) -> Iterator[None]:
        """Turns signals into a request to stop, while the loop goes on. Only the main thread may take signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: signal.Signals) -> None:
            self.stop_signal = self.stop_signal or number.name
            self.executor.wake()

        with process.catch_end_signals(note):
            yield
