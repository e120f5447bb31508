"""Loose ends: what the work of a node has left under way when `run` returns.

At the end of a program Python waits for threads and processes that are no daemons, and writes what open files hold in
memory. The process of a node ends without that, so it is done before the outputs are sealed: what was still to be
written would be missing in silence.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import multiprocessing
import os
import stat
import sys
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Executor
from multiprocessing.process import BaseProcess
from typing import TypeAlias, TypeVar

from spanwise.orchestrator.errors import NodeFailed

T = TypeVar("T")

log = logging.getLogger("spanwise.executor")

PATIENCE_S = 60.0
"""How long threads and processes may still work after `run` has returned."""

_SILENT_S = 2.0
"""How long they are waited for before the log says so."""

_FILE: type[io.IOBase] = io.IOBase.__bases__[0]
"""What every file is an instance of: io.IOBase itself asks all of its subclasses about each class that is none."""

Worker: TypeAlias = "threading.Thread | BaseProcess"


def list_workers() -> list[Worker]:
    """The threads and processes that Python would wait for at the end of a program."""
    me = threading.current_thread()
    threads = [thread for thread in threading.enumerate() if thread is not me and not thread.daemon]
    return [*threads, *(process for process in multiprocessing.active_children() if not process.daemon)]


def tie_up(spared: Collection[Worker]) -> None:
    """Waits for the threads and processes that are no daemons, but for `spared`, then closes files open for writing.

    Raises:
        NodeFailed: one of them is still at work.
    """
    workers = [worker for worker in list_workers() if worker not in spared]
    if workers:
        _await(workers)
    if _writes_files():
        _close_files()


def _await(workers: Collection[Worker]) -> None:
    gc.unfreeze()  # an executor of the user's module was made before the fork
    for executor in _objects_of(Executor):
        executor.shutdown(wait=False)  # its idle threads end, and those at work once their work is done
    began = time.monotonic()
    for worker in workers:
        worker.join(max(0.0, began + min(_SILENT_S, PATIENCE_S) - time.monotonic()))
    if left := [worker.name for worker in workers if worker.is_alive()]:
        log.warning("work-left-behind: %s", f"`run` has returned; waiting for {', '.join(left)}")
    for worker in workers:
        worker.join(max(0.0, began + PATIENCE_S - time.monotonic()))
    if left := [worker.name for worker in workers if worker.is_alive()]:
        raise NodeFailed(
            f"`run` returned, but {PATIENCE_S:g} s later {', '.join(left)} had not ended, so what it writes would be "
            "missing. End or join it in `run`; or make it a daemon if nothing of the outputs depends on it."
        )


def _writes_files() -> bool:
    """Whether a file is open for writing, beside the log."""
    try:
        numbers = [int(name) for name in os.listdir("/dev/fd")]  # noqa: PTH208  names are enough
    except OSError:
        return True
    return any(_is_written(number) for number in numbers)


def _is_written(number: int) -> bool:
    import fcntl

    with contextlib.suppress(OSError, ValueError):
        found, log_file = os.fstat(number), os.fstat(1)
        if stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) != (log_file.st_dev, log_file.st_ino):
            return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    return False


def _close_files() -> None:
    """Closes what writes to files, the outer layers first: each writes what it holds to the one below.

    Also those that only a circle of references holds: a collection would close their layers in any order. Not those
    of the process that this one was forked from, which writes what they hold itself.
    """
    for opened in sorted(_open_files(), key=_layer):
        if opened in (sys.stdout, sys.stderr):
            opened.flush()
        elif not opened.closed:
            opened.close()


def _open_files() -> Iterator[io.IOBase]:
    for each in _objects_of(_FILE):
        if not isinstance(each, io.RawIOBase):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or above no descriptor
                if each.writable() and _is_written(each.fileno()):
                    yield each


def _objects_of(kind: type[T]) -> list[T]:
    """The objects of a class and its subclasses. Each type is asked once, since there are hundreds of thousands."""
    objects = gc.get_objects()
    kinds = {each for each in {*map(type, objects)} if issubclass(each, kind)}
    return [each for each in objects if type(each) in kinds]


def _layer(opened: io.IOBase) -> int:
    if isinstance(opened, io.TextIOBase):
        return 0
    return 2 if isinstance(opened, io.BufferedWriter | io.BufferedRandom) else 1
