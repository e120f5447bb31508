"""Manifests: what an artifact in object storage consists of, and which objects hold the bytes of its files.

A large file is several objects, each written by one request: an upload that is killed leaves objects, which a listing
shows, and never the hidden parts of one that was not completed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from spanwise.orchestrator.errors import DamagedArtifact

PART_BYTES = 16 << 20
PLAIN, EXECUTABLE = 0o666, 0o777  # modes of new files, before the umask


def is_executable(status: os.stat_result) -> bool:
    """Whether its owner may execute a file."""
    return bool(status.st_mode & stat.S_IXUSR)


@dataclass(frozen=True, kw_only=True)
class ManifestPart:
    """One object: some bytes of a file, or all."""

    file: str  #: its path below the artifact
    key: str  #: of the object, below that of the artifact
    start: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of an artifact, by names below its folder."""

    content: str = ""  #: digest of all of it, as the metadata have it
    files: Mapping[str, int]  #: with their sizes
    folders: Sequence[str]  #: all of them, since empty ones count
    links: Mapping[str, str]  #: with what they point to
    executables: Sequence[str] = ()  #: the files that may be executed, which the digest does not count
    part_bytes: int = PART_BYTES  #: what a file has more than is in another object

    @classmethod
    def of(cls, folder: Path, content: str = "") -> Manifest:
        found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
        links = {name: str(path.readlink()) for name, path in found.items() if path.is_symlink()}
        files = {n: path.stat() for n, path in found.items() if n not in links and path.is_file()}
        return cls(
            content=content,
            files={name: status.st_size for name, status in files.items()},
            executables=[name for name, status in files.items() if is_executable(status)],
            folders=[n for n, path in found.items() if n not in links and path.is_dir()],
            links=links,
        )

    def parts(self) -> Iterator[ManifestPart]:
        """The objects that hold the files."""
        for name, size in self.files.items():
            if size <= self.part_bytes:
                yield ManifestPart(file=name, key=name, start=0, size_bytes=size)
                continue
            for number, start in enumerate(range(0, size, self.part_bytes)):
                length = min(self.part_bytes, size - start)
                yield ManifestPart(file=name, key=f"{name}/{number:05d}", start=start, size_bytes=length)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes, where: object) -> Manifest:
        """Reads it.

        Raises:
            DamagedArtifact: it is damaged, or names what lies outside of the artifact.
        """
        try:
            found = cls(**json.loads(text))
            outside = [n for n in (*found.files, *found.folders, *found.links) if n[0] == "/" or ".." in n.split("/")]
            whole = all(isinstance(size, int) for size in (*found.files.values(), found.part_bytes))
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise DamagedArtifact(f"{where} is damaged: {error}.") from error
        if outside or not whole:
            raise DamagedArtifact(f"{where} is damaged" + (f": it names {outside[0]!r}." if outside else "."))
        return found
