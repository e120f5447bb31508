"""WRITE: the elements of the input are given on, and kept on the way, chunk by chunk, until the last one commits them.

The stream is one piece ahead of its consumer: so whoever counts elements, and never asks for the end, has written a
whole snapshot too.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from spanwise.orchestrator.errors import DatasetError, StateMismatch
from spanwise.pipelines.input.op import Op, Opening, State, Stream, assign_seeds
from spanwise.pipelines.input.snapshot.encoding import Encoding, Piece
from spanwise.pipelines.input.snapshot.folder import Folder, Found, Kept, KeptChunk
from spanwise.pipelines.input.snapshot.format import Codec, Header, blocks_of, codec_for, file_name, pack
from spanwise.pipelines.input.snapshot.state import ChunkRecord, Metadata
from spanwise.pipelines.input.snapshot.use import SnapshotUse

CHUNK_BYTES = 32 << 20
"""A chunk is closed when its elements take so much. For each split one is filled while two are written."""

_FLYING = 2

Origin: TypeAlias = dict[str, Any]
"""What a sequence of elements follows from, beside the graph: seed, epoch, and the shape of the graph as it was run."""

_log = logging.getLogger(__name__)


class SplitWriter:
    """Writes one split of a run. Threads of its own put chunks on the disk: one waits for it, one encodes the next."""

    def __init__(
        self,
        folder: Folder,
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
        self._pool = ThreadPoolExecutor(_FLYING, "snapshot-write")
        self._flying: deque[Future[ChunkRecord]] = deque()

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= CHUNK_BYTES

    def add(self, piece: Piece, before: State | None = None) -> None:
        """Puts a piece into the open chunk; `before` is where the input stood before it."""
        if not self._pieces:
            self._before = before
        self._pieces.append(piece)
        self._count += self._encoding.count(piece)
        self._size_bytes += self._encoding.size_bytes(piece)

    def seal(self, after: State | None = None) -> None:
        """Has the open chunk written; `after` is where the input stands behind it.

        Raises:
            OSError: the chunk before it could not be written.
        """
        if not self._pieces:
            return
        header = Header(
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
        self._land(but=_FLYING - 1)
        self._flying.append(self._pool.submit(self._write, pieces, header, self._name()))

    def _name(self) -> str:
        self._files += 1
        return file_name(self._split, self._files - 1, self._mark)

    def _write(self, pieces: Sequence[Piece], header: Header, name: str) -> ChunkRecord:
        schema, blocks, layout = self._encoding.pack(pieces)
        if self._codec is None:
            self._codec = codec_for(blocks, remote=self._folder.files.remote)
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

    def _land(self, *, but: int = 0) -> None:
        """Waits for the chunks that are being written, in their order, but the last so many."""
        while len(self._flying) > but:
            record = self._flying.popleft().result()
            self._records.append(record)
            self._use.elements_written += record.elements
            self._use.bytes_written += record.size_bytes

    def adopt(self, kept: KeptChunk, run_id: str) -> bool:
        """Makes a chunk of another run one of this run; False if it is gone."""
        self.seal(kept.header.before)
        self._land()
        name = self._name()
        below = self._folder.fingerprint
        try:
            self._folder.files.share(f"{below}/{run_id}/{kept.file}", f"{below}/{self._run_id}/{name}")
        except OSError:  # it is gone, or the disk knows no second names
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
        """Writes what is left; afterwards all of it is on the disk."""
        self.seal(after)
        self._land()
        self.close()
        return self._records

    def close(self) -> None:
        self._pool.shutdown()

    @property
    def has_chunks(self) -> bool:
        return bool(self._records or self._flying)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What a pass that writes has to know."""

    run: Metadata
    folder: Folder
    found: Found  #: what the folder said when this was decided
    use: SnapshotUse
    compression: str
    over: bool  #: whether it takes the place of a snapshot that is there
    replaces: str | None = None  #: the run whose attempt has expired, or whose writer has died
    abandoned: bool = False  #: whether it is the latter
    mark: ExitStack = field(default_factory=ExitStack, repr=False)  #: tells others that somebody is at it

    def begin(self) -> bool:
        """Claims the folder; False if it has changed since it was looked at."""
        try:
            return self.folder.claim(self.run, self.found, self.mark, abandoned=self.abandoned)
        except FileNotFoundError:  # it was collected as garbage at this moment
            return False

    def commit(self, chunks: Sequence[ChunkRecord], splits: int = 1) -> None:
        """Makes what was written the snapshot, or takes it away if another one was faster."""
        whole = replace(self.run, complete=True, chunks=tuple(chunks), splits=splits)
        self.use.committed = self.folder.commit(whole, over=self.over)
        self.mark.close()
        if not self.use.committed:
            _log.info("snapshot-race-lost", extra={"snapshot": str(self.folder), "run": self.run.run_id})
            self.folder.discard(self.run.run_id)
        elif self.replaces is not None:
            self.folder.discard(self.replaces)

    def give_up(self, reason: str, *, keep: bool) -> None:
        """Ends the attempt. `keep` leaves finished chunks to the next one."""
        _log.warning("snapshot-given-up", extra={"snapshot": str(self.folder), "reason": reason})
        self.use.failed = reason
        self.mark.close()
        self.folder.withdraw(self.run.run_id)
        if not keep:
            self.folder.discard(self.run.run_id)


class Ahead(Stream):
    """Is one piece ahead of its consumer. What is done with the pieces is up to the subclass."""

    def __init__(self, encoding: Encoding, use: SnapshotUse) -> None:
        self.at = 0  #: how many elements were given
        self._encoding = encoding
        self._use = use
        self._held: Piece = None
        self._has = False
        self._ended = False
        self._failure: Exception | None = None

    def __next__(self) -> Piece:
        if not self._has and self._failure is None and not self._ended:
            self._fetch()
        if self._failure is not None and not self._has:
            failure, self._failure = self._failure, None
            raise failure
        if not self._has:
            raise StopIteration
        piece = self._held
        self._keep(piece)
        self._has = False
        self._fetch()
        self.at += self._encoding.count(piece)
        return piece

    def _fetch(self) -> None:
        try:
            self._held = self._pull()
        except StopIteration:
            self._ended = True
            self._finish()
        except Exception as error:  # noqa: BLE001  told behind the piece that is given first
            self._fail(error)
            self._failure = error
        else:
            self._has = True

    @abstractmethod
    def _pull(self) -> Piece:
        """The next piece."""

    @abstractmethod
    def _keep(self, piece: Piece) -> None:
        """Called with each piece before it is given."""

    @abstractmethod
    def _finish(self) -> None:
        """Called before the last piece is given."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """Called when the input has raised."""


class Inputs:
    """Opens the input of a snapshot op; the same origin and state give the same elements."""

    def __init__(self, op: Op, opening: Opening) -> None:
        self._op = op
        self._opening = opening

    def open(self, origin: Origin, state: State | None = None) -> Stream:
        opening = replace(self._opening, seed=origin["seed"], epoch=tuple(origin["epoch"]))
        stream = opening.open(assign_seeds(self._op, origin["seed"]))
        if state is not None:
            stream.restore(state)
        return stream


class Writing(Ahead):
    """Gives and writes one sequence, with the chunks that an earlier run has left of it.

    Without an attempt it gives the same and writes nothing: so a pass goes on whose snapshot turned out to be damaged
    while somebody else writes it anew.
    """

    def __init__(
        self,
        folder: Folder,
        attempt: Attempt | None,
        inputs: Inputs,
        kept: Kept,
        origin: Origin,
        encoding: Encoding,
        use: SnapshotUse,
        *,
        is_repeatable: bool,
        start: int = 0,
    ) -> None:
        super().__init__(encoding, use)
        self.at = start
        self.origin = origin
        self._attempt = attempt
        self._folder = folder
        self._inputs = inputs
        self._kept = kept
        self._is_repeatable = is_repeatable
        self._input: Stream | None = None
        self._resume: State | None = None  # where the input is taken up; None at its start
        self._chunk: KeptChunk | None = None  # that pieces come from
        self._pieces: Iterator[Piece] = iter(())
        self._made = 0  # elements pulled so far
        self._before: State | None = None  # the input's, `_skip` elements before the held piece
        self._skip = 0
        self._is_cut = False  # whether elements of the input behind the held piece come from a kept chunk
        self._start = start
        self._writer: SplitWriter | None = None
        if attempt is not None:
            self._writer = SplitWriter(
                attempt.folder,
                attempt.run.run_id,
                encoding,
                use,
                compression=attempt.compression,
                origin=origin if is_repeatable else None,
            )

    def _pull(self) -> Piece:
        piece = self._next_piece()
        start, self._start = self._start, 0
        if not start:
            return piece
        while self._made <= start:  # given already, by the stream whose place this one takes
            self._keep(piece)
            piece = self._next_piece()
        count = self._encoding.count(piece)
        given = count - (self._made - start)
        if given:
            if self._writer is not None and self._chunk is None:
                self._writer.add(self._encoding.cut(piece, 0, given), self._before)
            piece = self._encoding.cut(piece, given, count)
            self._skip += given
        return piece

    def _next_piece(self) -> Piece:
        """The next piece of the sequence, from a kept chunk or from the input."""
        while True:
            for piece in self._pieces:
                assert self._chunk is not None
                header = self._chunk.header
                self._before, self._skip = header.before, self._made - header.first
                self._count(piece, read=True)
                return piece
            if self._chunk is not None:
                self._resume, self._chunk = self._chunk.header.after, None
            kept = self._kept.peek(self._made)
            if kept is not None and kept.header.first == self._made:
                self._adopt(kept)
                continue
            return self._from_input(kept)

    def _adopt(self, kept: KeptChunk) -> None:
        """Goes on with a kept chunk, or makes its elements anew if it is gone meanwhile."""
        assert self._kept.run_id is not None
        self._kept.pop()
        if self._input is not None:  # it may be behind the place where the chunk begins
            self._input.close()
            self._input = None
        is_there = True
        if self._writer is not None:
            with self._writing():
                is_there = self._writer.adopt(kept, self._kept.run_id)
        if not is_there:
            self._resume = kept.header.before
            return
        self._chunk = kept
        self._pieces = self._encoding.unpack(blocks_of(kept.content)[1], kept.header.layout, 0)
        self._use.bytes_read += kept.content.size

    def _from_input(self, kept: KeptChunk | None) -> Piece:
        if self._input is None:
            self._input = self._inputs.open(self.origin, self._resume)
        self._before, self._skip = self._input.state(), 0
        piece = next(self._input)
        count = self._encoding.count(piece)
        self._is_cut = kept is not None and self._made + count >= kept.header.first
        if kept is not None and self._made + count > kept.header.first:
            piece = self._encoding.cut(piece, 0, kept.header.first - self._made)
        self._count(piece, read=False)
        return piece

    def _count(self, piece: Piece, *, read: bool) -> None:
        count = self._encoding.count(piece)
        self._made += count
        if read:
            self._use.elements_read += count
        else:
            self._use.elements_passed += count

    def _keep(self, piece: Piece) -> None:
        if self._writer is None or self._chunk is not None:
            return
        with self._writing():
            self._writer.add(piece, self._before)
            if self._writer.is_full and not self._is_cut:  # a cut one is sealed with the kept chunk behind it
                assert self._input is not None
                self._writer.seal(self._input.state())

    def _finish(self) -> None:
        if self.at > self._made:
            raise StateMismatch(
                f"the input of the snapshot {self._folder} has ended after {self._made} elements, but {self.at} had "
                f"been given: it has changed, or is not the same each time."
            )
        if self._writer is None or self._attempt is None:
            return
        with self._writing():
            self._attempt.commit(self._writer.finish(self._before))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What cannot be written ends the writing and not the pass, unless an element cannot be kept at all."""
        try:
            yield
        except OSError as error:
            self._stop_writing(f"{type(error).__name__}: {error}", keep=False)
        except DatasetError as error:
            self._stop_writing(str(error), keep=False)
            raise

    def _fail(self, error: Exception) -> None:
        self._stop_writing(f"the input raised {type(error).__name__}", keep=self._is_repeatable)

    def _stop_writing(self, reason: str, *, keep: bool) -> None:
        if self._writer is not None and self._attempt is not None:
            self._writer.close()
            self._attempt.give_up(reason, keep=keep and self._writer.has_chunks)
            self._writer = None

    def state(self) -> State:
        """Where the consumer stands, in the sequence and in the input; what is ahead of it is left out."""
        failed = not self._has and self._failure is None and not self._ended and self._input is not None
        place = (self._input.state(), 0) if failed and self._input is not None else (self._before, self._skip)
        return {"at": self.at, "input": place[0], "skip": place[1], "origin": self.origin}

    def restore(self, state: State) -> None:
        raise NotImplementedError  # SnapshotStream makes another one

    def close(self) -> None:
        self._pieces = iter(())
        if self._writer is not None:
            self._writer.close()
        if self._attempt is not None:
            self._attempt.mark.close()
        if self._input is not None:
            self._input.close()
