"""Each element once: those that equal an earlier one are left out.

A state holds no elements, so a restored stream reads its input again from the beginning, to know which have been there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines.input.element import Spec, element_spec, parts_of
from spanwise.pipelines.input.equality import equal_key
from spanwise.pipelines.input.op import Element, Op, Opening, SingleInputStream, State, Stream
from spanwise.pipelines.input.rows import open_elements


@dataclass(frozen=True, kw_only=True, eq=False)
class Unique(Op):
    input: Op

    @property
    def spec(self) -> Spec:
        return element_spec(self.input.spec)

    @property
    def cardinality(self) -> int | None:
        return 0 if self.input.cardinality == 0 else None

    def open(self, opening: Opening) -> Stream:
        return UniqueStream(open_elements(opening, self.input))


class UniqueStream(SingleInputStream):
    def __init__(self, source: Stream) -> None:
        super().__init__(source)
        self._seen: set[Any] = set()
        self._at = 0  # elements read, and errors
        self._begin: State | None = None  # the input's, before its first element
        self._ended = False

    def __next__(self) -> Element:
        self._begin = self._from_begin()
        while not self._ended:
            try:
                element = next(self._source)
            except StopIteration:
                self._ended = True
                raise
            except Exception:
                self._at += 1
                raise
            self._at += 1
            key = content_key(element)
            if key not in self._seen:
                self._seen.add(key)
                return element
        raise StopIteration

    def _from_begin(self) -> State:
        return self._source.state() if self._begin is None else self._begin

    def state(self) -> State:
        return {"at": self._at, "input": None if self._ended else self._from_begin()}

    def restore(self, state: State) -> None:
        if state.get("input", {}) is None:
            self._at, self._ended = state["at"], True
        while self._at < state["at"]:
            try:
                next(self)
            except StopIteration:  # the last elements may all have been there before
                break
            except FunctionFailed:  # raised before the state was taken
                continue


def content_key(element: Any) -> Any:
    """What two elements have in common if they are equal; a NaN equals a NaN, and 1 does not equal True or 1.0.

    Raises:
        DatasetError: nothing tells whether elements of this kind are equal.
    """
    import numpy as np

    taken = parts_of(element)
    if taken is not None:
        pairs = zip(*taken, strict=True) if taken[0] else enumerate(taken[1])
        keys = {name: content_key(part) for name, part in pairs}
        return type(element), frozenset(keys.items())  # dicts are equal in whatever order
    if isinstance(element, np.ma.MaskedArray):
        return "masked", content_key(np.ma.getmaskarray(element)), content_key(element.filled(0))
    if isinstance(element, np.ndarray | np.generic) and element.dtype.kind != "O":
        return type(element), element.dtype.str, element.shape, element.tobytes()
    if isinstance(element, np.ndarray):
        return type(element), element.shape, tuple(map(content_key, element.flat))
    if isinstance(element, list):
        return type(element), tuple(map(content_key, element))
    try:
        hash(element)
    except TypeError as error:
        raise DatasetError(f"unique: elements of the type {type(element).__name__} cannot be compared.") from error
    return type(element), "nan" if element != element else equal_key(element)  # noqa: PLR0124  NaN
