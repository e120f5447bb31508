"""The local executor: the work of a node in a child process of its own, forked from a warm server (see node_server).

The controller alone writes metadata; a child reports what it made over a socket of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection, reduction
from multiprocessing.connection import Connection
from typing import Self

from spanwise.orchestrator import node_server, process
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import NodeFailed
from spanwise.orchestrator.executor import ExecutorEvent
from spanwise.orchestrator.job import (
    GRACE_S,
    FailureCause,
    FenceQuery,
    GatherQuery,
    JobEnded,
    JobFailure,
    Limits,
    NodeJob,
)
from spanwise.orchestrator.memory_watch import MemoryEnd
from spanwise.orchestrator.node_process import ASKING_TO_END
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.preload import Preload
from spanwise.orchestrator.process import Survivor
from spanwise.orchestrator.resources import NOTHING_ASKED, Machine, Resources, format_memory

log = logging.getLogger("spanwise.executor")


@dataclass
class _RunningJob:
    line: Connection
    node: str
    limits: Limits
    outputs: Mapping[str, tuple[Artifact, ...]] | None = None
    failure: JobFailure | None = None
    stopped: str = ""  #: why it was stopped
    timed_out: bool = False


class LocalExecutor:
    """Runs jobs in child processes, for one run or several in turn. Close it on every way out: use `with`."""

    def __init__(
        self, pipeline: Pipeline, machine: Machine | None = None, *, nodes: Collection[str] | None = None
    ) -> None:
        """Forks the server: do this early, before threads and connections exist.

        `nodes` are those whose jobs it runs; None: all.

        Raises:
            PipelineError: a node asks for what this machine, or `machine`, does not have.
        """
        placed = [n for n in pipeline if isinstance(n, Component) and (nodes is None or n.name in nodes)]
        asked = {node.name: node.resources for node in placed}
        self._asked = {name: resources for name, resources in asked.items() if resources != NOTHING_ASKED}
        self._machine = machine
        self._sizes = {node.name: node.gang.size for node in placed}
        for name, resources in self._asked.items():
            self._capacity.refuse(name, resources, self._sizes[name])
        if any(re.fullmatch(r"polars-[0-9]+", name) for name in process.thread_names()):
            reason = (
                "Polars was used in this process, and its threads do not survive a fork: nodes that use it will hang. "
                "Use it inside the functions that nodes call, not while the pipeline file is imported."
            )
            log.warning("polars-threads-found: %s", reason)  # seen also where no log is set up
        self.mark = process.new_mark()
        self._start_server(pipeline, Preload({node.name: node.preload for node in placed}, pipeline.preload))
        self._children: dict[int, _RunningJob] = {}
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._keeping = True
        self._would_not_die = False  # something that a job has left
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def has_room(self, node: str) -> bool:
        """Whether a job of this node, with all of its gang, can start now, beside those that run."""
        if not self._asked:
            return True
        running = [self._resources(child.node) for child in self._children.values()]
        return self._capacity.has_room(self._resources(node), running, self._sizes.get(node, 1))

    def silence_s(self, node: str) -> float:  # noqa: ARG002  the same for all
        """Jobs die with their controller."""
        return 0.0

    def spare(self, node: str) -> None:
        """Says that a node has reused a result: what it alone would import is not imported ahead."""
        with contextlib.suppress(OSError):  # `wait` notices a server that died
            self._control.send(("spare", node))

    def start(self, job: NodeJob) -> None:
        """Starts a job; `wait` returns its end."""
        job = replace(job, limits=self._limits(job.node))
        mine, theirs = socket.socketpair()
        try:
            self._control.send(("start", job))
            reduction.send_handle(self._control, theirs.fileno(), self.session)
        except BaseException as error:
            mine.close()
            if isinstance(error, OSError):
                raise NodeFailed(_SERVER_DIED) from error
            raise
        finally:
            theirs.close()
        self._children[job.id] = _RunningJob(Connection(mine.detach()), job.node, job.limits)

    def stop(self, job: int, why: str, *, timed_out: bool = False, grace_s: float = GRACE_S) -> None:
        """Ends a job: SIGTERM to all of its processes, and SIGKILL after the grace."""
        child = self._children[job]
        if not child.stopped:
            child.stopped, child.timed_out = why, timed_out
            with contextlib.suppress(OSError):  # `wait` notices a server that died
                self._control.send(("stop", job, grace_s))

    engine = ""  #: all its processes are on this machine

    @property
    def running(self) -> tuple[int, ...]:
        """The jobs that have not ended."""
        return tuple(self._children)

    def answer(self, job: int, reply: object) -> None:
        """Answers a child that asked about the fence, or gathers what its gang says."""
        with contextlib.suppress(OSError, KeyError):  # it has ended meanwhile
            self._children[job].line.send(reply)

    def wait(self, timeout_s: float) -> list[ExecutorEvent]:
        """Returns what happened; waits for at most `timeout_s`, until something happens or `wake` is called."""
        lines = {child.line: job for job, child in self._children.items() if not child.line.closed}
        ready = connection.wait([self._control, self._woken, *lines], timeout_s)
        events: list[ExecutorEvent] = []
        for source in ready:
            if source is self._woken:
                self._woken.recv(4096)
            elif isinstance(source, Connection) and source in lines:
                events += self._listen(lines[source])
        if self._control in ready:
            events.append(self._hear_server())
        return events

    def wake(self) -> None:
        """Makes `wait` return; safe in signal handlers and other threads."""
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def sweep(self) -> list[Survivor]:
        """Kills what ended jobs have left behind, and returns what would not die; to be called when no job runs."""
        if self._keeping and not self._would_not_die:
            return []  # the server reports the end of a job once nothing is left of it
        waiting = [self.session, *process.children(self.session)] if self._keeping else []
        return process.kill(self.mark, sparing=waiting, limit_s=node_server.REAP_S)

    def close(self) -> None:
        """Kills what still runs and ends the server."""
        if self._closed:
            return
        self._closed = True
        self._end_server()
        self._control.close()
        for child in self._children.values():
            child.line.close()
        self._woken.close()
        self._wake.close()

    def _start_server(self, pipeline: Pipeline, preload: Preload) -> None:
        mine, theirs = socket.socketpair()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()  # or the child writes it a second time
        controller = os.getpid()
        with process.block_signals(*ASKING_TO_END), warnings.catch_warnings():
            # CPython warns of threads that might hold locks; ours hold none, and the server takes none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.session = os.fork()
            if not self.session:
                mine.close()
                node_server.keep_server(
                    node_server.NodeServer(Connection(theirs.detach()), pipeline, preload), controller, self.mark
                )
        theirs.close()
        self._control = Connection(mine.detach())

    @property
    def _capacity(self) -> Machine:
        return self._machine or Machine.here()

    def _resources(self, node: str) -> Resources:
        return self._asked.get(node, NOTHING_ASKED)

    def _limits(self, node: str) -> Limits:
        asked = self._resources(node)
        if asked is NOTHING_ASKED:
            return Limits()
        taken = [gpu for child in self._children.values() for gpu in child.limits.gpus or ()]
        gpus = self._capacity.choose_gpus(asked.gpus, taken) if asked.gpus else None
        return Limits(threads=asked.threads, memory_bytes=asked.memory_bytes, gpus=gpus)

    def _end_server(self) -> None:
        if not self._keeping:
            return
        self._keeping = False
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # somebody else has reaped it
            os.kill(self.session, signal.SIGTERM)
            _, status = os.waitpid(self.session, 0)
            if status:  # it was killed before it could end its children
                process.kill(self.mark, limit_s=node_server.REAP_S)

    def _listen(self, job: int) -> Iterable[ExecutorEvent]:
        child = self._children[job]
        try:
            what, value = child.line.recv()
        except (EOFError, OSError):
            child.line.close()  # it has ended; the server reports how
            return
        if what == "fence":
            yield FenceQuery(job)
        elif what == "gather":
            yield GatherQuery(job, value)
        elif what == "done":
            child.outputs = value
        else:
            child.failure = value

    def _hear_server(self) -> JobEnded:
        try:
            _, job, status, survivors, memory = self._control.recv()
        except (EOFError, OSError):
            self._end_server()  # its keeper ends what it has left before anybody is informed
            raise NodeFailed(_SERVER_DIED) from None
        child = self._children[job]
        while not child.line.closed and child.line.poll():
            tuple(self._listen(job))
        child.line.close()
        del self._children[job]
        self._would_not_die |= bool(survivors)
        return _ended(job, child, status, survivors, memory)


_SERVER_DIED = "The process that starts the nodes died (out of memory?); every running node was ended with it."


def _ended(job: int, child: _RunningJob, status: int, survivors: Sequence[int], memory: MemoryEnd | None) -> JobEnded:
    left = f" These processes would not die: {', '.join(map(str, survivors))}." if survivors else ""
    if child.stopped:
        return JobEnded(id=job, failure=JobFailure(message=child.stopped + left, timed_out=child.timed_out))
    if memory is not None and memory.used_bytes and child.outputs is None:
        allowed = format_memory(child.limits.memory_bytes or 0)
        message = f"{child.node} used more than its {allowed} of memory ({format_memory(memory.used_bytes)})"
        how = f"{message}, so it was killed. Ask for more: resources=Resources(memory=…)"
        return JobEnded(id=job, failure=JobFailure(message=how + left, cause="memory"))
    if child.failure is not None:
        return JobEnded(id=job, failure=child.failure)
    if child.outputs is not None:
        return JobEnded(id=job, outputs=child.outputs)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        how = f"It ended with exit status {code} before its work was done."
    elif -code == signal.SIGKILL and memory is not None:
        how = "It was killed by SIGKILL, since this machine, or the container, ran out of memory."
        return JobEnded(id=job, failure=JobFailure(message=how + left, cause="memory"))
    else:
        how = f"It was killed by {_signal_name(-code)}."
        how += " The system may have been out of memory." if -code == signal.SIGKILL else ""
    cause: FailureCause = "aborted" if -code == signal.SIGABRT else "died"
    return JobEnded(id=job, failure=JobFailure(message=how + left, cause=cause))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"
