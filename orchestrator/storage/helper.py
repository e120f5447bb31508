"""Storage helpers: object storage for a process that was forked from one that has used it.

The library's threads do not survive a fork, and a request would wait for them for ever. Such a process starts a helper,
a fresh interpreter, and has it make the requests. The helper ends when its process does.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.storage.unfinished import UnfinishedUpload
from spanwise.orchestrator.storage.url import ObjectInfo, ObjectUrl


class HelpedBucket:
    """The objects of one bucket, by requests of a helper; see `StorageBucket`."""

    def __init__(self, home: ObjectUrl) -> None:
        self.home = home
        self._lock = threading.Lock()
        self._helper: subprocess.Popen[bytes] | None = None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from self._ask("list", prefix)

    def list_folder(self, prefix: str) -> tuple[tuple[str, ...], tuple[ObjectInfo, ...]]:
        return self._ask("list_folder", prefix)  # type: ignore[no-any-return]

    def head(self, key: str) -> ObjectInfo | None:
        return self._ask("head", key)  # type: ignore[no-any-return]

    def read(self, key: str) -> tuple[bytes, str] | None:
        return self._ask("read", key)  # type: ignore[no-any-return]

    def read_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        return self._ask("read_range", key, start, size_bytes, etag=etag)  # type: ignore[no-any-return]

    def copy(self, old: str, new: str) -> None:
        self._ask("copy", old, new)

    def download(self, key: str, path: Path, *, etag: str = "") -> None:
        self._ask("download", key, path, etag=etag)

    def upload(self, path: Path, key: str) -> None:
        self._ask("upload", path, key)

    def upload_part(self, path: Path, key: str, start: int, size_bytes: int) -> None:
        self._ask("upload_part", path, key, start, size_bytes)

    def download_part(self, key: str, path: Path, start: int) -> bytes:
        return self._ask("download_part", key, path, start)  # type: ignore[no-any-return]

    def write(self, key: str, content: bytes, *, replacing: str | None = None) -> str:
        return self._ask("write", key, content, replacing=replacing)  # type: ignore[no-any-return]

    def list_uploads(self, prefix: str) -> tuple[UnfinishedUpload, ...]:
        return self._ask("list_uploads", prefix)  # type: ignore[no-any-return]

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._ask("abort_upload", upload)

    def delete(self, keys: Iterable[str]) -> None:
        self._ask("delete", [*keys])

    def _ask(self, method: str, *arguments: object, **options: object) -> Any:
        with self._lock:
            try:
                requests, answers = self._pipes()
                pickle.dump((self.home, method, arguments, options), requests)
                requests.flush()
                result, error = pickle.load(answers)  # noqa: S301  from our own child
            except (OSError, EOFError, pickle.UnpicklingError) as failure:
                self._helper = None
                raise StorageError(f"{self.home}: the process that makes its requests has died.") from failure
        if error is not None:
            raise error
        return result

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._helper is None:
            command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()"]
            self._helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        return self._helper.stdin, self._helper.stdout


def serve(requests: IO[bytes], answers: IO[bytes], open_bucket: Callable[[ObjectUrl], Any]) -> None:
    """Makes requests until there are no more."""
    while True:
        try:
            home, method, arguments, options = pickle.load(requests)  # noqa: S301  from our own parent
        except EOFError:
            return
        answer: tuple[object, Exception | None]
        try:
            found = getattr(open_bucket(home), method)(*arguments, **options)
            answer = (list(found) if method == "list" else found, None)
        except StorageError as error:
            error.__cause__ = None  # it may hold what cannot be pickled
            answer = (None, error)
        except OSError as error:
            answer = (None, OSError(error.errno, error.strerror, error.filename))
        pickle.dump(answer, answers)
        answers.flush()


def main() -> None:
    """The life of a helper."""
    from spanwise.orchestrator.storage import open_bucket

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not be taken for an answer
    serve(sys.stdin.buffer, answers, open_bucket)
