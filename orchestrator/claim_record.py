"""Claim records: dataclasses that are stored as the facts of a claim, and read back through their annotations."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.store import Claim

if TYPE_CHECKING:
    from pydantic import TypeAdapter

R = TypeVar("R")


def facts_of(record: object) -> dict[str, Value]:
    """The fields of a record as the store can hold them."""
    adapter = _adapter(type(record))  # type: ignore[arg-type]  # mypy reads object.__hash__ for that of type
    facts: dict[str, Value] = adapter.dump_python(record, mode="json")
    return facts


def record_of(kind: type[R], claim: Claim) -> R:
    """The record that a claim holds.

    Raises:
        StoreError: its facts are not those of such a record; something else has written there.
    """
    from pydantic import ValidationError

    try:
        record: R = _adapter(kind).validate_python(claim.facts)  # type: ignore[arg-type]  # as above
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise StoreError(
            f"The metadata holds {first['input']!r} as {field} of {claim.kind} {claim.name!r}: {first['msg']}."
        ) from error
    return record


@functools.cache
def _adapter(kind: type[R]) -> TypeAdapter[R]:
    from pydantic import TypeAdapter  # imported here: not every command reads such a record

    return TypeAdapter(kind)
