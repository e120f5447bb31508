"""Sessions: the settings of a client and its one connection to the metadata, which its threads share."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from spanwise.orchestrator.errors import StoreError, StoreUnavailable
from spanwise.orchestrator.store import Entry, MemoryStore, Store
from spanwise.scheduler.project import root as home
from spanwise.scheduler.project.settings import Settings


class Session:
    """Opens the metadata when it is first needed, and again in a forked process or after the connection was lost.

    A file is also opened again when another one has taken its place; while there is none any more, that is an error:
    an open connection to a removed file would go on to show what it held. Of a server, `look_back` notices a restore.
    """

    def __init__(self, settings: Settings, *, config: Path | None = None, deadline_s: float = 30.0) -> None:
        self.settings = settings
        self.config = None if config is None else config.absolute()
        self._deadline_s = deadline_s
        self.when_replaced: list[Callable[[], None]] = []  #: called when the metadata are others than before
        self._file = _file_of(settings)
        self._seen: tuple[int, int] | None = None  # the file that was opened last
        self._lock = threading.Lock()
        self._opened: tuple[Store, int, contextlib.ExitStack] | None = None
        self._closed = False
        self._newest: Entry | None = None  # on a server, when it was looked at last

    @property
    def store(self) -> Store:
        """The store, for reading; empty where nothing was recorded yet.

        Raises:
            StoreError: the client is closed, or the metadata is unavailable.
        """
        with self._lock:
            if self._closed:
                raise StoreError("This client is closed. Connect again:  spanwise.connect(…)")
            there = self._find_file()
            if self._opened is not None and there == self._seen and self._is_current(*self._opened[:2]):
                return self._opened[0]
            if self._seen is not None and there is None:
                raise StoreUnavailable(
                    f"The metadata {self._file} is gone; it was there before. Put it back, or restore a backup:  "
                    "spanwise restore FOLDER"
                )
            if self._opened is not None and self._opened[1] == os.getpid():
                self._opened[2].close()
            self._opened = None
            if self._seen not in (None, there):
                for forget in self.when_replaced:
                    forget()
            stack = contextlib.ExitStack()
            store = stack.enter_context(home.open_for_reading(self.settings, deadline_s=self._deadline_s))
            self._opened, self._seen = (store, os.getpid(), stack), there
            return store

    def look_back(self) -> None:
        """Opens the metadata on a server again where what was recorded last there is undone, as by a restore."""
        if self._file is not None:
            return
        seen, store = self._newest, self.store
        newest = store.entry()
        if seen is not None and seen != newest and seen != store.entry(seen.id):
            self.reset()
            for forget in self.when_replaced:
                forget()
            newest = None
        self._newest = newest

    def _find_file(self) -> tuple[int, int] | None:
        """Which file the metadata is; None where there is none, or a server."""
        try:
            found = None if self._file is None else self._file.stat()
        except FileNotFoundError:
            return None
        return None if found is None else (found.st_dev, found.st_ino)

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
        """What makes a command in another process use the same root and metadata, in whatever folder."""
        metadata = self.settings.metadata if self._file is None else str(self._file)
        return {**os.environ, "SPANWISE_ROOT": self.settings.place, "SPANWISE_METADATA": metadata}

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


def _file_of(settings: Settings) -> Path | None:
    from spanwise.orchestrator.mlmd.location import SqliteFile, parse_location

    where = parse_location(settings.metadata)
    return where.path if isinstance(where, SqliteFile) else None
