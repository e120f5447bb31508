"""Stored types: the types that columns have in examples, whatever a file declares; their texts, and arrays of them.

A file may say the same values in several ways: dictionaries, large or viewed texts and lists, seconds, other names for
the element of a list, "not null". Examples are of one of them, so that spans from other programs are of one type.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spanwise.pipelines.input.readers.nested import inside_lists, inside_structs, is_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

#: As the Parquet standard calls it.
_ELEMENT = "element"
_MOST_DIGITS_128 = 38
_MOST_DIGITS = 76

_LISTS = {"list", "large_list", "list_view", "large_list_view"}
_STORED: dict[pa.DataType, pa.DataType] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.time32("s"): pa.time32("ms"),
    pa.date64(): pa.date32(),
}
_PLAIN = re.compile(r"[a-z][a-z0-9_]*(?:\[[^\]]*\]|\([^)]*\))?")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=(.+)\]")
_DECIMAL = re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)")
_BYTES = re.compile(r"fixed_size_binary\[(\d+)\]")


def stored_type(type_: pa.DataType) -> pa.DataType:  # noqa: PLR0911 -- one a kind
    """The type that values of this type are stored with. A type without one is returned as it is: `obstacle`."""
    if isinstance(type_, pa.FixedShapeTensorType) or _is_opaque(type_):
        return type_
    if isinstance(type_, pa.BaseExtensionType):
        return stored_type(type_.storage_type)
    if pa.types.is_nested(type_):
        return _stored_nested(type_)
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return stored_type(_value_type(type_))
    if pa.types.is_timestamp(type_) and type_.unit == "s":
        return pa.timestamp("ms", type_.tz)
    if pa.types.is_decimal(type_):
        # a negative scale, which Parquet does not have, counts zeros after the last digit
        digits, scale = type_.precision - min(type_.scale, 0), max(type_.scale, 0)
        make = pa.decimal128 if digits <= _MOST_DIGITS_128 else pa.decimal256
        return type_ if digits > _MOST_DIGITS else make(digits, scale)
    return _STORED.get(type_, type_)


def _stored_nested(type_: Any) -> pa.DataType:
    types = pa.types
    if types.is_map(type_):
        return pa.map_(_stored_inner(type_.key_type), _stored_inner(type_.item_type))
    if types.is_struct(type_):
        return pa.struct([(field.name, _stored_inner(field.type)) for field in type_])
    if types.is_fixed_size_list(type_):
        return pa.list_(pa.field(_ELEMENT, _stored_inner(type_.value_type)), int(type_.list_size))
    if _is_any_list(type_):
        return pa.list_(pa.field(_ELEMENT, _stored_inner(type_.value_type)))
    return cast("pa.DataType", type_)


def _stored_inner(type_: pa.DataType) -> pa.DataType:
    return type_ if pa.types.is_run_end_encoded(type_) or _is_view(type_) else stored_type(type_)


def obstacle(type_: pa.DataType) -> str | None:
    """Why values of this type cannot be stored, as the end of a sentence; None if they can."""
    found = _own_obstacle(type_)
    for inner in () if found else _inner_types(type_):
        if pa.types.is_run_end_encoded(inner) or _is_view(inner):
            return f"has values of type {inner} in a value of type {type_}, which cannot be converted"
        found = found or obstacle(inner)
    return found


def _own_obstacle(type_: pa.DataType) -> str | None:
    types = pa.types
    if isinstance(type_, pa.OpaqueType) and _is_opaque(type_):
        return f"is of type {type_.type_name}, which has no Arrow type"
    if types.is_struct(type_):
        names = [field.name for field in type_]
        repeated = sorted({name for name in names if names.count(name) > 1})
        return f"has two fields called '{repeated[0]}'" if repeated else None if names else "is a struct without fields"
    # Arrow's cast breaks lists of so many nulls
    has_no_room = types.is_fixed_size_list(type_) and (type_.list_size == 0 or types.is_null(type_.value_type))
    if has_no_room or type_ == pa.binary(0):
        return f"is of type {type_}, which has room for nothing"
    if types.is_union(type_) or types.is_interval(type_):
        return f"is of type {type_}, which Parquet does not have"
    if types.is_decimal(type_) and type_.precision - min(type_.scale, 0) > _MOST_DIGITS:
        return f"is of type {type_}, which has more than {_MOST_DIGITS} digits"
    return None


def store(array: pa.Array[Any]) -> pa.Array[Any]:
    """The same values as an array of the stored type.

    Raises:
        ArrowInvalid: a value does not survive, such as a time of day in a date.
    """
    kind = array.type
    wanted = stored_type(kind)
    if kind == wanted:
        return array
    if isinstance(array, pa.ExtensionArray):
        return store(array.storage)
    if pa.types.is_dictionary(kind):
        return store(cast("pa.DictionaryArray[Any, Any]", array).dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return store(cast("Any", pc).run_end_decode(array))
    if _is_view(kind):
        # Arrow's own cast loses the values
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        missing = pc.is_null(array) if array.null_count else None
        values = store(cast("Any", array).flatten())
        made: pa.Array[Any] = cast("Any", pa.ListArray).from_arrays(pa.array(offsets), values, mask=missing)
        return made
    return pc.cast(array, wanted, safe=True)


def parse_type(text: str) -> pa.DataType | None:
    """The stored type of what `str(type)` writes, nested or not; None for a text that names none."""
    return next((stored_type(type_) for type_, rest in _parse(text.strip()) if not rest), None)


def find_missing_fixed_list(array: pa.Array[Any]) -> int | None:
    """The first row with a missing list where all lists have one length, which Parquet cannot give back."""
    if not _has_fixed_list(array.type):
        return None
    missing = _missing_fixed_lists(array)
    return int(np.argmax(missing)) if missing.any() else None


def _missing_fixed_lists(array: pa.Array[Any]) -> NDArray[np.bool_]:
    """For each row whether such a list is missing, at any depth."""
    if isinstance(array, pa.ExtensionArray):
        return _missing_fixed_lists(array.storage)
    found = np.zeros(len(array), dtype=bool)
    if not _has_fixed_list(array.type):
        return found
    if pa.types.is_struct(array.type):
        for field in inside_structs(array):
            if _has_fixed_list(field.type):
                found |= _missing_fixed_lists(field) | is_missing(array)  # a missing struct has missing fields
        return found
    inner, starts, ends = inside_lists(array)
    counts = np.concatenate(([0], np.cumsum(np.any([_missing_fixed_lists(each) for each in inner], axis=0))))
    found = counts[ends] > counts[starts]
    return found | is_missing(array) if pa.types.is_fixed_size_list(array.type) else found


def _has_fixed_list(type_: pa.DataType) -> bool:
    return pa.types.is_fixed_size_list(type_) or any(_has_fixed_list(inner) for inner in _inner_types(type_))


def _is_opaque(type_: pa.DataType) -> bool:
    """Whether it has the bytes of another system, whose meaning is not known here."""
    return isinstance(type_, pa.OpaqueType) and not pa.types.is_string(type_.storage_type)


def _is_view(type_: pa.DataType) -> bool:
    return str(type_).partition("<")[0] in ("list_view", "large_list_view")


def _value_type(type_: pa.DataType) -> pa.DataType:
    return cast("pa.ListType[pa.DataType]", type_).value_type


def _is_any_list(type_: pa.DataType) -> bool:
    return str(type_).partition("<")[0] in _LISTS


def _inner_types(type_: pa.DataType) -> list[pa.DataType]:
    if isinstance(type_, pa.BaseExtensionType):
        return [type_.storage_type]
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return [_value_type(type_)]
    return [type_.field(index).type for index in range(type_.num_fields)]


def _parse(text: str) -> Iterator[tuple[pa.DataType, str]]:
    """Every way to read a type at the head of a text, with what follows it: the name of a field may have colons."""
    head, opened, rest = text.partition("<")
    if opened and head in {*_LISTS, "fixed_size_list"}:
        yield from _parse_list(head, rest)
    elif opened and head == "map":
        for key, after in _parse(rest):
            for item, end in _parse(after[2:]) if after.startswith(", ") else ():
                if close := re.match(r"(, keys_sorted)?( \('[^']*'\))?>", end):
                    yield pa.map_(key, item), end[close.end() :]
    elif opened and head == "struct":
        for fields, after in _struct_fields(rest):
            yield pa.struct(fields), after
    elif (found := _PLAIN.match(text)) and (type_ := _plain_type(found[0])) is not None:
        yield type_, text[found.end() :].removeprefix(" not null")


def _parse_list(head: str, text: str) -> Iterator[tuple[pa.DataType, str]]:
    unnamed = (("", *found) for found in _parse(text))
    for _, inner, after in (*_fields(text), *unnamed):
        if head != "fixed_size_list" and after.startswith(">"):
            yield pa.list_(inner), after[1:]
        elif head == "fixed_size_list" and (size := re.match(r">\[(\d+)\]", after)):
            yield pa.list_(inner, int(size[1])), after[size.end() :]


def _struct_fields(text: str) -> Iterator[tuple[list[tuple[str, pa.DataType]], str]]:
    for name, type_, after in _fields(text):
        if after.startswith(">"):
            yield [(name, type_)], after[1:]
        elif after.startswith(", "):
            for more, end in _struct_fields(after[2:]):
                yield [(name, type_), *more], end


def _fields(text: str) -> Iterator[tuple[str, pa.DataType, str]]:
    for colon in re.finditer(": ", text):
        for type_, after in _parse(text[colon.end() :]):
            yield text[: colon.start()], type_, after.removeprefix(" not null")


def _plain_type(text: str) -> pa.DataType | None:
    if zoned := _ZONED.fullmatch(text):
        return pa.timestamp(cast("Any", zoned[1]), zoned[2])
    try:
        if decimal := _DECIMAL.fullmatch(text):
            return pa.decimal256(int(decimal[2]), int(decimal[3]))
        if size := _BYTES.fullmatch(text):
            return pa.binary(int(size[1]))
        return cast("Callable[[str], pa.DataType]", pa.type_for_alias)(text)
    except ValueError:
        return None
