"""What an element is: nested dicts, tuples, named tuples and dataclasses whose leaves have a dtype and a shape.

Elements may also be rows of a table (`Table`, which travel in blocks) or Arrow batches of rows (`BatchSpec`).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

Shape: TypeAlias = "tuple[int | None, ...] | None"
"""Sizes of the axes; None for one that differs from element to element, or for all of them."""


@dataclass(frozen=True)
class Ragged:
    """Arrays of different lengths as one: row i is `values[offsets[i]:offsets[i + 1]]`, as in an Arrow list array."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, at: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, at: slice) -> Ragged: ...
    def __getitem__(self, at: int | slice) -> NDArray[Any] | Ragged:
        """One row, or several rows that follow each other; no values are copied."""
        if isinstance(at, int):
            row = range(len(self))[at]
            return self.values[self.offsets[row] : self.offsets[row + 1]]
        start, stop, _ = at.indices(len(self))
        offsets = self.offsets[start : max(start, stop) + 1]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[row] for row in range(len(self)))


@dataclass(frozen=True)
class Sparse:
    """An array that is mostly zero: `values[i]` stands at `indices[i]`, shape (count, axes), of an array of `shape`."""

    indices: NDArray[np.int64]
    values: NDArray[Any]
    shape: tuple[int, ...]

    def dense(self) -> NDArray[Any]:
        import numpy as np

        whole = np.zeros(self.shape, self.values.dtype)
        whole[tuple(self.indices.T)] = self.values
        return whole


class ElementSpec:
    """What the elements of a dataset have in common."""


Spec: TypeAlias = ElementSpec


@dataclass(frozen=True)
class Unknown(ElementSpec):
    """The result of a function that was not described."""


UNKNOWN: Final = Unknown()


@dataclass(frozen=True)
class Table(ElementSpec):
    """Rows. They travel in RecordBatches; one at a time they are dicts."""

    schema: pa.Schema | None  #: None if a function returns it that declared no schema


@dataclass(frozen=True)
class BatchSpec(ElementSpec):
    """RecordBatches."""

    schema: pa.Schema | None  #: None if a function returns it that declared no schema
    rows: int | None  #: None if they are of different sizes


@dataclass(frozen=True)
class ArraySpec(ElementSpec):
    """A NumPy array, or a plain number, text or bytes if it has no axes."""

    dtype: str  #: as NumPy names it: `int64`, `float32`, `str`, `bytes`, `object`
    shape: Shape = ()


@dataclass(frozen=True)
class RaggedSpec(ElementSpec):
    """A `Ragged`."""

    dtype: str
    shape: Shape = None  #: of one value


@dataclass(frozen=True)
class SparseSpec(ElementSpec):
    """A `Sparse`."""

    dtype: str
    shape: Shape = None


@dataclass(frozen=True)
class OptionalSpec(ElementSpec):
    """A value that may be None."""

    of: ElementSpec


@dataclass(frozen=True)
class DatasetSpec(ElementSpec):
    """A dataset as an element of another one."""

    of: ElementSpec


@dataclass(frozen=True)
class Structure(ElementSpec):
    """A dict, tuple, named tuple or dataclass."""

    kind: type  #: `dict`, `tuple`, or the class itself
    names: tuple[str, ...]  #: keys or fields; empty for a plain tuple
    parts: tuple[ElementSpec, ...]


def parts_of(value: object) -> tuple[tuple[str, ...], tuple[Any, ...]] | None:
    """Names and parts of a structure, one level down; None for a leaf. A plain tuple has no names."""
    if isinstance(value, dict):
        return tuple(value), tuple(value.values())
    if isinstance(value, tuple):
        return getattr(value, "_fields", ()), tuple(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Ragged | Sparse) and not hasattr(value, "op"):
        names = tuple(field.name for field in dataclasses.fields(value))
        return names, tuple(getattr(value, name) for name in names)
    return None


def build(kind: type, names: Iterable[str], parts: Iterable[object]) -> object:
    """The structure of that kind with these parts; the reverse of `parts_of`. No constructor is called: it has been."""
    if issubclass(kind, dict):
        return dict(zip(names, parts, strict=True))
    if issubclass(kind, tuple):
        return tuple.__new__(kind, parts)
    made = object.__new__(kind)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(made, name, part)
    return made


def each_leaf(function: Callable[[Any], object], value: object) -> object:
    """The same structure with `function` applied to each leaf."""
    taken = parts_of(value)
    if taken is None:
        return function(value)
    names, parts = taken
    return build(type(value), names, [each_leaf(function, part) for part in parts])


_IMMUTABLE: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})


def freeze(value: Any) -> Any:
    """An array, or a `Ragged` of arrays, that cannot be written to. What is in arrays of objects is as it was."""
    if isinstance(value, Ragged):
        return Ragged(freeze(value.values), freeze(value.offsets))
    return _frozen_array(value)


def read_only(value: Any) -> Any:  # noqa: PLR0911  one line per kind of part
    """The same element with arrays that cannot be written to: a source, a cache or another function may hold it too.

    Dicts, lists and dataclasses, also those in arrays, are copied, so that what is put into them stays out of the
    original.
    """
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    import numpy as np

    if isinstance(value, np.ndarray):
        return _frozen_array(value, _own_items)
    if kind is Ragged:
        return Ragged(read_only(value.values), read_only(value.offsets))
    if kind is Sparse:
        return Sparse(read_only(value.indices), read_only(value.values), value.shape)
    if kind is list:
        return [read_only(item) for item in value]
    if kind in {bytearray, set}:
        return copy.copy(value)
    if kind is dict:
        return {name: read_only(part) for name, part in value.items()}
    taken = parts_of(value)
    return value if taken is None else _read_only_structure(value, *taken)


def _frozen_array(array: NDArray[Any], of: Callable[[NDArray[Any]], NDArray[Any]] | None = None) -> NDArray[Any]:
    """The array, or with `of` what this makes of arrays of objects, as one that cannot be written to."""
    import numpy as np

    if array is np.ma.masked:
        return array
    if isinstance(array, np.ma.MaskedArray):
        values, mask = (_frozen_array(each, of) for each in (array.data, np.ma.getmaskarray(array)))
        fill = getattr(array, "_fill_value", None)  # None if nobody has asked for it, and then it follows the dtype
        masked: NDArray[Any] = type(array)(values, mask, fill_value=fill)
        return masked
    if of is not None and array.dtype.kind == "O":
        array = of(array)
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _own_items(array: NDArray[Any]) -> NDArray[Any]:
    """An array of objects with read-only ones; the same if none of them can be changed."""
    import numpy as np

    items = array.ravel().tolist()
    if _IMMUTABLE.issuperset(map(type, items)):
        return array
    fresh = list(map(read_only, items))
    if all(new is old for new, old in zip(fresh, items, strict=True)):
        return array
    return np.fromiter(fresh, object, len(fresh)).reshape(array.shape)


def _read_only_structure(value: Any, names: tuple[str, ...], parts: tuple[Any, ...]) -> Any:
    fresh = tuple(map(read_only, parts))
    if isinstance(value, tuple):
        unchanged = all(new is old for new, old in zip(fresh, parts, strict=True))
        return value if unchanged else build(type(value), names, fresh)
    made = copy.copy(value)
    for name, part in zip(names, fresh, strict=True):
        if isinstance(made, dict):
            made[name] = part
        else:
            object.__setattr__(made, name, part)
    return made


def spec_of(value: object) -> ElementSpec:  # noqa: PLR0911  one line per kind of leaf
    """What one element is."""
    import numpy as np
    import pyarrow as pa

    if isinstance(value, pa.RecordBatch):
        return BatchSpec(value.schema, value.num_rows)
    if isinstance(value, Ragged):
        return RaggedSpec(value.values.dtype.name, value.values.shape[1:])
    if isinstance(value, Sparse):
        return SparseSpec(value.values.dtype.name, value.shape)
    if value is None:
        return OptionalSpec(UNKNOWN)
    if isinstance(nested := getattr(value, "spec", None), ElementSpec):
        return DatasetSpec(nested)
    taken = parts_of(value)
    if taken is not None:
        names, parts = taken
        return Structure(type(value), names, tuple(map(spec_of, parts)))
    if isinstance(value, str | bytes):
        return ArraySpec(type(value).__name__)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of lists of different lengths
        return UNKNOWN
    kinds = {"U": "str", "S": "bytes"}  # without the width, which is that of the longest
    held = set(map(type, array.flat)) if array.dtype.kind == "O" else ()
    name = next((kind.__name__ for kind in (str, bytes) if held == {kind}), array.dtype.name)
    return ArraySpec(kinds.get(array.dtype.kind, name), array.shape)


def element_spec(spec: ElementSpec) -> ElementSpec:
    """What one element is where rows come as dicts."""
    if not isinstance(spec, Table):
        return spec
    if spec.schema is None:
        return UNKNOWN
    return Structure(dict, tuple(spec.schema.names), (UNKNOWN,) * len(spec.schema.names))


def merge_specs(specs: Iterable[ElementSpec]) -> ElementSpec:
    """The spec that covers all of these: parts that may be None, axes that differ in size."""
    return reduce(_both, dict.fromkeys(specs), None) or UNKNOWN


def _both(left: ElementSpec | None, right: ElementSpec) -> ElementSpec:  # noqa: PLR0911  one line per kind of spec
    if left is None or left == right:
        return right
    if UNKNOWN in {left, right}:
        return UNKNOWN
    if isinstance(left, BatchSpec) and isinstance(right, BatchSpec) and left.schema == right.schema:
        return BatchSpec(left.schema, None)
    if isinstance(left, OptionalSpec) or isinstance(right, OptionalSpec):
        parts = [each.of if isinstance(each, OptionalSpec) else each for each in (left, right)]
        return OptionalSpec(merge_specs(part for part in parts if part != UNKNOWN))
    if isinstance(left, ArraySpec) and isinstance(right, ArraySpec) and left.dtype == right.dtype:
        return ArraySpec(left.dtype, _both_shapes(left.shape, right.shape))
    if isinstance(left, Structure) and isinstance(right, Structure) and _frame(left) == _frame(right):
        return Structure(left.kind, left.names, tuple(map(_both, left.parts, right.parts)))
    return UNKNOWN


def _both_shapes(left: Shape, right: Shape) -> Shape:
    if left is None or right is None or len(left) != len(right):
        return None
    return tuple(size if size == other else None for size, other in zip(left, right, strict=True))


def _frame(spec: Structure) -> tuple[type, tuple[str, ...], int]:
    return spec.kind, spec.names, len(spec.parts)


def is_fixed(spec: ElementSpec) -> bool:
    """Whether all arrays that it describes have the same shape."""
    return isinstance(spec, ArraySpec) and spec.shape is not None and None not in spec.shape


def batch_spec(spec: ElementSpec, size: int | None, *, ragged: bool = False) -> ElementSpec:
    """What a stack of `size` such elements is; None for stacks of different sizes. `ragged`: see `stacking.stack`."""
    if isinstance(spec, Table):
        return BatchSpec(spec.schema, size)
    if isinstance(spec, ArraySpec):
        return _batched_arrays(spec, size, ragged=ragged)
    if isinstance(spec, SparseSpec):
        return SparseSpec(spec.dtype, None if spec.shape is None else (size, *spec.shape))
    if isinstance(spec, OptionalSpec):
        return OptionalSpec(batch_spec(spec.of, size))
    if isinstance(spec, Structure):
        return Structure(spec.kind, spec.names, tuple(batch_spec(part, size, ragged=ragged) for part in spec.parts))
    return UNKNOWN


def _batched_arrays(spec: ArraySpec, size: int | None, *, ragged: bool) -> ElementSpec:
    if spec.shape is None:
        return UNKNOWN if ragged else spec
    if ragged and not is_fixed(spec):
        return RaggedSpec(spec.dtype, spec.shape[1:])
    return ArraySpec(spec.dtype, (size, *spec.shape))


def unbatch_spec(spec: ElementSpec) -> ElementSpec:
    """What the elements of such a batch are."""
    if isinstance(spec, BatchSpec):
        return Table(spec.schema)
    if isinstance(spec, ArraySpec | SparseSpec):
        return type(spec)(spec.dtype, None if spec.shape is None else spec.shape[1:])
    if isinstance(spec, RaggedSpec):
        return ArraySpec(spec.dtype, None if spec.shape is None else (None, *spec.shape))
    if isinstance(spec, OptionalSpec):
        return OptionalSpec(unbatch_spec(spec.of))
    if isinstance(spec, Structure):
        return Structure(spec.kind, spec.names, tuple(element_spec(unbatch_spec(part)) for part in spec.parts))
    return UNKNOWN
