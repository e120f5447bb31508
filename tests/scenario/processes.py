"""Processes as a test sees them from outside: started with a mark that all their descendants carry, and counted."""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest


class Marked:
    """A Python process whose environment holds a word that nothing else has; forks and programs inherit it."""

    def __init__(self, module, *arguments, **options):
        self.mark = f"SPANWISE_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            env={**os.environ, name: value, "PYTHONPATH": os.pathsep.join(sys.path)},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options},
        )

    @property
    def pid(self):
        return self.process.pid

    @property
    def keeper(self):
        return next(iter(children(self.pid)), None)

    @property
    def server(self):
        return None if self.keeper is None else next(iter(children(self.keeper)), None)

    def read_until(self, line):
        """Reads lines up to this one, and gives them."""
        read = []
        for text in self.process.stdout:
            read.append(text.rstrip())
            if read[-1].startswith(line):
                return read
        raise AssertionError(f"It ended without {line!r}: {read}")

    def read_lines(self, count):
        """Waits for so many more lines."""
        for _ in range(count):
            assert self.process.stdout.readline(), "It ended too early"

    def alive(self):
        """Every process that carries the mark, zombies left out."""
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if self.mark in environment(pid)]

    def gone_within(self, seconds):
        """Waits until none carries the mark; the ones that do after so long."""
        deadline = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left

    def end(self):
        """Ends whatever is left, so that a test that fails leaves nothing."""
        for pid in self.alive():
            kill(pid)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


FREEZER = Path("/sys/fs/cgroup/freezer")


@contextlib.contextmanager
def frozen(pid):
    """Holds a process in uninterruptible sleep, in which not even SIGKILL reaches it. Tests of it are `needs_freezer`."""
    group = FREEZER / f"spanwise-{uuid.uuid4().hex}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        while (group / "freezer.state").read_text() != "FROZEN\n":
            time.sleep(0.01)
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        with contextlib.suppress(ProcessLookupError):  # thawed, it dies of what has waited for it
            (FREEZER / "cgroup.procs").write_text(str(pid))
        _removed(group)


def _removed(group):
    """Removes a group, once the kernel has noticed that nothing is in it."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            return group.rmdir()
        time.sleep(0.01)
    return group.rmdir()


needs_freezer = pytest.mark.skipif(
    not os.access(FREEZER / "cgroup.procs", os.W_OK), reason="there is no freezer (cgroup v1) that we may use"
)


def environment(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid, number=9):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
