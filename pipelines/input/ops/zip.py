"""Tuples of one element of each dataset, as long as all of them last."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import Spec, Structure, element_spec
from spanwise.pipelines.input.op import Count, Element, Op, Opening, State, Stream
from spanwise.pipelines.input.rows import open_elements


@dataclass(frozen=True, kw_only=True, eq=False)
class Zip(Op):
    parts: tuple[Op, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise DatasetError("zip: expected at least one dataset.")

    @property
    def spec(self) -> Spec:
        return Structure(tuple, (), tuple(element_spec(part.spec) for part in self.parts))

    @property
    def cardinality(self) -> Count:
        counts = [part.cardinality for part in self.parts]
        if 0 in counts:
            return 0
        known = [count for count in counts if count is not None]
        return min(known) if len(known) == len(counts) else None

    def open(self, opening: Opening) -> Stream:
        return ZipStream([open_elements(opening, part) for part in self.parts])


class ZipStream(Stream):
    def __init__(self, sources: list[Stream]) -> None:
        self._sources = sources

    def __next__(self) -> tuple[Element, ...]:
        # an error of one uses up the element of each, so that partners stay together
        taken, failure = [], None
        for source in self._sources:
            try:
                taken.append(next(source))
            except StopIteration:
                raise
            except Exception as error:  # noqa: BLE001  raised below
                failure = failure or error
        if failure is not None:
            raise failure
        return tuple(taken)

    def state(self) -> State:
        return {"inputs": [source.state() for source in self._sources]}

    def restore(self, state: State) -> None:
        for source, its in zip(self._sources, state["inputs"], strict=True):
            source.restore(its)

    def close(self) -> None:
        for source in self._sources:
            source.close()
