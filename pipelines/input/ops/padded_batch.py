"""Batches of arrays of different sizes, padded to the largest of the batch or to given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import UNKNOWN, Spec, build, parts_of
from spanwise.pipelines.input.op import (
    Count,
    Element,
    Op,
    Opening,
    SingleInputStream,
    Stream,
    ceil_div,
    check_whole,
    needs_full_groups,
    next_group,
)
from spanwise.pipelines.input.rows import open_elements
from spanwise.pipelines.input.stacking import stack

Padding: TypeAlias = "int | float | str | bytes | bool | None | Mapping[str, Padding] | tuple[Padding, ...]"
"""One value for all leaves, or a structure like the element's; None for 0, "" or False as the type has it."""

Sizes: TypeAlias = "Sequence[int | None] | Mapping[str, Sizes] | None"
"""Sizes of a leaf's axes, None for the largest of the batch; or a dict like the element's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PaddedBatch(Op):
    input: Op
    size: int
    shapes: Sizes = None
    values: Padding = None
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        check_whole("padded_batch", "size", self.size)

    @property
    def needs_all(self) -> str:
        return needs_full_groups(self, drop_remainder=self.drop_remainder)

    @property
    def spec(self) -> Spec:
        return UNKNOWN

    @property
    def cardinality(self) -> Count:
        return ceil_div(self.input.cardinality, self.size, drop=self.drop_remainder)

    def open(self, opening: Opening) -> Stream:
        return PaddedBatchStream(open_elements(opening, self.input), self)


class PaddedBatchStream(SingleInputStream):
    def __init__(self, source: Stream, op: PaddedBatch) -> None:
        super().__init__(source)
        self._op = op

    def __next__(self) -> Element:
        elements = next_group(self._source, self._op.size, drop_remainder=self._op.drop_remainder)
        return pad_batch(elements, self._op.shapes, self._op.values)


def pad_batch(found: Sequence[Element], shapes: Sizes = None, values: Padding = None) -> Element:
    """The stack of the elements, each leaf padded at its end on every axis.

    Raises:
        DatasetError: a leaf is larger than the shape allows, or has another number of axes.
    """
    import numpy as np

    taken = parts_of(found[0])
    if taken is not None:
        names, parts = taken
        columns = zip(*[_parts(element) for element in found], strict=True)
        keys: Sequence[str | int] = names or range(len(parts))
        return build(
            type(found[0]),
            names,
            [
                pad_batch(column, _of(shapes, key, Mapping), _of(values, key, Mapping | tuple))
                for key, column in zip(keys, columns, strict=True)
            ],
        )
    arrays = [np.asarray(element) for element in found]
    axes = {array.ndim for array in arrays}
    if len(axes) > 1:
        raise DatasetError(f"padded_batch: elements with {sorted(axes)} axes cannot be batched.")
    largest = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    wanted = list(shapes) if isinstance(shapes, Sequence) else [None] * len(largest)
    if len(wanted) != len(largest) or any(
        size is not None and size < has for size, has in zip(wanted, largest, strict=False)
    ):
        raise DatasetError(f"padded_batch(shapes={shapes!r}): an element has the shape {tuple(largest)}.")
    shape = [has if size is None else size for size, has in zip(wanted, largest, strict=True)]
    if not shape:
        return stack(found)
    kind = np.result_type(*arrays)
    filled = np.zeros((len(arrays), *shape), kind)
    if values is not None:
        filled[...] = values
    for row, array in zip(filled, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return filled


def _parts(element: Element) -> tuple[Any, ...]:
    taken = parts_of(element)
    if taken is None:
        raise DatasetError(f"padded_batch: {element!r:.80} has another structure than the elements before it.")
    return taken[1]


def _of(given: Any, key: str | int, kinds: Any) -> Any:
    """The argument for one part: one value for all, or a structure."""
    if isinstance(given, kinds):
        return given.get(key) if isinstance(given, Mapping) else given[key]
    return given
