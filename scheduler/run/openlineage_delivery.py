"""Delivered ends: up to which run of a pipeline a lineage server knows the ends, in a claim of the pipeline.

A run that dies between recording its end and sending it, or whose server is away, leaves the number behind; the next
run sends what is missing. Two processes that write the number at once cost at most that an end is sent twice, which
changes nothing there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping

from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.scheduler.formatting import format_count

log = logging.getLogger("spanwise.openlineage")

RESENT_RUNS = 50
"""The ends of how many earlier runs a run sends at most."""

_KIND, _DELIVERED = "openlineage", "delivered"


def list_undelivered(store: Store, run: Run) -> list[Run]:
    """The runs before this one whose ends have not arrived, oldest first; none where this one is the first to send."""
    claim = store.find_claim(_KIND, run.pipeline)
    if claim is None:
        with contextlib.suppress(AlreadyClaimed):
            store.claim(Claim(_KIND, run.pipeline, {_DELIVERED: run.number - 1}))
        return []
    delivered, oldest = claim.get_int(_DELIVERED), run.number - RESENT_RUNS
    if delivered + 1 < oldest:
        lost = format_count(oldest - 1 - delivered, "run")
        reason = f"{lost}, the last of them {run.pipeline}/{oldest - 1}, whose ends have not arrived"
        log.warning("openlineage-runs-given-up", extra={"reason": reason})
        delivered = oldest - 1
        store.amend(Claim(_KIND, run.pipeline, {_DELIVERED: delivered}))
    missing = run.number - 1 - delivered
    behind = [*store.runs(run.pipeline, before=run.number, limit=missing)] if missing > 0 else []
    return [each for each in reversed(behind) if each.state.ended]


def note_delivered(store: Store, arrived: Mapping[str, Collection[int]]) -> None:
    """Notes that the ends of these runs of each pipeline have arrived; those behind a gap are sent once more."""
    for pipeline, numbers in arrived.items():
        claim = store.find_claim(_KIND, pipeline)
        if claim is None:
            continue
        delivered = before = claim.get_int(_DELIVERED)
        while delivered + 1 in numbers:
            delivered += 1
        if delivered > before:
            store.amend(Claim(_KIND, pipeline, {_DELIVERED: delivered}))
