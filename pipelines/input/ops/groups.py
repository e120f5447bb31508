"""Groups of elements with the same key, as datasets: a group is given when it has its size, or at the end.

A state names the elements that wait in groups by their distance from the oldest of them, and holds none itself.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines.input.call import element_caller, function_error
from spanwise.pipelines.input.element import UNKNOWN, DatasetSpec, Spec, Structure
from spanwise.pipelines.input.equality import equal_key
from spanwise.pipelines.input.op import (
    Element,
    Op,
    Opening,
    SingleInputStream,
    State,
    Stream,
    check_callable,
    check_whole,
)
from spanwise.pipelines.input.ops.arrow import Arrow
from spanwise.pipelines.input.ops.tensors import Elements
from spanwise.pipelines.input.rows import RowCursor, in_rows, join_batches, row_dicts


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups(Op):
    input: Op
    key: Callable[..., Any]
    size: int | Callable[[Any], int]  #: how many elements make a group; a function says it for a key

    def __post_init__(self) -> None:
        check_callable("group_by_window", "key", self.key)
        if not callable(self.size):
            check_whole("group_by_window", "size", self.size)

    @property
    def needs_all(self) -> str:
        return ""

    @property
    def spec(self) -> Spec:
        return Structure(tuple, (), (UNKNOWN, DatasetSpec(self.input.spec)))

    @property
    def cardinality(self) -> None:
        return None

    def open(self, opening: Opening) -> Stream:
        kind = RowGroupsStream if in_rows(self.input) else GroupsStream
        return kind(opening.open(self.input), self, opening.nested)


class GroupsStream(SingleInputStream):
    def __init__(self, source: Stream, op: Groups, dataset: Callable[[Op], Any]) -> None:
        super().__init__(source, self._reader(source))
        self._op = op
        self._dataset = dataset
        self._call = element_caller(op.key)
        self._at = 0  # elements read, and errors
        self._groups: dict[Hashable, dict[int, Element]] = {}  # by what equal keys share; elements by their numbers
        self._keys: dict[Hashable, Hashable] = {}  # of the groups
        self._before: dict[int, State] = {}  # the input's state before each element that waits

    def _reader(self, source: Stream) -> Any:
        return source

    def _read(self) -> tuple[Element, Element]:
        """The next element: as it is stored, and as the key is made of it."""
        element = next(self._source)
        return element, element

    def _gathered(self, elements: list[Element]) -> Op:
        return Elements(values=tuple(elements))

    def __next__(self) -> Element:
        while True:
            try:
                group = self._add_next()
            except StopIteration:
                if not self._groups:
                    raise
                return self._leave(next(iter(self._groups)))  # the one that has waited longest
            if len(self._groups[group]) >= self._size(self._keys[group]):
                return self._leave(group)

    def _add_next(self) -> Hashable:
        before = self._place.state()
        try:
            element, seen = self._read()
        except StopIteration:
            raise
        except Exception:
            self._at += 1
            raise
        number, self._at = self._at, self._at + 1
        try:
            key = self._call(seen)
            key = key.item() if hasattr(key, "item") else key
            hash(key)
            if key != key:  # noqa: PLR0124  NaN, of which two objects are two keys of a dict
                key = math.nan
        except Exception as error:
            raise function_error("group_by_window", self._op.key, f"element {number}", error) from error
        group = equal_key(key)
        self._keys.setdefault(group, key)
        self._groups.setdefault(group, {})[number] = element
        self._before[number] = before
        return group

    def _size(self, key: Hashable) -> int:
        size = self._op.size
        if not callable(size):
            return size
        try:
            found = size(key)
            if isinstance(found, bool) or not isinstance(found, int) or found < 1:
                raise DatasetError(f"must return a whole number of at least 1, not {found!r:.80}.")  # noqa: TRY301
        except Exception as error:
            raise function_error("group_by_window", size, f"the key {key!r:.80}", error) from error
        return found

    def _leave(self, group: Hashable) -> tuple[Hashable, Any]:
        elements = self._groups.pop(group)
        for number in elements:
            del self._before[number]
        return self._keys.pop(group), self._dataset(self._gathered(list(elements.values())))

    def state(self) -> State:
        oldest = min(self._before, default=self._at)
        return {
            "input": self._before[oldest] if self._before else self._place.state(),
            "oldest": oldest,
            "read": self._at,
            "waiting": sorted(self._before),
        }

    def restore(self, state: State) -> None:
        super().restore(state)
        self._at = state["oldest"]
        waiting = set(state["waiting"])
        while self._at < state["read"]:
            if self._at in waiting:
                self._add_next()
                continue
            with contextlib.suppress(FunctionFailed):  # raised before the state was taken
                self._read()
            self._at += 1


class RowGroupsStream(GroupsStream):
    """Rows wait as slices of the blocks that they came in, so that groups are tables of the same types."""

    def _reader(self, source: Stream) -> Any:
        self._rows = RowCursor(source)
        return self._rows

    def _read(self) -> tuple[Element, Element]:
        row = self._rows.take(1)
        return row, row_dicts(row)[0]

    def _gathered(self, elements: list[Element]) -> Op:
        import pyarrow as pa

        return Arrow(table=pa.Table.from_batches([join_batches(elements)]))
