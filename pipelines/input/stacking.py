"""Stacking: how elements become one batch, and a batch becomes elements again."""

from __future__ import annotations

import array as array_module
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import UNKNOWN, ElementSpec, Ragged, Sparse, Structure, build, is_fixed, parts_of
from spanwise.pipelines.input.row_order import refuse_mixed_orders
from spanwise.pipelines.input.rows import row_dicts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NUMBERS: Final = frozenset({bool, int, float, complex})
_FAMILIES: Final = dict.fromkeys("biufc", "numbers")  #: of dtypes, by their kind; all others by themselves
_PYTHONS: Final = frozenset("?ldDUS")  #: dtypes that are Python's own: a batch of such numbers has them again
_EXACT: Final = 2.0**53  #: below it, a float holds every whole number
_WORD: Final = 8  #: bytes of a number that a float may not hold exactly


def stack(elements: Sequence[Any], *, ragged: bool = False, where: str = "", spec: ElementSpec = UNKNOWN) -> Any:
    """One element whose leaves have a new first axis.

    None or `np.ma.masked` among the leaves makes a masked array, `Sparse` a `Sparse`. With `ragged`, arrays make a
    `Ragged`, unless `spec` says that all of them have one shape: lengths that happen to be equal must not change the
    kind.

    Raises:
        DatasetError: the elements differ in structure, type or shape; the message says in which part.
    """
    first = elements[0]
    taken = parts_of(first)
    if taken is not None:
        names, parts = taken
        columns = [parts_like(first, element, where) for element in elements]
        labels = names or tuple(map(str, range(len(parts))))
        stacked = [
            stack(
                [column[at] for column in columns], ragged=ragged, where=f"{where}[{label!r}]", spec=_part(spec, label)
            )
            for at, label in enumerate(labels)
        ]
        return build(type(first), names, stacked)
    if any(map(_is_missing, elements)):
        return _masked(elements, where)
    if isinstance(first, Sparse):
        return _sparse(elements, where)
    if isinstance(first, Ragged):
        raise DatasetError(f"elements{where} are Ragged already; rebatch(n, ragged=True) changes their size.")
    if _is_arrow(first):
        raise DatasetError(f"elements{where} are RecordBatches already; use rebatch to change their size.")
    kinds = set(map(type, elements))
    if kinds <= _NUMBERS:
        return _numbers(elements, kinds, where)
    if len({next((text for text in (str, bytes) if issubclass(kind, text)), None) for kind in kinds}) > 1:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DatasetError(f"elements{where} of different types ({found}) cannot be batched.")
    return _arrays(leaf_arrays(elements, where), where, ragged=ragged and not is_fixed(spec))


def _numbers(elements: Sequence[Any], kinds: set[type], where: str) -> NDArray[Any]:
    """Python's own numbers; whole ones stay exact, however large."""
    import numpy as np

    array = np.asarray(elements)
    if array.dtype.kind not in "fc" or int not in kinds:
        return array
    if kinds <= {int, bool}:  # more than 64 bits hold, or signs that no type has together
        return np.array(elements, object)
    large = [element for element in elements if type(element) is int and int(float(element)) != element]
    if large:
        raise DatasetError(
            f"elements{where}: {large[0]} cannot be batched with floats, since no float is exactly this number."
        )
    return array


def leaf_arrays(elements: Sequence[Any], where: str, like: Any = None) -> list[NDArray[Any]]:
    """Leaves as arrays. An empty list is one of what the others hold, or `like`: NumPy would make floats of it."""
    import numpy as np

    if all(type(element) is np.ndarray for element in elements):
        return list(elements)
    arrays = [_leaf(element, where) for element in elements]
    is_typed = [
        array.size > 0 or not isinstance(element, list) for element, array in zip(elements, arrays, strict=True)
    ]
    if all(is_typed) or not (any(is_typed) or like is not None):
        return arrays
    kind = arrays[is_typed.index(True)].dtype if any(is_typed) else _leaf(like, where).dtype
    return [array if typed else array.astype(kind) for array, typed in zip(arrays, is_typed, strict=True)]


def _leaf(element: Any, where: str) -> NDArray[Any]:
    """A leaf as an array; texts and other objects as an array of objects, in which they stay what they are."""
    import numpy as np

    if isinstance(element, np.ndarray | np.generic) and not isinstance(element, str | bytes):
        return np.asanyarray(element)
    if isinstance(element, list | range | array_module.array):
        return _nested(element, where)
    if not isinstance(element, str | bytes) and (hasattr(element, "__array__") or hasattr(element, "__buffer__")):
        return np.asarray(element)
    if type(element) in _NUMBERS:
        return np.asarray(element)
    one = np.empty((), object)
    one[()] = element
    return one


def _nested(values: Any, where: str) -> NDArray[Any]:
    """Lists of numbers, texts or other things, nested to one depth, as an array."""
    import numpy as np

    try:
        found = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise DatasetError(f"elements{where}: the list {values!r:.80} has no shape ({error}).") from error
    cuts_texts = found.dtype.kind in "US"
    return np.asarray(values, object) if cuts_texts or find_rounded(found, values) is not None else found


def find_rounded(found: NDArray[Any], values: Any) -> int | None:
    """The first whole number in lists of which NumPy has made another one, as it does beside floats; None if none."""
    import numpy as np

    if found.dtype.kind not in "fc":
        return None
    with np.errstate(invalid="ignore"):
        large = np.argwhere(np.abs(found) >= _EXACT)
    for place in large:
        value = values
        for at in place:
            value = value[at]
        if isinstance(value, int | np.integer) and int(value) != int(found[tuple(place)].real):
            return int(value)
    return None


def _arrays(arrays: list[NDArray[Any]], where: str, *, ragged: bool) -> NDArray[Any] | Ragged:
    import numpy as np

    shape = arrays[0].shape
    kind = common_dtype(arrays, where)
    masked = any(isinstance(array, np.ma.MaskedArray) for array in arrays)
    join = np.ma.concatenate if masked else np.concatenate
    if ragged and all(array.ndim for array in arrays) and len({array.shape[1:] for array in arrays}) == 1:
        return Ragged(join(arrays).astype(kind, copy=False), np.cumsum([0, *map(len, arrays)], dtype=np.int64))
    if len({array.shape for array in arrays}) > 1:
        shapes = ", ".join(sorted({str(array.shape) for array in arrays}))
        raise DatasetError(
            f"elements{where} of different shapes ({shapes}) cannot be batched. "
            f"Use padded_batch, or batch(..., ragged=True), or bucket_by_sequence_length."
        )
    if not shape:
        return join([array.reshape(1) for array in arrays]).astype(kind, copy=False)
    # a sixth of the time that `np.stack` takes
    return join(arrays).reshape(len(arrays), *shape).astype(kind, copy=False)


def common_dtype(arrays: Sequence[NDArray[Any]], where: str) -> np.dtype[Any]:
    """The dtype of a batch of these arrays.

    Raises:
        DatasetError: they are of different types, or no dtype holds the values of all of them.
    """
    import numpy as np

    dtypes = {array.dtype for array in arrays}
    if len(dtypes) == 1:
        return arrays[0].dtype
    names = ", ".join(sorted({_type_name(array) for array in arrays}))
    if len({_FAMILIES.get(dtype.kind, dtype.kind) for dtype in dtypes}) > 1:
        raise DatasetError(f"elements{where} of different types ({names}) cannot be batched.")
    common = np.result_type(*dtypes)
    for array in arrays:
        if array.dtype != common and array.dtype.kind in "iumM" and array.dtype.itemsize == _WORD:
            values, back = (np.ma.getdata(each) for each in (array, array.astype(common).astype(array.dtype)))
            if not ((back == values) | (values != values)).all():  # noqa: PLR0124  NaT
                raise DatasetError(f"elements{where} of the types {names} cannot be batched without losing digits.")
    return common


def _part(spec: ElementSpec, label: str) -> ElementSpec:
    """The spec of one part of a structure, by its name or, in a plain tuple, its number."""
    if not isinstance(spec, Structure):
        return UNKNOWN
    return dict(zip(spec.names or map(str, range(len(spec.parts))), spec.parts, strict=True)).get(label, UNKNOWN)


def parts_like(first: object, element: object, where: str) -> tuple[Any, ...]:
    """The parts of an element, in the order of those of the first one.

    Raises:
        DatasetError: it is of another structure.
    """
    names, parts = parts_of(first) or ((), ())
    count, kind = len(parts), type(first)
    taken = parts_of(element)
    if taken is not None and taken[0] == names and len(taken[1]) == count and type(element) is kind:
        return taken[1]
    if taken is None or len(taken[1]) != count or type(element) is not kind or set(taken[0]) != set(names):
        raise DatasetError(
            f"elements{where} of different structure cannot be batched: one is a {kind.__name__} of "
            f"{', '.join(names) or f'{count} parts'}, another is {element!r:.80}."
        )
    by_name = dict(zip(*taken, strict=True))
    return tuple(by_name[name] for name in names)


def _type_name(array: NDArray[Any]) -> str:
    return type(array[()]).__name__ if array.dtype.kind == "O" and not array.ndim else str(array.dtype)


def _is_missing(element: Any) -> bool:
    import numpy as np

    return element is None or element is np.ma.masked


def _masked(elements: Sequence[Any], where: str) -> NDArray[Any]:
    """With a mask where an element is missing; of objects, which may be None themselves, without."""
    import numpy as np

    from spanwise.pipelines.input.nullable import NullableArray

    gone = np.asarray([_is_missing(element) for element in elements])
    there = [element for element, missing in zip(elements, gone, strict=True) if not missing]
    if not there:
        return NullableArray(np.zeros(len(elements)), gone)
    known = stack(there, where=where)
    if not isinstance(known, np.ndarray):
        raise DatasetError(f"elements{where}: None among {type(known).__name__}s; only arrays may be missing.")
    values = np.zeros((len(elements), *known.shape[1:]), known.dtype)
    if known.dtype.kind == "O":
        values[gone] = None
    values[~gone] = np.ma.getdata(known)
    if known.dtype.kind == "O" and known.ndim == 1:
        return values
    mask = np.zeros(values.shape, bool)
    mask[gone], mask[~gone] = True, np.ma.getmaskarray(known)
    return NullableArray(values, mask)


def _sparse(elements: Sequence[Any], where: str) -> Sparse:
    import numpy as np

    shapes = {element.shape for element in elements if isinstance(element, Sparse)}
    if len(shapes) != 1 or not all(isinstance(element, Sparse) for element in elements):
        raise DatasetError(f"elements{where}: sparse arrays of different shapes cannot be batched.")
    numbers = np.repeat(np.arange(len(elements)), [len(element.values) for element in elements])
    indices = np.column_stack([numbers, np.concatenate([element.indices for element in elements])])
    values = np.concatenate([element.values for element in elements])
    return Sparse(indices, values, (len(elements), *shapes.pop()))


def unstack(batch: Any) -> Iterator[Any]:
    """The elements of a batch, by the first axis of its leaves: what `stack` put together.

    Raises:
        DatasetError: its leaves have no first axis, or first axes of different lengths, or with the rows in another
            order.
    """
    taken = parts_of(batch)
    if taken is None:
        return _split_batch(batch)
    names, parts = taken
    if len({length(part) for part in parts}) > 1:
        raise DatasetError(f"the parts of a batch have different lengths: {[length(part) for part in parts]}.")
    refuse_mixed_orders(batch)
    kind = type(batch)
    return (build(kind, names, each) for each in zip(*map(unstack, parts), strict=True))


def length(batch: Any) -> int:
    """How many elements a batch holds.

    Raises:
        DatasetError: it has no first axis.
    """
    taken = parts_of(batch)
    if taken is not None:
        return length(taken[1][0]) if taken[1] else 0
    if isinstance(batch, Sparse):
        return batch.shape[0]
    try:
        return len(batch)
    except TypeError as error:
        raise DatasetError(f"{batch!r:.80} has no first axis, so it is not a batch of elements.") from error


def _is_arrow(leaf: object) -> bool:
    import pyarrow as pa

    return isinstance(leaf, pa.RecordBatch | pa.Table)


def _split_batch(leaf: Any) -> Iterator[Any]:
    import numpy as np

    if _is_arrow(leaf):  # which would give its columns
        return iter(row_dicts(leaf))
    if isinstance(leaf, np.ma.MaskedArray):
        return _split_masked(leaf)
    if isinstance(leaf, Sparse):
        return (_row(leaf, number) for number in range(leaf.shape[0]))
    if hasattr(leaf, "columns") and hasattr(leaf, "to_numpy"):  # pandas would give the names of its columns
        raise DatasetError(
            f"a {type(leaf).__name__} is not a batch of elements: its rows are those of frame.to_numpy(), or of "
            "from_arrow(pyarrow.Table.from_pandas(frame)), with Polars from_arrow(frame.to_arrow())."
        )
    length(leaf)
    return map(to_python, leaf)


def _split_masked(leaf: np.ma.MaskedArray[Any, Any]) -> Iterator[Any]:
    """None for what is missing, masked arrays for what is missing in part."""
    import numpy as np

    mask = np.ma.getmaskarray(leaf)
    for row, value in zip(mask, leaf.data, strict=True):
        if np.all(row) and row.size:
            yield None
        else:
            yield np.ma.MaskedArray(value, row) if np.any(row) else to_python(value)


def _row(leaf: Sparse, number: int) -> Sparse:
    there = leaf.indices[:, 0] == number
    return Sparse(leaf.indices[there, 1:], leaf.values[there], leaf.shape[1:])


def to_python(value: Any) -> Any:
    """A NumPy scalar as Python's own, where this says as much; everything else as it is."""
    import numpy as np

    return value.item() if isinstance(value, np.generic) and value.dtype.char in _PYTHONS else value


def cut(batch: Any, start: int, stop: int) -> Any:
    """Elements `start` to `stop` of a batch, as a batch, without copying where the leaves allow it."""
    import numpy as np

    taken = parts_of(batch)
    if taken is not None:
        return build(type(batch), taken[0], [cut(part, start, stop) for part in taken[1]])
    if isinstance(batch, Sparse):
        there = (batch.indices[:, 0] >= start) & (batch.indices[:, 0] < stop)
        shift = np.asarray([start, *[0] * (batch.indices.shape[1] - 1)])
        return Sparse(batch.indices[there] - shift, batch.values[there], (stop - start, *batch.shape[1:]))
    return batch[start:stop]
