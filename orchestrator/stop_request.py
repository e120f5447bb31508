"""Stop requests: who has asked a run to end, and why. The first counts, and the record of the run quotes it."""

from __future__ import annotations

import contextlib

from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store


def request_stop(store: Store, run: Run, by: str) -> None:
    """Asks a run to end. `by` completes the sentence "stopped by …"."""
    with contextlib.suppress(AlreadyClaimed):  # it was already asked to stop
        store.claim(Claim("stop", run.name, {"by": by}))


def find_stop(store: Store, run: Run) -> str:
    """By what a run was asked to end; empty when it was not."""
    claim = store.find_claim("stop", run.name)
    return "" if claim is None else str(claim.facts["by"])
