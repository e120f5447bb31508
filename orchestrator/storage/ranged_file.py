"""Ranged files: files whose bytes are fetched by ranges as they are read, from wherever they are."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import Any


class RangedFile(io.RawIOBase):
    """A file of a known size that is read and sought in, and of which a subclass fetches ranges."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._at = 0

    @abstractmethod
    def _fetch_range(self, start: int, most_bytes: int) -> bytes:
        """Some bytes from `start` on, no more than so many, which are all within the file."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size_bytes}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self.size_bytes - self._at)
        if wanted <= 0:
            return 0
        found = self._fetch_range(self._at, wanted)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)
