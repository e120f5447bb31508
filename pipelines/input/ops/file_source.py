"""Sources that read files one after another: which files, and where in them a pass stands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.file_state import FileStates
from spanwise.pipelines.input.op import Element, Op, Opening, State, Stream


@dataclass(frozen=True, kw_only=True, eq=False)
class FileSource(Op):
    """Files that can be shared among workers; the fields of a subclass say how they are read."""

    paths: tuple[str, ...]
    file_bytes: Mapping[str, int] = field(default_factory=dict, repr=False)  #: of these paths, where they are known

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def cardinality(self) -> int | None:
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class ElementFiles(FileSource):
    """Files of elements, each of which says where the next one begins."""

    @abstractmethod
    def read(self, path: str, place: Any) -> Iterator[tuple[Element, Any]]:
        """The elements of a file from a place on, each with the place behind it; None is the beginning.

        Places are plain data.
        """

    def open(self, opening: Opening) -> Stream:
        return ElementFileStream(self)


class ElementFileStream(Stream):
    """Its state: the number of the file, and the place in it."""

    def __init__(self, op: ElementFiles) -> None:
        self._op = op
        self._file = 0
        self._place: Any = None
        self._files = FileStates()
        self._elements: Iterator[tuple[Element, Any]] | None = None

    def __next__(self) -> Element:
        import pyarrow as pa

        while self._file < len(self._op.paths):
            path = self._op.paths[self._file]
            if self._elements is None:
                self._files.begin(path)
                self._elements = self._op.read(path, self._place)
            try:
                element, self._place = next(self._elements)
            except StopIteration:
                self._file, self._place, self._elements = self._file + 1, None, None
                self._files.check(path)
            except (OSError, pa.ArrowException, UnreadableInput) as error:
                self._files.check(path)  # a torn element is reported as the change that tore it
                if isinstance(error, UnreadableInput):
                    raise
                raise UnreadableInput(f"{path}: cannot be read ({error}).") from error
            else:
                return element
        raise StopIteration

    def state(self) -> State:
        return {"file": self._file, "place": self._place}

    def restore(self, state: State) -> None:
        self._file, self._place = state["file"], state["place"]

    def close(self) -> None:
        stop = getattr(self._elements, "close", None)
        self._elements = None
        if callable(stop):
            stop()
