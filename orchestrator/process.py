"""Processes: their identity, whether they are alive, which belong to one run, and killing them.

It uses Linux's /proc and a few system calls; elsewhere a process is known by its id and killed by its group.

The processes of one run carry its mark, a number stored as their limit of file locks: Linux has such a limit for every
process and shows it, but has not enforced it since 2.4.25. Forks and programs inherit it from their parent, whatever
their session, folder, name, environment and open files.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import resource
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
RLIMIT_LOCKS = 10  # asm-generic/resource.h; Python's `resource` does not name it
_HIGHEST_MARK = 1 << 62
_LOWEST_CEILING = 1 << 40  # below it two runs might draw the same mark
_LONGEST_COMMAND = 120  # characters
_MARKS = re.compile(rb"Max file locks +(\S+) +(\S+)")


@dataclass(frozen=True)
class Identity:
    """A unique name of a process: the system reuses ids, but not an id with its start time."""

    machine: str  #: host, boot and process namespace; ids mean nothing in another
    pid: int
    started: int  #: kernel clock ticks since boot; 0 where unknown
    root: str = ""  #: in which it works, as `Store.home`; where it is recorded

    @property
    def host(self) -> str:
        """The host's name, for people."""
        return self.machine.partition("/")[0]


def identity(pid: int | None = None) -> Identity:
    """Identifies the process with this id on this machine; by default this process."""
    pid = pid or os.getpid()
    return Identity(machine(), pid, _stat(pid).started)


@functools.cache
def machine() -> str:
    """Identifies this host, boot and process namespace: two containers of one name are two machines."""
    boot, namespace = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{socket.gethostname()}/{boot}/{namespace}"


def seen_from(who: Identity, root: str) -> Identity:
    """A recorded process as who works in this root knows it: one that works in another root is none of this machine.

    Copies of a root and its metadata name the processes that work in the first one: nothing here may end those, and no
    heartbeat of theirs comes. Only of URLs and of what lives on this machine is it known which root it is.
    """
    if not (who.root and root) or who.root == root:
        return who
    known = ("://" in who.root and "://" in root) or is_alive(who)
    return replace(who, machine=f"{who.machine} in {who.root}") if known else who


def is_of_another_root(who: Identity) -> bool:
    """Whether `seen_from` has found that a process works in another root."""
    return who.machine.endswith(f" in {who.root}")


def is_running(pid: int) -> bool:
    """Whether a process on this machine has this id, which may be another one than had it once."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


def is_alive(who: Identity) -> bool | None:
    """Whether the process is alive; None if it is on another machine."""
    if who.machine != machine():
        return None
    if not LINUX:
        return is_running(who.pid)
    found = _stat(who.pid)
    return found.started == who.started and found.lives


@dataclass(frozen=True)
class _Stat:
    pid: int
    state: str = "X"
    parent: int = 0
    threads: int = 0
    started: int = 0

    @property
    def lives(self) -> bool:
        """A zombie has ended but was not collected, unless only its first thread has ended."""
        return self.state not in "ZX" or self.threads > 1


def _stat(pid: int) -> _Stat:
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return _Stat(pid)
    return _Stat(pid, fields[0].decode(), int(fields[1]), int(fields[17]), int(fields[19]))


def _read(file: str) -> bytes:
    """The bytes of a small file of /proc: thousands are read where there are many processes."""
    with Path(file).open("rb", buffering=0) as opened:
        return opened.read()


def _list_processes(but: Collection[int] = ()) -> Iterator[_Stat]:
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in but:
                yield _stat(int(entry.name))


def children(pid: int | None = None) -> list[int]:
    """The living children of a process, by default this one, including the orphans it has adopted.

    Of our own none is missed: only this process takes its dead off the lists of the kernel. Of another process one may
    be, if a child before it in the list is collected while we read.
    """
    pid = pid or os.getpid()
    listed = map(_stat, _read_children(pid)) if _has_child_lists() else _list_processes()
    return [p.pid for p in listed if p.lives and p.parent == pid]


@functools.cache
def _has_child_lists() -> bool:
    """Whether the kernel lists the children of each process (CONFIG_PROC_CHILDREN)."""
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _read_children(pid: int) -> list[int]:
    """What the kernel lists: the children of each thread, and those that have ended until they are collected."""
    while True:
        try:
            lists = [_read(f"{task}/children") for task in Path(f"/proc/{pid}/task").iterdir()]
            return [int(child) for each in lists for child in each.split()]
        except (FileNotFoundError, ProcessLookupError):  # of a thread that has ended the children are another's now
            if _stat(pid).state == "X":
                return []
        except OSError:  # one of another user's, where the system hides them
            return []


def thread_names() -> list[str]:
    """The names of this process's threads, including those of libraries; empty where there is no /proc."""
    names = []
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                names.append((task / "comm").read_text(encoding="utf-8", errors="replace").strip())
    return names


def descendants(pid: int) -> list[int]:
    """All descendants of a process, in any session or group."""
    find_children = children if _has_child_lists() else _children_by_parent().__getitem__
    found, todo = [], [pid]
    while todo:
        below = find_children(todo.pop())
        found += below
        todo += below
    return found


def _children_by_parent() -> Mapping[int, list[int]]:
    """The living children of all processes."""
    found = defaultdict[int, list[int]](list)
    for process in _list_processes():
        if process.lives:
            found[process.parent].append(process.pid)
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


@dataclass(frozen=True)
class Survivor:
    """A process that should have ended."""

    pid: int
    state: str  #: the kernel's letter: R runs, S sleeps, D sleeps uninterruptibly, T is stopped
    command: str

    def __str__(self) -> str:
        return f"{self.pid} (state {self.state}: {self.command})"


def format_survivors(survivors: Sequence[Survivor]) -> str:
    """Formats survivors for people, with the command that shows what blocks them."""
    return (
        f"{', '.join(map(str, survivors))}\n"
        f"See what blocks them:  ps -o pid,user,stat,wchan:30,args -p {','.join(str(each.pid) for each in survivors)}"
    )


def new_mark() -> int:
    """Draws a new mark; 0, which marks no process, where marks are unavailable.

    It is lower than the mark of this process, if there is one: a limit can only be lowered.
    """
    _, ceiling = resource.getrlimit(RLIMIT_LOCKS) if LINUX else (0, 0)
    highest = _HIGHEST_MARK if ceiling == resource.RLIM_INFINITY else ceiling
    return 1 + int.from_bytes(os.urandom(8)) % (highest - 1) if highest >= _LOWEST_CEILING else 0


def take_mark(mark: int) -> bool:
    """Marks this process and all that it starts; False if the system refuses.

    A process that is marked already, because it runs inside another run, has both marks from then on.
    """
    if not mark:
        return False
    _, ceiling = resource.getrlimit(RLIMIT_LOCKS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(RLIMIT_LOCKS, (mark, mark if ceiling == resource.RLIM_INFINITY else ceiling))
    return mark in _marks(os.getpid())


def find_survivors(mark: int, *, sparing: Collection[int] = ()) -> list[Survivor]:
    """Finds the living processes with this mark, except this one."""
    return [_survivor(each) for each in _find_marked(mark, sparing)]


def kill(mark: int, *others: Identity, sparing: Collection[int] = (), limit_s: float = 10.0) -> list[Survivor]:
    """Kills the processes with this mark, and these others, until none is left; returns those alive after `limit_s`.

    A process in uninterruptible sleep survives until its wait ends, which may be never; so does one that belongs to
    another user.
    """
    deadline = time.monotonic() + limit_s
    while True:
        left = {}
        for each in itertools.chain(_find_marked(mark, sparing), (_stat(who.pid) for who in others if is_alive(who))):
            send([each.pid], signal.SIGKILL)  # at once: it may be about to fork and to end
            left[each.pid] = _survivor(each)
        if not left or time.monotonic() > deadline:
            return list(left.values())
        time.sleep(0.01)


def _find_marked(mark: int, sparing: Collection[int]) -> Iterator[_Stat]:
    """Yields the living processes with this mark.

    It misses none: a process that ends after it was listed and before it was read may leave a child that is not on the
    list, so the list is read again until no process vanishes. A process without the mark never acquires it.
    """
    known = {os.getpid(), *sparing}
    found, vanished = False, bool(mark)
    while vanished and not found:
        vanished = False
        for process in _list_processes(but=known):
            marks = _marks(process.pid)
            if mark in marks and process.lives:
                found = True
                yield process
                continue
            known.add(process.pid)
            vanished |= mark in marks or (not marks and _stat(process.pid).state == "X")


def _survivor(process: _Stat) -> Survivor:
    return Survivor(process.pid, process.state, _command(process.pid))


def _marks(pid: int) -> tuple[int, ...]:
    """The marks of a process, -1 for no mark; empty if it has ended."""
    try:
        found = _MARKS.search(_read(f"/proc/{pid}/limits"))
    except OSError:
        return ()
    return tuple(int(each) if each.isdigit() else -1 for each in found.groups()) if found else ()


def _command(pid: int) -> str:
    """The command line of a process, or its name in brackets."""
    with contextlib.suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        line = " ".join(arguments).strip() or f"[{name}]"
        return "".join(c if c.isprintable() else " " for c in line[:_LONGEST_COMMAND])
    return "?"


def kill_descendants(*, limit_s: float) -> None:
    """Kills and collects all descendants of this process, which adopts orphans, or gives up after `limit_s`.

    The children of a process are ours before it can be collected: where no child is left, no descendant is.
    """
    deadline = time.monotonic() + limit_s
    while LINUX:
        send(descendants(os.getpid()), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def watch(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None where the system has none."""
    if not hasattr(os, "pidfd_open"):
        return None
    with contextlib.suppress(OSError):  # the kernel lacks it, or the process has ended
        return os.pidfd_open(pid)
    return None


@contextlib.contextmanager
def block_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Blocks these signals, also in a child forked meanwhile, until each process has its handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def catch_end_signals(take: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Makes SIGTERM, SIGINT and SIGHUP call `take` instead of ending this process; for its main thread.

    Signals that the parent made us ignore stay ignored: SIGHUP under nohup, SIGINT in the background of a script.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        take(signal.Signals(number))

    caught = [n for n in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, *caught)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent's main thread ends; `parent` is the expected parent's id."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if not LINUX:
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
