"""READ: the elements of a whole snapshot, each chunk checked before anything of it is given out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spanwise.orchestrator.errors import SnapshotDamaged
from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.op import Count, Knob, Op, Opening, State, Stream
from spanwise.pipelines.input.snapshot.encoding import ENCODINGS, Piece
from spanwise.pipelines.input.snapshot.folder import Folder
from spanwise.pipelines.input.snapshot.format import blocks_of, header_of
from spanwise.pipelines.input.snapshot.state import ChunkRecord, Metadata
from spanwise.pipelines.input.snapshot.use import SnapshotUse

if TYPE_CHECKING:
    import pyarrow as pa

_AHEAD: Final = 3  # chunks that are checked before they are needed
_THREADS: Final = 2  # one alone is no faster than a consumer that does nothing but add up the bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """A chunk that was checked."""

    kind: str
    layout: str
    blocks: Sequence[pa.RecordBatch]


def _load(folder: Folder, run_id: str, record: ChunkRecord) -> _Loaded:
    content = folder.recorded(run_id, record)
    header = header_of(content)
    return _Loaded(kind=header.kind, layout=header.layout, blocks=blocks_of(content)[1])


class Reading(Stream):
    """Gives the elements of some chunks of a snapshot, in the order of the chunks."""

    def __init__(
        self, folder: Folder, run: Metadata, chunks: Sequence[ChunkRecord], use: SnapshotUse, block: Knob
    ) -> None:
        self.at = 0  #: how many elements were given
        self._folder = folder
        self._run = run
        self._chunks = deque(chunk for chunk in chunks if chunk.elements)
        self._use = use
        self._block = block
        self._pool: ThreadPoolExecutor | None = None
        self._loading: deque[tuple[ChunkRecord, Future[_Loaded]]] = deque()
        self._pieces: Iterator[Piece] = iter(())
        self._skip = 0
        self._held = ExitStack()
        self._held.enter_context(folder.using(run.run_id))  # until it is closed, gc leaves the run alone

    def __next__(self) -> Piece:
        while True:
            for piece in self._pieces:
                self._note(piece)
                return piece
            if not self._chunks and not self._loading:
                self.close()
                raise StopIteration
            self._pieces = self._open()

    def _note(self, piece: Piece) -> None:
        count = self._encoding.count(piece)
        self.at += count
        self._use.elements_read += count

    def _open(self) -> Iterator[Piece]:
        """The pieces of the next chunk.

        Raises:
            SnapshotDamaged: it is not what was written; the snapshot has been taken back.
        """
        self._pool = self._pool or ThreadPoolExecutor(_THREADS, "snapshot-read")
        while self._chunks and len(self._loading) < _AHEAD:
            record = self._chunks.popleft()
            self._loading.append((record, self._pool.submit(_load, self._folder, self._run.run_id, record)))
        record, loading = self._loading.popleft()
        try:
            # If no thread has come to it yet, to wait for one would take longer.
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
        """Blocks no larger than the knob says."""
        for block in blocks:
            at = 0
            while at < block.num_rows:
                taken = block.slice(at, self._block.value) if block.num_rows > self._block.value else block
                at += taken.num_rows
                yield taken

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Split(Op):
    """One of the datasets that a snapshot was split into when it was written: what a `reader_fn` gets to read."""

    of: Spec
    folder: Folder | None = field(repr=False)  #: None in the rehearsal when the graph is built
    run: Metadata | None = field(repr=False)
    number: int
    use: SnapshotUse | None = field(repr=False)

    @property
    def spec(self) -> Spec:
        return self.of

    @property
    def chunks(self) -> tuple[ChunkRecord, ...]:
        return () if self.run is None else tuple(chunk for chunk in self.run.chunks if chunk.split == self.number)

    @property
    def cardinality(self) -> Count:
        return sum(chunk.elements for chunk in self.chunks)

    def open(self, opening: Opening) -> Stream:
        assert self.folder is not None
        assert self.run is not None
        assert self.use is not None
        return Reading(self.folder, self.run, self.chunks, self.use, opening.block)
