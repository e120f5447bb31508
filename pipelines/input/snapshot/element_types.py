"""Types of elements: the named tuples and dataclasses that this process makes of what it reads; no others.

Files and messages name types. To import and call whatever they name would let who writes a file run a command where it
is read. So a type is made only if this process has registered it: the user did, the dataset's spec holds it, or an
element of this type was written here.
"""

from __future__ import annotations

import dataclasses
from typing import Final, TypeVar

from spanwise.orchestrator.errors import DatasetError, SnapshotDamaged
from spanwise.pipelines.input.element import DatasetSpec, ElementSpec, OptionalSpec, Structure

_Kind = TypeVar("_Kind", bound=type)

_registered: Final[dict[tuple[str, str], type]] = {}


def register_type(kind: _Kind) -> _Kind:
    """Lets snapshots and data services be read that hold elements of this named tuple or dataclass; also a decorator.

    Raises:
        DatasetError: it is neither.
    """
    if not isinstance(kind, type) or not (
        dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    ):
        raise DatasetError(f"register_type({kind!r}): expected a class that is a dataclass or a named tuple.")
    _registered[kind.__module__, kind.__qualname__] = kind
    return kind


def register_types_of(spec: ElementSpec) -> None:
    """Registers the types that the description of an element holds."""
    match spec:
        case Structure(kind=kind, parts=parts):
            if kind is not tuple and not issubclass(kind, dict):
                register_type(kind)
            for part in parts:
                register_types_of(part)
        case OptionalSpec() | DatasetSpec():
            register_types_of(spec.of)


def element_type(home: str, name: str) -> type:
    """The registered type of that module and name.

    Raises:
        SnapshotDamaged: there is none.
    """
    try:
        return _registered[home, name]
    except KeyError:
        raise SnapshotDamaged(
            f"the elements are of the class {home}.{name}, which this process has not registered, so it is not made of "
            f"what was read. If you trust who wrote it, register the class first: "
            f"spanwise.input.register_type({name.rpartition('.')[2]})"
        ) from None
