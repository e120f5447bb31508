"""Agents: a local executor on another machine, which does what a controller says over a line and reports back.

`python -m spanwise.orchestrator.agents.agent FD`, started by what its engine runs there; FD is its end of the line. It
ends, with all that it has started, when the process that started it ends, when the line closes, and when the controller
is silent for too long: a controller that is cut off, or frozen, must not leave work behind.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from spanwise.orchestrator import process
from spanwise.orchestrator.agents import code_bundle
from spanwise.orchestrator.agents.code_bundle import CodeBundle
from spanwise.orchestrator.agents.messages import (
    Answer,
    Asked,
    Close,
    Closed,
    Command,
    Ended,
    Hello,
    Ping,
    Prepare,
    Printed,
    Ready,
    Report,
    Said,
    StartJob,
    StopJob,
    Unfit,
)
from spanwise.orchestrator.agents.relocation import Relocation
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import NodeFailed, SpanwiseError
from spanwise.orchestrator.job import FenceQuery, GatherQuery, JobEnded, JobFailure, NodeJob
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.process import Survivor
from spanwise.orchestrator.resources import Machine

_LOG_S = 0.2
"""How often the log of a running job is looked at."""

_CHUNK_BYTES = 1 << 20
_MOST = Machine(cpus=float("inf"), memory_bytes=1 << 62, placed=True)


class ControllerLine(Protocol):
    """The agent's end of the line."""

    def recv(self) -> Any:
        """The next message; waits for it. Raises EOFError once the line is closed."""

    def send(self, message: Any, /) -> None:
        """Sends a message. Raises OSError once the line is closed."""


@dataclass
class _SentLog:
    file: Path
    sent: int = 0


@dataclass
class Agent:
    """What drives the executor of one machine."""

    line: ControllerLine
    code: CodeBundle
    pipeline: Pipeline
    executor: LocalExecutor
    place: Relocation
    logs: Path
    silence_s: float
    commands: queue.SimpleQueue[Command | None] = field(default_factory=queue.SimpleQueue)
    asked: dict[int, NodeJob] = field(default_factory=dict)  #: jobs that wait for the first answer about their fence
    open_logs: dict[int, _SentLog] = field(default_factory=dict)
    heard_s: float = field(default_factory=time.monotonic)
    closing: bool = False

    def serve(self, parent: int) -> None:
        """Does what it is asked until somebody closes it, or nobody is left to ask."""
        threading.Thread(target=self._listen, name="line", daemon=True).start()
        threading.Thread(target=self._watch, args=(parent,), name="parent", daemon=True).start()
        while not self.closing and time.monotonic() - self.heard_s < self.silence_s:
            for event in self.executor.wait(_LOG_S if self.open_logs else 1.0):
                match event:
                    case JobEnded():
                        self._end(event)
                    case FenceQuery(job):
                        self._report(Asked(job))
                    case GatherQuery(job, value):
                        self._report(Said(job, value))
            while not self.commands.empty():
                self._do(self.commands.get())
            for job in self.open_logs:
                self._print(job)

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                command = self.line.recv()
                self.heard_s = time.monotonic()
                if not isinstance(command, Ping):
                    self.commands.put(command)
                    self.executor.wake()
        self._leave()

    def _watch(self, parent: int) -> None:
        handle = process.watch(parent)
        if handle is not None:
            select.select([handle], [], [])
        if handle is not None or os.getppid() != parent:
            self._leave()

    def _leave(self) -> None:
        self.commands.put(None)
        self.executor.wake()

    def _do(self, command: Command | None) -> None:
        match command:
            case StartJob(job):
                self.asked[job.id] = job
                self._report(Asked(job.id))
            case Answer(job, reply) if job in self.asked:
                self._start(self.asked.pop(job), reply)
            case Answer(job, reply):
                self.executor.answer(job, reply)
            case StopJob(job=job) if job in self.asked:
                del self.asked[job]
                self._report(Ended(JobEnded(id=job, failure=_stopped(command))))
            case StopJob(job=job) if job in self.executor.running:
                self.executor.stop(job, command.why, timed_out=command.timed_out, grace_s=command.grace_s)
            case Close() | None:
                self.closing = True

    def _start(self, job: NodeJob, lost: object) -> None:
        if lost is not None:
            self._report(Ended(JobEnded(id=job.id, failure=JobFailure(message=str(lost)))))
            return
        log = self.logs / f"{job.id}.log"
        self.open_logs[job.id] = _SentLog(log)
        node = self.pipeline.nodes[job.node]
        assert isinstance(node, Component)
        try:
            code_bundle.refuse_other_meaning(self.code, node)
            self.executor.start(self.place.arriving(job, log))
        except SpanwiseError as error:
            del self.open_logs[job.id]
            self._report(Ended(JobEnded(id=job.id, failure=JobFailure(message=str(error)))))

    def _end(self, event: JobEnded) -> None:
        self._print(event.id)
        log = self.open_logs.pop(event.id, None)
        if log is not None:
            log.file.unlink(missing_ok=True)
        self._report(Ended(self.place.leaving(event)))

    def _print(self, job: int) -> None:
        """Sends what the job has written since the last time."""
        log = self.open_logs.get(job)
        if log is None or not log.file.exists():
            return
        with log.file.open("rb") as file:
            file.seek(log.sent)
            while text := file.read(_CHUNK_BYTES):
                log.sent += len(text)
                self._report(Printed(job, text))

    def _report(self, report: Report) -> None:
        with contextlib.suppress(OSError):  # the listener notices that the line is closed
            self.line.send(report)


def _stopped(stop: StopJob) -> JobFailure:
    return JobFailure(message=stop.why, timed_out=stop.timed_out)


@contextlib.contextmanager
def _ending_with(parent: int, folder: Path) -> Iterator[None]:
    """Ends this process, with what it has started, when its parent ends: code that is loaded may wait for ever."""
    done, over = os.pipe()

    def end_with_parent() -> None:
        handle = process.watch(parent)
        ended, _, _ = select.select([done, *([] if handle is None else [handle])], [], [])
        if handle is not None:
            os.close(handle)
        if done in ended:
            return
        process.send(process.descendants(os.getpid()), signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    thread = threading.Thread(target=end_with_parent, name="parent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(over)
        thread.join()
        os.close(done)


def main(line: ControllerLine, place: str, parent: int) -> None:
    """The life of an agent."""
    wanted = line.recv()
    assert isinstance(wanted, Prepare)
    there = code_bundle.environment(wanted.code.environment.libraries)
    line.send(Hello(environment=there, host=socket.gethostname(), place=place, pid=os.getpid()))
    if code_bundle.differences(wanted.code.environment, there):
        return  # the controller has seen the same, and says so
    folder = Path(tempfile.mkdtemp(prefix="spanwise-agent-"))
    with contextlib.suppress(OSError):  # it is not on this machine, or unknown
        os.chdir(wanted.folder)
    try:
        if not process.take_mark(wanted.mark) and process.LINUX:
            raise NodeFailed("it runs inside of a marked process, so that its own could not be found again")
        relocation = Relocation.choose(wanted, folder)
        with _ending_with(parent, folder):
            sys.modules["__main__"] = types.ModuleType("__main__")  # classes of the sender's are not this program's
            pipeline = code_bundle.unpack(wanted.code, folder / "code")
        executor = LocalExecutor(pipeline, replace(_MOST, gpus=Machine.here().gpus))
    except SpanwiseError as error:
        line.send(Unfit(str(error)))
        shutil.rmtree(folder, ignore_errors=True)
        return
    survivors: list[Survivor] = []
    try:
        (folder / "logs").mkdir()
        line.send(Ready(executor.mark, process.identity()))
        Agent(line, wanted.code, pipeline, executor, relocation, folder / "logs", wanted.silence_s).serve(parent)
    finally:
        executor.close()
        survivors = process.kill(executor.mark)
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        line.send(Closed(tuple(map(str, survivors))))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), sys.argv[2], int(sys.argv[3]))
