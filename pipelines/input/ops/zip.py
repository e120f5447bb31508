"""Tuples, or other structures, of one element of each dataset, as long as all of them last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import ElementSpec, Spec, Structure, each_leaf, element_spec, parts_of
from spanwise.pipelines.input.op import Count, Element, Op, Opening, State, Stream
from spanwise.pipelines.input.rows import open_elements


@dataclass(frozen=True, kw_only=True, eq=False)
class Zip(Op):
    parts: tuple[Op, ...]
    structure: Any = None  #: what an element is built like: its leaves are numbers of parts; None for a plain tuple

    def __post_init__(self) -> None:
        if not self.parts:
            raise DatasetError("zip: expected at least one dataset.")

    @property
    def spec(self) -> Spec:
        specs = tuple(element_spec(part.spec) for part in self.parts)
        return Structure(tuple, (), specs) if self.structure is None else _spec_of(self.structure, specs)

    @property
    def cardinality(self) -> Count:
        counts = [part.cardinality for part in self.parts]
        if 0 in counts:
            return 0
        known = [count for count in counts if count is not None]
        return min(known) if len(known) == len(counts) else None

    def open(self, opening: Opening) -> Stream:
        return ZipStream([open_elements(opening, part) for part in self.parts], self.structure)


def _spec_of(structure: Any, specs: Sequence[ElementSpec]) -> ElementSpec:
    taken = parts_of(structure)
    if taken is None:
        found: ElementSpec = specs[structure]
        return found
    return Structure(type(structure), taken[0], tuple(_spec_of(part, specs) for part in taken[1]))


class ZipStream(Stream):
    def __init__(self, sources: list[Stream], structure: Any = None) -> None:
        self._sources = sources
        self._structure = structure

    def __next__(self) -> Element:
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
        return tuple(taken) if self._structure is None else each_leaf(taken.__getitem__, self._structure)

    def state(self) -> State:
        return {"inputs": [source.state() for source in self._sources]}

    def restore(self, state: State) -> None:
        for source, its in zip(self._sources, state["inputs"], strict=True):
            source.restore(its)

    def close(self) -> None:
        for source in self._sources:
            source.close()
