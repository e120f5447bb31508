"""Collected artifacts: which files garbage collection has removed, and when. Reads only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.collection import COLLECTED
from spanwise.orchestrator.store import Store


def find_collected(store: Store, artifacts: Iterable[Artifact]) -> dict[int, datetime]:
    """By the id of an artifact whose files were removed, when that was decided."""
    ids = {artifact.name: artifact.id for artifact in artifacts}
    claims = store.find_claims(COLLECTED, list(ids))
    return {ids[name]: datetime.fromisoformat(str(claim.facts["at"])) for name, claim in claims.items()}
