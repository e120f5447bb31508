"""Log pieces: a log in object storage, which has no appending. The last piece is written again until it is full."""

from __future__ import annotations

from pathlib import Path

from spanwise.orchestrator.storage.bucket import StorageBucket
from spanwise.orchestrator.storage.ranged_file import RangedFile

PIECE_BYTES = 256 << 10


def upload_log(bucket: StorageBucket, key: str, log: Path, sent: int) -> int:
    """Writes what a log has beyond the first `sent` bytes; returns how many are there now."""
    try:
        with log.open("rb") as file:
            while True:
                start = sent - sent % PIECE_BYTES
                file.seek(start)
                piece = file.read(PIECE_BYTES)
                if start + len(piece) <= sent:
                    return sent
                bucket.write(f"{key}/{start // PIECE_BYTES:06d}", piece)
                sent = start + len(piece)
    except FileNotFoundError:
        return sent


def read_log(bucket: StorageBucket, key: str, start: int, most_bytes: int | None = None) -> bytes:
    """The bytes of a log from one on, or no more of them than `most_bytes` and a piece."""
    pieces: list[bytes] = []
    size = 0
    while most_bytes is None or size < most_bytes:
        found = bucket.read(f"{key}/{(start + size) // PIECE_BYTES:06d}")
        rest = b"" if found is None else found[0][(start + size) % PIECE_BYTES :]
        if not rest:
            break
        pieces.append(rest)
        size += len(rest)
    return b"".join(pieces)


class LogFile(RangedFile):
    """A log as a file, of which the pieces are fetched that are read; as long as it was when it was opened."""

    def __init__(self, bucket: StorageBucket, key: str) -> None:
        super().__init__(sum(info.size_bytes for info in bucket.list(key)))
        self._bucket = bucket
        self._key = key
        self._piece = (-1, b"")
        while len(self._fetch(self.size_bytes // PIECE_BYTES)) > self.size_bytes % PIECE_BYTES:  # the listing was old
            self.size_bytes = self._piece[0] * PIECE_BYTES + len(self._piece[1])

    def _fetch_range(self, start: int, most_bytes: int) -> bytes:
        number, within = divmod(start, PIECE_BYTES)
        return self._fetch(number)[within : within + most_bytes]

    def _fetch(self, number: int) -> bytes:
        if self._piece[0] != number:
            found = self._bucket.read(f"{self._key}/{number:06d}")
            self._piece = (number, b"" if found is None else found[0])
        return self._piece[1]
