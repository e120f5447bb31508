"""Columns: the types a column may have, which type holds the values of two, and which change of type loses nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from spanwise.components.ingest.readers.descriptor import Rejected
from spanwise.orchestrator.errors import ColumnsChanged, ParameterError, UnreadableInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spanwise.components.ingest.readers.descriptor import Descriptor

#: Below this every whole number is a double of its own.
EXACT_DOUBLE = float(2**53)

_JOINS: dict[frozenset[pa.DataType], pa.DataType] = {
    frozenset((pa.int64(), pa.float64())): pa.float64(),
    frozenset((pa.int64(), pa.float32())): pa.float64(),
    frozenset((pa.float32(), pa.float64())): pa.float64(),
    frozenset((pa.string(), pa.binary())): pa.binary(),
    frozenset((pa.date32(), pa.timestamp("us"))): pa.timestamp("us"),
}

_PINNABLE = "bool, int64, double, string, date32, time32[ms], timestamp[us], timestamp[us, tz=UTC], decimal128(9, 2)"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column as it is to be written, and who says so."""

    name: str  #: as in the files
    type: pa.DataType  #: of every value
    #: the user, the span before, or the values of this one; one that is dropped is read, but not written
    source: Literal["pinned", "previous", "inferred", "dropped"]


class Misfit(Exception):
    """A value does not fit the inferred or previous type of its column; None: a column was not known at all."""

    def __init__(self, column: str | None, where: str | None = None) -> None:
        super().__init__(column, where)
        self.column = column
        self.where = where  #: file, line and value, where the type is the previous span's; None where it was inferred


def type_of(text: str) -> pa.DataType | None:
    """The type with this text, as `str(type)` writes it; None for a nested type or a text that names none.

    Seconds become milliseconds, since Parquet has no unit for seconds.
    """
    if zoned := re.fullmatch(r"timestamp\[(s|ms|us|ns), tz=(.+)\]", text):
        return canonical(pa.timestamp(cast("Literal['s', 'ms', 'us', 'ns']", zoned[1]), zoned[2]))
    if decimal := re.fullmatch(r"decimal(128|256)\((\d+), (-?\d+)\)", text):
        make = pa.decimal128 if decimal[1] == "128" else pa.decimal256
        return make(int(decimal[2]), int(decimal[3]))
    try:
        return canonical(cast("Callable[[str], pa.DataType]", pa.type_for_alias)(text))
    except ValueError:
        return None


def pinned_types(types: Mapping[str, str]) -> dict[str, pa.DataType]:
    """The types a user named.

    Raises:
        ParameterError: a text that is no type.
    """
    pins = {}
    for name, text in types.items():
        found = type_of(text)
        if found is None:
            raise ParameterError(f"types: column '{name}' cannot be pinned to '{text}'. Types are: {_PINNABLE}.")
        pins[name] = found
    return pins


def canonical(type_: pa.DataType) -> pa.DataType:
    """The type as it comes back from Parquet: plain instead of dictionary or large, milliseconds instead of seconds."""
    if pa.types.is_dictionary(type_):
        return canonical(type_.value_type)
    if pa.types.is_large_string(type_) or type_ == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(type_) or type_ == pa.binary_view():
        return pa.binary()
    if pa.types.is_timestamp(type_) and type_.unit == "s":
        return pa.timestamp("ms", type_.tz)
    if type_ == pa.time32("s"):
        return pa.time32("ms")
    return type_


def join(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The narrowest type of the lattice that can hold the values of both. Associative and commutative.

        null < bool                                < string
        null < int64  < double                     < string
        null < date32 < timestamp[us] (no zone)    < string
        null < timestamp[us, tz=UTC], time32[ms]   < string

    Structs join field by field and lists by their elements (JSON). Of TFRecord, text and bytes meet in bytes, float
    and int64 in double, and a `single` and a list in a list. Whatever else differs meets in string.
    """
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = join(fields.get(field.name, pa.null()), field.type)
        # sorted, so that the order in which blocks are joined does not show
        return pa.struct(sorted(fields.items()))
    if is_single(one) and is_single(other):
        return single(join(element_type(one), element_type(other)))
    if (pa.types.is_list(one) or is_single(one)) and (pa.types.is_list(other) or is_single(other)):
        return pa.list_(join(element_type(one), element_type(other)))
    return _JOINS.get(frozenset((one, other)), pa.string())


def single(type_: pa.DataType) -> pa.DataType:
    """What a survey calls a list that has had one value at most; it becomes a column of plain values in the end."""
    return pa.list_(type_, 1)


def element_type(type_: pa.DataType) -> pa.DataType:
    """The type of what is in a list or `single`."""
    return cast("pa.ListType[pa.DataType]", type_).value_type


def is_single(type_: pa.DataType) -> bool:
    return pa.types.is_fixed_size_list(type_) and type_.list_size == 1


def join_all(one: Mapping[str, pa.DataType], other: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The columns of both, in order of first appearance, each with the type that holds the values of both."""
    joined = dict(one)
    for name, type_ in other.items():
        joined[name] = join(joined[name], type_) if name in joined else type_
    return joined


def storable(type_: pa.DataType) -> pa.DataType:
    """The type, or string where it has a struct without fields ({} in JSON), which Parquet cannot hold."""
    return pa.string() if _has_empty_struct(type_) else type_


def wider(type_: pa.DataType) -> pa.DataType:
    """What an inferred column becomes when one of its values does not fit: finer time first, then string."""
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
    return found


def reads_as(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of type `found` may be written as `wanted`, if each of them survives it.

    Only between kinds that mean the same: a number stays a number, an instant an instant. Never from number to text.
    """
    if found == wanted or pa.types.is_null(found):
        return True
    types = pa.types
    if _is_number(found) and _is_number(wanted):
        return True
    if types.is_timestamp(wanted) and (types.is_date(found) or types.is_timestamp(found)):
        return types.is_date(found) or (found.tz is None) == (wanted.tz is None)
    return types.is_time(found) and types.is_time(wanted)


def fit(
    batch: pa.RecordBatch,
    columns: Sequence[Column],
    descriptor: Descriptor,
    first_row: int,
    reject: Callable[[Rejected], None],
) -> pa.RecordBatch:
    """The batch of a file that names its types, as `columns`; rejects rows whose pinned values do not fit."""
    arrays: dict[str, pa.Array[Any]] = {}
    refused: dict[int, str] = {}
    for column in columns:
        array = batch.column(column.name)
        try:
            arrays[column.name] = _cast(array, column)
        except (pa.ArrowException, NotImplementedError):
            bad = _misfits(array, column)
            found = f"{array[bad[0]].as_py()!r}" if bad else f"a value of type {array.type}"
            line = first_row + (bad[0] if bad else 0)
            if column.source != "pinned":
                raise Misfit(column.name, f"{descriptor.path}, row {line} ({found})") from None
            for row in bad:
                refused.setdefault(row, f"column '{column.name}': {array[row].as_py()!r} is no {column.type}")
    if refused:
        for row in sorted(refused):
            text = str(batch.slice(row, 1).to_pylist()[0])
            reject(Rejected(path=descriptor.path, line=first_row + row, reason=refused[row], text=text))
        kept = pa.array([row for row in range(batch.num_rows) if row not in refused], type=pa.int64())
        batch = batch.take(kept)
        arrays = {column.name: _cast(batch.column(column.name), column) for column in columns}
    return pa.RecordBatch.from_arrays(
        [arrays[column.name] for column in columns],
        schema=pa.schema([(column.name, column.type) for column in columns]),
    )


def type_change_error(column: Column, found: str, where: str) -> ColumnsChanged:
    """The error for a column that cannot be read as what it was in the previous span."""
    return ColumnsChanged(
        f"column '{column.name}' was {column.type} in the previous span and is {found} now: {where}. "
        f"If the change is intended, pin it: types={{'{column.name}': '{found}'}}; if it is not, correct the input."
    )


def rejection_error(rejected: Rejected) -> UnreadableInput:
    """The error for a row that cannot be read, when no folder for rejected rows is given."""
    shown = rejected.text if len(rejected.text) <= 200 else rejected.text[:200] + "..."  # noqa: PLR2004 -- one screen
    return UnreadableInput(
        f"{rejected.path}, line {rejected.line}: {rejected.reason}. The row: {shown}\n"
        "Correct the file, or set such rows aside: ExampleGen(..., bad_rows='keep')."
    )


def _has_empty_struct(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return type_.num_fields == 0 or any(_has_empty_struct(field.type) for field in type_)
    return pa.types.is_list(type_) and _has_empty_struct(type_.value_type)


def _is_number(type_: pa.DataType) -> bool:
    return pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)


def _cast(array: pa.Array[Any], column: Column) -> pa.Array[Any]:
    if pa.types.is_dictionary(array.type):
        array = pc.cast(array, array.type.value_type)
    cast = pc.cast(array, column.type, safe=True)
    if pa.types.is_float32(column.type) and pa.types.is_float64(array.type) and column.source == "previous":
        lossless = pc.all(pc.equal(pc.cast(cast, pa.float64()), array)).as_py()
        if lossless is False:
            raise pa.ArrowInvalid("a double does not fit a float")
    return cast


def _misfits(array: pa.Array[Any], column: Column, offset: int = 0) -> list[int]:
    """The rows that do not fit, found by halving, so that a few bad rows among many cost little."""
    try:
        _cast(array, column)
    except (pa.ArrowException, NotImplementedError):
        if len(array) == 1:
            return [offset]
        half = len(array) // 2
        return _misfits(array[:half], column, offset) + _misfits(array[half:], column, offset + half)
    return []
