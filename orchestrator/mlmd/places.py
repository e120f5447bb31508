"""Places: how the metadata record where files are. Those below the root are relative to it, all others absolute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """Translates between places on this machine and those in the metadata. Without a root, both are the same."""

    root: Path | None

    def record(self, place: str) -> str:
        """The place as it is recorded."""
        if self.root is None or "://" in place:
            return place
        path = Path(place)
        home = self.root.absolute()
        return path.relative_to(home).as_posix() if path.is_relative_to(home) else place

    def resolve(self, recorded: str) -> str:
        """The place on this machine."""
        if self.root is None or not recorded or "://" in recorded:
            return recorded
        return str(self.root.absolute() / recorded)  # an absolute place stays as it is
