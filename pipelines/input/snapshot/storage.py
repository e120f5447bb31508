"""Where snapshots are stored: a local folder, or one in object storage. Only this module touches storage.

A file appears complete or not at all, is on disk before the call returns, and never changes afterwards, except by
`replace`. Names are relative to the root, with `/`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, TypeAlias

from spanwise.orchestrator import durable
from spanwise.orchestrator.errors import Conflict, DatasetError, ParameterError
from spanwise.orchestrator.storage import (
    ObjectInfo,
    ObjectUrl,
    StorageBucket,
    as_os_errors,
    is_readable_url,
    is_web_url,
    local_path,
    open_bucket,
    parse_url,
    refuse_url,
)

if TYPE_CHECKING:
    import pyarrow as pa

Parts: TypeAlias = "Sequence[bytes | memoryview]"

_DRAFT: Final = ".draft-"


class Files(ABC):
    """A folder of files."""

    remote: bool

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """A small file; None if there is none."""

    @abstractmethod
    def map(self, name: str) -> pa.Buffer:
        """A file's content, mapped if it is local.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def replace(self, name: str, parts: Parts) -> None:
        """Writes a file; replaces one of that name."""

    @abstractmethod
    def create(self, name: str, parts: Parts) -> bool:
        """Writes a file; False, without a change, if there is one of that name."""

    @abstractmethod
    def share(self, old: str, new: str) -> None:
        """Gives a file a second name; removing one leaves the other."""

    @abstractmethod
    def make_folder(self, name: str) -> None: ...

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file, or a folder with its content, if there is one."""

    @abstractmethod
    def folders(self, name: str) -> list[str]:
        """Names of the folders in a folder, sorted; none if it does not exist."""

    @abstractmethod
    def sizes(self, name: str) -> dict[str, int]:
        """Names and sizes of the files in a folder, sorted; none if it does not exist."""

    @abstractmethod
    def drafts(self, name: str) -> list[str]:
        """Names of files in a folder whose writer died before they were complete."""

    @abstractmethod
    def changed(self, name: str) -> float | None:
        """When a folder was last changed, in seconds since 1970; None if unknown."""

    @abstractmethod
    def lock(self, name: str) -> AbstractContextManager[None]:
        """Excludes other callers from a folder, where the storage can do that."""

    @abstractmethod
    def mark_used(self, name: str) -> AbstractContextManager[None]:
        """Marks a folder as used until the context or the process ends, where the storage can do that."""

    @abstractmethod
    def is_used(self, name: str) -> bool | None:
        """Whether a folder is marked as used; None if unknown."""


class LocalFiles(Files):
    """A folder on a disk of this machine. Marks are kernel locks, so they end with their process."""

    remote = False

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def map(self, name: str) -> pa.Buffer:
        import pyarrow as pa

        with pa.memory_map(str(self._root / name)) as file:
            return file.read_buffer()

    def replace(self, name: str, parts: Parts) -> None:
        durable.put(self._root / name, parts, draft=self._draft(name))

    def create(self, name: str, parts: Parts) -> bool:
        draft = self._draft(name)
        try:
            durable.write(draft, parts)
            (self._root / name).hardlink_to(draft)  # refused if the name is taken; complete otherwise
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        durable.sync_folder(draft.parent)
        return True

    def _draft(self, name: str) -> Path:
        path = self._root / name
        return path.with_name(f"{_DRAFT}{secrets.token_hex(4)}-{path.name}")

    def share(self, old: str, new: str) -> None:
        (self._root / new).hardlink_to(self._root / old)

    def make_folder(self, name: str) -> None:
        path = self._root / name
        path.mkdir(parents=True, exist_ok=True)
        durable.sync_folder(path.parent)

    def remove(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            # Renamed first, so that half of a folder is never mistaken for the whole.
            gone = path.with_name(f"{_DRAFT}{secrets.token_hex(4)}-{path.name}")
            with contextlib.suppress(FileNotFoundError):  # somebody else removes it too
                path.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def folders(self, name: str) -> list[str]:
        return sorted(e.name for e in self._entries(name) if e.is_dir() and not e.name.startswith("."))

    def sizes(self, name: str) -> dict[str, int]:
        files = [e for e in self._entries(name) if e.is_file() and not e.name.startswith(".")]
        return {entry.name: entry.stat().st_size for entry in sorted(files, key=lambda entry: entry.name)}

    def drafts(self, name: str) -> list[str]:
        return sorted(e.name for e in self._entries(name) if e.name.startswith(_DRAFT))

    def _entries(self, name: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / name) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def changed(self, name: str) -> float | None:
        try:
            return (self._root / name).stat().st_mtime
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        with self._locked(name, fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def mark_used(self, name: str) -> Iterator[None]:
        with self._locked(name, fcntl.LOCK_SH):
            yield

    def is_used(self, name: str) -> bool | None:
        try:
            with self._locked(name, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        handle = os.open(self._root / name, os.O_RDONLY)  # the folder itself is locked, without a lock file
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)


class BucketFiles(Files):
    """A folder in object storage, such as `s3://bucket/snapshots`. A file is an object, which is put whole.

    What goes wrong is an OSError, as with a disk.
    """

    remote = True

    def __init__(self, url: ObjectUrl) -> None:
        self._url = url

    def __str__(self) -> str:
        return str(self._url)

    def read(self, name: str) -> bytes | None:
        with as_os_errors():
            found = self._bucket.read(self._key(name))
        return None if found is None else found[0]

    def map(self, name: str) -> pa.Buffer:
        import pyarrow as pa

        content = self.read(name)
        if content is None:
            raise FileNotFoundError(f"{self._url / name} does not exist")
        return pa.py_buffer(content)

    def replace(self, name: str, parts: Parts) -> None:
        with as_os_errors():
            self._bucket.write(self._key(name), b"".join(parts))

    def create(self, name: str, parts: Parts) -> bool:
        with as_os_errors():
            try:
                self._bucket.write(self._key(name), b"".join(parts), replacing="")
            except Conflict:
                return False
        return True

    def share(self, old: str, new: str) -> None:
        with as_os_errors():
            self._bucket.copy(self._key(old), self._key(new))

    def make_folder(self, name: str) -> None:
        """Object storage has no folders."""

    def remove(self, name: str) -> None:
        with as_os_errors():
            below = [info.key for info in self._bucket.list(self._key(name))]
            self._bucket.delete([self._key(name), *below])

    def folders(self, name: str) -> list[str]:
        with as_os_errors():
            return sorted(self._bucket.list_folder(self._key(name))[0])

    def sizes(self, name: str) -> dict[str, int]:
        return {PurePosixPath(info.key).name: info.size_bytes for info in self._objects(name)}

    def drafts(self, name: str) -> list[str]:  # noqa: ARG002  files are put whole here
        return []

    def changed(self, name: str) -> float | None:
        return max((info.modified_ns / 1e9 for info in self._objects(name)), default=None)

    def lock(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002  nobody can be excluded
        return contextlib.nullcontext()

    def mark_used(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002  as above
        return contextlib.nullcontext()

    def is_used(self, name: str) -> bool | None:  # noqa: ARG002  as above
        return None

    def _objects(self, name: str) -> list[ObjectInfo]:
        """Those right in a folder."""
        with as_os_errors():
            return sorted(self._bucket.list_folder(self._key(name))[1], key=lambda info: info.key)

    @property
    def _bucket(self) -> StorageBucket:
        return open_bucket(self._url.home)

    def _key(self, name: str) -> str:
        return (self._url / name).key if name else self._url.key


def from_anywhere(path: str | os.PathLike[str]) -> str:
    """The path by which a process with another working directory reaches it.

    Raises:
        DatasetError: it is a URL of something else.
    """
    place = _place(path)
    return place if is_readable_url(place) else os.path.abspath(place)  # noqa: PTH100  of a text, as of a URL


def files_at(path: str | os.PathLike[str]) -> Files:
    """The files below a folder, or below a URL of object storage.

    Raises:
        DatasetError: it is a URL of something else.
    """
    place = _place(path)
    return BucketFiles(parse_url(place)) if is_readable_url(place) else LocalFiles(Path(place))


def _place(path: str | os.PathLike[str]) -> str:
    """The path or the URL of snapshots."""
    try:
        place = local_path(os.fspath(path))
        if is_web_url(place) or not is_readable_url(place):
            refuse_url("the place of snapshots", place, object_storage=True)
    except ParameterError as error:
        raise DatasetError(str(error)) from error
    return place
