"""Writes the chunks of one split of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from spanwise.pipelines.input.op import State
from spanwise.pipelines.input.snapshot.encoding import Encoding, Piece
from spanwise.pipelines.input.snapshot.folder import ReusableChunk, SnapshotFolder
from spanwise.pipelines.input.snapshot.format import ChunkHeader, Codec, choose_codec, file_name, pack
from spanwise.pipelines.input.snapshot.state import ChunkRecord, Origin
from spanwise.pipelines.input.snapshot.use import SnapshotUse

CHUNK_BYTES = 32 << 20
"""A chunk is closed when its elements take this much. For each split one is filled while two are written."""

_IN_FLIGHT: Final = 2


class SplitWriter:
    """Writes one split of a run. Two threads of its own store chunks: one waits for the disk, one encodes the next."""

    def __init__(
        self,
        folder: SnapshotFolder,
        run_id: str,
        encoding: Encoding,
        use: SnapshotUse,
        *,
        split: int = 0,
        compression: str,
        origin: Origin | None = None,
        mark: str = "",
    ) -> None:
        self._folder = folder
        self._run_id = run_id
        self._encoding = encoding
        self._use = use
        self._split = split
        self._compression = compression
        self._origin = origin
        self._mark = mark  # in the names of its files, if others write the same split
        self._codec: Codec | None = None if compression == "auto" else compression  # type: ignore[assignment]
        self._pieces: list[Piece] = []
        self._before: State | None = None
        self._count = self._size_bytes = 0  # of the open chunk
        self._first = 0  # elements before the open chunk
        self._files = 0
        self._records: list[ChunkRecord] = []
        self._pool = ThreadPoolExecutor(_IN_FLIGHT, "snapshot-write")
        self._in_flight: deque[Future[ChunkRecord]] = deque()

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= CHUNK_BYTES

    def add(self, piece: Piece, before: State | None = None) -> None:
        """Adds a piece to the open chunk; `before` is the state of the input before it."""
        if not self._pieces:
            self._before = before
        self._pieces.append(piece)
        self._count += self._encoding.count(piece)
        self._size_bytes += self._encoding.size_bytes(piece)

    def seal(self, after: State | None = None) -> None:
        """Starts to write the open chunk; `after` is the state of the input behind it.

        Raises:
            OSError: the chunk before it could not be written.
        """
        if not self._pieces:
            return
        header = ChunkHeader(
            fingerprint=self._folder.fingerprint,
            kind=self._encoding.kind,
            split=self._split,
            first=self._first,
            elements=self._count,
            start=self._origin,
            before=self._before,
            after=after,
        )
        pieces, self._pieces = self._pieces, []
        self._first += self._count
        self._count = self._size_bytes = 0
        self._collect(but=_IN_FLIGHT - 1)
        self._in_flight.append(self._pool.submit(self._write, pieces, header, self._name()))

    def _name(self) -> str:
        self._files += 1
        return file_name(self._split, self._files - 1, self._mark)

    def _write(self, pieces: Sequence[Piece], header: ChunkHeader, name: str) -> ChunkRecord:
        schema, blocks, layout = self._encoding.pack(pieces)
        if self._codec is None:
            self._codec = choose_codec(blocks, remote=self._folder.files.remote)
        parts, checksum = pack(replace(header, layout=layout), blocks, schema, self._codec)
        self._folder.files.replace(f"{self._folder.fingerprint}/{self._run_id}/{name}", parts)
        return ChunkRecord(
            file=name,
            split=header.split,
            first=header.first,
            elements=header.elements,
            size_bytes=sum(len(part) for part in parts),
            checksum=checksum,
        )

    def _collect(self, *, but: int = 0) -> None:
        """Waits for the chunks that are being written, in order, except for the last `but`."""
        while len(self._in_flight) > but:
            record = self._in_flight.popleft().result()
            self._records.append(record)
            self._use.elements_written += record.elements
            self._use.bytes_written += record.size_bytes

    def adopt(self, kept: ReusableChunk, run_id: str) -> bool:
        """Makes a chunk of another run part of this run; False if it is gone."""
        self.seal(kept.header.before)
        self._collect()
        name = self._name()
        below = self._folder.fingerprint
        try:
            self._folder.files.share(f"{below}/{run_id}/{kept.file}", f"{below}/{self._run_id}/{name}")
        except OSError:  # it is gone, or the disk has no hard links
            return False
        record = ChunkRecord(
            file=name,
            split=self._split,
            first=kept.header.first,
            elements=kept.header.elements,
            size_bytes=kept.content.size,
            checksum=kept.checksum,
        )
        self._records.append(record)
        self._first += record.elements
        return True

    def finish(self, after: State | None = None) -> list[ChunkRecord]:
        """Writes the rest; afterwards everything is on disk."""
        self.seal(after)
        self._collect()
        self.close()
        return self._records

    def close(self) -> None:
        self._pool.shutdown()

    @property
    def has_chunks(self) -> bool:
        return bool(self._records or self._in_flight)
