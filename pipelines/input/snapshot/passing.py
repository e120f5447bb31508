"""PASSTHROUGH: the elements of the input, and nothing is written."""

from __future__ import annotations

from spanwise.pipelines.input.op import Op, State, Stream
from spanwise.pipelines.input.snapshot.encoding import Piece, encoding_of
from spanwise.pipelines.input.snapshot.state import Origin
from spanwise.pipelines.input.snapshot.use import SnapshotUse


class PassThroughStream(Stream):
    def __init__(self, source: Stream, op: Op, use: SnapshotUse, origin: Origin, skip: int = 0) -> None:
        self._source = source
        self._encoding = encoding_of(op.spec)
        self._use = use
        self._origin = origin
        self._skip = skip  # elements that were yielded before it was restored

    def __next__(self) -> Piece:
        while True:
            piece = next(self._source)
            count = self._encoding.count(piece)
            skip, self._skip = min(self._skip, count), max(0, self._skip - count)
            if skip < count:
                self._use.elements_passed += count - skip
                return self._encoding.cut(piece, skip, count) if skip else piece

    def state(self) -> State:
        return {"input": self._source.state(), "skip": self._skip, "origin": self._origin}

    def restore(self, state: State) -> None:
        raise NotImplementedError  # SnapshotStream makes another one

    def close(self) -> None:
        self._source.close()
