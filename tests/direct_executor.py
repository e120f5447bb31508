"""An executor that forks nodes from the test itself, for tests of what components do.

A fork of a process that has imported what components need takes 20 ms of processor time, and `LocalExecutor` makes two,
of its keeper and its server, before the first node. Here a node lives and ends as it does there, but for a limit of its
memory. Trials and the bench of the components take it; tests of processes take `LocalExecutor` (see the fixture
`with_servers`), as all commands do.
"""

import contextlib
import gc
import os
import signal
import socket
import sys
import time
import warnings
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path

from spanwise.orchestrator import process
from spanwise.orchestrator.job import GRACE_S
from spanwise.orchestrator.local_executor import LocalExecutor, _ended, _RunningJob
from spanwise.orchestrator.node_process import ASKING_TO_END, run_job
from spanwise.orchestrator.node_server import REAP_S


class DirectExecutor(LocalExecutor):
    """Has neither a server nor a keeper: the test has to end by itself."""

    def __init__(self, pipeline, machine=None):
        self.pipeline = pipeline
        self.pids, self.kill_at = {}, {}  # by job; of a process also a file that is ready when it has ended
        self.others = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        super().__init__(pipeline, machine)
        assert all(asked.memory is None for asked in self._asked.values()), "memory is watched by LocalExecutor"

    def _start_server(self, pipeline, preload):
        mine, theirs = socket.socketpair()
        theirs.close()
        self._control = Connection(mine.detach())

    def spare(self, node):
        """Nothing is imported ahead."""

    def start(self, job):
        job = replace(job, limits=self._limits(job.node))
        mine, theirs = socket.socketpair()
        parent = os.getpid()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        with process.block_signals(*ASKING_TO_END), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if not pid:
                gc.freeze()  # as a keeper does
                process.take_mark(self.mark)
                mine.close()
                run_job(self.pipeline, job, Connection(theirs.detach()), parent)
        theirs.close()
        self._children[job.id] = _RunningJob(Connection(mine.detach()), job.node, job.limits)
        self.pids[job.id] = pid, os.pidfd_open(pid)

    def stop(self, job, why, *, timed_out=False, grace_s=GRACE_S):
        child = self._children[job]
        if not child.stopped:
            child.stopped, child.timed_out = why, timed_out
            self.signal(job, signal.SIGTERM)
            self.kill_at[job] = time.monotonic() + grace_s

    def signal(self, job, number):
        pid, _ = self.pids[job]
        process.send([pid, *process.descendants(pid)], number)

    def wait(self, timeout_s):
        now = time.monotonic()
        for job, at in self.kill_at.items():
            if at <= now:
                self.signal(job, signal.SIGKILL)
        lines = {child.line: job for job, child in self._children.items() if not child.line.closed}
        ends = {end: job for job, (_, end) in self.pids.items()}
        ready = connection.wait(
            [self._woken, *lines, *ends], min([timeout_s, *(max(0.02, at - now) for at in self.kill_at.values())])
        )
        events = []
        for source in ready:
            if source is self._woken:
                self._woken.recv(4096)
            elif source in lines:
                events += self._listen(lines[source])
        return [*events, *(self.end(ends[source]) for source in ready if source in ends)]

    def end(self, job):
        child, status = self._children[job], self.reap(job)
        while not child.line.closed and child.line.poll():
            tuple(self._listen(job))
        child.line.close()
        del self._children[job]
        left = [] if self._children else self.sweep()
        return _ended(job, child, status, [each.pid for each in left], None)

    def reap(self, job):
        pid, end = self.pids.pop(job)
        self.kill_at.pop(job, None)
        os.close(end)
        return os.waitpid(pid, 0)[1]

    def sweep(self):
        return process.kill(self.mark, sparing=self.others, limit_s=REAP_S)

    def _end_server(self):
        for job, (pid, _) in [*self.pids.items()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.reap(job)
            self.sweep()
