"""Tensors of Arrow's as lists of lists, as their axes say, and as they are stored; at whatever depth of a column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from spanwise.orchestrator.errors import DatasetError


def python_values(column: Any) -> list[Any]:
    """The values of a column as Python's; Arrow's own are flat lists for tensors, in the order in which they lie."""
    values: list[Any] = column.to_pylist()
    shape = shaper_of(column.type)
    return values if shape is None else list(map(shape, values))


def shaper_of(type_: Any) -> Callable[[Any], Any] | None:
    """Makes lists of lists of the tensors in a value of Python's; None if there are none in the type."""
    if isinstance(type_, pa.FixedShapeTensorType):
        axes = type_.permutation or range(len(type_.shape))
        return lambda flat: (
            None if flat is None else np.array(flat, object).reshape(type_.shape).transpose(axes).tolist()
        )
    return _in_parts(type_, {name: shaper_of(part) for name, part in _parts(type_).items()})


def storer_of(name: str, type_: Any) -> Callable[[Any], Any] | None:
    """Makes flat lists of the tensors in a value of Python's, as they are stored; None if the type has none."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return lambda value: None if value is None else _flat(name, value, type_)
    return _in_parts(type_, {part: storer_of(f"{name}.{part}", kind) for part, kind in _parts(type_).items()})


def stored_type(type_: Any) -> Any:
    """The type with lists in the place of tensors."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return type_.storage_type
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(stored_type(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(type_.key_field, type_.item_field.with_type(stored_type(type_.item_type)))
    if not hasattr(type_, "value_field"):
        return type_
    inner = type_.value_field.with_type(stored_type(type_.value_type))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(inner, type_.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(type_) else pa.list_(inner)


def _parts(type_: Any) -> dict[str, Any]:
    """Of what values of the type consist, by name; of lists and maps their items alone."""
    if pa.types.is_struct(type_):
        return {field.name: field.type for field in type_}
    if pa.types.is_map(type_):
        return {"value": type_.item_type}
    return {"item": type_.value_type} if hasattr(type_, "value_field") else {}


def _in_parts(type_: Any, parts: dict[str, Callable[[Any], Any] | None]) -> Callable[[Any], Any] | None:
    """Changes the parts of a value; None if nothing is to be changed."""
    changes = {name: change for name, change in parts.items() if change is not None}
    if not changes:
        return None
    if pa.types.is_struct(type_):
        return lambda value: (
            {name: changes.get(name, _as_it_is)(part) for name, part in value.items()}
            if isinstance(value, Mapping)
            else value
        )
    (change,) = changes.values()
    if pa.types.is_map(type_):
        return lambda value: (
            value and [(key, change(part)) for key, part in (value.items() if isinstance(value, Mapping) else value)]
        )
    return lambda value: value if value is None else list(map(change, value))


def _as_it_is(value: Any) -> Any:
    return value


def _flat(name: str, value: Any, type_: Any) -> Any:
    """A tensor as the list that is stored, in its order."""
    axes = type_.permutation or range(len(type_.shape))
    shape = tuple(type_.shape[axis] for axis in axes)
    array = value if isinstance(value, np.ndarray) else np.array(value, object)
    if array.shape == shape:
        return array.transpose(np.argsort(axes)).ravel().tolist()
    if array.shape == (math.prod(shape),):  # as it is stored
        return array.tolist()
    raise DatasetError(f"{name!r} holds tensors of the shape {shape}, not {array.shape}.")
