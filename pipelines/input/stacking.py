"""Stacking: how elements become one batch, and a batch becomes elements again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import UNKNOWN, ElementSpec, Ragged, Sparse, Structure, build, is_fixed, parts_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SCALAR: Final = (str, bytes, int, float, bool)


def stack(elements: Sequence[Any], *, ragged: bool = False, where: str = "", spec: ElementSpec = UNKNOWN) -> Any:
    """One element whose leaves have a new first axis.

    None among the leaves makes a masked array, `Sparse` a `Sparse`. With `ragged`, arrays make a `Ragged`, unless
    `spec` says that all of them have one shape: lengths that happen to be equal must not change the kind.

    Raises:
        DatasetError: the elements differ in structure, type or shape; the message says in which part.
    """
    import numpy as np

    first = elements[0]
    taken = parts_of(first)
    if taken is not None:
        names, parts = taken
        columns = [_parts(element, names, len(parts), type(first), where) for element in elements]
        labels = names or tuple(map(str, range(len(parts))))
        stacked = [
            stack(
                [column[at] for column in columns], ragged=ragged, where=f"{where}[{label!r}]", spec=_part(spec, label)
            )
            for at, label in enumerate(labels)
        ]
        return build(type(first), names, stacked)
    if any(element is None for element in elements):
        return _masked(elements, where)
    if isinstance(first, Sparse):
        return _sparse(elements, where)
    if isinstance(first, Ragged):
        raise DatasetError(f"elements{where} are Ragged already; rebatch(n, ragged=True) changes their size.")
    kinds = set(map(type, elements))
    if all(issubclass(kind, _SCALAR) for kind in kinds):
        return _scalars(elements, kinds, where)
    return _arrays([np.asarray(element) for element in elements], where, ragged=ragged and not is_fixed(spec))


def _arrays(arrays: list[NDArray[Any]], where: str, *, ragged: bool) -> NDArray[Any] | Ragged:
    import numpy as np

    shape = arrays[0].shape
    if ragged and all(array.ndim for array in arrays) and len({array.shape[1:] for array in arrays}) == 1:
        return Ragged(np.concatenate(arrays), np.cumsum([0, *map(len, arrays)], dtype=np.int64))
    if len({array.shape for array in arrays}) > 1:
        shapes = ", ".join(sorted({str(array.shape) for array in arrays}))
        raise DatasetError(
            f"elements{where} of different shapes ({shapes}) cannot be batched. "
            f"Use padded_batch, or batch(..., ragged=True), or bucket_by_sequence_length."
        )
    if not shape:
        return np.array(arrays)
    return np.concatenate(arrays).reshape(len(arrays), *shape)  # a sixth of the time that `np.stack` takes


def _scalars(elements: Sequence[Any], kinds: set[type], where: str) -> NDArray[Any]:
    """Numbers, strings or bytes; NumPy would turn a mixture into strings."""
    import numpy as np

    if len({next((text for text in (str, bytes) if issubclass(kind, text)), None) for kind in kinds}) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DatasetError(f"elements{where} of different types ({names}) cannot be batched.")
    return np.asarray(elements)


def _part(spec: ElementSpec, label: str) -> ElementSpec:
    """The spec of one part of a structure, by its name or, in a plain tuple, its number."""
    if not isinstance(spec, Structure):
        return UNKNOWN
    return dict(zip(spec.names or map(str, range(len(spec.parts))), spec.parts, strict=True)).get(label, UNKNOWN)


def _parts(element: object, names: tuple[str, ...], count: int, kind: type, where: str) -> tuple[Any, ...]:
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


def _masked(elements: Sequence[Any], where: str) -> np.ma.MaskedArray[Any, Any]:
    import numpy as np

    there = [element for element in elements if element is not None]
    mask = np.asarray([element is None for element in elements])
    if not there:
        return np.ma.MaskedArray(np.zeros(len(elements)), mask)
    known = stack(there, where=where)
    if not isinstance(known, np.ndarray):
        raise DatasetError(f"elements{where}: None among {type(known).__name__}s; only arrays may be missing.")
    values = np.zeros((len(elements), *known.shape[1:]), known.dtype)
    values[~mask] = known
    return np.ma.MaskedArray(values, np.broadcast_to(mask.reshape(-1, *[1] * (values.ndim - 1)), values.shape))


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
        DatasetError: its leaves have no first axis, or first axes of different lengths.
    """
    taken = parts_of(batch)
    if taken is None:
        return _split_batch(batch)
    names, parts = taken
    if len({length(part) for part in parts}) > 1:
        raise DatasetError(f"the parts of a batch have different lengths: {[length(part) for part in parts]}.")
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


def _split_batch(leaf: Any) -> Iterator[Any]:
    import numpy as np

    if isinstance(leaf, np.ma.MaskedArray):
        missing = np.ma.getmaskarray(leaf).reshape(len(leaf), -1).min(axis=1)
        return (None if gone else to_python(value) for gone, value in zip(missing.tolist(), leaf.data, strict=True))
    if isinstance(leaf, Sparse):
        return (_row(leaf, number) for number in range(leaf.shape[0]))
    length(leaf)
    return map(to_python, leaf)


def _row(leaf: Sparse, number: int) -> Sparse:
    there = leaf.indices[:, 0] == number
    return Sparse(leaf.indices[there, 1:], leaf.values[there], leaf.shape[1:])


def to_python(value: Any) -> Any:
    """A NumPy scalar as Python's own; everything else as it is."""
    import numpy as np

    return value.item() if isinstance(value, np.generic) and value.dtype.kind not in "mM" else value


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
