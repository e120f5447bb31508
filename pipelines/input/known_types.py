"""Known types: what two types say together, where one of them does not know what is in a list or a struct."""

from __future__ import annotations

import pyarrow as pa


def fill_nulls(known: pa.DataType, found: pa.DataType) -> pa.DataType:
    """The known type, with what was found wherever nothing was known: of [] alone nobody knows what is in the list."""
    types = pa.types
    if types.is_null(known):
        return found
    if types.is_list(known) and types.is_list(found):
        return pa.list_(known.value_field.with_type(fill_nulls(known.value_type, found.value_type)))
    if types.is_struct(known) and types.is_struct(found):
        names = {field.name: field.type for field in found}
        return pa.struct([f.with_type(fill_nulls(f.type, names.get(f.name, f.type))) for f in known])
    return known


def agree(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of both, as far as either says something; None where they contradict each other."""
    filled = fill_nulls(one, other)
    return filled if filled == fill_nulls(other, one) else None
