"""Local copies of objects: made once on a machine, shared by its processes, bounded in size.

A copy is a folder named after the URL and the revision of the object (its etag; without one, its bytes, which are then
fetched each time), with the file under its own name and the digest of its bytes. It appears by one rename, so a copy
that exists is whole. It is compared with its digest the first time a process uses it. Who uses copies holds the
cache's lock, shared; whoever removes old ones needs it alone, or takes only what nobody has used for a day.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spanwise.orchestrator import durable
from spanwise.orchestrator.errors import Conflict, StorageError
from spanwise.orchestrator.storage.eviction import MOST_BYTES, SAFE_AGE_S, begin_use, sweep
from spanwise.orchestrator.storage.url import ENDPOINT_VARIABLES, ObjectInfo, ObjectUrl
from spanwise.orchestrator.storage.use_lock import UseLock

log = logging.getLogger("spanwise.storage")

_SPARE = 0.8  # removing stops at this share of the limit
_DRAFT = ".draft-"
_DIGEST = "digest"
_ENDPOINTS = (
    *ENDPOINT_VARIABLES["s3"],
    *ENDPOINT_VARIABLES["az"],
    "AZURITE_BLOB_STORAGE_URL",
    "AZURE_STORAGE_ACCOUNT_NAME",
)  # buckets of one name behind others are others


class LocalCopies:
    """The copies below a folder."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._verified: set[Path] = set()
        self._lock = UseLock(folder)

    def get(self, url: ObjectUrl, info: ObjectInfo) -> Path:
        """The path of a copy of this revision of an object; it exists as long as this process lives.

        Raises:
            Conflict: the object is gone, or has been replaced since it was listed.
            StorageError: it cannot be read, or the disk is full.
        """
        if begin_use(self._lock, self._drafts()):
            self._verified.clear()
        home = self._find(url, info) or self._copy(url, info)
        path = home / url.name
        if path not in self._verified:
            with contextlib.suppress(OSError):
                os.utime(home)  # the order in which copies are removed
            self._verified.add(path)
        return path

    def get_all(self, wanted: Mapping[ObjectUrl, ObjectInfo]) -> dict[ObjectUrl, Path]:
        """The paths of copies of several objects, made side by side; see `get`."""
        if not wanted:
            return {}
        with ThreadPoolExecutor(8, "storage") as pool:  # network, not processors
            return dict(zip(wanted, pool.map(self.get, wanted, wanted.values()), strict=True))

    def evict(self) -> int:
        """Removes copies that are not needed to stay below the limit, and returns the bytes they had."""
        entries = sorted(self._entries())
        total, removed = sum(size for _, size, _ in entries), 0
        if total <= self._most_bytes:
            return 0
        with self._lock.alone() as alone:
            for used_s, size, home in entries:
                if total - removed <= self._most_bytes * _SPARE:
                    break
                if alone or time.time() - used_s > SAFE_AGE_S:
                    _remove(home)
                    removed += size
        log.info("copies-removed", extra={"size_bytes": removed, "folder": self.folder})
        return removed

    def close(self) -> None:
        """Ends the use of copies: from now on they may be removed."""
        self._lock.release()
        self._verified.clear()

    def _find(self, url: ObjectUrl, info: ObjectInfo) -> Path | None:
        """The copy of this revision, if there is one."""
        if not info.etag:
            return None  # other bytes may have this size and time
        home = self.folder / _name(url, info.etag)
        path = home / url.name
        return home if (path in self._verified and path.exists()) or self._whole(home, path) else None

    def _whole(self, home: Path, path: Path) -> bool:
        """Whether the copy exists; one whose bytes are not those that were written is removed."""
        try:
            wanted = _digest_file(path).read_text()
            if _digest(path) == wanted:
                return True
        except FileNotFoundError:
            return False
        log.warning("copy-damaged", extra={"file": path})
        _remove(home)
        return False

    def _copy(self, url: ObjectUrl, info: ObjectInfo) -> Path:
        """Makes a copy, and returns it; another process may have made the same."""
        sweep(self._lock, self._drafts())
        self.evict()
        draft = self.folder / f"{_DRAFT}{uuid.uuid4().hex}"
        path = draft / url.name
        try:
            draft.mkdir(parents=True)
            from spanwise.orchestrator.storage.bucket import open_bucket  # most processes copy nothing

            open_bucket(url.home).download(url.key, path, etag=info.etag)
            size = path.stat().st_size
            if size != info.size_bytes:
                raise Conflict(
                    f"{url} has been replaced while it was read; it had {info.size_bytes} bytes, now {size}."
                )
            os.utime(path, ns=(info.modified_ns, info.modified_ns))  # a copy made again has the same time
            digest = _digest(path)
            durable.write(_digest_file(path), [digest.encode()])
            home = self.folder / _name(url, info.etag or f"content {digest}")
            try:
                draft.rename(home)
            except OSError:
                if not self._whole(home, home / url.name):  # else it is there
                    _remove(home)  # of which somebody has deleted a part
                    draft.rename(home)
        except OSError as error:
            raise StorageError(f"{url} could not be copied to {self.folder}: {error.strerror}.") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return home

    def _drafts(self) -> Iterator[Path]:
        return self.folder.glob(f"{_DRAFT}*")

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """When each copy was last used, and its size."""
        for home in self.folder.glob("[0-9a-f]*"):
            with contextlib.suppress(OSError):  # removed meanwhile
                yield home.stat().st_mtime, sum(file.stat().st_size for file in home.iterdir()), home


@functools.cache
def machine_copies() -> LocalCopies:
    """The copies of this machine's user."""
    return LocalCopies(_cache("objects"))


def folder_of_copies(url: ObjectUrl) -> Path:
    """The folder of this machine for a root in object storage: the same for every process of a user."""
    endpoints = [os.environ.get(name, "") for name in _ENDPOINTS]
    digest = hashlib.blake2b("\0".join([str(url), *endpoints]).encode(), digest_size=6).hexdigest()
    return _cache("roots") / f"{url.name or url.bucket}-{digest}"


def _cache(name: str) -> Path:
    """Below `$XDG_CACHE_HOME` or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "spanwise", name).absolute()


def _name(url: ObjectUrl, revision: str) -> str:
    return hashlib.blake2b(f"{url}{url.query}\0{revision}".encode(), digest_size=20).hexdigest()


def _digest_file(copy: Path) -> Path:
    """Beside a copy, which has the name of its object, whatever that is."""
    return copy.with_name(_DIGEST if copy.name != _DIGEST else f"{_DIGEST}.{_DIGEST}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def _remove(home: Path) -> None:
    """By one rename first: a copy that is removed in part must not be found."""
    gone = home.with_name(f"{_DRAFT}{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        home.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
