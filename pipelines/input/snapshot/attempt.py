"""One attempt to write a snapshot: it claims the folder, then commits or is abandoned."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from spanwise.pipelines.input.snapshot.folder import FolderContent, SnapshotFolder
from spanwise.pipelines.input.snapshot.state import ChunkRecord, Metadata
from spanwise.pipelines.input.snapshot.use import SnapshotUse

BEAT_S: Final = 10.0
"""How often a writer records that it is alive."""

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
    check: Callable[[], None] = lambda: None  #: raises where the run must not become the snapshot
    replaces: str | None = None  #: the run whose attempt has expired, or whose writer has died
    abandoned: bool = False  #: whether it is the latter
    mark: ExitStack = field(default_factory=ExitStack, repr=False)  #: shows others that the writer is alive

    def begin(self) -> bool:
        """Claims the folder; False if it has changed since it was looked at."""
        try:
            begun = self.folder.claim(self.run, self.found, self.mark, abandoned=self.abandoned)
        except FileNotFoundError:  # garbage collection has just removed it
            return False
        if begun:
            stopped = threading.Event()
            beating = threading.Thread(target=self._beat, args=(stopped,), name="snapshot-heartbeat", daemon=True)
            self.mark.callback(self._end_beat, stopped, beating)
            beating.start()
        return begun

    def _beat(self, stopped: threading.Event) -> None:
        """Lets writers on other machines know that this one is alive."""
        while not stopped.wait(BEAT_S):
            try:
                self.folder.beat(self.run.run_id, time.time())
            except OSError as error:
                _log.warning("snapshot-heartbeat-failed", extra={"snapshot": str(self.folder), "reason": str(error)})

    def _end_beat(self, stopped: threading.Event, beating: threading.Thread) -> None:
        stopped.set()
        beating.join()
        with suppress(OSError):
            self.folder.end_beat(self.run.run_id)

    def commit(self, chunks: Sequence[ChunkRecord], splits: int = 1) -> None:
        """Makes the run the snapshot, or removes it if another one was faster.

        Raises:
            UnreadableInput: a source file has changed.
        """
        self.check()
        final = replace(self.run, complete=True, chunks=tuple(chunks), splits=splits)
        self.use.committed = self.folder.commit(final, over=self.over)
        self.mark.close()
        if not self.use.committed:
            _log.info("snapshot-race-lost", extra={"snapshot": str(self.folder), "run": self.run.run_id})
            self.folder.discard(self.run.run_id)
        elif self.replaces is not None:
            self.folder.discard(self.replaces)

    def close(self, *, keep: bool) -> None:
        """Ends the attempt of a pass that is closed before its end, so that the next pass need not wait for it."""
        try:
            self.abandon("the pass was closed before its end", keep=keep, level=logging.INFO)
        except OSError as error:  # the next pass waits until the attempt counts as dead
            _log.warning("snapshot-withdrawal-failed", extra={"snapshot": str(self.folder), "reason": str(error)})

    def abandon(self, reason: str, *, keep: bool, level: int = logging.WARNING) -> None:
        """Ends the attempt. `keep` leaves finished chunks to the next one."""
        _log.log(level, "snapshot-abandoned", extra={"snapshot": str(self.folder), "reason": reason})
        self.use.failed = reason
        self.mark.close()
        self.folder.withdraw(self.run.run_id)
        if not keep:
            self.folder.discard(self.run.run_id)
