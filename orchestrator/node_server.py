"""Node servers: a warm process that forks the nodes of a run, and the keeper that ends what it leaves.

The server is forked from the controller once its pipeline is loaded, so the nodes need no pickling; it imports the
heavy libraries once, and each child starts with them in memory. It is the subreaper of everything the nodes start:
when a child ends, whatever it left running is killed; when the controller ends, however it ends, everything is.
Between the two is the keeper, which leads their session and does nothing but end what a killed server leaves.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import selectors
import signal
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import NoReturn

from spanwise.orchestrator import process
from spanwise.orchestrator.job import JobFailure, NodeJob
from spanwise.orchestrator.memory_watch import INTERVAL_S, MemoryEnd, count_oom_kills, exceeds
from spanwise.orchestrator.node_process import ASKING_TO_END, run_job
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.preload import Preload

log = logging.getLogger("spanwise.executor")

REAP_S = 10.0
"""How long killed processes are waited for before they are reported as unkillable."""


def keep_server(server: NodeServer, controller: int, mark: int) -> NoReturn:
    """The life of the keeper: it waits for the server to end, or for a request to end it, then kills what is left."""
    # What the controller has imported would be copied by a collection, and some garbage of its own, as a Flight client,
    # waits when it is collected for threads that no fork has.
    gc.freeze()
    try:
        os.setsid()
        process.adopt_orphans()
        if not process.take_mark(mark) and process.LINUX:
            reason = "this system does not mark processes: one that detaches from a run may survive its kill"
            log.warning("process-marks-missing: %s", reason)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        keeper = os.getpid()
        pid = os.fork()
        if not pid:
            server.serve(controller, keeper)
        server.close_line()  # or the controller could not notice that the server has ended
        # Both stay blocked and are waited for: a handler would miss the one that comes just before a blocking waitpid.
        awaited = (signal.SIGTERM, signal.SIGCHLD)
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        while not _has_ended(pid):
            if signal.sigwait(awaited) is signal.SIGTERM:
                process.send([pid], signal.SIGKILL)
    finally:
        process.kill_descendants(limit_s=REAP_S)
        os._exit(0)


def _has_ended(pid: int) -> bool:
    """Whether this child has ended; reaps all that have."""
    while True:
        found, _ = os.waitpid(-1, os.WNOHANG)
        if found in (0, pid):
            return found == pid


@dataclass
class NodeProcess:
    job: int
    limit_bytes: int | None = None
    oom_kills: int = 0  #: of the system when it started
    memory: MemoryEnd | None = None  #: why it was killed
    kill_at: float | None = None  #: monotonic; when its grace is over
    killed_at: float | None = None
    status: int | None = None


class NodeServer:
    """Forks children, stops them, and reaps them with what they leave. It never touches the metadata."""

    def __init__(self, control: Connection, pipeline: Pipeline, preload: Preload) -> None:
        self._control = control
        self._preload = preload
        self._pipeline = pipeline
        self._workers: dict[int, NodeProcess] = {}

    def serve(self, controller: int, keeper: int) -> NoReturn:
        try:
            self._settle(controller, keeper)
            while True:
                self._step()
        except (EOFError, ConnectionError):
            pass  # the controller is gone, or has closed the line
        except BaseException:  # noqa: BLE001  nothing above us may run in this process
            traceback.print_exc()
        finally:
            process.kill_descendants(limit_s=REAP_S)
            os._exit(0)

    def close_line(self) -> None:
        """Closes this process's end of the line to the controller."""
        self._control.close()

    def _settle(self, controller: int, keeper: int) -> None:
        os.setpgid(0, 0)
        process.adopt_orphans()
        for number in ASKING_TO_END:
            signal.signal(number, signal.SIG_IGN)  # the controller decides, and its end is our end
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING_TO_END)
        logging.getLogger().addHandler(logging.NullHandler())  # importing Beam logs, and would install a root handler
        self._wake, write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        # A process forked by the controller holds its end of the line too, so waiting for a closed line is not enough.
        self._ends = [fd for fd in map(process.watch, (controller, keeper)) if fd is not None]
        self._selector = selectors.DefaultSelector()
        for source in (self._control.fileno(), self._wake, *self._ends):
            self._selector.register(source, selectors.EVENT_READ)

    def _import_one(self, module: str) -> None:
        """Imports a module; children import what is still missing."""
        self._preload.tried.add(module)
        logging.disable()  # what a library logs at import belongs in the log of a node
        gc.disable()  # an import makes next to no garbage
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            __import__(module)  # one that fails does so again in the node that needs it
        gc.freeze()  # or a full collection in a child would write to, and so copy, every page of what is imported here
        gc.enable()
        logging.disable(logging.NOTSET)

    def _step(self) -> None:
        now = time.monotonic()
        deadlines = [w.kill_at for w in self._workers.values() if w.kill_at is not None]
        soon = any(w.killed_at is not None or w.status is not None for w in self._workers.values())
        timeout = 0.02 if soon else max(0.02, min(deadlines) - now) if deadlines else None
        if any(w.limit_bytes for w in self._workers.values()):
            timeout = min(INTERVAL_S, INTERVAL_S if timeout is None else timeout)
        module = self._preload.next_module()
        ready = self._selector.select(0.0 if module else timeout)
        if any(key.fd in self._ends for key, _ in ready):
            raise EOFError
        if not ready and module:
            self._import_one(module)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        self._reap()
        while self._control.poll():
            self._execute_command()
        self._kill_overdue()
        self._kill_oversized()

    def _execute_command(self) -> None:
        what, *rest = self._control.recv()
        if what == "spare":
            self._preload.spare(rest[0])
            return
        if what == "start":
            line = reduction.recv_handle(self._control)
            for module in self._preload.list_missing(rest[0].node):
                self._import_one(module)  # once, for this node and for those after it
            self._fork(rest[0], line)
            return
        job, grace_s = rest
        for pid, worker in self._workers.items():
            if worker.job == job and worker.kill_at is None and worker.status is None:
                worker.kill_at = time.monotonic() + grace_s
                process.send([pid, *process.descendants(pid)], signal.SIGTERM)

    def _fork(self, job: NodeJob, line: int) -> None:
        parent = os.getpid()
        # Signals wait until the child has stopped ignoring them, or an early one would be lost.
        with process.block_signals(*ASKING_TO_END), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of preloaded libraries; none holds our locks
            try:
                pid = os.fork()
            except OSError as error:  # no memory, too many processes: fails one node, not all
                with Connection(line) as reply:
                    reply.send(("failed", JobFailure(message=f"It could not be started: {error.strerror}.")))
                self._control.send(("ended", job.id, 1, [], None))
                return
            if not pid:
                self._control.close()
                self._selector.close()
                run_job(self._pipeline, job, Connection(line), parent)
        os.close(line)
        self._workers[pid] = NodeProcess(job.id, job.limits.memory_bytes, count_oom_kills())

    def _reap(self) -> None:
        """Reaps the dead; what an ended child left running is killed before its end is reported."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] in self._workers:
                    self._workers[found[0]].status = found[1]
        ended = {pid: w for pid, w in self._workers.items() if w.status is not None}
        if not ended:
            return
        # What a child leaves becomes ours; what a living child has adopted stays below that child.
        adopted = [p for p in process.children() if p not in self._workers]
        orphans = [*adopted, *itertools.chain(*map(process.descendants, adopted))]
        process.send(orphans, signal.SIGKILL)
        now = time.monotonic()
        for pid, worker in ended.items():
            worker.killed_at = worker.killed_at or now
            if not orphans or now > worker.killed_at + REAP_S:
                del self._workers[pid]
                self._control.send(("ended", worker.job, worker.status, orphans, _memory_end(worker)))

    def _kill_oversized(self) -> None:
        for pid, worker in self._workers.items():
            if worker.limit_bytes is None or worker.status is not None or worker.memory is not None:
                continue
            if used := exceeds(worker.limit_bytes, [pid, *process.descendants(pid)]):
                worker.memory = MemoryEnd(used)
                process.send([*process.descendants(pid), pid], signal.SIGKILL)

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for pid, worker in self._workers.items():
            if worker.status is None and worker.kill_at is not None and now >= worker.kill_at:
                process.send([*process.descendants(pid), pid], signal.SIGKILL)


def _memory_end(worker: NodeProcess) -> MemoryEnd | None:
    if worker.memory is None and os.WIFSIGNALED(worker.status or 0) and count_oom_kills() > worker.oom_kills:
        return MemoryEnd()
    return worker.memory
