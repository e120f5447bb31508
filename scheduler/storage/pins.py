"""Pins: artifacts that somebody wants to stay, whatever a garbage collection thinks of them."""

from __future__ import annotations

from datetime import datetime

from spanwise.orchestrator import lease
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.collection import COLLECTED, PINNED
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.scheduler.formatting import format_time
from spanwise.scheduler.ledger import schedule_status


def pin(store: Store, artifact: Artifact, *, why: str, now: datetime, clock: Clock | None = None) -> None:
    """Has an artifact stay until it is unpinned.

    Raises:
        UsageError: it was collected.
    """
    _enter(store, artifact, holds=True, why=why, now=now)
    # A collection that may have looked for pins before this one was there has let go of its lease after that.
    lease.current_after_collection(store, artifact.name.partition("/")[0], clock or Clock())
    collected = store.claimed(COLLECTED, artifact.name)
    if collected is not None:
        when = format_time(datetime.fromisoformat(str(collected.facts["at"])))
        raise UsageError(
            f"{artifact.name} was collected by {collected.facts['who']}, {when}: its files are gone, and a pin does "
            "not bring them back. See what there is: spanwise artifacts"
        )


def pinned(store: Store, artifact: Artifact) -> str:
    """Who has pinned it and why, in words; empty when nobody has."""
    claim = store.claimed(PINNED, artifact.name)
    if claim is None or not claim.facts["pinned"]:
        return ""
    return f"pinned by {claim.facts['who']}" + (f": {claim.facts['why']}" if claim.facts["why"] else "")


def unpin(store: Store, artifact: Artifact, *, now: datetime) -> None:
    """Ends a pin.

    Raises:
        UsageError: it is not pinned.
    """
    if not pinned(store, artifact):
        raise UsageError(f"{artifact.name} is not pinned. See why artifacts stay: spanwise gc --dry-run --all")
    _enter(store, artifact, holds=False, why="", now=now)


def _enter(store: Store, artifact: Artifact, *, holds: bool, why: str, now: datetime) -> None:
    claim = Claim(
        PINNED, artifact.name, {"pinned": holds, "why": why, "who": schedule_status.me(), "since": now.isoformat()}
    )
    try:
        store.claim(claim)
    except AlreadyClaimed:
        store.amend(claim)
