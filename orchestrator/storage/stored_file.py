"""Stored files: a file of an artifact in object storage, read by ranges of the objects that hold its bytes."""

from __future__ import annotations

from spanwise.orchestrator.storage.bucket import StorageBucket
from spanwise.orchestrator.storage.manifest import Manifest
from spanwise.orchestrator.storage.ranged_file import RangedFile
from spanwise.orchestrator.storage.url import ObjectUrl

BLOCK_BYTES = 64 << 10


class StoredFile(RangedFile):
    """One file, for the few bytes of it that are shown; each read is a request for one of its objects."""

    def __init__(self, bucket: StorageBucket, home: ObjectUrl, manifest: Manifest, name: str) -> None:
        super().__init__(manifest.files[name])
        self._bucket = bucket
        self._keys = [(home / part.key).key for part in manifest.parts() if part.file == name]
        self._part_bytes = manifest.part_bytes

    def _fetch_range(self, start: int, most_bytes: int) -> bytes:
        part, within = divmod(start, self._part_bytes)
        return self._bucket.read_range(self._keys[part], within, min(most_bytes, self._part_bytes - within))
