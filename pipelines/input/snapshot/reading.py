"""READ: the elements of a complete snapshot; each chunk is verified before any of its elements is yielded."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spanwise.orchestrator.errors import SnapshotDamaged
from spanwise.pipelines.input.op import Knob, State, Stream
from spanwise.pipelines.input.snapshot.encoding import ENCODINGS, Piece
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.format import blocks_of, header_of
from spanwise.pipelines.input.snapshot.state import ChunkRecord, Metadata
from spanwise.pipelines.input.snapshot.use import SnapshotUse

if TYPE_CHECKING:
    import pyarrow as pa

_AHEAD: Final = 3  # chunks that are verified before they are needed
_THREADS: Final = 2  # a single one is no faster than a consumer that only adds up the bytes

_log = logging.getLogger("spanwise.snapshot")


@dataclass(frozen=True, kw_only=True)
class CheckedChunk:
    """A verified chunk."""

    kind: str
    layout: str
    blocks: Sequence[pa.RecordBatch]


def _load(folder: SnapshotFolder, run_id: str, record: ChunkRecord) -> CheckedChunk:
    content = folder.read_chunk(run_id, record)
    header = header_of(content)
    return CheckedChunk(kind=header.kind, layout=header.layout, blocks=blocks_of(content)[1])


class ReadStream(Stream):
    """Yields the elements of some chunks of a snapshot, in the order of the chunks."""

    def __init__(
        self, folder: SnapshotFolder, run: Metadata, chunks: Sequence[ChunkRecord], use: SnapshotUse, block: Knob
    ) -> None:
        self.at = 0  #: how many elements were yielded
        self._folder = folder
        self._run = run
        self._chunks = deque(chunk for chunk in chunks if chunk.elements)
        self._use = use
        self._block = block
        self._pool: ThreadPoolExecutor | None = None
        self._loading: deque[tuple[ChunkRecord, Future[CheckedChunk]]] = deque()
        self._pieces: Iterator[Piece] = iter(())
        self._skip = 0
        self._held = ExitStack()
        self._held.enter_context(folder.mark_used(run.run_id))  # until it is closed, gc spares the run

    def __next__(self) -> Piece:
        while True:
            for piece in self._pieces:
                self._count(piece)
                return piece
            if not self._chunks and not self._loading:
                self.close()
                raise StopIteration
            self._pieces = self._open()

    def _count(self, piece: Piece) -> None:
        count = self._encoding.count(piece)
        self.at += count
        self._use.elements_read += count

    def _open(self) -> Iterator[Piece]:
        """The pieces of the next chunk.

        Raises:
            SnapshotDamaged: it is not what was written; the snapshot has been withdrawn.
        """
        self._pool = self._pool or ThreadPoolExecutor(_THREADS, "snapshot-read")
        while self._chunks and len(self._loading) < _AHEAD:
            record = self._chunks.popleft()
            self._loading.append((record, self._pool.submit(_load, self._folder, self._run.run_id, record)))
        record, loading = self._loading.popleft()
        try:
            # If no thread has started with it, waiting for one would take longer.
            loaded = _load(self._folder, self._run.run_id, record) if loading.cancel() else loading.result()
        except SnapshotDamaged as error:
            _log.warning("snapshot-damaged", extra={"snapshot": str(self._folder), "reason": str(error)})
            self._use.damaged.append(record.file)
            self._folder.retire(self._run.run_id, record.file)
            raise
        self._use.bytes_read += record.size_bytes
        self._encoding = ENCODINGS[loaded.kind]
        skip, self._skip = self._skip, 0
        pieces = self._encoding.unpack(loaded.blocks, loaded.layout, skip)
        return self._cut(pieces) if loaded.kind == "rows" else pieces

    def _cut(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Blocks no larger than the knob allows."""
        for block in blocks:
            at = 0
            while at < block.num_rows:
                part = block.slice(at, self._block.value) if block.num_rows > self._block.value else block
                at += part.num_rows
                yield part

    def state(self) -> State:
        return {"at": self.at}

    def restore(self, state: State) -> None:
        self.at = skip = state["at"]
        while self._chunks and self._chunks[0].elements <= skip:
            skip -= self._chunks.popleft().elements
        self._skip = skip

    def close(self) -> None:
        self._chunks.clear()
        self._loading.clear()
        self._pieces = iter(())
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._held.close()
