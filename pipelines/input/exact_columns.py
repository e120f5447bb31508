"""Values of Python as columns of a type: what Arrow would cut, shift or read below a mask is refused, or missing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from spanwise.orchestrator.errors import DatasetError

_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def unmasked(value: Any) -> Any:
    """The value, with None for what masked arrays in it mask: Arrow shows what lies below a mask in a list."""
    import numpy as np

    if isinstance(value, np.ma.MaskedArray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: unmasked(each) for key, each in value.items()}
    if isinstance(value, list | tuple) and any(isinstance(each, np.ma.MaskedArray | Mapping) for each in value):
        return [unmasked(each) for each in value]
    return value


def refuse_cut(name: str, values: Sequence[Any], type_: Any) -> None:
    """Refuses values of which a column of the type would hold less, or another moment.

    Raises:
        DatasetError: says which value.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(type_):
        refuse_cut(name, values, type_.value_type)
    elif types.is_struct(type_):
        _refuse_cut_fields(name, [each for each in values if isinstance(each, Mapping)], type_)
    elif hasattr(type_, "value_field"):  # lists of all kinds
        inner = [item for each in values if each is not None for item in _items(each)]
        refuse_cut(name, inner, type_.value_type)
    elif (is_cut := _check_of(type_)) is not None:
        cut = next((each for each in values if each is not None and is_cut(each)), None)
        if cut is not None:
            raise DatasetError(f"{name!r} is of type {type_}, which does not hold {cut!r:.80}.")


def _refuse_cut_fields(name: str, values: Sequence[Mapping[str, Any]], type_: Any) -> None:
    known = {field.name for field in type_}
    for value in values:
        if not known.issuperset(value):
            raise DatasetError(f"{name!r} is of type {type_}, which has no place for all of {value!r:.80}.")
    for field in type_:
        refuse_cut(f"{name}.{field.name}", [value.get(field.name) for value in values], field.type)


def _items(value: Any) -> Sequence[Any]:
    """The items of a list; of an array all numbers, whatever its axes."""
    import numpy as np

    if isinstance(value, np.ndarray):
        items: list[Any] = value.ravel().tolist() if value.dtype.kind in "fmMO" else []
        return items
    return value if isinstance(value, list | tuple) else ()


def _check_of(type_: Any) -> Callable[[Any], bool] | None:  # noqa: PLR0911  a line for each kind of type
    """Whether a column of the type would cut a value; None if there is none that Arrow does not refuse itself."""
    import numpy as np
    import pyarrow as pa

    types = pa.types
    if types.is_integer(type_):
        return lambda value: isinstance(value, float | np.floating) and value != np.trunc(value)
    if types.is_float32(type_) or types.is_float16(type_):
        limit = np.dtype("float32" if types.is_float32(type_) else "float16").type

        def is_infinite(value: Any) -> bool:
            with np.errstate(over="ignore"):
                return isinstance(value, float | np.floating) and bool(np.isinf(limit(value)) and not np.isinf(value))

        return is_infinite
    if types.is_date(type_):
        return lambda value: isinstance(value, dt.datetime) and (value.time() != dt.time() or value.tzinfo is not None)
    if types.is_timestamp(type_):
        unit = _MICROSECONDS[type_.unit]
        return lambda value: (
            isinstance(value, dt.datetime)
            and ((value.tzinfo is None) != (type_.tz is None) or value.microsecond % unit > 0)
        )
    if types.is_time(type_):
        unit = _MICROSECONDS[type_.unit]
        return lambda value: isinstance(value, dt.time) and (value.tzinfo is not None or value.microsecond % unit > 0)
    if types.is_duration(type_):
        unit = _MICROSECONDS[type_.unit]
        return lambda value: isinstance(value, dt.timedelta) and value.microseconds % unit > 0
    return None
