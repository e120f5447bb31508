"""The journal in a folder: one record per line, each with its checksum, on disk before anybody learns of it.

A line that a crash has torn is cut off; damage before the last line is an error. A long journal is replaced in one step
by the shortest one that leads to the same state.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from spanwise.orchestrator import durable
from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.dispatcher.journal import COMPACT_RECORDS, line_of, record_of
from spanwise.pipelines.input.service.dispatcher.records import Record
from spanwise.pipelines.input.service.dispatcher.state import ServiceState


class FolderJournal:
    """The journal in a folder, held by one dispatcher of this machine at a time."""

    lost: ServiceError | None = None  #: the lock cannot be taken away

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "journal"
        self._lock = _lock(folder / "lock")
        self.state = ServiceState()  #: that the journal leads to
        self._size = self._replay()
        self._file = self.path.open("ab", buffering=0)
        self._file.truncate(self._size)
        durable.sync_folder(self.path.parent)
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._written = self._synced = self._compacted = 0  # records, since it was opened

    def _replay(self) -> int:
        """Applies all undamaged records; returns where they end."""
        if not self.path.exists():
            return 0
        content = self.path.read_bytes()
        at = 0
        for line in content.splitlines(keepends=True):
            record = record_of(line)
            if record is None:
                break
            self.state.apply(record)
            at += len(line)
        torn = content[at:]
        if b"\n" in torn[:-1] and any(record_of(line) is not None for line in torn.splitlines(keepends=True)):
            number = content.count(b"\n", 0, at) + 1
            raise ServiceError(
                f"{self.path} is damaged: its line {number} is not what was written, and there are records behind it. "
                f"Restore the file from a backup, or start the dispatcher on an empty folder."
            )
        return at

    def write(self, records: Sequence[Record]) -> int:
        rest = memoryview(b"".join(map(line_of, records)))
        size = len(rest)
        with self._writing:
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                self._file.truncate(self._size)  # records behind half a line would be lost with it
                raise ServiceError(
                    f"{self.path} could not be written: {error}. Nothing was changed; free space on its disk."
                ) from error
            self._size += size
            self._written += len(records)
            return self._written

    def sync(self, number: int) -> None:
        if self._synced >= number:
            return
        with self._syncing:
            if self._synced >= number:
                return
            with self._writing:
                written = self._written
            os.fsync(self._file.fileno())
            self._synced = written

    def check(self) -> None:
        """Nobody can have taken the lock."""

    def announce(self, address: str) -> None:
        """A folder is no place where others look."""

    @property
    def written(self) -> int:
        return self._written

    @property
    def is_long(self) -> bool:
        return self._written - self._compacted >= COMPACT_RECORDS

    def compact(self, records: Iterable[Record]) -> None:
        with self._syncing, self._writing:
            durable.put(self.path, map(line_of, records))
            self._file.close()
            self._file = self.path.open("ab", buffering=0)
            self._size = self.path.stat().st_size
            self._synced = self._written  # records that are waited for are part of the new file
            self._compacted = self._written

    def close(self) -> None:
        self._file.close()
        os.close(self._lock)


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ServiceError(
            f"{path.parent} is the work directory of a running dispatcher. Stop that one, or use another folder."
        ) from error
    return handle
