"""Log pieces: a log in object storage, which has no appending. The last piece is written again until it is full."""

from __future__ import annotations

from pathlib import Path

from spanwise.orchestrator.storage.bucket import StorageBucket

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


def read_log(bucket: StorageBucket, key: str, start: int) -> bytes:
    """The bytes of a log from one on."""
    pieces: list[bytes] = []
    while True:
        found = bucket.read(f"{key}/{start // PIECE_BYTES:06d}")
        rest = b"" if found is None else found[0][start % PIECE_BYTES :]
        if not rest:
            return b"".join(pieces)
        pieces.append(rest)
        start += len(rest)
