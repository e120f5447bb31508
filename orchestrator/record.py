"""Records: our dataclasses as plain data, for JSON and for the metadata, and back."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from spanwise.orchestrator.artifact import Value

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def to_plain(record: object, *, without: Collection[str] = ()) -> dict[str, Value]:
    """A dataclass as plain data that JSON can hold; `without` are fields that are left out."""
    plain = _adapter(cast("Any", type(record))).dump_python(record, mode="json", exclude=set(without))
    return cast("dict[str, Value]", plain)


def from_plain(kind: type[T], data: Mapping[str, object]) -> T:
    """The dataclass that `to_plain` wrote; fields that a newer program has added are ignored.

    Raises:
        ValueError: the data does not fit.
    """
    return cast("T", _adapter(cast("Any", kind)).validate_python(data))


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
