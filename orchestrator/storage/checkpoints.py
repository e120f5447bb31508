"""Checkpoints in object storage: the folder that the attempts at a node share when they run on different machines.

    committed.json    which attempt has committed which folders, links and files, and which objects hold their bytes
    ATTEMPT/DIGEST    some bytes of a file, or all; what has not changed since the last commit is not written again

Objects are written first, then `committed.json` is replaced, on condition that it is still what was read. An attempt
that begins writes its number there, so that an earlier one, which may only have been out of reach, commits no more.
Whoever is killed leaves objects that nothing names.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from spanwise.orchestrator.digest import new_hash
from spanwise.orchestrator.errors import Conflict, DamagedArtifact, Fenced, StorageError
from spanwise.orchestrator.storage.bucket import StorageBucket, open_bucket
from spanwise.orchestrator.storage.manifest import EXECUTABLE, PART_BYTES, PLAIN, is_executable
from spanwise.orchestrator.storage.side_by_side import call_side_by_side
from spanwise.orchestrator.storage.url import ObjectUrl

POINTER = "committed.json"

_TRIES = 10  # of replacing the pointer, which the processes of one attempt may all do

log = logging.getLogger("spanwise.storage")


@dataclass(frozen=True, kw_only=True)
class FolderState:
    """What tells whether anything below a folder has changed."""

    files: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  #: their identity, size and time of writing
    executables: Sequence[str] = ()  #: those of the files that may be executed
    folders: Sequence[str] = ()  #: all of them, since empty ones count
    links: Mapping[str, str] = field(default_factory=dict)  #: with what they point to


def look_at(folder: Path) -> FolderState:
    """What is below a folder; a link to a file outside of it is a file."""
    files: dict[str, tuple[int, int, int]] = {}
    executables: list[str] = []
    folders: list[str] = []
    links: dict[str, str] = {}
    for home, *names in os.walk(folder):
        for path in (Path(home, name) for name in itertools.chain(*names)):
            name = path.relative_to(folder).as_posix()
            with suppress(FileNotFoundError):  # renamed meanwhile
                if path.is_symlink() and (target := _target_of(path, folder)) is not None:
                    links[name] = target
                elif path.is_dir():
                    folders.append(name)
                else:
                    seen = path.stat()
                    files[name] = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
                    if is_executable(seen):
                        executables.append(name)
    return FolderState(files=files, executables=sorted(executables), folders=sorted(folders), links=links)


def _target_of(link: Path, folder: Path) -> str | None:
    """The text of a link, relative if it stays below the folder; None if it leads to a file elsewhere."""
    text = os.readlink(link)  # noqa: PTH115  the text, not the place
    target = os.path.normpath(link.parent / text)
    if Path(target).is_relative_to(folder):
        return os.path.relpath(target, link.parent)
    return None if link.is_file() else text


@dataclass(frozen=True, kw_only=True)
class Committed:
    """What an attempt has committed."""

    began: str  #: when the run began: after a restore of the metadata, another run may have its number
    attempt: int
    files: Mapping[str, list[str]] = field(default_factory=dict)  #: the keys of the objects with their bytes, in order
    executables: Sequence[str] = ()  #: those of the files that may be executed
    folders: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)  #: with what they point to

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.folders or self.links)

    @property
    def objects(self) -> dict[str, str]:
        """The keys of its objects by their digests."""
        return {key.rpartition("/")[2]: key for keys in self.files.values() for key in keys}


@dataclass(frozen=True, kw_only=True)
class _FilePart:
    name: str
    start: int


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoints:
    """The checkpoints of a node in a run, as one of its attempts reads and writes them."""

    home: ObjectUrl
    began: str
    attempt: int

    def take_over(self, folder: Path) -> None:
        """Excludes earlier attempts, and makes a folder what they have committed, unless they have committed nothing.

        What is damaged is not taken over, so that the work begins anew.

        Raises:
            Fenced: a later attempt has begun.
            StorageError: the storage cannot be reached.
        """
        for _ in range(_TRIES):
            before, etag = self._read()
            try:
                self._write(replace(before, attempt=self.attempt), etag)
            except Conflict:
                continue
            if not before.is_empty:
                self._fetch(before, folder)
            return
        raise StorageError(f"{self.home / POINTER} is replaced all the time.")

    def fetch(self, folder: Path) -> None:
        """Makes a folder what was committed last, unless nothing was; excludes nobody.

        Raises:
            StorageError: the storage cannot be reached.
        """
        before, _ = self._read()
        if not before.is_empty:
            self._fetch(before, folder)

    def commit(self, folder: Path, *, settled: bool = False) -> bool:
        """Makes the files of a folder what the next attempt finds; `settled`: only if they do not change meanwhile.

        Raises:
            Fenced: a later attempt has begun.
            StorageError: the storage cannot be reached.
        """
        for _ in range(_TRIES):
            before, etag = self._read()
            state = look_at(folder)
            files = self._upload(folder, state.files, before.objects)
            if settled and look_at(folder) != state:
                return False
            after = Committed(
                began=self.began,
                attempt=self.attempt,
                files=files,
                executables=state.executables,
                folders=state.folders,
                links=state.links,
            )
            try:
                self._write(after, etag)
            except Conflict:
                continue
            with suppress(StorageError):  # they are removed when the node has ended
                self._bucket.delete(
                    (self.home / key).key for key in {*before.objects.values()} - {*after.objects.values()}
                )
            return True
        raise StorageError(f"{self.home / POINTER} is replaced all the time.")

    def _read(self) -> tuple[Committed, str]:
        """What is committed, and the revision of the pointer; empty where there is none."""
        nothing = Committed(began=self.began, attempt=self.attempt)
        found = self._bucket.read((self.home / POINTER).key)
        if found is None:
            return nothing, ""
        try:
            there = Committed(**json.loads(found[0]))
            if (there.began, there.attempt) > (self.began, self.attempt):
                raise Fenced(
                    f"Attempt {there.attempt} has begun since, so attempt {self.attempt} can store no more checkpoints."
                )
        except (ValueError, TypeError) as error:
            log.warning("checkpoint-damaged", extra={"file": self.home / POINTER, "reason": str(error)})
            return nothing, found[1]
        return (there if there.began == self.began else nothing), found[1]

    def _write(self, committed: Committed, etag: str) -> None:
        self._bucket.write((self.home / POINTER).key, json.dumps(asdict(committed)).encode(), replacing=etag)

    def _upload(
        self, folder: Path, seen: Mapping[str, tuple[int, int, int]], known: Mapping[str, str]
    ) -> dict[str, list[str]]:
        parts = [
            _FilePart(name=name, start=start)
            for name, (_, size, _) in sorted(seen.items())
            for start in range(0, size or 1, PART_BYTES)
        ]

        def upload(part: _FilePart) -> str:
            try:
                with (folder / part.name).open("rb") as file:
                    file.seek(part.start)
                    content = file.read(PART_BYTES)
            except FileNotFoundError:
                return ""  # renamed or removed since
            digest = _digest(content)
            key = known.get(digest, f"{self.attempt}/{digest}")
            if digest not in known:
                self._bucket.write((self.home / key).key, content)
            return key

        files: dict[str, list[str]] = {}
        for part, key in zip(parts, call_side_by_side(upload, parts), strict=True):
            files.setdefault(part.name, []).append(key)
        return {name: keys for name, keys in files.items() if all(keys)}

    def _fetch(self, committed: Committed, folder: Path) -> None:
        draft = folder.with_name(f".{uuid.uuid4().hex}{folder.suffix}")
        try:
            draft.mkdir(parents=True)
            for name in committed.folders:
                self._place(name, draft).mkdir(exist_ok=True)
            files, executables = list(committed.files.items()), set(committed.executables)
            call_side_by_side(lambda file: self._fetch_file(*file, executables, folder, draft), files)
            for name, text in committed.links.items():
                self._place(name, draft).symlink_to(text)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
            log.info("checkpoint-fetched", extra={"files": len(committed.files)})
        except (Conflict, DamagedArtifact) as error:
            log.warning("checkpoint-damaged", extra={"reason": f"{error} It is not used"})
        except OSError as error:
            raise StorageError(f"{self.home} could not be copied to {folder}: {error.strerror}.") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _fetch_file(self, name: str, keys: list[str], executables: Collection[str], folder: Path, draft: Path) -> None:
        """From this machine, if it is what was committed."""
        target = self._place(name, draft)
        wanted = [key.rpartition("/")[2] for key in keys]
        with suppress(OSError):
            if [_digest(content) for content in _parts_of(folder / name)] == wanted:
                os.link(folder / name, target)
                return
        target.touch(EXECUTABLE if name in executables else PLAIN)
        with target.open("wb") as file:
            for key, digest in zip(keys, wanted, strict=True):
                found = self._bucket.read((self.home / key).key)
                if found is None or _digest(found[0]) != digest:
                    raise DamagedArtifact(f"{self.home / key} is not what was written.")
                file.write(found[0])
            file.flush()
            os.fsync(file.fileno())

    def _place(self, name: str, draft: Path) -> Path:
        """Where something is made, in a folder that exists."""
        place = draft / name
        if not place.resolve().is_relative_to(draft.resolve()):
            raise DamagedArtifact(f"{self.home / POINTER} names {name!r}, which is outside of it.")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    @property
    def _bucket(self) -> StorageBucket:
        return open_bucket(self.home.home)


def _parts_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield file.read(PART_BYTES)
        while content := file.read(PART_BYTES):
            yield content


def _digest(content: bytes) -> str:
    state = new_hash()
    state.update(content)
    return state.hexdigest()
