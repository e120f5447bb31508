"""Processes: which one this is, whether another still lives, what runs below it, and ending all of it.

Linux's /proc and two prctl calls do the work; elsewhere a process is known by its id and ended by its group.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


@dataclass(frozen=True)
class Identity:
    """One process among all there ever were: ids are used again, an id with its start time is not."""

    machine: str  #: host, boot and process namespace: only from the same one can a process be looked up by its id
    pid: int
    started: int  #: kernel clock ticks since boot; 0 where unknown

    @property
    def host(self) -> str:
        """The host's name, for people."""
        return self.machine.partition("/")[0]


def identity() -> Identity:
    """Who we are."""
    return Identity(machine(), os.getpid(), _stat(os.getpid()).started)


@functools.cache
def machine() -> str:
    """This host, this boot, this process namespace: two containers of one name are two machines."""
    boot, namespace = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{socket.gethostname()}/{boot}/{namespace}"


def alive(who: Identity) -> bool | None:
    """Whether that process lives; None when it is on another machine, where we cannot look."""
    if who.machine != machine():
        return None
    if not LINUX:
        with contextlib.suppress(ProcessLookupError):
            os.kill(who.pid, 0)
            return True
        return False
    found = _stat(who.pid)
    return found.started == who.started and found.state not in "ZX"


@dataclass(frozen=True)
class _Stat:
    pid: int
    state: str = "X"
    parent: int = 0
    session: int = 0
    started: int = 0


def _stat(pid: int) -> _Stat:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return _Stat(pid)
    return _Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def _all() -> Iterator[_Stat]:
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                yield _stat(int(entry.name))


def children() -> list[int]:
    """The living children of this process, and the orphans it has adopted."""
    try:
        # Only this process takes its dead off these lists, so that none is missed while we read.
        tasks = [(task / "children").read_text(encoding="ascii") for task in Path("/proc/self/task").iterdir()]
        found = [_stat(int(pid)) for task in tasks for pid in task.split()]
    except OSError:  # a kernel built without these lists
        found = [p for p in _all() if p.parent == os.getpid()]
    return [p.pid for p in found if p.state not in "ZX"]


def thread_names() -> list[str]:
    """What this process's threads are called, those of libraries too; nothing where there is no /proc."""
    names = []
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                names.append((task / "comm").read_text(encoding="utf-8", errors="replace").strip())
    return names


def descendants(pid: int) -> list[int]:
    """Everything below a process, whatever session or group it has moved to."""
    children: dict[int, list[int]] = {}
    for process in _all():
        if process.state not in "ZX":
            children.setdefault(process.parent, []).append(process.pid)
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def session_members(session: int) -> list[int]:
    """The living processes of a session; its leader may be dead."""
    return [p.pid for p in _all() if p.session == session and p.state not in "ZX"]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_session(session: int, *, began_by: datetime | None = None, limit_s: float = 10.0) -> list[int]:
    """Kills what is left of a dead run's session, and all below it; returns who would not die within `limit_s`.

    The number of a session is used again once it is empty: members that began after `began_by` are somebody else's.
    """
    deadline = time.monotonic() + limit_s
    while True:
        members = [p for p in session_members(session) if p != os.getpid()]
        if began_by is not None:
            members = [p for p in members if _began(p) <= began_by]
        left = list(dict.fromkeys([*members, *(d for m in members for d in descendants(m))]))
        if not left or time.monotonic() > deadline:
            return left
        send(left, signal.SIGKILL)
        time.sleep(0.01)


def _began(pid: int) -> datetime:
    if not LINUX:
        return datetime.min.replace(tzinfo=UTC)
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return datetime.fromtimestamp(boot + _stat(pid).started / os.sysconf("SC_CLK_TCK"), UTC)


def end_below(*, limit_s: float) -> None:
    """Kills and collects everything below this process, or gives up after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while left := descendants(os.getpid()):
        send(left, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def watch(pid: int) -> int | None:
    """A descriptor that can be read once the process has ended; None where there is no such thing."""
    if not hasattr(os, "pidfd_open"):
        return None
    with contextlib.suppress(OSError):  # a kernel without it, or a process that is gone
        return os.pidfd_open(pid)
    return None


@contextlib.contextmanager
def holding_back(*numbers: signal.Signals) -> Iterator[None]:
    """Keeps these signals waiting, in a child forked meanwhile as well, until each knows what to do with them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent's main thread ends; `parent` is whom we expect that to be."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if not LINUX:
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
