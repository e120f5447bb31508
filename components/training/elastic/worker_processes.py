"""Worker processes: processes of one program on this machine, and their exits."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

GRACE_S: Final = 5.0
"""How long workers may take to exit when the job is over, before they are killed."""

_log = logging.getLogger("spanwise.training.elastic")


@dataclass(frozen=True)
class WorkerProcess:
    """A running worker."""

    name: str  #: unique; `worker 1`, and its successors `worker 1 (2)`
    place: int  #: the index of the worker that it is or succeeds
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class WorkerExit:
    """The exit of a worker."""

    name: str
    place: int
    status: int  #: the exit code; negative for the signal that killed it

    @property
    def reason(self) -> str:
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"exited with code {self.status}"


class WorkerProcesses:
    """Processes that run `program` in fresh interpreters, each with its own bytes on standard input.

    A fork would copy the locks of Arrow's and Flight's threads, but not the threads. Use it from the main thread: the
    kernel kills the workers when the thread that started them ends.
    """

    def __init__(self, program: str, input_of: Callable[[str, int], bytes]) -> None:
        """`input_of` maps a name and a place to the input; `program` may use the variable `parent`, our process id."""
        self._program = program
        self._input_of = input_of
        self._starts: dict[int, int] = {}
        self.running: list[WorkerProcess] = []  #: as of the last poll

    def start(self, place: int) -> WorkerProcess:
        """Starts another worker in a place."""
        start = self._starts[place] = self._starts.get(place, 0) + 1
        name = f"worker {place + 1}" + (f" ({start})" if start > 1 else "")
        program = f"import sys; sys.path[:] = {sys.path!r}; parent = {os.getpid()}; {self._program}"
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        worker = WorkerProcess(name, place, process)
        self.running.append(worker)
        assert process.stdin is not None, "requested above"
        try:
            with process.stdin as pipe:
                pipe.write(self._input_of(name, place))
        except BrokenPipeError:
            _log.warning("worker-died-at-start", extra={"worker": name})
        return worker

    def poll(self, wait_s: float = 0.0) -> list[WorkerExit]:
        """The exits since the last call; waits up to `wait_s` for the first running worker."""
        if wait_s and self.running:
            with suppress(subprocess.TimeoutExpired):
                self.running[0].process.wait(wait_s)
        ended = [worker for worker in self.running if worker.process.poll() is not None]
        self.running = [worker for worker in self.running if worker not in ended]
        return [WorkerExit(worker.name, worker.place, worker.process.returncode) for worker in ended]

    def stop(self, grace_s: float = 0.0) -> None:
        """Waits up to `grace_s` for each worker, and kills those that still run."""
        for worker in self.running:
            try:
                worker.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self.running = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
