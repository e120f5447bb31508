"""The names of files, in their order or in another one for each pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spanwise.pipelines.input.element import ArraySpec, Spec
from spanwise.pipelines.input.files import Paths, list_files
from spanwise.pipelines.input.op import Opening, State, Stream, check_whole, mix_seed
from spanwise.pipelines.input.ops.file_source import FileSource


@dataclass(frozen=True, kw_only=True, eq=False)
class FileNames(FileSource):
    shuffle: bool = False
    seed: int | None = None
    places: slice | None = None  #: of a shuffled order: which are given; None for all

    def __post_init__(self) -> None:
        if self.seed is not None:
            check_whole("list_files", "seed", self.seed, at_least=0)

    @property
    def spec(self) -> Spec:
        return ArraySpec("str")

    @property
    def cardinality(self) -> int:
        return len(self.paths[self.places or slice(None)])

    def open(self, opening: Opening) -> Stream:
        if not self.shuffle:
            return FileNameStream(self.paths)
        import numpy as np

        order = np.random.Generator(np.random.PCG64(mix_seed(self.seed or 0, *opening.epoch))).permutation(
            len(self.paths)
        )
        return FileNameStream([self.paths[number] for number in order[self.places or slice(None)]])


class FileNameStream(Stream):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._at = 0

    def __next__(self) -> str:
        if self._at == len(self._names):
            raise StopIteration
        self._at += 1
        return self._names[self._at - 1]

    def state(self) -> State:
        return {"at": self._at}

    def restore(self, state: State) -> None:
        self._at = state["at"]


def file_names(source: str, paths: Paths, *, shuffle: bool, seed: Any) -> FileNames:
    return FileNames(paths=list_files(source, paths), shuffle=shuffle, seed=seed if shuffle else 0)
