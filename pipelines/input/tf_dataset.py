"""TensorFlow's view of a dataset: a `tf.data.Dataset` whose tensors have the types that were found when it was made.

Needs tensorflow. TensorFlow would convert a value to the type of the first element in silence, so values are checked
here: whatever a tensor of that type cannot hold exactly is refused.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import tensorflow as tf

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.arrays import as_arrays, convert_arrays, refuse_missing
from spanwise.pipelines.input.element import (
    ArraySpec,
    BatchSpec,
    ElementSpec,
    Ragged,
    RaggedSpec,
    SparseSpec,
    Structure,
    Table,
    Unknown,
    parts_of,
)
from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.iterator import DatasetIterator
from spanwise.pipelines.input.rows import empty_batch

Signature: TypeAlias = Any
"""Nested dicts and tuples of `tf.TensorSpec` and `tf.RaggedTensorSpec`."""

_Begun: TypeAlias = "tuple[DatasetIterator, tuple[Any, ...]]"
"""A pass, and the elements that it has given and that are still to be handed over."""

_NUMBERS: Final = "?bBhHiIlLqQefdFD"  # NumPy's letters for the types that TensorFlow has too
_RANKS: Final = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


class _NotKnownYet(Exception):
    """What the elements are is only known when one was made."""


def make_dataset(dataset: Flow, signature: Signature | None = None) -> Any:
    """The dataset as one of TensorFlow's. Without a signature, the types are those of its spec or its first element.

    Raises:
        DatasetError: TensorFlow has no tensors for them, or there is no element that would show them.
    """
    begun: list[_Begun] = []  # to find the types: in a job of a data service, what it has read comes in no other pass
    if signature is None:
        try:
            signature = _of_spec(dataset.spec)
        except _NotKnownYet:
            begun.append(_begin(dataset))
            signature = _of_value(convert_arrays(begun[0][1][0], "to_tf"))

    def tensors() -> Iterator[Any]:
        elements, first = begun.pop() if begun else (dataset.iterator(), ())
        with elements:
            for number, element in enumerate(itertools.chain(first, elements)):
                yield _convert(convert_arrays(element, "to_tf"), signature, f"of element {number}")

    found = tf.data.Dataset.from_generator(tensors, output_signature=signature)
    count = dataset.cardinality
    if count is None:
        return found
    return found.apply(
        tf.data.experimental.assert_cardinality(count if isinstance(count, int) else tf.data.INFINITE_CARDINALITY)
    )


# What the tensors are


def _begin(dataset: Flow) -> _Begun:
    elements = dataset.iterator()
    for first in elements:
        return elements, (first,)
    raise DatasetError(
        "to_tf: the dataset has no elements, so their types cannot be known; give them: to_tf(signature=…)."
    )


def _of_spec(spec: ElementSpec) -> Signature:
    match spec:
        case Table(schema) | BatchSpec(schema) if schema is not None:
            rows = (spec.rows,) if isinstance(spec, BatchSpec) else ()
            empty = as_arrays(empty_batch(schema))
            return {name: _of_column(rows, column, schema.field(name).type) for name, column in empty.items()}
        case ArraySpec(dtype, shape) | SparseSpec(dtype, shape):
            return tf.TensorSpec(shape, _type(dtype))
        case RaggedSpec(dtype, shape) if shape is not None:
            return _ragged(None, 1, shape, _type(dtype))
        case Structure(names=names, parts=parts):
            return _structure(spec.kind, names, map(_of_spec, parts))
        case Unknown() | Table() | BatchSpec() | RaggedSpec():
            raise _NotKnownYet
    raise DatasetError(f"to_tf: TensorFlow has no tensors for {spec}, which the elements have. {_CHANGE}")


def _of_column(rows: tuple[int | None, ...], column: Any, type_: pa.DataType) -> Signature:
    if isinstance(column, Ragged):
        depth, values = _innermost(column)
        kind, shape = _type(_name(values, type_)), values.shape[1:]
        if rows:
            return _ragged(rows[0], depth, shape, kind)
        if depth == 1:
            return tf.TensorSpec((None, *shape), kind)
        raise DatasetError(f"to_tf: a row has lists of lists, {type_}, of different lengths. Use batches: batch(n).")
    return tf.TensorSpec((*rows, *column.shape[1:]), _type(_name(column, type_)))


def _name(column: Any, type_: pa.DataType) -> str:
    """NumPy's name of the type of a column, of which it has objects only if they are texts or bytes."""
    if column.dtype.kind != "O":
        return str(column.dtype.name)
    while hasattr(type_, "value_type"):
        type_ = type_.value_type
    texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    blobs = pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view
    return "str" if any(is_kind(type_) for is_kind in (*texts, *blobs)) else str(type_)


def _of_value(value: Any) -> Signature:
    taken = parts_of(value)
    if taken is not None:
        return _structure(type(value), taken[0], map(_of_value, taken[1]))
    if isinstance(value, Ragged):
        depth, values = _innermost(value)
        return _ragged(None, depth, (None,) * (values.ndim - 1), _type(_kind(values)))
    array = np.asarray(value)
    return tf.TensorSpec([None] * array.ndim, _type(_kind(array)))


def _kind(array: Any) -> str:
    if array.dtype.kind == "O" and all(isinstance(item, str | bytes) for item in array.flat):
        return "str"
    return type(array.item()).__name__ if array.dtype.kind == "O" and array.ndim == 0 else str(array.dtype.name)


def _innermost(ragged: Ragged) -> tuple[int, Any]:
    """How deep lists lie in lists, and the values in them."""
    depth, values = 1, ragged.values
    while isinstance(values, Ragged):
        depth, values = depth + 1, values.values
    return depth, values


def _ragged(rows: int | None, depth: int, shape: tuple[int | None, ...], kind: Any) -> Signature:
    return tf.RaggedTensorSpec((rows, *[None] * depth, *shape), kind, depth, tf.int64)


def _structure(kind: type, names: tuple[str, ...], parts: Any) -> Any:
    """A dict, tuple or named tuple; TensorFlow does not look into dataclasses, so these become dicts."""
    if kind is tuple:
        return tuple(parts)
    if dataclasses.is_dataclass(kind) or issubclass(kind, dict):
        return dict(zip(names, parts, strict=True))
    return kind(*parts)


_CHANGE: Final = "Make numbers, texts or bytes of it first, with map(…), or select(…) other columns."


def _type(name: str) -> Any:
    """TensorFlow's type for one of NumPy's.

    Raises:
        DatasetError: it has none.
    """
    if name in {"str", "bytes"} or name.startswith(("str", "bytes")):
        return tf.string
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        dtype = np.dtype(object)
    if dtype.char not in _NUMBERS:
        raise DatasetError(f"to_tf: TensorFlow has no tensors for values of type {name}. {_CHANGE}")
    return tf.dtypes.as_dtype(dtype)


# Elements


def _convert(value: Any, signature: Signature, where: str) -> Any:
    """The element with arrays of exactly the types of the signature."""
    if isinstance(signature, tf.TensorSpec):
        return _array(value, signature.dtype, where)
    if isinstance(signature, tf.RaggedTensorSpec):
        return _ragged_tensor(value, signature.dtype, where)
    taken, wanted = parts_of(value), parts_of(signature)
    if taken is None or wanted is None or taken[0] != wanted[0] or len(taken[1]) != len(wanted[1]):
        raise DatasetError(
            f"to_tf: the structure {where} is not that of the first one: {value!r:.80}. Make them alike with map(…)."
        )
    parts = (_convert(part, each, where) for part, each in zip(taken[1], wanted[1], strict=True))
    return _structure(type(signature), taken[0], parts)


def _ragged_tensor(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, Ragged):
        raise DatasetError(f"to_tf: a {type(value).__name__} stands {where} in the place of lists. {_CHANGE}")
    deeper = isinstance(value.values, Ragged)
    values = _ragged_tensor(value.values, kind, where) if deeper else _array(value.values, kind, where)
    return tf.RaggedTensor.from_row_splits(values, value.offsets, validate=False)


def _array(value: Any, kind: Any, where: str) -> Any:
    refuse_missing("to_tf", "tensor", value)
    if kind == tf.string:
        array = np.array(value, object) if isinstance(value, str | bytes) else np.asarray(value, object)
        if all(isinstance(item, str | bytes) for item in array.flat):
            return array
    else:
        array, dtype = np.asarray(value), np.dtype(kind.as_numpy_dtype)
        if array.dtype == dtype:
            return array
        if array.dtype.kind in _RANKS and (not array.size or _fits(array, dtype)):
            return array.astype(dtype)
    raise DatasetError(
        f"to_tf: a value {where}, {value!r:.80}, does not fit the type that the dataset's tensors have, {kind.name}. "
        f"Give all elements one type with map(…), or say which: to_tf(signature=…)."
    )


def _fits(array: Any, dtype: np.dtype[Any]) -> bool:
    """Whether the numbers are the same in that type, which is of no narrower kind."""
    here, there = _RANKS[array.dtype.kind], _RANKS[dtype.kind]
    if here > there or (here == 0) != (there == 0):
        return False
    if there == _RANKS["i"]:
        bounds = np.iinfo(dtype)
        return bool(bounds.min <= int(array.min()) and int(array.max()) <= bounds.max)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.array_equal(array.astype(dtype).astype(array.dtype), array, equal_nan=True))
