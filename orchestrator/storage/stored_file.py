"""Stored files: a file of an artifact in object storage, read by ranges of the objects that hold its bytes."""

from __future__ import annotations

import io
from typing import Any

from spanwise.orchestrator.storage.bucket import StorageBucket
from spanwise.orchestrator.storage.manifest import Manifest
from spanwise.orchestrator.storage.url import ObjectUrl

BLOCK_BYTES = 64 << 10


class StoredFile(io.RawIOBase):
    """One file, for the few bytes of it that are shown; each read is a request for one of its objects."""

    def __init__(self, bucket: StorageBucket, home: ObjectUrl, manifest: Manifest, name: str) -> None:
        self._bucket = bucket
        self._keys = [(home / part.key).key for part in manifest.parts() if part.file == name]
        self._part_bytes = manifest.part_bytes
        self._size = manifest.files[name]
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        part, within = divmod(self._at, self._part_bytes)
        wanted = min(len(buffer), self._size - self._at, self._part_bytes - within)
        if wanted <= 0:
            return 0
        found = self._bucket.read_range(self._keys[part], within, wanted)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)
