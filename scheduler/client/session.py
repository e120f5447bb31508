"""Sessions: the settings of a client and its one connection to the metadata, which its threads share."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.store import MemoryStore, Store
from spanwise.scheduler.project import root as home
from spanwise.scheduler.project.settings import Settings


class Session:
    """Opens the metadata when it is first needed, and again in a forked process or after the connection was lost."""

    def __init__(self, settings: Settings, *, config: Path | None = None) -> None:
        self.settings = settings
        self.config = config
        self._lock = threading.Lock()
        self._opened: tuple[Store, int, contextlib.ExitStack] | None = None
        self._closed = False

    @property
    def store(self) -> Store:
        """The store, for reading; empty where nothing was recorded yet.

        Raises:
            StoreError: the client is closed, or the metadata is unavailable.
        """
        with self._lock:
            if self._closed:
                raise StoreError("This client is closed. Connect again:  spanwise.connect(…)")
            if self._opened is not None and self._is_current(*self._opened[:2]):
                return self._opened[0]
            stack = contextlib.ExitStack()
            store = stack.enter_context(home.open_for_reading(self.settings))
            self._opened = (store, os.getpid(), stack)
            return store

    def _is_current(self, store: Store, pid: int) -> bool:
        """A connection does not survive a fork, and an empty store stands for a database that may exist by now."""
        return pid == os.getpid() and not isinstance(store, MemoryStore)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Store]:
        """The store, for what people decide; creates nothing where nothing was recorded.

        Raises:
            StoreUnavailable: the metadata is in a read-only folder.
        """
        home.refuse_read_only(self.settings)
        yield self.store

    @property
    def environment(self) -> dict[str, str]:
        """What makes a command in another process use the same root, metadata and settings file."""
        return {**os.environ, "SPANWISE_ROOT": self.settings.place, "SPANWISE_METADATA": self.settings.metadata}

    @property
    def options(self) -> list[str]:
        """--root and --config, for a command that a person can paste."""
        config = [] if self.config is None else ["--config", str(self.config)]
        return ["--root", self.settings.place, *config]

    def reset(self) -> None:
        """Closes the connection; the next question opens it again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None and opened[1] == os.getpid():
            opened[2].close()

    def close(self) -> None:
        """Closes the connection for good."""
        self._closed = True
        self.reset()
