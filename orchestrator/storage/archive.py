"""The archive: the files of artifacts in object storage. The root then holds copies of them.

An artifact at `root/flights/Trainer/model/17` has its files below `home/flights/Trainer/model/17/`. The manifest
`home/flights/Trainer/model/17.json` is written last and names them, and the empty folders and links beside them: what
has no manifest is not complete. Both are written before the metadata say that there is such an artifact, and no place
is ever written by two executions, so nothing is ever replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.errors import Conflict, DamagedArtifact, StorageError
from spanwise.orchestrator.storage.bucket import StorageBucket, open_bucket
from spanwise.orchestrator.storage.url import ObjectUrl

_FETCHING = ".fetching"
_SIDE_BY_SIDE = 8  # requests at a time: they wait for the network, not for a processor
_MANIFEST = ".json"


@dataclass(frozen=True)
class BucketArchive:
    """Keeps what lies below a root in a bucket, under the same names."""

    root: Path  #: absolute
    home: ObjectUrl

    def keep(self, folder: Path) -> None:
        """Writes the files of a new artifact, and its manifest last.

        Raises:
            StorageError: the storage cannot be reached, or refuses.
        """
        home, manifest = self._home(str(folder)), _Manifest.of(folder)
        paths = [folder / name for name in manifest.files]
        _side_by_side(self._bucket.upload, paths, [(home / name).key for name in manifest.files])
        self._bucket.write(f"{home.key}{_MANIFEST}", manifest.to_json())

    def has(self, uri: str) -> bool:
        """Whether the files of an artifact are there, all of them."""
        return self._is_below(uri) and self._bucket.head(f"{self._home(uri).key}{_MANIFEST}") is not None

    def fetch(self, uri: str, content: str) -> None:
        """Copies an artifact to its place below the root, unless it is there; whoever sees it sees all of it.

        `content` is the digest that it was published with. Nothing happens where the archive does not have it.

        Raises:
            DamagedArtifact: its objects are not what was published.
            StorageError: the storage cannot be reached, or the disk is full.
        """
        place = Path(uri)
        found = self._bucket.read(f"{self._home(uri).key}{_MANIFEST}") if self._is_below(uri) else None
        if found is None or place.exists():
            return
        draft = self.root / _FETCHING / f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        try:
            draft.mkdir(parents=True)
            self._download(_Manifest.from_json(found[0]), self._home(uri), draft)
            digest = fingerprint.of_tree(draft, sync=True).digest
            if content and digest != content:
                raise DamagedArtifact(
                    f"{self._home(uri)} does not have the content that was published (digest {digest}, not {content})."
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            draft.rename(place)
        except Conflict as error:
            raise DamagedArtifact(f"{self._home(uri)}: an object that its manifest names is gone.") from error
        except OSError as error:
            if not place.exists():  # else another process was faster
                raise StorageError(f"{self._home(uri)} could not be copied to {place}: {error.strerror}.") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def remove(self, uri: str) -> None:
        """Deletes the files of an artifact, the manifest first: what is deleted in part is not found.

        Raises:
            StorageError: the storage cannot be reached, or refuses.
        """
        home = self._home(uri)
        self._bucket.delete([f"{home.key}{_MANIFEST}"])
        self._bucket.delete(info.key for info in self._bucket.list(home.key))

    def places(self, pipeline: str) -> Iterator[str]:
        """The places below the root of all artifacts that are there, and of what an upload that died has left."""
        top = len(self.home.key) + 1 if self.home.key else 0
        complete, begun = [], set()
        for info in self._bucket.list((self.home / pipeline).key):
            place = info.key[top:]
            if place.endswith(_MANIFEST) and _is_place(place.removesuffix(_MANIFEST)):
                complete.append(place.removesuffix(_MANIFEST))
            elif _is_place(output := "/".join(place.split("/")[:4])):
                begun.add(output)
        begun -= {"/".join(place.split("/")[:4]) for place in complete}
        yield from (str(self.root / place) for place in (*complete, *sorted(begun)))

    @property
    def _bucket(self) -> StorageBucket:
        return open_bucket(self.home.home)

    def _is_below(self, uri: str) -> bool:
        return "://" not in uri and Path(uri).is_relative_to(self.root)

    def _home(self, uri: str) -> ObjectUrl:
        return self.home / Path(uri).relative_to(self.root).as_posix()

    def _download(self, manifest: _Manifest, home: ObjectUrl, draft: Path) -> None:
        for folder in (*manifest.folders, *(os.path.dirname(name) for name in manifest.files)):  # noqa: PTH120
            (draft / folder).mkdir(parents=True, exist_ok=True)
        keys = [(home / name).key for name in manifest.files]
        _side_by_side(self._bucket.download, keys, [draft / name for name in manifest.files])
        for name, target in manifest.links.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).symlink_to(target)


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """What an artifact consists of, by names below its folder."""

    files: Sequence[str]
    folders: Sequence[str]  #: all of them, since empty ones count
    links: dict[str, str]  #: with what they point to

    @classmethod
    def of(cls, folder: Path) -> _Manifest:
        found = sorted(folder.rglob("*"))
        names = {path: path.relative_to(folder).as_posix() for path in found}
        links = {names[path]: str(path.readlink()) for path in found if path.is_symlink()}
        return cls(
            files=[names[path] for path in found if path.is_file() and names[path] not in links],
            folders=[names[path] for path in found if path.is_dir() and names[path] not in links],
            links=links,
        )

    def to_json(self) -> bytes:
        return json.dumps({"files": self.files, "folders": self.folders, "links": self.links}, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> _Manifest:
        """Reads it; raises DamagedArtifact where it is damaged, or names what lies outside of the artifact."""
        try:
            document = json.loads(text)
            found = cls(**document)
            names = (*found.files, *found.folders, *found.links)
            outside = [name for name in names if name.startswith("/") or ".." in Path(name).parts]
        except (ValueError, TypeError) as error:
            raise DamagedArtifact(f"a manifest of the archive is damaged: {error}.") from error
        if outside:
            raise DamagedArtifact(f"a manifest of the archive names {outside[0]!r}, outside of its artifact.")
        return found


def _side_by_side(call: Callable[..., None], *arguments: Sequence[object]) -> None:
    with ThreadPoolExecutor(_SIDE_BY_SIDE, "archive") as pool:
        list(pool.map(call, *arguments))


def _is_place(place: str) -> bool:
    """PIPELINE/NODE/OUTPUT/NUMBER, or one below it."""
    parts = place.split("/")
    return len(parts) in (4, 5) and parts[3].isdigit() and not parts[1].startswith(".")
