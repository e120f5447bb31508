"""Places: how the metadata record where files are. Those below the root, and pipeline files beside it, are relative."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from spanwise.orchestrator.artifact import ArtifactArchive


@dataclass(frozen=True)
class Places:
    """Translates between places on this machine and those in the metadata. Without a root, both are the same."""

    root: Path | None
    archive: ArtifactArchive | None = None  #: what artifacts are given to find their files

    @cached_property
    def home(self) -> str:
        """What tells the root from copies of it: where it is, or which folder it is, wherever that is moved."""
        if self.archive is not None:
            return self.archive.url
        try:
            found = None if self.root is None else self.root.stat()
        except OSError:
            found = None
        return "" if found is None else f"{found.st_dev}:{found.st_ino}"

    def record(self, place: str) -> str:
        """The place as it is recorded."""
        if self.root is None or "://" in place:
            return place
        path = Path(place)
        home = self.root.absolute()
        return path.relative_to(home).as_posix() if path.is_relative_to(home) else place

    def record_source(self, source: str) -> str:
        """The source or folder of a run as it is recorded: relative to the root where it lies in the root's project."""
        if self.root is None or not Path(source).is_relative_to(self.root.absolute().parent):
            return source
        return Path(os.path.relpath(source, self.root.absolute())).as_posix()

    def resolve(self, recorded: str) -> str:
        """The place on this machine."""
        if self.root is None or not recorded or "://" in recorded:
            return recorded
        return os.path.normpath(f"{self._home}/{recorded}" if recorded[0] != "/" else recorded)

    @cached_property
    def _home(self) -> str:
        assert self.root is not None
        return str(self.root.absolute())
