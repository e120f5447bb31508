"""Splits: how elements reach the datasets that a `writer_fn` returns, and are written side by side."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from spanwise.orchestrator.errors import DatasetError, UnreadableInput
from spanwise.pipelines.input.element import Spec
from spanwise.pipelines.input.op import Count, Op, Opening, State, Stream
from spanwise.pipelines.input.snapshot.attempt import WriteAttempt
from spanwise.pipelines.input.snapshot.encoding import Encoding, Piece
from spanwise.pipelines.input.snapshot.split_writer import SplitWriter
from spanwise.pipelines.input.snapshot.state import Origin
from spanwise.pipelines.input.snapshot.use import SnapshotUse
from spanwise.pipelines.input.snapshot.writing import LookaheadStream


class SplitFeed:
    """Hands each piece of the input to every split of a `writer_fn`."""

    def __init__(self, spec: Spec, cardinality: Count) -> None:
        self.op = SplitInput(of=spec, count=cardinality, feed=self)
        self.has_begun = False
        self._streams: list[SplitInputStream] = []

    def open(self) -> SplitInputStream:
        if self.has_begun:
            raise DatasetError("snapshot(writer_fn=): a split opened its input after the first element.")
        self._streams.append(SplitInputStream(self))
        return self._streams[-1]

    def put(self, piece: Piece) -> None:
        self.has_begun = True
        for stream in self._streams:
            stream.put(piece)


_END: Final = object()
_WAIT_S: Final = 0.1


class SplitInputStream(Stream):
    def __init__(self, feed: SplitFeed) -> None:
        self._feed = feed
        self._queue: queue.Queue[Piece] = queue.Queue(8)
        self._closed = threading.Event()

    def put(self, piece: Piece) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(piece, timeout=_WAIT_S)
            except queue.Full:
                continue
            return

    def __next__(self) -> Piece:
        if not self._feed.has_begun:
            raise DatasetError(
                "snapshot(writer_fn=): the splits must exist before the first element; "
                "return a list of datasets, such as [ds.shard(2, 0), ds.shard(2, 1)]."
            )
        piece = self._queue.get()
        if piece is _END:
            self._closed.set()
            raise StopIteration
        return piece

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        raise NotImplementedError  # writing in splits is not resumed

    def close(self) -> None:
        self._closed.set()


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitInput(Op):
    """The input of a snapshot op as its `writer_fn` sees it."""

    of: Spec
    count: Count
    feed: SplitFeed = field(repr=False)

    @property
    def spec(self) -> Spec:
        return self.of

    @property
    def cardinality(self) -> Count:
        return self.count

    def open(self, opening: Opening) -> Stream:  # noqa: ARG002
        return self.feed.open()


class SplitWriteStream(LookaheadStream):
    """Passes the input on, and writes the splits that `writer_fn` makes of it side by side."""

    def __init__(
        self,
        attempt: WriteAttempt,
        source: Stream,
        feed: SplitFeed,
        splits: Sequence[tuple[Stream, Encoding]],
        encoding: Encoding,
        use: SnapshotUse,
        origin: Origin,
    ) -> None:
        super().__init__(encoding, use)
        self._attempt: WriteAttempt | None = attempt
        self._origin = origin
        self._source = source
        self._feed = feed
        self._before: State = {}
        self._pulled = 0  # elements
        self._error: Exception | None = None
        self._writers = [
            SplitWriter(attempt.folder, attempt.run.run_id, each, use, split=number, compression=attempt.compression)
            for number, (_, each) in enumerate(splits)
        ]
        self._streams = [stream for stream, _ in splits]
        self._threads = [
            threading.Thread(target=self._write, args=pair, daemon=True, name="snapshot-split")
            for pair in zip(self._streams, self._writers, strict=True)
        ]
        feed.has_begun = True
        for thread in self._threads:
            thread.start()

    def _write(self, stream: Stream, writer: SplitWriter) -> None:
        try:
            for piece in stream:
                writer.add(piece)
                if writer.is_full:
                    writer.seal()
            writer.seal()
        except Exception as error:  # noqa: BLE001  raised to the consumer
            self._error = self._error or error
        finally:
            stream.close()

    def _pull(self) -> Piece:
        self._before = self._source.state()
        piece = next(self._source)
        self._pulled += self._encoding.count(piece)
        return piece

    def _keep(self, piece: Piece) -> None:
        self._use.elements_passed += self._encoding.count(piece)
        if self._attempt is None:
            return
        if self._error is not None:
            self._stop_writing(self._error)
        else:
            self._feed.put(piece)

    def _finish(self) -> None:
        if self._attempt is None:
            return
        self._end_threads()
        if self._error is None:
            try:
                chunks = [chunk for writer in self._writers for chunk in writer.finish()]
                self._check(sum(chunk.elements for chunk in chunks))
                self._attempt.commit(chunks, splits=len(self._writers))
                self._attempt = None
            except (OSError, DatasetError, UnreadableInput) as error:
                self._error = error
        if self._error is not None:
            self._stop_writing(self._error)

    def _check(self, written: int) -> None:
        if written != self._pulled:
            raise DatasetError(
                f"snapshot(writer_fn=): its splits hold {written} elements, but there are {self._pulled}; "
                f"each element must be in exactly one split."
            )

    def _fail(self, error: Exception) -> None:
        if self._attempt is not None:
            self._stop_writing(OSError(f"the input raised {type(error).__name__}"))

    def _stop_writing(self, error: Exception) -> None:
        """Continues without writing if storage has failed, and raises if the user's functions have."""
        attempt, self._attempt = self._attempt, None
        assert attempt is not None
        self._end_threads()
        attempt.abandon(f"{type(error).__name__}: {error}", keep=False)
        if not isinstance(error, OSError):
            raise error

    def _end_threads(self) -> None:
        self._feed.put(_END)
        for thread in self._threads:
            thread.join()
        self._threads = []
        for writer in self._writers:
            writer.close()

    def state(self) -> State:
        passed = not self._has and self._failure is None and not self._ended
        return {
            "at": self.at,
            "input": self._source.state() if passed else self._before,
            "skip": 0,
            "origin": self._origin,
        }

    def restore(self, state: State) -> None:
        raise NotImplementedError  # SnapshotStream makes another one

    def close(self) -> None:
        if self._threads:
            self._end_threads()
        for stream in self._streams:
            stream.close()
        if self._attempt is not None:
            self._attempt.close(keep=False)
            self._attempt = None
        self._source.close()
