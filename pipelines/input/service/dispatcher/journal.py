"""The dispatcher's journal: one record a line, each with its checksum, on disk before anybody hears of it.

A line that was torn by a crash is cut off; damage before the last line is an error. When it has grown long, it is
replaced in one step by the shortest journal that leads to the same state.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_args

from spanwise.orchestrator import durable
from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.dispatcher import state
from spanwise.pipelines.input.service.dispatcher.state import Record, State
from spanwise.pipelines.input.service.policy import ShardingPolicy

COMPACT_RECORDS: Final = 100_000
"""How many records are added before the journal is made shorter."""

_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Record)}
_FIELDS: Final = {kind: tuple(each.name for each in fields(kind)) for kind in _KINDS.values()}


def line_of(record: Record) -> bytes:
    """A record as a line: the checksum of what follows, its kind and its fields in their order."""
    content = [type(record).__name__, *(getattr(record, name) for name in _FIELDS[type(record)])]
    text = json.dumps(content, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def record_of(line: bytes) -> Record | None:
    """The record of a line; None if it is not whole."""
    if len(line) < 10 or not line.endswith(b"\n"):  # noqa: PLR2004  checksum and blank
        return None
    text = line[9:-1]
    try:
        if int(line[:8], 16) != zlib.crc32(text):
            return None
    except ValueError:
        return None
    kind, *values = json.loads(text)
    cls = _KINDS[kind]
    found = {name: _tuple(value) for name, value in zip(_FIELDS[cls], values, strict=True)}
    if cls is state.CreateJob:
        found["mode"] = ShardingPolicy(found["mode"])
    record: Record = cls(**found)
    return record


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


class Journal:
    """The journal in a folder, held by one dispatcher at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "journal"
        self._lock = _held(folder / "lock")
        self.state = State()  #: as the journal says
        self._size = self._replay()
        self._file = self.path.open("ab", buffering=0)
        self._file.truncate(self._size)
        durable.sync_folder(self.path.parent)
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._written = self._synced = self._compacted = 0  # records, since it was opened

    def _replay(self) -> int:
        """Applies all whole records, and says where they end."""
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
                f"{self.path} is damaged: its line {number} is not what was written, and there "
                f"are more behind it. Bring the file back from a copy, or start the dispatcher on an empty folder."
            )
        return at

    def write(self, records: Sequence[Record]) -> int:
        """Adds records, which are safe after `sync` of the number that it gives."""
        left = memoryview(b"".join(map(line_of, records)))
        size = len(left)
        with self._writing:
            try:
                while left:
                    left = left[self._file.write(left) :]
            except OSError as error:
                self._file.truncate(self._size)  # what stands behind half a line would be lost with it
                raise ServiceError(
                    f"{self.path} cannot be written: {error}. Nothing was changed; make room on its disk."
                ) from error
            self._size += size
            self._written += len(records)
            return self._written

    def sync(self, number: int) -> None:
        """Waits until so many records are on disk: those who come together wait for one `fsync`."""
        with self._syncing:
            if self._synced >= number:
                return
            with self._writing:
                written = self._written
            os.fsync(self._file.fileno())
            self._synced = written

    @property
    def is_long(self) -> bool:
        return self._written - self._compacted >= COMPACT_RECORDS

    def compact(self, records: Iterable[Record]) -> None:
        """Puts these records in the place of all that were written; nobody writes meanwhile."""
        with self._syncing, self._writing:
            durable.put(self.path, map(line_of, records))
            self._file.close()
            self._file = self.path.open("ab", buffering=0)
            self._size = self.path.stat().st_size
            self._synced = self._written  # those who still wait have theirs in the new one
            self._compacted = self._written

    def close(self) -> None:
        self._file.close()
        os.close(self._lock)


def _held(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ServiceError(
            f"{path.parent} is the work directory of a dispatcher that runs. Stop that one, or name another folder."
        ) from error
    return lock
