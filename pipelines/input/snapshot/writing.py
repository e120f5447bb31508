"""WRITE: the elements of the input are passed on and written on the way, chunk by chunk; the last one commits them.

The stream is one piece ahead of its consumer, so a consumer that counts elements and never asks for the end has written
a complete snapshot too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from spanwise.orchestrator.errors import DatasetError, StateMismatch, UnreadableInput
from spanwise.pipelines.input.op import InputSeries, Op, Opening, State, Stream, assign_seeds, mix_seed
from spanwise.pipelines.input.snapshot.attempt import WriteAttempt
from spanwise.pipelines.input.snapshot.encoding import Encoding, Piece
from spanwise.pipelines.input.snapshot.folder import ReusableChunk, ReusableChunks, SnapshotFolder
from spanwise.pipelines.input.snapshot.format import blocks_of
from spanwise.pipelines.input.snapshot.split_writer import SplitWriter
from spanwise.pipelines.input.snapshot.state import Origin
from spanwise.pipelines.input.snapshot.use import SnapshotUse


class LookaheadStream(Stream):
    """Is one piece ahead of its consumer. A subclass says what is done with the pieces."""

    def __init__(self, encoding: Encoding, use: SnapshotUse) -> None:
        self.at = 0  #: how many elements were yielded
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
        except Exception as error:  # noqa: BLE001  raised behind the piece that is yielded first
            self._fail(error)
            self._failure = error
        else:
            self._has = True

    @abstractmethod
    def _pull(self) -> Piece:
        """The next piece."""

    @abstractmethod
    def _keep(self, piece: Piece) -> None:
        """Called with each piece before it is yielded."""

    @abstractmethod
    def _finish(self) -> None:
        """Called before the last piece is yielded."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """Called when the input has raised."""


def input_seed(seed: int) -> int:
    """The seed of what a snapshot is written from, whether a pass with this seed writes it or a save."""
    return mix_seed(seed, 1)


class InputOpener:
    """Opens the input of a snapshot op; the same origin and state give the same elements."""

    def __init__(self, op: Op, opening: Opening) -> None:
        self._op = op
        self._series = InputSeries(opening)
        self._opened = 0  # how often
        self.unopened = self._series.unopened(0)  #: for the state of a stream that has not opened it

    def open(self, origin: Origin, state: State | None = None) -> Stream:
        opening = self._series.opening(self._opened)
        self._opened += 1
        opening = replace(opening, seed=origin["seed"], epoch=tuple(origin["epoch"]))
        stream = opening.open(assign_seeds(self._op, origin["seed"]))
        if state is not None:
            stream.restore(state)
        return stream


class WriteStream(LookaheadStream):
    """Yields and writes one sequence, with the chunks that an earlier run has left of it.

    Without an attempt it yields the same and writes nothing: so a pass continues whose snapshot turned out to be
    damaged while another pass writes it again.
    """

    def __init__(
        self,
        folder: SnapshotFolder,
        attempt: WriteAttempt | None,
        inputs: InputOpener,
        kept: ReusableChunks,
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
        self._resume: State | None = None  # where the input continues; None at its start
        self._chunk: ReusableChunk | None = None  # where pieces come from
        self._pieces: Iterator[Piece] = iter(())
        self._made = 0  # elements pulled so far
        self._before: State | None = None  # state of the input, `_skip` elements before the held piece
        self._skip = 0
        self._is_cut = False  # whether a reusable chunk follows the held piece
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
        while self._made <= start:  # yielded already, by the stream that this one replaces
            self._keep(piece)
            piece = self._next_piece()
        count = self._encoding.count(piece)
        yielded = count - (self._made - start)
        if yielded:
            if self._writer is not None and self._chunk is None:
                self._writer.add(self._encoding.cut(piece, 0, yielded), self._before)
            piece = self._encoding.cut(piece, yielded, count)
            self._skip += yielded
        return piece

    def _next_piece(self) -> Piece:
        """The next piece of the sequence, from a reusable chunk or from the input."""
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

    def _adopt(self, kept: ReusableChunk) -> None:
        """Continues with a reusable chunk, or with the input if the chunk is gone meanwhile."""
        assert self._kept.run_id is not None
        self._kept.pop()
        if self._input is not None:  # it may be behind the start of the chunk
            self._input.close()
            self._input = None
        is_there = True
        if self._writer is not None:
            with self._guarded():
                is_there = self._writer.adopt(kept, self._kept.run_id)
        if not is_there:
            self._resume = kept.header.before
            return
        self._chunk = kept
        self._pieces = self._encoding.unpack(blocks_of(kept.content)[1], kept.header.layout, 0)
        self._use.bytes_read += kept.content.size

    def _from_input(self, kept: ReusableChunk | None) -> Piece:
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
        with self._guarded():
            self._writer.add(piece, self._before)
            if self._writer.is_full and not self._is_cut:  # a cut one is sealed with the reusable chunk behind it
                assert self._input is not None
                self._writer.seal(self._input.state())

    def _finish(self) -> None:
        if self.at > self._made:
            raise StateMismatch(
                f"the input of the snapshot {self._folder} ended after {self._made} elements, but {self.at} had been "
                f"yielded: it has changed, or differs each time."
            )
        if self._writer is None or self._attempt is None:
            return
        with self._guarded():
            self._attempt.commit(self._writer.finish(self._before))
            self._writer = None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """A failed write ends the writing but not the pass, unless an element cannot be stored at all."""
        try:
            yield
        except OSError as error:
            self._stop_writing(f"{type(error).__name__}: {error}", keep=False)
        except (DatasetError, UnreadableInput) as error:
            self._stop_writing(str(error), keep=False)
            raise

    def _fail(self, error: Exception) -> None:
        self._stop_writing(f"the input raised {type(error).__name__}", keep=self._is_repeatable)

    def _stop_writing(self, reason: str, *, keep: bool) -> None:
        if self._writer is not None and self._attempt is not None:
            self._writer.close()
            self._attempt.abandon(reason, keep=keep and self._writer.has_chunks)
            self._writer = None

    def state(self) -> State:
        """Where the consumer stands in the sequence and in the input; the piece ahead of it does not count."""
        failed = not self._has and self._failure is None and not self._ended and self._input is not None
        place = (self._input.state(), 0) if failed and self._input is not None else (self._before, self._skip)
        return {"at": self.at, "input": place[0], "skip": place[1], "origin": self.origin}

    def restore(self, state: State) -> None:
        raise NotImplementedError  # SnapshotStream makes another one

    def close(self) -> None:
        self._pieces = iter(())
        if self._writer is not None and self._attempt is not None:
            writer, self._writer = self._writer, None
            writer.close()
            self._attempt.close(keep=self._is_repeatable and writer.has_chunks)
        if self._input is not None:
            self._input.close()
