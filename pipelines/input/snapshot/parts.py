"""The splits of a snapshot as datasets: what a `reader_fn` is called with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spanwise.pipelines.input.element import DatasetSpec, Spec
from spanwise.pipelines.input.op import Count, Element, Op, Opening, State, Stream
from spanwise.pipelines.input.snapshot.folder import SnapshotFolder
from spanwise.pipelines.input.snapshot.reading import ReadStream
from spanwise.pipelines.input.snapshot.state import ChunkRecord, Metadata
from spanwise.pipelines.input.snapshot.use import SnapshotUse


@dataclass(frozen=True, kw_only=True, eq=False)
class SnapshotSplit(Op):
    """One of the datasets that a snapshot was split into when it was written."""

    of: Spec
    folder: SnapshotFolder | None = field(repr=False)  #: None in the rehearsal when the graph is built
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
        return ReadStream(self.folder, self.run, self.chunks, self.use, opening.block)


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitDatasets(Op):
    """The splits of a snapshot as a dataset of datasets."""

    parts: Sequence[SnapshotSplit] = field(repr=False)  # no inputs: they are elements

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return DatasetSpec(self.parts[0].spec)

    @property
    def cardinality(self) -> int:
        return len(self.parts)

    def open(self, opening: Opening) -> Stream:
        return SplitDatasetsStream(self.parts, opening)


class SplitDatasetsStream(Stream):
    def __init__(self, parts: Sequence[SnapshotSplit], opening: Opening) -> None:
        self._parts = parts
        self._dataset = opening.nested
        self._at = 0

    def __next__(self) -> Element:
        if self._at == len(self._parts):
            raise StopIteration
        self._at += 1
        return self._dataset(self._parts[self._at - 1])

    def state(self) -> State:
        return {"at": self._at}

    def restore(self, state: State) -> None:
        self._at = state["at"]
