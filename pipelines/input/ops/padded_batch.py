"""Batches of arrays of different sizes, padded to the largest of the batch or to given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import UNKNOWN, Ragged, Spec, build, parts_of
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
from spanwise.pipelines.input.stacking import common_dtype, leaf_arrays, parts_like, stack

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


def pad_batch(found: Sequence[Element], shapes: Sizes = None, values: Padding = None, where: str = "") -> Element:
    """The stack of the elements, each leaf padded at its end on every axis. What is masked stays so.

    Raises:
        DatasetError: the elements differ in structure or type, a leaf is larger than the shape allows, or has another
            number of axes, or its type does not hold the value that it is padded with.
    """
    taken = parts_of(found[0])
    if taken is not None:
        names, parts = taken
        columns = zip(*[parts_like(found[0], element, where) for element in found], strict=True)
        keys: Sequence[str | int] = names or range(len(parts))
        return build(
            type(found[0]),
            names,
            [
                pad_batch(column, _of(shapes, key, Mapping), _of(values, key, Mapping | tuple), f"{where}[{key!r}]")
                for key, column in zip(keys, columns, strict=True)
            ],
        )
    if shapes is None and all(isinstance(element, Number) for element in found):
        return stack(found, where=where)  # which have no axes to fill up
    if any(isinstance(element, Ragged) for element in found):
        raise DatasetError(f"padded_batch: elements{where} are Ragged, and have no axes to fill up.")
    arrays = leaf_arrays(found, where, like=values)
    axes = {array.ndim for array in arrays}
    if len(axes) > 1:
        raise DatasetError(f"padded_batch: elements{where} with {sorted(axes)} axes cannot be batched.")
    largest = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    wanted = list(shapes) if isinstance(shapes, Sequence) else [None] * len(largest)
    if len(wanted) != len(largest) or any(
        size is not None and size < has for size, has in zip(wanted, largest, strict=False)
    ):
        raise DatasetError(f"padded_batch(shapes={shapes!r}): an element{where} has the shape {tuple(largest)}.")
    shape = [has if size is None else size for size, has in zip(wanted, largest, strict=True)]
    return _filled(arrays, shape, values, where) if shape else stack(found, where=where)


def _filled(arrays: Sequence[NDArray[Any]], shape: Sequence[int], values: Any, where: str) -> NDArray[Any]:
    """Arrays of one shape, in which the padding stands behind each of the arrays."""
    import numpy as np

    value, kind = _padding(arrays, values, where)
    filled = np.empty((len(arrays), *shape), kind)
    filled[...] = value
    for row, array in zip(filled, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = np.ma.getdata(array)
    if not any(isinstance(array, np.ma.MaskedArray) for array in arrays):
        return filled
    mask = np.zeros(filled.shape, bool)
    for gone, array in zip(mask, arrays, strict=True):
        gone[tuple(map(slice, array.shape))] = np.ma.getmaskarray(array)
    return np.ma.MaskedArray(filled, mask) if mask.any() else filled


def _padding(arrays: Sequence[NDArray[Any]], value: Any, where: str) -> tuple[Any, np.dtype[Any]]:
    """The value to pad with, and the dtype of the batch, which holds it.

    Raises:
        DatasetError: no dtype holds the elements and the value.
    """
    import numpy as np

    kinds = {array.dtype for array in arrays}
    if value is None and len(kinds) == 1 and next(iter(kinds)).kind in "biufc":
        return 0, kinds.pop()
    items = [item for array in arrays if array.dtype.kind == "O" for item in array.flat if item is not None]
    numbers = all(isinstance(item, Number) for item in items) and not any(
        array.dtype.kind in _OTHERS for array in arrays
    )
    is_objects = any(array.dtype.kind == "O" for array in arrays)
    kind = np.dtype(object) if is_objects and numbers else common_dtype(arrays, where)
    if value is None:
        return (type(items[0])() if items and isinstance(items[0], _PLAIN) else np.zeros((), kind)[()]), kind
    if kind.kind in "US" and isinstance(value, str if kind.kind == "U" else bytes):
        return value, np.result_type(kind, np.asarray(value))
    if kind.kind == "O" or (kind.kind in "mM" and isinstance(value, str)):
        return value, kind
    try:
        with np.errstate(over="raise"):  # else it becomes infinite
            held = np.asarray(value).astype(kind) if kind.kind in "mM" else np.asarray(value, kind)
    except (FloatingPointError, OverflowError, TypeError, ValueError):
        held = None
    is_rounded = kind.kind in "fc" and isinstance(value, Number) and held is not None and np.isfinite(held)
    if held is None or not (is_rounded or held == value or held != held):  # noqa: PLR0124  NaN
        raise DatasetError(
            f"padded_batch(values={value!r:.80}): elements{where} are of {kind}, which does not hold it."
        )
    return held, kind


_PLAIN: Final = (bool, int, float, complex, str, bytes)
_OTHERS: Final = "USmMV"


def _of(given: Any, key: str | int, kinds: Any) -> Any:
    """The argument for one part: one value for all, or a structure."""
    if isinstance(given, kinds):
        return given.get(key) if isinstance(given, Mapping) else given[key]
    return given
