"""Outcomes: what became of a tick, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class TickOutcome(Enum):
    """What became of a tick; all but the first are abnormal."""

    RAN = "ran"
    SKIPPED = "skipped"  #: the run before it had not ended, and was left running
    KILLED = "killed"  #: its run was ended for a later tick
    MISSED = "missed"  #: no scheduler was there to start it, or the schedule was paused
    FAILED = "failed"

    @property
    def abnormal(self) -> bool:
        return self is not TickOutcome.RAN


@dataclass(frozen=True, kw_only=True)
class TickEnd:
    """How a tick ended."""

    outcome: TickOutcome
    why: str = ""  #: for people; empty when it ran
    run: int | None = None  #: number of its last run; None when it never had one
    quiet: bool = False  #: no alert is sent
