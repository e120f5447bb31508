"""Claim records: dataclasses that are stored as the facts of a claim."""

from __future__ import annotations

from typing import TypeVar

from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.record import MisfitError, from_plain, to_plain
from spanwise.orchestrator.store import Claim

R = TypeVar("R")

facts_of = to_plain


def record_of(kind: type[R], claim: Claim) -> R:
    """The record that a claim holds.

    Raises:
        StoreError: its facts are not those of such a record; something else has written there.
    """
    try:
        return from_plain(kind, claim.facts)
    except MisfitError as error:
        where = f" as {error.field}" if error.field else ""
        raise StoreError(
            f"The metadata holds {error.value!r}{where} of {claim.kind} {claim.name!r}, which is not {error.wanted}."
        ) from error
