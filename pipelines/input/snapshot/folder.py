"""One snapshot's folder, `<path>/<fingerprint>/`: who may write it, when it is complete, what of it can be reused.

    snapshot.metadata           the attempt that may become the snapshot: its run id and when it started
    metadata.final              the run that is the snapshot: its chunks with their checksums
    snapshot.heartbeat          when its writer was last alive, if it has been writing for some seconds
    metadata.error              why a data service abandoned the attempt; removed when the next one begins
    <run id>/00000000.snapshot  chunks; a file with this name is complete

The commit is the moment in which `metadata.final` gets its name. Before it nothing is read from the run; after it
nothing of the run changes. A killed writer leaves an attempt that the next writer replaces: at once if the writer is
known to be dead, within a minute if its heartbeat has stopped; and chunks that the next writer reuses.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spanwise.orchestrator.errors import SnapshotDamaged
from spanwise.pipelines.input.snapshot.format import SUFFIX, ChunkHeader, checksum_of, header_of
from spanwise.pipelines.input.snapshot.owner import is_dead
from spanwise.pipelines.input.snapshot.state import ChunkRecord, Metadata, SaveFailure
from spanwise.pipelines.input.snapshot.storage import Files

if TYPE_CHECKING:
    import pyarrow as pa

PENDING: Final = "snapshot.metadata"
FINAL: Final = "metadata.final"
FAILED: Final = "metadata.error"
BEAT: Final = "snapshot.heartbeat"
TAKEN: Final = "taken-over"

_FINGERPRINT: Final = re.compile("[0-9a-f]{32}")
_RUN_ID: Final = re.compile("[0-9a-f]{16}")

DEAD_S: Final = 60.0
"""A writer whose last heartbeat is older, by the clocks of both, is dead."""

_log = logging.getLogger("spanwise.snapshot")


@dataclass(frozen=True)
class FolderContent:
    """What a snapshot's folder says."""

    final: Metadata | None
    pending: Metadata | None
    broken: tuple[str, ...] = ()  #: metadata files that cannot be read and count as absent
    failed: SaveFailure | None = None


class SnapshotFolder:
    """The folder of one fingerprint."""

    def __init__(self, files: Files, fingerprint: str) -> None:
        self.files = files
        self.fingerprint = fingerprint

    def __str__(self) -> str:
        return f"{self.files}/{self.fingerprint}"

    def look(self) -> FolderContent:
        read: dict[str, Metadata | None] = {}
        broken = []
        for name in (FINAL, PENDING):
            content = self.files.read(f"{self.fingerprint}/{name}")
            try:
                read[name] = None if content is None else Metadata.from_bytes(content, f"{self}/{name}")
            except SnapshotDamaged as error:
                _log.warning("snapshot-damaged", extra={"snapshot": str(self), "file": name, "reason": str(error)})
                read[name] = None
                broken.append(name)
        # If the final metadata cannot be read, nobody is known to be writing them again.
        pending = None if FINAL in broken else read[PENDING]
        content = self.files.read(f"{self.fingerprint}/{FAILED}")
        return FolderContent(
            read[FINAL], pending, tuple(broken), None if content is None else SaveFailure.from_bytes(content)
        )

    def is_abandoned(self, found: FolderContent, now: float) -> bool:
        """Whether the attempt's writer is dead, as far as can be known, and nobody else uses the run."""
        run = found.pending
        if run is None or run.complete or not run.writer or self.files.is_used(f"{self.fingerprint}/{run.run_id}"):
            return False
        return is_dead(run.writer) or now - max(run.started, self._last_beat(run.run_id)) > DEAD_S

    def beat(self, run_id: str, now: float) -> None:
        """Records that the writer of a run is alive."""
        self.files.replace(f"{self.fingerprint}/{BEAT}", [json.dumps({"run": run_id, "at": now}).encode()])

    def end_beat(self, run_id: str) -> None:
        if self._last_beat(run_id):
            self.files.remove(f"{self.fingerprint}/{BEAT}")

    def _last_beat(self, run_id: str) -> float:
        """When the writer of a run was last alive, by its clock; 0 if it has recorded nothing."""
        try:
            beat = json.loads(self.files.read(f"{self.fingerprint}/{BEAT}") or b"{}")
            return float(beat["at"]) if beat.get("run") == run_id else 0.0
        except (ValueError, KeyError, TypeError, AttributeError):
            return 0.0

    def claim(
        self, run: Metadata, found: FolderContent, mark: ExitStack | None = None, *, abandoned: bool = False
    ) -> bool:
        """Makes `run` the attempt, if the folder has not changed since it was looked at; False if another was faster.

        While `mark` is open, others see that the writer is alive. `abandoned` says that the previous attempt is
        replaced because its writer is dead.
        """
        self.files.make_folder(self.fingerprint)
        with self._lock():
            if self.look() != found or (abandoned and not self.is_abandoned(found, run.started)):
                return False
            for name in (*found.broken, FAILED):
                self.files.remove(f"{self.fingerprint}/{name}")
            if found.pending is None and PENDING not in found.broken and FINAL not in found.broken:
                if not self.files.create(f"{self.fingerprint}/{PENDING}", [run.to_bytes()]):
                    return False
            elif found.pending is not None and not self._take_over(found.pending.run_id, run.started):
                return False
            else:
                self.files.replace(f"{self.fingerprint}/{PENDING}", [run.to_bytes()])
            self.files.make_folder(f"{self.fingerprint}/{run.run_id}")
            if mark is not None:
                mark.enter_context(self.mark_used(run.run_id))  # before others can look for it
        return True

    def _take_over(self, run_id: str, now: float) -> bool:
        """Whether this writer may replace an attempt; where nobody can be excluded, a conditional put decides."""
        if not self.files.remote:
            return True
        name = f"{self.fingerprint}/{run_id}/{TAKEN}"
        before = self.files.read(name)
        if before is not None and now - float(before) > DEAD_S:  # who came first has died on the way
            self.files.remove(name)
        return self.files.create(name, [str(now).encode()])

    def commit(self, run: Metadata, *, over: bool) -> bool:
        """Makes `run` the snapshot, if it is still the attempt; False if the race was lost.

        `over` replaces an existing snapshot, as `mode="write"` requires.
        """
        name = f"{self.fingerprint}/{FINAL}"
        with self._lock():
            found = self.look()
            if found.pending is None or found.pending.run_id != run.run_id:
                return False
            if over:
                self.files.replace(name, [run.to_bytes()])
            elif not self.files.create(name, [run.to_bytes()]):
                found = self.look()  # a put whose answer got lost was retried
                if found.final is None or found.final.run_id != run.run_id:
                    return False
            if not over:
                self._sweep(run.run_id)
        return True

    def _sweep(self, run_id: str) -> None:
        """Removes what dead writers have left; those alive will notice that they have lost."""
        for other in self.files.folders(self.fingerprint):
            if other != run_id and self.files.is_used(f"{self.fingerprint}/{other}") is False:
                self.files.remove(f"{self.fingerprint}/{other}")

    def withdraw(self, run_id: str) -> None:
        """Withdraws the attempt, so that the next one need not wait until it expires."""
        with self._lock():
            found = self.look()
            if found.pending is not None and found.pending.run_id == run_id and found.final is None:
                self.files.remove(f"{self.fingerprint}/{PENDING}")

    def fail(self, run_id: str, error: str) -> None:
        """Withdraws the attempt, removes all that it wrote, and records why."""
        with self._lock():
            found = self.look()
            if found.pending is None or found.pending.run_id != run_id or found.final is not None:
                return
            self.files.replace(f"{self.fingerprint}/{FAILED}", [SaveFailure(run_id, error).to_bytes()])
            self.files.remove(f"{self.fingerprint}/{PENDING}")
        self.files.remove(f"{self.fingerprint}/{run_id}")

    def retire(self, run_id: str, file: str) -> None:
        """Withdraws a snapshot with a damaged file; its other chunks will be reused."""
        with self._lock():
            found = self.look()
            if found.final is not None and found.final.run_id == run_id:
                # In this order: a writer is admitted only when nobody can start to read.
                self.files.remove(f"{self.fingerprint}/{PENDING}")
                self.files.remove(f"{self.fingerprint}/{FINAL}")
            self.files.remove(f"{self.fingerprint}/{run_id}/{file}")

    def discard(self, run_id: str) -> None:
        """Removes a run, unless it is the snapshot or somebody reads it."""
        found = self.look()
        is_snapshot = found.final is not None and found.final.run_id == run_id
        if not is_snapshot and not self.files.is_used(f"{self.fingerprint}/{run_id}"):
            self.files.remove(f"{self.fingerprint}/{run_id}")

    def mark_used(self, run_id: str) -> AbstractContextManager[None]:
        """Protects a run from `gc` while it is read."""
        return self.files.mark_used(f"{self.fingerprint}/{run_id}")

    def map_chunk(self, run_id: str, file: str) -> tuple[pa.Buffer, str]:
        """The content of a chunk, and its checksum.

        Raises:
            SnapshotDamaged: it is missing, or not what was written.
        """
        where = f"{self}/{run_id}/{file}"
        try:
            content = self.files.map(f"{self.fingerprint}/{run_id}/{file}")
        except (FileNotFoundError, ValueError) as error:  # an empty file cannot be mapped
            raise SnapshotDamaged(f"{where} is missing or empty.") from error
        return content, checksum_of(content, where)

    def read_chunk(self, run_id: str, record: ChunkRecord) -> pa.Buffer:
        """The content of a chunk of a complete snapshot.

        Raises:
            SnapshotDamaged: it is missing, or not the one that was committed.
        """
        content, checksum = self.map_chunk(run_id, record.file)
        if checksum != record.checksum:
            raise SnapshotDamaged(f"{self}/{run_id}/{record.file} is not the chunk that was committed.")
        return content

    def run_ids(self) -> list[str]:
        return [name for name in self.files.folders(self.fingerprint) if _RUN_ID.fullmatch(name)]

    def find_foreign(self) -> str:
        """The name of something in the folder that no writer makes; empty if there is nothing."""
        runs = self.run_ids()
        names = [name for name in self.files.folders(self.fingerprint) if name not in runs]
        names += [name for name in self.files.sizes(self.fingerprint) if name not in (PENDING, FINAL, FAILED, BEAT)]
        for run in runs:
            below = f"{self.fingerprint}/{run}"
            files = (name for name in self.files.sizes(below) if not name.endswith(SUFFIX) and name != TAKEN)
            names += [f"{run}/{name}" for name in (*self.files.folders(below), *files)]
        return next(iter(names), "")

    def leftovers(self) -> str | None:
        """The run with the most chunks; None if there are none."""
        runs = self.files.folders(self.fingerprint)
        counts = {run: len(self.chunk_files(run)) for run in runs}
        return max((run for run in runs if counts[run]), key=counts.__getitem__, default=None)

    def chunk_files(self, run_id: str) -> list[str]:
        names = self.files.sizes(f"{self.fingerprint}/{run_id}")
        return [name for name in names if name.endswith(SUFFIX)]

    def _lock(self) -> AbstractContextManager[None]:
        return self.files.lock(self.fingerprint)


@dataclass(frozen=True, kw_only=True)
class ReusableChunk:
    """An undamaged chunk of an attempt that did not end."""

    file: str
    header: ChunkHeader
    content: pa.Buffer
    checksum: str


class ReusableChunks:
    """What an earlier run over the same graph has left, chunk by chunk in the order of its elements."""

    def __init__(self, folder: SnapshotFolder, run_id: str | None, kind: str) -> None:
        self.run_id = run_id
        self._chunks: Iterator[ReusableChunk] = iter(()) if run_id is None else self._read(folder, run_id, kind)
        self._next: ReusableChunk | None = None

    def peek(self, at: int) -> ReusableChunk | None:
        """The next chunk whose first element has the number `at` or a higher one."""
        while self._next is None or self._next.header.first < at:
            self._next = next(self._chunks, None)
            if self._next is None:
                return None
        return self._next

    @property
    def origin(self) -> dict[str, Any] | None:
        """What determines the order of its elements; None if there are none."""
        first = self.peek(0)
        return None if first is None else first.header.start

    def pop(self) -> None:
        """Drops the chunk that `peek` has returned."""
        self._next = None

    @staticmethod
    def _read(folder: SnapshotFolder, run_id: str, kind: str) -> Iterator[ReusableChunk]:
        for file in folder.chunk_files(run_id):
            try:
                content, checksum = folder.map_chunk(run_id, file)
            except SnapshotDamaged as error:
                _log.warning("snapshot-damaged", extra={"snapshot": str(folder), "file": file, "reason": str(error)})
                continue
            header = header_of(content)
            if (header.fingerprint, header.kind, header.split) == (folder.fingerprint, kind, 0) and header.start:
                yield ReusableChunk(file=file, header=header, content=content, checksum=checksum)


def new_run_id() -> str:
    return secrets.token_hex(8)


def is_fingerprint(name: str) -> bool:
    """Whether the folder of a snapshot may have this name."""
    return _FINGERPRINT.fullmatch(name) is not None
