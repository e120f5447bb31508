"""Claim records: dataclasses that are stored as the facts of a claim."""

from __future__ import annotations

from typing import TypeVar

from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.record import from_plain, to_plain
from spanwise.orchestrator.store import Claim

R = TypeVar("R")

facts_of = to_plain


def record_of(kind: type[R], claim: Claim) -> R:
    """The record that a claim holds.

    Raises:
        StoreError: its facts are not those of such a record; something else has written there.
    """
    from pydantic import ValidationError  # imported here: not every command reads such a record

    try:
        return from_plain(kind, claim.facts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise StoreError(
            f"The metadata holds {first['input']!r} as {field} of {claim.kind} {claim.name!r}: {first['msg']}."
        ) from error
