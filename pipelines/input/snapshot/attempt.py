"""One attempt to write a snapshot: it claims the folder, then commits or is abandoned."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from spanwise.pipelines.input.snapshot.folder import FolderContent, SnapshotFolder
from spanwise.pipelines.input.snapshot.state import ChunkRecord, Metadata
from spanwise.pipelines.input.snapshot.use import SnapshotUse

_log = logging.getLogger("spanwise.snapshot")


@dataclass(frozen=True, kw_only=True)
class WriteAttempt:
    """The run that a pass writes."""

    run: Metadata
    folder: SnapshotFolder
    found: FolderContent  #: the folder when this was decided
    use: SnapshotUse
    compression: str
    over: bool  #: whether it replaces an existing snapshot
    replaces: str | None = None  #: the run whose attempt has expired, or whose writer has died
    abandoned: bool = False  #: whether it is the latter
    mark: ExitStack = field(default_factory=ExitStack, repr=False)  #: shows others that the writer is alive

    def begin(self) -> bool:
        """Claims the folder; False if it has changed since it was looked at."""
        try:
            return self.folder.claim(self.run, self.found, self.mark, abandoned=self.abandoned)
        except FileNotFoundError:  # garbage collection has just removed it
            return False

    def commit(self, chunks: Sequence[ChunkRecord], splits: int = 1) -> None:
        """Makes the run the snapshot, or removes it if another one was faster."""
        final = replace(self.run, complete=True, chunks=tuple(chunks), splits=splits)
        self.use.committed = self.folder.commit(final, over=self.over)
        self.mark.close()
        if not self.use.committed:
            _log.info("snapshot-race-lost", extra={"snapshot": str(self.folder), "run": self.run.run_id})
            self.folder.discard(self.run.run_id)
        elif self.replaces is not None:
            self.folder.discard(self.replaces)

    def abandon(self, reason: str, *, keep: bool) -> None:
        """Ends the attempt. `keep` leaves finished chunks to the next one."""
        _log.warning("snapshot-abandoned", extra={"snapshot": str(self.folder), "reason": reason})
        self.use.failed = reason
        self.mark.close()
        self.folder.withdraw(self.run.run_id)
        if not keep:
            self.folder.discard(self.run.run_id)
