"""Checkpoints: the folder that the attempts at a node share, and how another machine finds what is in it.

Under a root in object storage its files go there when an attempt commits them, and by themselves soon after they were
written. On one machine there is nothing to do: the folder stays.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spanwise.orchestrator.artifact import ArtifactArchive, SharedCheckpoints
from spanwise.orchestrator.errors import Fenced, StorageError
from spanwise.orchestrator.job import NodeJob

EVERY_S = 5.0
"""How often a folder is looked at whose files nobody commits."""

log = logging.getLogger("spanwise.run")


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one attempt. Sent to another process, it commits for the same attempt."""

    folder: Path
    shared: SharedCheckpoints | None = None  #: where other machines find them

    @classmethod
    def of(cls, job: NodeJob) -> Checkpoints:
        """Those of a job; if it is not the first attempt, as the one before has left them."""
        folder = Path(job.checkpoints)
        if job.archive is None:
            return cls(folder)
        if job.replica.rank:
            return cls._of_a_follower(job, job.archive)
        shared = job.archive.checkpoints(folder, began=_began(job), attempt=job.attempt)
        if job.attempt > 1:
            shared.take_over(folder)
        return cls(folder, shared)

    @classmethod
    def _of_a_follower(cls, job: NodeJob, archive: ArtifactArchive) -> Checkpoints:
        """A copy of what rank 0 has committed: its own folder may be on this machine, and it alone commits."""
        copy = Path(job.scratch) / "checkpoints"
        copy.mkdir(parents=True)
        if job.attempt > 1 and not job.gang.elastic:  # whose master alone reads them
            archive.checkpoints(Path(job.checkpoints), began=_began(job), attempt=job.attempt).fetch(copy)
        return cls(copy)

    def commit(self) -> None:
        """Returns when the next attempt finds the files as they are, on whichever machine.

        Raises:
            Fenced: a later attempt has begun.
            StorageError: the storage cannot be reached.
        """
        if self.shared is not None:
            self.shared.commit(self.folder)

    @contextlib.contextmanager
    def watched(self, every_s: float = EVERY_S) -> Iterator[None]:
        """Commits what is written meanwhile, whenever it has come to rest."""
        if self.shared is None:
            yield
            return
        ended = threading.Event()
        watching = threading.Thread(target=self._watch, args=(ended, every_s), name="checkpoints", daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()

    def _watch(self, ended: threading.Event, every_s: float) -> None:
        from spanwise.orchestrator.storage.checkpoints import FolderState, look_at

        assert self.shared is not None
        committed = FolderState()
        while not ended.wait(every_s):
            seen = look_at(self.folder)
            try:
                if seen != committed and self.shared.commit(self.folder, settled=True):
                    committed = seen
            except Fenced as error:
                log.warning("checkpoint-not-stored", extra={"reason": str(error)})
                return
            except (StorageError, OSError) as error:
                log.warning("checkpoint-not-stored", extra={"reason": str(error)})


def _began(job: NodeJob) -> str:
    return "" if job.run.started is None else job.run.started.isoformat()
