"""Numbered claims: `prefix#1`, `prefix#2`, …, of which the newest is found by galloping.

A walk down from the newest stops at a number that is marked as settled: from there on down nothing will change.
"""

from __future__ import annotations

from dataclasses import replace

from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.store import Claim, Store


def newest_number(store: Store, kind: str, prefix: str, seen: int = 0, sign: str = "#") -> int:
    """The highest number; 0 when there is none. `seen` is a number known to exist, for speed."""
    return store.last_claim(kind, f"{prefix}{sign}", seen=seen)


def read_claim(store: Store, kind: str, name: str) -> Claim:
    """A claim that was made.

    Raises:
        StoreError: it is gone.
    """
    claim = store.find_claim(kind, name)
    if claim is None:
        raise StoreError(f"The metadata store has lost {kind} {name!r}, which it had. Restore it from a backup.")
    return claim


def is_settled(store: Store, kind: str, prefix: str, number: int) -> bool:
    """Whether the claim of this number, and all before it, are settled."""
    return bool(read_claim(store, kind, f"{prefix}#{number}").facts["settled"])


def settle(store: Store, kind: str, prefix: str, number: int) -> None:
    """Marks the claim of this number, and all before it, as settled."""
    # Whoever writes this writes the same, and it stays true: what is settled never changes again.
    claim = read_claim(store, kind, f"{prefix}#{number}")
    store.amend(replace(claim, facts={**claim.facts, "settled": True}))
