"""Pins: artifacts that are protected from garbage collection."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from spanwise.orchestrator import lease
from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.collection import COLLECTED, PINNED
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.lease import Clock
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.scheduler.formatting import format_time
from spanwise.scheduler.ledger.schedule_status import user_name


def pin(store: Store, artifact: Artifact, *, why: str, now: datetime, clock: Clock | None = None) -> None:
    """Protects an artifact from garbage collection until it is unpinned.

    Raises:
        UsageError: it was already collected.
    """
    _write(store, artifact, pinned=True, why=why, now=now)
    # A collection that looked for pins before this one was written has released its lease by then.
    lease.current_after_collection(store, artifact.name.partition("/")[0], clock or Clock())
    collected = store.find_claim(COLLECTED, artifact.name)
    if collected is not None:
        when = format_time(datetime.fromisoformat(str(collected.facts["at"])))
        raise UsageError(
            f"{artifact.name} was collected by {collected.facts['who']}, {when}: its files are gone, and a pin does "
            "not restore them. List the artifacts: spanwise artifacts"
        )


def describe_pin(store: Store, artifact: Artifact) -> str:
    """Who has pinned it, and why; empty when it is not pinned."""
    claim = store.find_claim(PINNED, artifact.name)
    return "" if claim is None else _describe(claim)


def describe_pins(store: Store, artifacts: Iterable[Artifact]) -> dict[str, str]:
    """The same of those among many that are pinned, by their names."""
    claims = store.find_claims(PINNED, [artifact.name for artifact in artifacts])
    return {name: pinned for name, claim in claims.items() if (pinned := _describe(claim))}


def _describe(claim: Claim) -> str:
    if not claim.facts["pinned"]:
        return ""
    return f"pinned by {claim.facts['who']}" + (f": {claim.facts['why']}" if claim.facts["why"] else "")


def unpin(store: Store, artifact: Artifact, *, now: datetime) -> None:
    """Removes the pin of an artifact.

    Raises:
        UsageError: it is not pinned.
    """
    if not describe_pin(store, artifact):
        raise UsageError(f"{artifact.name} is not pinned. See why artifacts are kept: spanwise gc --dry-run --all")
    _write(store, artifact, pinned=False, why="", now=now)


def _write(store: Store, artifact: Artifact, *, pinned: bool, why: str, now: datetime) -> None:
    claim = Claim(
        PINNED,
        artifact.name,
        {"pinned": pinned, "why": why, "who": user_name(), "since": now.isoformat()},
    )
    try:
        store.claim(claim)
    except AlreadyClaimed:
        store.amend(claim)
