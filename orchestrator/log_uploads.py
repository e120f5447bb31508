"""Log uploads: the logs of running nodes go to the root in object storage while they are written.

A log that cannot be uploaded stays on this machine, and stops no run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spanwise.orchestrator.artifact import ArtifactArchive
from spanwise.orchestrator.errors import StorageError

log = logging.getLogger("spanwise.logs")

EVERY_S = 2.0


class LogUploads:
    """The logs of one controller's running nodes. Close it to end its thread."""

    def __init__(self, archive: ArtifactArchive, every_s: float = EVERY_S) -> None:
        self._archive = archive
        self._every_s = every_s
        self._sent: dict[Path, int] = {}
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, file: Path) -> None:
        """Uploads what is written to a log from now on."""
        with self._turn:
            self._sent[file] = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._upload, name="logs", daemon=True)
            self._thread.start()

    def end(self, file: Path) -> None:
        """Uploads the rest of a log."""
        with self._turn:
            if file in self._sent:
                self._upload_one(file)
                self._sent.pop(file)

    def close(self) -> None:
        """Uploads the rest of all logs."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        for file in list(self._sent):
            self.end(file)

    def _upload(self) -> None:
        while not self._ended.wait(self._every_s):
            for file in list(self._sent):
                with self._turn:
                    if file in self._sent:
                        self._upload_one(file)

    def _upload_one(self, file: Path) -> None:
        try:
            self._sent[file] = self._archive.keep_log(file, self._sent[file])
        except (StorageError, OSError) as error:
            log.warning("log-not-uploaded", extra={"file": file, "reason": str(error)})


@contextmanager
def uploading(archive: ArtifactArchive | None) -> Iterator[LogUploads | None]:
    """The uploads to an archive, if there is one."""
    if archive is None:
        yield None
        return
    uploads = LogUploads(archive)
    try:
        yield uploads
    finally:
        uploads.close()
