"""Elements from memory: one after another, or the slices of arrays along their first axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from spanwise.pipelines.input.element import Spec, merge_specs, read_only, spec_of, unbatch_spec
from spanwise.pipelines.input.op import Element, Op, Opening, State, Stream
from spanwise.pipelines.input.stacking import cut, length, unstack

_SCALARS: Final = frozenset({bool, bytes, float, str})


@dataclass(frozen=True, kw_only=True, eq=False)
class Elements(Op):
    values: tuple[Any, ...] = field(repr=False)

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()  # an op among the values is an element

    @cached_property
    def spec(self) -> Spec:
        kinds = set(map(type, self.values))
        values = self.values
        if kinds == {int}:
            values = min(values), max(values)  # a dtype that holds these two holds all of them
        elif len(kinds) == 1 and kinds <= _SCALARS:
            values = values[:1]  # one of a million numbers describes them all
        return merge_specs(map(spec_of, values))

    @property
    def cardinality(self) -> int:
        return len(self.values)

    def open(self, opening: Opening) -> Stream:
        return ElementsStream(self.values)


class ElementsStream(Stream):
    def __init__(self, values: Any) -> None:
        self._values = values
        self._rest = self._from(0)
        self._at = 0

    def _from(self, at: int) -> Iterator[Element]:
        return map(read_only, self._values[at:])

    def __next__(self) -> Element:
        element = next(self._rest)
        self._at += 1
        return element

    def state(self) -> State:
        return {"at": self._at}

    def restore(self, state: State) -> None:
        self._at = state["at"]
        self._rest = self._from(self._at)


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorSlices(Op):
    tensors: Any = field(repr=False)

    def __post_init__(self) -> None:
        unstack(self.tensors)  # refuses leaves without a first axis, or with different ones

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return unbatch_spec(spec_of(self.tensors))

    @property
    def cardinality(self) -> int:
        return length(self.tensors)

    def open(self, opening: Opening) -> Stream:
        return SlicesStream(self.tensors)


class SlicesStream(ElementsStream):
    def _from(self, at: int) -> Iterator[Element]:
        return unstack(cut(read_only(self._values), at, length(self._values)))
