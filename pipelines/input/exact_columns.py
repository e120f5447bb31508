"""Values as columns of a type: what Arrow would cut, shift or read below a mask is refused, or missing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
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


def exact_column(name: str, values: Sequence[Any], type_: Any) -> Any:
    """The values as a column of the type.

    Raises:
        DatasetError: it would hold less than one of them, or another moment, or a tensor of another shape.
        ArrowException, OverflowError, TypeError, ValueError: Arrow itself refuses a value.
    """
    import pyarrow as pa

    from spanwise.pipelines.input.arrow_tensors import stored_type, storer_of

    if (store := storer_of(name, type_)) is not None:
        return exact_column(name, list(map(store, values)), stored_type(type_)).cast(type_)
    made: Any = pa.array(values, type_)
    refuse_cut(name, values, type_)
    return made


def refuse_cut(name: str, values: Sequence[Any], type_: Any) -> None:
    """Refuses values of which a column of the type would hold less, or another moment.

    Raises:
        DatasetError: says which value.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(type_):
        refuse_cut(name, values, type_.value_type)
    elif isinstance(type_, pa.BaseExtensionType):
        refuse_cut(name, values, type_.storage_type)
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
        return lambda value: isinstance(value, float | np.floating | Decimal) and bool(value % 1)
    if types.is_float32(type_) or types.is_float16(type_):
        limit = np.dtype("float32" if types.is_float32(type_) else "float16").type

        def is_cut(value: Any) -> bool:
            with np.errstate(over="ignore"):
                if isinstance(value, int | np.integer):  # Arrow refuses only what a float32 rounds
                    return float(limit(value)) != value
                return isinstance(value, float | np.floating) and bool(np.isinf(limit(value)) and not np.isinf(value))

        return is_cut
    if types.is_date(type_):
        return lambda value: isinstance(value, dt.datetime) and (value.time() != dt.time() or value.tzinfo is not None)
    if types.is_timestamp(type_):
        unit = _MICROSECONDS[type_.unit]
        return lambda value: (
            isinstance(value, dt.datetime)
            and ((value.tzinfo is None) != (type_.tz is None) or value.microsecond % unit > 0 or _has_ns(value, type_))
        )
    if types.is_time(type_):
        unit = _MICROSECONDS[type_.unit]
        return lambda value: isinstance(value, dt.time) and (value.tzinfo is not None or value.microsecond % unit > 0)
    if types.is_duration(type_):
        unit = _MICROSECONDS[type_.unit]
        return lambda value: (
            isinstance(value, dt.timedelta) and (value.microseconds % unit > 0 or _has_ns(value, type_))
        )
    return None


def _has_ns(value: Any, type_: Any) -> bool:
    """Whether a time has nanoseconds, as those of pandas may, and its type has no place for them."""
    return type_.unit != "ns" and bool(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0))


def refuse_cut_cast(before: Any, after: Any) -> None:
    """Refuses a column that holds less, or other moments, than the column of which Arrow has cast it.

    Raises:
        ArrowInvalid: says which value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for was, now in _plain_columns(before, after):
        cut = None if was.type == now.type else _find_cut(was, now)
        if cut is not None and pc.any(cut).as_py():
            raise pa.ArrowInvalid(f"a column of {now.type} does not hold {was[pc.index(cut, True).as_py()]}")


def _plain_columns(before: Any, after: Any) -> Iterator[tuple[Any, Any]]:
    """The columns without structure that a column and its cast consist of."""
    import pyarrow as pa

    before, after = _decoded(before), _decoded(after)
    if pa.types.is_struct(before.type) and pa.types.is_struct(after.type):
        made = {field.name: column for field, column in zip(after.type, after.flatten(), strict=True)}
        for field, column in zip(before.type, before.flatten(), strict=True):
            if field.name not in made:
                raise pa.ArrowInvalid(f"{after.type} has no place for {field.name!r}")
            yield from _plain_columns(column, made[field.name])
    elif pa.types.is_map(before.type) and pa.types.is_map(after.type):
        for part, type_ in enumerate(("key_type", "item_type")):
            yield from _plain_columns(
                *(_parts_of_maps(each, part, getattr(each.type, type_)) for each in (before, after))
            )
    elif hasattr(before.type, "value_field") and hasattr(after.type, "value_field"):
        inner, made_inner = before.flatten(), after.flatten()
        if len(inner) != len(made_inner):
            raise pa.ArrowInvalid(f"a column of {after.type} does not hold the lists of one of {before.type}")
        yield from _plain_columns(inner, made_inner)
    else:
        yield before, after


def _decoded(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column.type, pa.BaseExtensionType):
        return _decoded(column.storage)
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if pa.types.is_run_end_encoded(column.type):
        return pc.run_end_decode(column)  # type: ignore[attr-defined]  # the stubs are older
    return column


def _parts_of_maps(column: Any, part: int, type_: Any) -> Any:
    """All keys, or all values."""
    import pyarrow as pa

    return pa.array([pair[part] for row in column.to_pylist() for pair in row or ()], type_)


def _find_cut(before: Any, after: Any) -> Any:  # noqa: PLR0911  a line for each pair of types
    """Which values are not what they were; None where Arrow refuses them itself."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, was, now = pa.types, before.type, after.type
    if types.is_floating(now) and types.is_floating(was):
        return pc.and_(pc.is_inf(after), pc.invert(pc.is_inf(before)))
    if types.is_floating(now) and (types.is_string(was) or types.is_large_string(was)):
        return pc.and_(pc.is_inf(after), pc.invert(pc.match_substring(before, "inf", ignore_case=True)))
    if types.is_float16(now) and types.is_integer(was):
        return pc.not_equal(after.cast(pa.float64()), before.cast(pa.float64(), safe=False))
    if types.is_decimal(now) and types.is_floating(was):
        return pc.not_equal(after.cast(was), before)
    if types.is_boolean(now) and (types.is_integer(was) or types.is_floating(was)):
        return pc.not_equal(after.cast(pa.int8()).cast(was), before)
    if not types.is_timestamp(was):
        return None
    if types.is_time(now) or (types.is_timestamp(now) and (was.tz is None) != (now.tz is None)):
        return before.is_valid()
    if types.is_date(now):
        return before.is_valid() if was.tz else pc.not_equal(pc.floor_temporal(before, unit="day"), before)
    return None


def is_rounded_beside_nulls(column: Any) -> bool:
    """Whether whole numbers in a column would become others as floats, which libraries make of them beside a null."""
    import pyarrow as pa

    types = pa.types
    if types.is_map(column.type):
        kinds = column.type.key_type, column.type.item_type
        return any(is_rounded_beside_nulls(_parts_of_maps(column, part, kind)) for part, kind in enumerate(kinds))
    if types.is_struct(column.type):
        return any(map(is_rounded_beside_nulls, column.flatten()))
    if hasattr(column.type, "value_field"):
        return is_rounded_beside_nulls(column.flatten())
    if not (types.is_integer(column.type) and column.null_count):
        return False
    try:
        column.cast(pa.float64())
    except pa.ArrowInvalid:
        return True
    return False
