"""Columns: the types a column may have, which type holds the values of two, and which change of type loses nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spanwise.orchestrator.errors import ColumnsChanged, ParameterError, UnreadableInput
from spanwise.pipelines.input.decimals import to_doubles
from spanwise.pipelines.input.readers.column import (
    Column,
    Misfit,
    element_type,
    exact_below,
    is_exact,
    is_text,
    written,
)
from spanwise.pipelines.input.readers.descriptor import Rejected
from spanwise.pipelines.input.readers.stored_types import find_missing_fixed_list, parse_type, store, stored_type
from spanwise.pipelines.input.readers.written_values import read_texts
from spanwise.pipelines.input.selection import take_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from decimal import Decimal

    from numpy.typing import NDArray

    from spanwise.pipelines.input.readers.descriptor import Descriptor


_PINNABLE = (
    "bool, int64, uint64, double, string, date32, time32[ms], timestamp[us], timestamp[us, tz=UTC], decimal128(9, 2)"
)


def layout_of_schema(path: str, schema: pa.Schema) -> tuple[tuple[str, ...], tuple[pa.DataType, ...]]:
    """The names of a file's columns, and the types that they are stored with.

    Raises:
        UnreadableInput: two columns have one name.
    """
    names = tuple(schema.names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UnreadableInput(f"{path}: two columns are called '{repeated[0]}'. Rename one.")
    return names, tuple(stored_type(field.type) for field in schema)


def pinned_types(types: Mapping[str, str]) -> dict[str, pa.DataType]:
    """The types a user named.

    Raises:
        ParameterError: a text that is no type.
    """
    pins = {}
    for name, text in types.items():
        found = parse_type(text)
        if found is None:
            raise ParameterError(f"types: column '{name}' cannot be pinned to '{text}'. Types are: {_PINNABLE}.")
        pins[name] = found
    return pins


def storable(type_: pa.DataType) -> pa.DataType:
    """The type, or string where it has a struct without fields ({} in JSON), which Parquet cannot hold."""
    return pa.string() if _has_empty_struct(type_) else type_


def wider(type_: pa.DataType) -> pa.DataType:
    """What an inferred column becomes when one of its values does not fit: finer time first, then string.

    uint64 beside negative numbers becomes double, if that holds all of them.
    """
    if pa.types.is_uint64(type_):
        return pa.float64()
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return pa.timestamp("ns", type_.tz)
    return pa.string()


def unify(name: str, one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both in files that name their types; None when there is none."""
    try:
        unified = pa.unify_schemas([pa.schema([(name, one)]), pa.schema([(name, other)])], promote_options="permissive")
    except pa.ArrowException:
        return None
    found: pa.DataType = unified.field(0).type
    return stored_type(found)


def reads_as(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of type `found` may be written as `wanted`, if each of them survives it.

    Only between kinds that mean the same: a number stays a number, an instant an instant. Never from number to text.
    What is inside a list, a struct or a map may only become wider, and a struct keeps its fields.
    """
    if found == wanted or pa.types.is_null(found):
        return True
    types = pa.types
    if types.is_nested(found) or types.is_nested(wanted):
        return _nested_reads_as(found, wanted)
    if _is_number(found) and _is_number(wanted):
        return True
    if types.is_timestamp(wanted) and (types.is_date(found) or types.is_timestamp(found)):
        return _has_zone(found) == _has_zone(wanted)
    return types.is_time(found) and types.is_time(wanted)


def lacking_fields(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether `found` may be read as `wanted` if fields that it lacks are missing values, which only a pin may say."""
    return not reads_as(found, wanted) and _nested_reads_as(found, wanted, lacking=True)


def _nested_reads_as(found: pa.DataType, wanted: pa.DataType, *, lacking: bool = False) -> bool:
    types = pa.types
    if found == wanted or types.is_null(found):
        return True
    lists = (types.is_list, types.is_fixed_size_list)
    if any(is_list(found) for is_list in lists) and any(is_list(wanted) for is_list in lists):
        return _nested_reads_as(element_type(found), element_type(wanted), lacking=lacking)
    if types.is_struct(found) and types.is_struct(wanted):
        before, now = ({field.name: field.type for field in type_} for type_ in (wanted, found))
        same = now.keys() <= before.keys() if lacking else now.keys() == before.keys()
        return same and all(_nested_reads_as(now[name], before[name], lacking=lacking) for name in now)
    if types.is_map(found) and types.is_map(wanted):
        pairs = ((found.key_type, wanted.key_type), (found.item_type, wanted.item_type))
        return all(_nested_reads_as(one, other, lacking=lacking) for one, other in pairs)
    integers = types.is_integer(found) and types.is_integer(wanted)
    return (integers or (types.is_floating(found) and types.is_floating(wanted))) and found.bit_width < wanted.bit_width


def fit(
    batch: pa.RecordBatch,
    columns: Sequence[Column],
    descriptor: Descriptor,
    first_row: int,
    reject: Callable[[Rejected], None],
) -> pa.RecordBatch:
    """The batch of a file that names its types, as `columns`; rejects rows whose pinned values do not fit.

    Raises:
        Misfit: a value does not fit a type that is not pinned.
        UnreadableInput: a value cannot be stored.
    """
    columns = written(columns)
    arrays: dict[str, pa.Array[Any]] = {}
    refused: dict[int, str] = {}
    for column in columns:
        array = batch.column(column.name)
        try:
            arrays[column.name] = convert(array, column)
        except (pa.ArrowException, NotImplementedError):
            bad = _misfits(array, column)
            found = repr_of(array[bad[0]]) if bad else f"a value of type {array.type}"
            line = first_row + (bad[0] if bad else 0)
            if column.source != "pinned":
                raise Misfit(column.name, f"{descriptor.path}, row {line} ({found})") from None
            for row in bad:
                refused.setdefault(row, f"column '{column.name}': {repr_of(array[row])} is no {column.type}")
    rows = np.arange(first_row, first_row + batch.num_rows)
    if refused:
        for row in sorted(refused):
            text = str({column.name: repr_of(batch.column(column.name)[row]) for column in columns})
            reject(Rejected(path=descriptor.path, line=first_row + row, reason=refused[row], text=text))
        kept = np.array([row for row in range(batch.num_rows) if row not in refused], np.int64)
        batch = take_rows(batch, kept)
        rows = rows[kept]
        arrays = {column.name: convert(batch.column(column.name), column) for column in columns}
    for column in columns:
        _refuse_missing_fixed_list(arrays[column.name], column, descriptor, rows)
    return pa.RecordBatch.from_arrays(
        [arrays[column.name] for column in columns],
        schema=pa.schema([(column.name, column.type) for column in columns]),
    )


def _refuse_missing_fixed_list(
    array: pa.Array[Any], column: Column, descriptor: Descriptor, rows: NDArray[np.int64]
) -> None:
    row = find_missing_fixed_list(array)
    if row is not None:
        raise UnreadableInput(
            f"{descriptor.path}, row {rows[row]}: column '{column.name}' ({column.type}) lacks a list where all "
            "lists have one length, and Parquet, in which examples are stored, cannot give such a value back. Let "
            f"lists have any length: types={{'{column.name}': '{_any_length(column.type)}'}}."
        )


def _any_length(type_: pa.DataType) -> pa.DataType:
    """The type with lists of any length in place of those of one length."""
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        return stored_type(pa.list_(_any_length(element_type(type_))))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _any_length(field.type)) for field in type_])
    return pa.map_(type_.key_type, _any_length(type_.item_type)) if pa.types.is_map(type_) else type_


def type_change_error(column: Column, found: str, where: str) -> ColumnsChanged:
    """The error for a column that cannot be read as what it was in the previous span."""
    return ColumnsChanged(
        f"column '{column.name}' was {column.type} in the previous span and is {found} now: {where}. "
        f"If the change is intended, pin it: types={{'{column.name}': '{found}'}}; if it is not, correct the input."
    )


def joined_type_error(column: Column, where: str) -> UnreadableInput:
    """The error for a value that does not fit the type which joins those that the files of a span declare."""
    return UnreadableInput(
        f"column '{column.name}' is read as {column.type}, by what the files of the span declare, and a value does not "
        f"survive that: {where}. Declare one type in all files, or pin one: types={{'{column.name}': 'string'}}."
    )


def rejection_error(rejected: Rejected, *, from_query: bool = False) -> UnreadableInput:
    """The error for a row, of a query's answer or a file, that cannot be read when no folder for such rows is given."""
    shown = rejected.text if len(rejected.text) <= 200 else rejected.text[:200] + "..."  # noqa: PLR2004 -- one screen
    return UnreadableInput(
        f"{rejected.path}, line {rejected.line}: {rejected.reason}. The row: {shown}\n"
        + (
            "Convert the value in the query, or leave such rows out there."
            if from_query
            else "Correct the file, or set such rows aside: ExampleGen(..., bad_rows='keep')."
        )
    )


def _has_empty_struct(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return type_.num_fields == 0 or any(_has_empty_struct(field.type) for field in type_)
    return pa.types.is_list(type_) and _has_empty_struct(type_.value_type)


def _is_number(type_: pa.DataType) -> bool:
    return pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)


def convert(array: pa.Array[Any], column: Column) -> pa.Array[Any]:
    """The values with the type of the column.

    Raises:
        ArrowInvalid, ArrowNotImplementedError, NotImplementedError: a value, or the type, does not fit.
    """
    array, wanted = store(array), column.type
    found = array.type
    if found == wanted:
        return array
    if array.null_count == len(array):  # a missing value is one of any type, also where there is no cast
        missing: pa.Array[Any] = cast("Any", pa).nulls(len(array), wanted)
        return missing
    if pa.types.is_nested(found) and pa.types.is_nested(wanted):
        if not _nested_reads_as(found, wanted, lacking=True):
            raise pa.ArrowInvalid(f"{found} is no {wanted}")
        return pc.cast(array, wanted, safe=True)
    return _convert_plain(array, wanted, exact=column.source != "pinned")


def _convert_plain(array: pa.Array[Any], wanted: pa.DataType, *, exact: bool) -> pa.Array[Any]:
    """A cast that refuses where Arrow's changes a value: infinities, rounded decimals, times or zones of instants.

    Fractions may be rounded to the precision of the wanted type, unless `exact`; whole numbers never.
    """
    types, found = pa.types, array.type
    if is_text(found) and not (is_text(wanted) or types.is_fixed_size_binary(wanted)):
        return cast("pa.Array[Any]", read_texts(pc.cast(array, pa.string()), wanted))
    if types.is_integer(found) and types.is_decimal(wanted):
        # Arrow wants room for the longest integer, whatever the values are
        array = pc.cast(array, pa.decimal256(40, 0))
    if _differ_in_time(found, wanted) or (types.is_boolean(wanted) and not _is_flag(array)):
        raise pa.ArrowInvalid(f"{found} is no {wanted}")
    if types.is_date(wanted) and _has_zone(found):
        array = cast("Any", pc).local_timestamp(array)  # the day is that of the zone
    if types.is_floating(wanted):
        return _to_floating(array, wanted, exact=exact)
    made = pc.cast(array, wanted, safe=True)
    if types.is_timestamp(found) and types.is_date(wanted):
        _check_same(pc.cast(made, array.type), array)
    elif types.is_floating(found) and types.is_decimal(wanted):
        _check_same(pc.cast(to_doubles(made), found), array)
    return made


def _differ_in_time(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's cast would say what the values do not: of which zone or unit they are, or to drop a date."""
    types = pa.types
    if _is_number(found):
        return types.is_timestamp(wanted) or types.is_date(wanted) or types.is_time(wanted)
    if types.is_timestamp(wanted):
        return _has_zone(found) != _has_zone(wanted)
    return types.is_timestamp(found) and types.is_time(wanted)


def _has_zone(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) and type_.tz is not None


def _to_floating(array: pa.Array[Any], wanted: pa.DataType, *, exact: bool) -> pa.Array[Any]:
    found = array.type
    wide = to_doubles(array) if pa.types.is_decimal(found) else array
    made = pc.cast(wide, wanted, safe=True)
    wide = pc.cast(wide, pa.float64(), safe=True)
    if pc.any(pc.and_(pc.is_inf(made), pc.invert(pc.is_inf(wide)))).as_py():
        raise pa.ArrowInvalid(f"a value exceeds {wanted}")
    if pa.types.is_decimal(found):
        _refuse_rounded(array, wide, wanted)
        if exact:
            _check_same(pc.cast(pc.cast(made, pa.float64()), found), array)
    elif exact or pa.types.is_integer(found):
        _check_same(pc.cast(made, pa.float64()), wide)
    return made


def _refuse_rounded(array: pa.Array[Any], wide: pa.Array[Any], wanted: pa.DataType) -> None:
    """Refuses decimals that are whole numbers which a floating-point type would round."""
    large = pc.filter(array, pc.greater_equal(pc.abs(wide), pa.scalar(exact_below(wanted))))
    values = cast("list[Decimal]", pc.unique(pc.drop_null(large)).to_pylist())
    if not all(is_exact(str(value), wanted) for value in values if value == value.to_integral_value()):
        raise pa.ArrowInvalid(f"a whole number that {wanted} would round")


def _is_flag(array: pa.Array[Any]) -> bool:
    """Whether these may be booleans: of numbers, only 0 and 1."""
    if not _is_number(array.type):
        return True
    return pc.all(pc.is_in(array, pa.array([0, 1]).cast(array.type))).as_py() is not False if len(array) else True


def _check_same(one: pa.Array[Any], other: pa.Array[Any]) -> None:
    same = pc.equal(one, other)
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.is_nan(other))
    if pc.all(same).as_py() is False:
        raise pa.ArrowInvalid("a value does not survive")


def repr_of(scalar: pa.Scalar[Any]) -> str:
    """A value as an error shows it, also one that Python does not have, such as a date of the year 10000."""
    try:
        return repr(scalar.as_py())
    except (ValueError, OverflowError, ImportError):
        return str(scalar.cast(pa.string())) if not pa.types.is_nested(scalar.type) else f"a {scalar.type}"


def _misfits(array: pa.Array[Any], column: Column, offset: int = 0) -> list[int]:
    """The rows that do not fit, found by halving, so that a few bad rows among many cost little."""
    try:
        convert(array, column)
    except (pa.ArrowException, NotImplementedError):
        if len(array) == 1:
            return [offset]
        half = len(array) // 2
        return _misfits(array[:half], column, offset) + _misfits(array[half:], column, offset + half)
    return []
