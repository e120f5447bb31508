"""Use locks: who uses the copies in a folder shares its lock, and who removes some needs it alone.

The kernel releases the lock with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_LOCK = ".lock"


class UseLock:
    """The lock of one folder of copies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handles: dict[int, int] = {}  # by process: a lock is shared with forks as long as they have its handle

    @property
    def is_shared(self) -> bool:
        """Whether this process shares it."""
        return os.getpid() in self._handles

    def share(self) -> bool:
        """Shares the lock as long as this process lives; True the first time. A fork takes one of its own."""
        if self.is_shared:
            return False
        handle = self._open()
        fcntl.flock(handle, fcntl.LOCK_SH)
        self._handles[os.getpid()] = handle
        return True

    def release(self) -> None:
        """Ends this process's share."""
        handle = self._handles.pop(os.getpid(), None)
        if handle is not None:
            os.close(handle)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no process uses copies; if so, none begins to meanwhile."""
        handle = self._open()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(handle)

    def _open(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
