"""Trials: whether threads or other processes are to call a function, found by timing its first calls.

Threads share Python's lock. A function that runs Python code keeps it, so threads that call it wait for each other and
for the consumer; NumPy and Arrow let go of it while they work. How long another thread waits for the lock while the
function runs tells the two apart.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.execution.process import Function, portable
from spanwise.pipelines.input.op import Element
from spanwise.pipelines.input.tuning.stats import weight

Workers: TypeAlias = Literal["auto", "threads", "processes"]

HANDING_OVER_S: Final = 0.0003  #: what a call of another process costs, and
SHARED_BYTES_PER_S: Final = 1e9  #: how fast it gets what it works on
HELD: Final = 0.5  #: of a call's time: threads that keep the lock for more of it wait for each other
ENOUGH_S: Final = (0.05, 0.25)  #: of a core that timed calls have had, or of any time: enough for a verdict
ENOUGH_CALLS: Final = (3, 30)  #: of those that take no longer than handing over, and of any others
CARRIED_BYTES: Final = 1 << 24  #: a function that brings more along stays: each process would hold it once more
TICK_S: Final = 0.0005


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What calls of a function have taken, together."""

    calls: int
    took_s: float
    cpu_s: float  #: of a core
    late_s: float  #: how long a thread that wanted Python's lock had to wait for it meanwhile
    element_bytes: float = 0.0  #: of an element and its result

    @property
    def lock_share(self) -> float:
        """Which share of a call keeps Python's lock."""
        return min(1.0, self.late_s / self.took_s) if self.took_s else 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is to call a function."""

    workers: Literal["threads", "processes"]
    lock_share: float = 0.0  #: of a thread's call


def judged(timing: Timing) -> Verdict | None:
    """What is to call a function that was timed so; None if more calls must tell.

    Processes, if it keeps Python's lock to itself, and for longer than it takes to hand an element over and back.
    """
    few, most = ENOUGH_CALLS
    core_s, any_s = ENOUGH_S
    quick = timing.calls >= few and timing.took_s < timing.calls * HANDING_OVER_S
    if not (quick or timing.calls >= most or timing.cpu_s >= core_s or timing.took_s >= any_s):
        return None
    share = timing.lock_share
    held_s = min(share, timing.cpu_s / timing.took_s) * timing.took_s / timing.calls
    worth = share > HELD and held_s > HANDING_OVER_S + timing.element_bytes / SHARED_BYTES_PER_S
    return Verdict(workers="processes" if worth else "threads", lock_share=share)


#: What is known of functions, for the next pass. Weak: it keeps no function alive.
_known: weakref.WeakKeyDictionary[Callable[..., Any], dict[tuple[weakref.ref[Any], ...], Verdict]]
_known = weakref.WeakKeyDictionary()


def known(functions: tuple[Callable[..., Any], ...]) -> Verdict | None:
    """The verdict on functions that are called one behind the other, from an earlier pass of this process."""
    try:
        return _known.get(functions[-1], {}).get(tuple(map(weakref.ref, functions)))
    except TypeError:  # one that cannot be told from others
        return None


def remember(functions: tuple[Callable[..., Any], ...], verdict: Verdict) -> None:
    """Keeps a verdict for passes to come, as long as the functions live."""
    try:
        _known.setdefault(functions[-1], {})[tuple(map(weakref.ref, functions))] = verdict
    except TypeError:
        return


@dataclass(kw_only=True)
class Trial:
    """The first calls of a function, made and timed one at a time.

    The first of all only warms up: it may import what the function needs.
    """

    function: Function
    functions: tuple[Callable[..., Any], ...]  #: those of the user that it calls, for which the verdict is kept
    name: str  #: the op's
    verdict: Verdict | None = None  #: None until there is one
    _timing: Timing | None = field(default=None, init=False)

    def __call__(self, element: Element, position: int) -> Element:
        """The function's result."""
        if self._timing is None:
            self._timing = Timing(calls=0, took_s=0.0, cpu_s=0.0, late_s=0.0)
            return self.function(element, position)
        waker = _Waker()
        started, cpu = time.perf_counter(), time.thread_time()
        try:
            made = self.function(element, position)
        finally:
            took_s, cpu_s = time.perf_counter() - started, time.thread_time() - cpu
            late_share = waker.late_share()
        self._timing = Timing(
            calls=self._timing.calls + 1,
            took_s=self._timing.took_s + took_s,
            cpu_s=self._timing.cpu_s + cpu_s,
            late_s=self._timing.late_s + late_share * took_s,
            element_bytes=weight(element) + weight(made),
        )
        self.verdict = self._travelling(judged(self._timing))
        if self.verdict is not None:
            remember(self.functions, self.verdict)
        return made

    def _travelling(self, verdict: Verdict | None) -> Verdict | None:
        """The verdict; threads, if the function cannot be sent to a process, or had better not be."""
        if verdict is None or verdict.workers == "threads":
            return verdict
        try:
            if len(portable(self.function, name=self.name)) <= CARRIED_BYTES:
                return verdict
        except DatasetError:
            pass
        return Verdict(workers="threads", lock_share=verdict.lock_share)


class _Waker:
    """A thread that wakes again and again, to see for which share of the time it has to wait for Python's lock."""

    def __init__(self) -> None:
        """Starts it; returns when it sleeps for the first time."""
        self._ready, self._over = threading.Lock(), threading.Lock()
        self._ready.acquire()
        self._over.acquire()
        self._late_share = 0.0
        self._thread = threading.Thread(target=self._wake, daemon=True)
        self._thread.start()
        self._ready.acquire()

    def late_share(self) -> float:
        self._over.release()
        self._thread.join()
        return self._late_share

    def _wake(self) -> None:
        queued_s = _queued_s()
        self._ready.release()
        begun, late_s, over = time.perf_counter(), 0.0, False
        while not over:
            started = time.perf_counter()
            over = self._over.acquire(timeout=TICK_S)
            if not over:
                late_s += time.perf_counter() - started - TICK_S
        took_s = time.perf_counter() - begun
        queued_s = _queued_s() - queued_s
        if took_s > queued_s:
            self._late_share = min(1.0, max(0.0, late_s - queued_s) / (took_s - queued_s))


def _queued_s() -> float:
    """How long this thread has waited for a core so far: on a busy machine it is late for that reason too."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # not told by this system
        return 0.0
