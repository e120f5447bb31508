"""The archive: the artifacts of a root in object storage. Its folder on this machine holds copies of them.

An artifact at `root/flights/Trainer/model/17` has its files below `home/flights/Trainer/model/17/`. The manifest
`home/flights/Trainer/model/17.json` is written last and names them, and the empty folders and links beside them: what
has no manifest is not complete. Both are written before the metadata say that there is such an artifact, and no place
is ever written by two executions, so nothing is ever replaced. Only logs grow, in pieces.
"""

from __future__ import annotations

import functools
import io
import itertools
import logging
import os
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.errors import Conflict, DamagedArtifact, StorageError, Unfingerprintable
from spanwise.orchestrator.storage import log_pieces
from spanwise.orchestrator.storage.bucket import StorageBucket, open_bucket
from spanwise.orchestrator.storage.checkpoints import POINTER, StoredCheckpoints
from spanwise.orchestrator.storage.eviction import (
    ASIDE,
    MOST_BYTES,
    begin_use,
    drafts_of,
    evict_sometimes,
    record_of,
)
from spanwise.orchestrator.storage.manifest import EXECUTABLE, PLAIN, Manifest, ManifestPart
from spanwise.orchestrator.storage.side_by_side import call_side_by_side
from spanwise.orchestrator.storage.stored_file import BLOCK_BYTES, StoredFile
from spanwise.orchestrator.storage.url import ObjectUrl
from spanwise.orchestrator.storage.use_lock import UseLock

_MANIFEST = ".json"
_NOTE = ".spanwise-store"
_RUNS = ".runs"
_CHECKPOINTS = ".checkpoints/"

log = logging.getLogger("spanwise.storage")


@dataclass(frozen=True)
class BucketArchive:
    """Keeps what lies below a root in a bucket, under the same names."""

    root: Path  #: absolute
    home: ObjectUrl
    most_bytes: int = MOST_BYTES  #: copies below the root beyond this are removed

    @property
    def url(self) -> str:
        """The place of the root."""
        return str(self.home)

    def keep(self, folder: Path, content: str = "") -> None:
        """Writes the files of a new artifact, and its manifest last. `content` is its digest.

        Raises:
            StorageError: the storage cannot be reached, or refuses.
        """
        home, manifest = self._home(str(folder)), Manifest.of(folder, content)

        def upload(part: ManifestPart) -> None:
            self._bucket.upload_part(folder / part.file, (home / part.key).key, part.start, part.size_bytes)

        call_side_by_side(upload, list(manifest.parts()))
        self._bucket.write(f"{home.key}{_MANIFEST}", manifest.to_json())
        self._record(folder, content)
        self._evict()

    def has(self, uri: str) -> bool:
        """Whether the files of an artifact are there, all of them."""
        return self._is_below(uri) and self._bucket.head(f"{self._home(uri).key}{_MANIFEST}") is not None

    def has_copy(self, uri: str, content: str) -> bool:
        """Whether the artifact that was published with this digest is on this machine.

        After the restore of an older database numbers are given again: a place below the root may have what another
        history has written there. So each copy has a record of its digest, and one without is compared.
        """
        place = Path(uri)
        if not place.exists():
            return False
        if not content or not self._is_below(uri):
            return True
        with suppress(FileNotFoundError):
            if record_of(self.root, place).read_text() == content:
                return True
        try:
            same = fingerprint.of_tree(place).digest == content
        except Unfingerprintable:
            return False
        if same:
            self._record(place, content)
        return same

    def fetch(self, uri: str, content: str) -> None:
        """Copies an artifact to its place below the root, unless it is there; whoever sees it sees all of it.

        The copy exists as long as this process lives. `content` is the digest that it was published with. Nothing
        happens where neither the archive nor this machine has anything.

        Raises:
            DamagedArtifact: its objects are not what was published, or there are none and something else is here.
            StorageError: the storage cannot be reached, or the disk is full.
        """
        if not self._is_below(uri):
            return
        place = Path(uri)
        try:
            begin_use(_lock(self.root), drafts_of(self.root))
            with suppress(FileNotFoundError):
                os.utime(place)  # the order in which copies are removed
            if self.has_copy(uri, content):
                return
            found = self._bucket.read(f"{self._home(uri).key}{_MANIFEST}")
            if found is not None:
                self._evict()
                self._fetch(place, found[0], content)
            elif place.exists():
                raise DamagedArtifact(f"{place} is not what was published, and {self._home(uri)} is gone.")
        except OSError as error:
            if not self.has_copy(uri, content):  # else another process was faster
                raise StorageError(f"{self._home(uri)} could not be copied to {place}: {error.strerror}.") from error

    def list_files(self, uri: str) -> dict[str, int]:
        """The files of an artifact with their sizes; none where the archive does not have it."""
        manifest = self._manifest(uri)
        return {} if manifest is None else dict(manifest.files)

    def find_lost(self, uri: str) -> list[str]:
        """The files of an artifact of which the bucket does not have every byte, by name."""
        manifest = self._manifest(uri)
        if manifest is None:
            return ["its manifest"]
        home = self._home(uri)
        there = {info.key: info.size_bytes for info in self._bucket.list(home.key)}
        return sorted({p.file for p in manifest.parts() if there.get((home / p.key).key) != p.size_bytes})

    def open_file(self, uri: str, name: str) -> BinaryIO:
        """A file of an artifact, of which only what is read is fetched.

        Raises:
            DamagedArtifact: the archive does not have it.
        """
        manifest = self._manifest(uri)
        if manifest is None or name not in manifest.files:
            raise DamagedArtifact(f"{self._home(uri) / name} is gone.")
        return io.BufferedReader(StoredFile(self._bucket, self._home(uri), manifest, name), BLOCK_BYTES)

    def remove(self, uri: str) -> None:
        """Deletes the files of an artifact, or what else lies there: the manifest first, as a part is not found.

        Raises:
            StorageError: the storage cannot be reached, or refuses.
        """
        home = self._home(uri)
        self._bucket.delete([f"{home.key}{_MANIFEST}"])
        self._bucket.delete(info.key for info in self._bucket.list(home.key))
        record_of(self.root, Path(uri)).unlink(missing_ok=True)

    def places(self, pipeline: str) -> Iterator[str]:
        """The places below the root of all artifacts that are there, and of what an upload that died has left.

        An output is one artifact, or several under numbers; an artifact may have files that are called like manifests.
        """
        whole: set[str] = set()
        parts: dict[str, list[str]] = defaultdict(list)
        for name in self._list(pipeline):
            output = "/".join(name.split("/")[:4])
            place = name.removesuffix(_MANIFEST)
            if place != name and _is_output(place):
                whole.add(place)
            elif _is_output(output):
                is_part = place != name and place.removeprefix(f"{output}/").isdigit()
                parts[output] += [place] if is_part else []
        for output in sorted({*whole, *parts}):
            found = [output] if output in whole or not parts[output] else parts[output]
            yield from (str(self.root / place) for place in found)

    def keep_log(self, log: Path, sent: int) -> int:
        """Writes what a log below the root has beyond its first `sent` bytes; returns how many are there now."""
        return log_pieces.upload_log(self._bucket, self._home(str(log)).key, log, sent)

    def read_log(self, log: str, start: int = 0, most_bytes: int | None = None) -> bytes:
        """The bytes of a log from one on, as far as they are there, or about as many as are wanted."""
        return log_pieces.read_log(self._bucket, self._home(log).key, start, most_bytes) if self._is_below(log) else b""

    def open_log(self, log: str) -> BinaryIO | None:
        """A log as a file, of which only what is read is fetched; None if there is nothing of it."""
        if not self._is_below(log):
            return None
        opened = log_pieces.LogFile(self._bucket, self._home(log).key)
        return io.BufferedReader(opened, log_pieces.PIECE_BYTES) if opened.size_bytes else None

    def count_log_bytes(self, folder: Path) -> int:
        """The size of all logs in a folder below the root."""
        return sum(info.size_bytes for info in self._bucket.list(self._home(str(folder)).key))

    def checkpoints(self, folder: Path, *, began: str, attempt: int) -> StoredCheckpoints:
        """What the attempts at a node share, by its folder below the root."""
        return StoredCheckpoints(home=self._home(str(folder)), began=began, attempt=attempt)

    def remove_checkpoints(self, folder: Path) -> None:
        """Deletes the checkpoints of a node by its folder, or of all nodes by the folder of their run."""
        keys = [info.key for info in self._bucket.list(self._home(str(folder)).key) if _CHECKPOINTS in info.key]
        pointers = [key for key in keys if key.endswith(f"/{POINTER}")]
        self._bucket.delete([*pointers, *keys])  # what nothing names is not read

    @property
    def snapshots(self) -> str:
        """The place of dataset snapshots."""
        return str(self.home / "snapshots")

    def run_folders(self, pipeline: str) -> list[str]:
        """What lies below the root for runs: PIPELINE/.runs/NUMBER/logs, PIPELINE/.runs/NUMBER/NODE.checkpoints."""
        found = {"/".join(place.split("/")[:4]) for place in self._list(f"{pipeline}/{_RUNS}")}
        return [str(self.root / place) for place in sorted(found)]

    def set_aside(self, folder: Path) -> None:
        """Moves what another history has written for a run of this number to a free name, as on a disk (`run_dir`).

        Raises:
            StorageError: the storage cannot be reached, or refuses.
        """
        home = self._home(str(folder))
        left = [info.key.removeprefix(f"{home.key}/") for info in self._bucket.list(home.key)]
        if not left:
            return
        taken = self._bucket.list_folder(self._home(str(folder.parent)).key)[0]
        aside = next(name for name in (f"{folder.name}~{count}" for count in itertools.count(1)) if name not in taken)
        new = self._home(str(folder.with_name(aside)))
        call_side_by_side(lambda name: self._bucket.copy((home / name).key, (new / name).key), left)
        self._bucket.delete((home / name).key for name in left)
        reason = f"{home} was written by a run that the metadata do not know any more; it is now {aside}"
        log.warning("folder-set-aside: %s", reason)  # seen also where no log is set up

    def claim(self, identity: str) -> str:
        """Records which store the artifacts belong to, unless that is recorded; returns what is."""
        known = self.claimed_by()
        if known is not None:
            return known
        try:
            self._bucket.write((self.home / _NOTE).key, identity.encode(), replacing="")
        except StorageError:
            known = self.claimed_by()
            if known is None:
                raise
            return known  # somebody was faster, or the answer was lost
        return identity

    def claimed_by(self) -> str | None:
        """The store that the artifacts belong to; None before the first run."""
        found = self._bucket.read((self.home / _NOTE).key)
        return None if found is None else found[0].decode(errors="replace").strip()

    def _manifest(self, uri: str) -> Manifest | None:
        found = self._bucket.read(f"{self._home(uri).key}{_MANIFEST}") if self._is_below(uri) else None
        return None if found is None else Manifest.from_json(found[0], f"{self._home(uri)}{_MANIFEST}")

    def _fetch(self, place: Path, manifest: bytes, content: str) -> None:
        home = self._home(str(place))
        draft, old = (self.root / ASIDE / uuid.uuid4().hex for _ in range(2))
        try:
            draft.mkdir(parents=True)
            known = self._download(Manifest.from_json(manifest, f"{home}{_MANIFEST}"), home, draft)
            digest = fingerprint.of_tree(draft, sync=True, known=known).digest
            if content and digest != content:
                raise DamagedArtifact(
                    f"{home} does not have the content that was published (digest {digest}, not {content})."
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.exists() and not self.has_copy(str(place), content):
                place.rename(old)
                log.warning("copy-replaced", extra={"folder": place, "reason": "it is not what was published"})
            draft.rename(place)
            self._record(place, content)
        except Conflict as error:
            raise DamagedArtifact(f"{home}: an object that its manifest names is gone.") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)

    def _record(self, place: Path, content: str) -> None:
        """Says what a copy is; one that says nothing is compared when it is read."""
        if content:
            file = record_of(self.root, place)
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)

    def _download(self, manifest: Manifest, home: ObjectUrl, draft: Path) -> dict[str, tuple[bytes, int]]:
        """Returns the digest and size of each file that is one object."""
        for folder in (*manifest.folders, *(os.path.dirname(name) for name in manifest.files)):  # noqa: PTH120
            (draft / folder).mkdir(parents=True, exist_ok=True)
        executables = set(manifest.executables)
        for name in manifest.files:
            (draft / name).touch(EXECUTABLE if name in executables else PLAIN)

        def download(part: ManifestPart) -> bytes:
            return self._bucket.download_part((home / part.key).key, draft / part.file, part.start)

        parts = list(manifest.parts())
        digests = call_side_by_side(download, parts)
        for name, target in manifest.links.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).symlink_to(target)
        whole = zip(parts, digests, strict=True)
        return {p.file: (d, p.size_bytes) for p, d in whole if p.size_bytes == manifest.files[p.file]}

    def _evict(self) -> None:
        evict_sometimes(self.root, self.most_bytes, _lock(self.root), self.has)

    def _list(self, folder: str) -> Iterator[str]:
        """What lies below a folder, by names below the root."""
        top = len(self.home.key) + 1 if self.home.key else 0
        return (info.key[top:] for info in self._bucket.list((self.home / folder).key))

    @property
    def _bucket(self) -> StorageBucket:
        return open_bucket(self.home.home)

    def _is_below(self, uri: str) -> bool:
        return "://" not in uri and Path(uri).is_relative_to(self.root)

    def _home(self, uri: str) -> ObjectUrl:
        return self.home / Path(uri).relative_to(self.root).as_posix()


@functools.cache
def _lock(root: Path) -> UseLock:
    return UseLock(root)


def _is_output(place: str) -> bool:
    """PIPELINE/NODE/OUTPUT/NUMBER."""
    parts = place.split("/")
    return len(parts) == 4 and parts[3].isdigit() and not parts[1].startswith(".")  # noqa: PLR2004  as it says
