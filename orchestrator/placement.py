"""Placements: on which machine an engine executes a node. Recorded as soon as it is known, so that people can look.

They decide nothing, so no lease guards them, and one that cannot be recorded is only missed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.run import Execution
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store

_KIND = "placement"

log = logging.getLogger("spanwise.run")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where an engine has placed an execution."""

    place: str  #: the machine, and what the engine calls the agent there
    page_url: str = ""  #: the engine's own page about it


def record_placement(store: Store, execution: Execution, placement: Placement) -> None:
    """Records where an execution is placed; the first record stays."""
    facts = {"place": placement.place, "page_url": placement.page_url}
    try:
        store.claim(Claim(_KIND, execution.name, facts))
    except (AlreadyClaimed, StoreError) as error:
        log.warning(
            "placement-unrecorded", extra={"run": execution.run_name, "node": execution.node, "reason": str(error)}
        )


def find_placements(store: Store, executions: Iterable[Execution]) -> dict[str, Placement]:
    """The placements of those executions that an engine has executed, by their names."""
    names: Sequence[str] = [each.name for each in executions if not each.chosen and each.reused is None]
    found = store.find_claims(_KIND, names) if names else {}
    return {name: _read(claim) for name, claim in found.items()}


def _read(claim: Claim) -> Placement:
    page_url = str(claim.facts["page_url"])
    is_link = page_url.startswith(("http://", "https://"))  # a page shows it as one
    return Placement(place=str(claim.facts["place"]), page_url=page_url if is_link else "")
