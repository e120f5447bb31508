"""Rounds of a coordinated read: up to where all its consumers agree. Pure.

A plan says that from its first round on its tasks serve in turn, until a later plan begins. A consumer yields a round
when all consumers hold it, which is what they agree upon. So a new plan may begin at the agreed round whatever was lost
with a worker: no consumer has yielded anything behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.pipelines.input.service.wire.requests import RoundPlan, RoundReport


def later(one: RoundReport | None, other: RoundReport) -> RoundReport:
    """The later of two reports of a consumer, which may arrive in any order."""
    if one is None:
        return other
    plans, ready = max((one.plans, one.ready), (other.plans, other.ready))
    return RoundReport(plans=plans, ready=ready, agreed=max(one.agreed, other.agreed))


def agreed(plans: Sequence[RoundPlan], reports: Sequence[RoundReport | None]) -> int | None:
    """All consumers hold the rounds below; None until each of them has reported."""
    known = [report for report in reports if report is not None]
    if len(known) < len(reports):
        return None
    # what a consumer holds by earlier plans counts up to the round where a later one begins
    held = min(min([report.ready, *(plan.first for plan in plans[report.plans :])]) for report in known)
    return max(held, *(report.agreed for report in known))
