"""Column: how a column is to be read, and the narrowest type that holds the values of two."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Below this every whole number is a double of its own.
EXACT_DOUBLE = float(2**53)
_EXACT_BELOW: dict[pa.DataType, float] = {pa.float16(): 2.0**11, pa.float32(): 2.0**24}
_DOUBLE = pa.float64()

_JOINS: dict[frozenset[pa.DataType], pa.DataType] = {
    frozenset((pa.int64(), pa.uint64())): pa.uint64(),
    frozenset((pa.uint64(), pa.float64())): pa.float64(),
    frozenset((pa.uint64(), pa.float32())): pa.float64(),
    frozenset((pa.int64(), pa.float64())): pa.float64(),
    frozenset((pa.int64(), pa.float32())): pa.float64(),
    frozenset((pa.float32(), pa.float64())): pa.float64(),
    frozenset((pa.string(), pa.binary())): pa.binary(),
    frozenset((pa.date32(), pa.timestamp("us"))): pa.timestamp("us"),
    frozenset((pa.date32(), pa.timestamp("ns"))): pa.timestamp("ns"),
    frozenset((pa.timestamp("us"), pa.timestamp("ns"))): pa.timestamp("ns"),
    frozenset((pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"))): pa.timestamp("ns", "UTC"),
    frozenset((pa.time32("ms"), pa.time64("us"))): pa.time64("us"),
    frozenset((pa.time32("ms"), pa.time64("ns"))): pa.time64("ns"),
    frozenset((pa.time64("us"), pa.time64("ns"))): pa.time64("ns"),
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column as it is to be written, and who says so."""

    name: str  #: as in the files
    type: pa.DataType  #: of every value
    #: the user, the span before, or the values of this one; of one that is dropped, no value is looked at
    source: Literal["pinned", "previous", "inferred", "dropped"]


def written(columns: Sequence[Column]) -> list[Column]:
    """The columns whose values count: all but the dropped ones."""
    return [column for column in columns if column.source != "dropped"]


class Misfit(Exception):
    """A value does not fit the inferred or previous type of its column; None: a column was not known at all."""

    def __init__(self, column: str | None, where: str | None = None) -> None:
        super().__init__(column, where)
        self.column = column
        self.where = where  #: file, line and value, where the type is the previous span's; None where it was inferred


def join(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The narrowest type of the lattice that can hold the values of both. Associative and commutative.

        null < bool                                     < string
        null < int64  < uint64 < double                 < string
        null < date32 < timestamp[us] < timestamp[ns]   < string    (without a zone; others have no date32)
        null < time32[ms] < time64[us] < time64[ns]     < string

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


def join_all(one: Mapping[str, pa.DataType], other: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The columns of both, in order of first appearance, each with the type that holds the values of both."""
    joined = dict(one)
    for name, type_ in other.items():
        joined[name] = join(joined[name], type_) if name in joined else type_
    return joined


def single(type_: pa.DataType) -> pa.DataType:
    """What a survey calls a list that has had one value at most; it becomes a column of plain values in the end."""
    return pa.list_(type_, 1)


def is_single(type_: pa.DataType) -> bool:
    return pa.types.is_fixed_size_list(type_) and type_.list_size == 1


def element_type(type_: pa.DataType) -> pa.DataType:
    """The type of what is in a list or `single`."""
    return cast("pa.ListType[pa.DataType]", type_).value_type


def is_text(type_: pa.DataType) -> bool:
    """Whether a column holds texts as they are written."""
    types = pa.types
    return (
        types.is_string(type_) or types.is_binary(type_) or types.is_large_string(type_) or types.is_large_binary(type_)
    )


def exact_below(type_: pa.DataType) -> float:
    """Below this every whole number is a number of its own in a floating-point type."""
    return _EXACT_BELOW.get(type_, EXACT_DOUBLE)


def is_exact(whole: str, type_: pa.DataType = _DOUBLE) -> bool:
    """Whether a floating-point type holds the whole number that is written."""
    held: float = pa.scalar(float(whole)).cast(type_, safe=False).as_py()
    return Decimal(float(held)) == Decimal(whole)


def refuse_long(column: pa.ChunkedArray[Any]) -> None:
    """Refuses decimals, at any depth, with more digits than their type has, which pyarrow's parsers let through.

    Raises:
        pa.ArrowInvalid: there is one.
    """
    if _has_decimals(column.type):
        column.validate(full=True)


def _has_decimals(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_has_decimals(field.type) for field in type_)
    return _has_decimals(element_type(type_)) if pa.types.is_list(type_) else pa.types.is_decimal(type_)
