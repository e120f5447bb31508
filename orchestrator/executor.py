"""Executors: the port through which the work of nodes is done, wherever that is.

An executor does what jobs say and reports how they ended. It never touches the metadata: what a job made exists only
once the controller has published it, in one transaction under its lease. So work that outlives its controller, or
whose end is never heard, has made nothing.
"""

from __future__ import annotations

from typing import Protocol, Self, TypeAlias

from spanwise.orchestrator.job import GRACE_S, FenceQuery, GatherQuery, JobEnded, JobPlaced, NodeJob
from spanwise.orchestrator.process import Survivor

ExecutorEvent: TypeAlias = JobEnded | JobPlaced | FenceQuery | GatherQuery
"""What `wait` returns."""


class Executor(Protocol):
    """Runs jobs, for one run or several in turn. Close it on every way out: use `with`.

    One thread uses it, except for `wake`. For every job that was started exactly one `JobEnded` comes back, and when it
    comes, no process of that job is left. What a job prints appears in its log while it runs.
    """

    @property
    def mark(self) -> int:
        """The mark of its processes on this machine; 0 when it has none."""

    @property
    def engine(self) -> str:
        """Where it has processes besides this machine, such as `ray:ADDRESS`; empty when nowhere."""

    @property
    def running(self) -> tuple[int, ...]:
        """The jobs that have not ended."""

    def has_room(self, node: str) -> bool:
        """Whether a job of this node, with all of its gang, can start now, beside those that run."""

    def silence_s(self, node: str) -> float:
        """How long a job of this node may go on after its controller has died; 0 where it ends with it."""

    def spare(self, node: str) -> None:
        """Says that a node has reused a result, so that nothing need be prepared for it; it may start later anyway."""

    def start(self, job: NodeJob) -> None:
        """Starts a job; `wait` returns its end, also where it cannot be started.

        Raises:
            NodeFailed: no job can be started any more.
        """

    def stop(self, job: int, why: str, *, timed_out: bool = False, grace_s: float = GRACE_S) -> None:
        """Ends a job: SIGTERM to all of its processes, and SIGKILL after the grace.

        Its failure says `why`; without one, how it ended.
        """

    def answer(self, job: int, reply: object) -> None:
        """Answers a job that asked: about the fence, None when the lease holds, else why it does not; to a gather, all.

        An answer to a job that has ended is dropped.
        """

    def wait(self, timeout_s: float) -> list[ExecutorEvent]:
        """Returns what happened; waits for at most `timeout_s`, until something happens or `wake` is called.

        Raises:
            NodeFailed: no job can be started any more; those that ran have ended.
        """

    def wake(self) -> None:
        """Makes `wait` return; safe in signal handlers and other threads, and after `close`."""

    def sweep(self) -> list[Survivor]:
        """Kills what ended jobs have left behind, and returns what would not die; to be called when no job runs."""

    def close(self) -> None:
        """Kills what still runs. Closing twice does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
