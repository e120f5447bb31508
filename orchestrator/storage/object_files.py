"""Object files: objects as files that pyarrow and Python read, by ranges and ahead of a reader that goes on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType

from spanwise.orchestrator.storage.bucket import as_os_errors, open_bucket
from spanwise.orchestrator.storage.ranged_file import RangedFile
from spanwise.orchestrator.storage.url import ObjectInfo, ObjectUrl, parse_url

if TYPE_CHECKING:
    import pyarrow as pa

    from spanwise.orchestrator.storage.bucket import StorageBucket

_BLOCK_BYTES = 4 << 20  # a request costs as much as some megabytes


class ObjectFile(RangedFile):
    """One revision of an object. Bytes are fetched when they are read; a reader that goes on finds the next ones here.

    Raises OSError where the storage cannot be reached, or has another revision by now.
    """

    def __init__(self, bucket: StorageBucket, info: ObjectInfo) -> None:
        super().__init__(info.size_bytes)
        self._bucket = bucket
        self._info = info
        self._end = 0  # of the last read
        self._block = b""
        self._start = 0  # of the block
        self._next: tuple[int, Future[bytes]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def size(self) -> int:
        return self.size_bytes

    def readall(self) -> bytes:
        return self.read(-1)

    def read(self, size: int | None = -1) -> bytes:
        rest = max(self.size_bytes - self._at, 0)
        wanted = rest if size is None or size < 0 else min(size, rest)
        if not wanted:
            return b""
        found = self._fetch_range(self._at, wanted)
        self._at += len(found)
        return found

    def _fetch_range(self, start: int, most_bytes: int) -> bytes:
        with as_os_errors():
            found = self._from_block(most_bytes) or self._fetch(most_bytes)
        self._end = start + len(found)
        return found

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._block, self._next, self._thread = b"", None, None
        super().close()

    def _from_block(self, wanted: int) -> bytes:
        """What the block has of it, if it has all."""
        skipped = self._at - self._start
        if skipped >= 0 and skipped + wanted <= len(self._block):
            return self._block[skipped : skipped + wanted]
        return b""

    def _fetch(self, wanted: int) -> bytes:
        """Exactly what is wanted after a jump; a whole block for a reader that goes on, and the next one meanwhile."""
        if self._at != self._end or wanted >= _BLOCK_BYTES:
            return self._request(self._at, wanted)
        head = self._block[max(self._at - self._start, 0) :] if self._at >= self._start else b""
        start = self._at + len(head)
        if self._next is not None and self._next[0] == start:
            fetched = self._next[1].result()
        else:
            fetched = self._request(start, _BLOCK_BYTES)
        self._block, self._start = head + fetched, self._at
        after = start + len(fetched)
        if after < self.size_bytes and self._at:
            self._thread = self._thread or ThreadPoolExecutor(1, "read-ahead")
            self._next = after, self._thread.submit(self._request, after, _BLOCK_BYTES)
        return self._block[:wanted]

    def _request(self, start: int, size_bytes: int) -> bytes:
        size_bytes = min(size_bytes, self.size_bytes - start)
        return self._bucket.read_range(self._info.key, start, size_bytes, etag=self._info.etag)


class ObjectFileSystem(FileSystemHandler):
    """The objects of one scheme for `pyarrow.fs.PyFileSystem`; a name is a URL without its scheme. It only reads."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectFileSystem) and other._scheme == self._scheme

    def __hash__(self) -> int:
        return hash(self._scheme)

    def get_type_name(self) -> str:
        return self._scheme

    def normalize_path(self, path: str) -> str:
        return path

    def stamp(self, name: str) -> str | None:
        """What changes when the object does; None where only its bytes tell."""
        info = self._look(name)
        if info is None:
            return ""
        return f"{info.etag} {info.modified_ns}" if info.etag else None

    def get_file_info(self, paths: str | list[str]) -> list[FileInfo]:
        return [self._describe(name, self._look(name)) for name in ([paths] if isinstance(paths, str) else paths)]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        url = self._url(selector.base_dir)
        depth = len(url.key) + 1 if url.key else 0
        with as_os_errors():
            found = list(open_bucket(url.home).list(url.key))
        base = selector.base_dir.rstrip("/")
        return [
            self._describe(f"{base}/{info.key[depth:]}", info)
            for info in found
            if selector.recursive or "/" not in info.key[depth:]
        ]

    def open_input_file(self, path: str) -> pa.PythonFile:
        import pyarrow as pa

        return pa.PythonFile(self.open(path), mode="r")

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return self.open_input_file(path)

    def open(self, name: str) -> ObjectFile:
        """The object as a file.

        Raises:
            OSError: there is none, or the storage cannot be reached.
        """
        info = self._look(name)
        if info is None:
            raise FileNotFoundError(f"{self._url(name)} does not exist")
        return ObjectFile(open_bucket(self._url(name).home), info)

    def _look(self, name: str) -> ObjectInfo | None:
        url = self._url(name)
        with as_os_errors():
            return open_bucket(url.home).head(url.key) if url.key else None

    def _url(self, name: str) -> ObjectUrl:
        return parse_url(f"{self._scheme}://{name}")

    def _describe(self, name: str, info: ObjectInfo | None) -> FileInfo:
        if info is None:
            return FileInfo(name, FileType.NotFound)
        moment = datetime.fromtimestamp(info.modified_ns / 1e9, UTC)
        return FileInfo(name, FileType.File, mtime=moment, size=info.size_bytes)

    def _refuse(self, *_arguments: Any, **_options: Any) -> Any:
        raise NotImplementedError("objects are written elsewhere")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse
