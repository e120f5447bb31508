"""Outcomes: what became of a tick, and why; and what closed the case of one that did not succeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum


class TickOutcome(Enum):
    """What became of a tick; all but the first are abnormal."""

    RAN = "ran"
    SKIPPED = "skipped"  #: the run before it had not ended, and was left running
    KILLED = "killed"  #: its run was ended for a later tick, or for a backfill with --kill
    MISSED = "missed"  #: no scheduler was there to start it, or the schedule was paused
    FAILED = "failed"

    @property
    def abnormal(self) -> bool:
        return self is not TickOutcome.RAN


@dataclass(frozen=True)
class SpanRange:
    """Neighbouring spans, from the first to the last."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class TickEnd:
    """How a tick ended."""

    outcome: TickOutcome
    why: str = ""  #: for people; empty when it ran
    run: int | None = None  #: number of its last run; None when it never had one
    quiet: bool = False  #: no alert is sent
    first_at: datetime | None = (
        None  #: where it stands for several ticks, the moment of the first; it is the last itself
    )
    first_span: int | None = None  #: the span of that one
    spans: tuple[
        SpanRange, ...
    ] = ()  #: those of all of them; where they were not looked up, all from the first to the last


def join_spans(spans: Sequence[int]) -> tuple[SpanRange, ...]:
    """Ascending spans, neighbours as one range."""
    ranges: list[SpanRange] = []
    for span in spans:
        if ranges and span == ranges[-1].last + 1:
            ranges[-1] = SpanRange(ranges[-1].first, span)
        else:
            ranges.append(SpanRange(span, span))
    return tuple(ranges)


class Closing(Enum):
    """How a missed tick was closed."""

    RECOVERED = "recovered"  #: a later run has done its work
    SUPERSEDED = "superseded"  #: no window reads its span any more
    ACKNOWLEDGED = "acknowledged"  #: a person has given it up


@dataclass(frozen=True, kw_only=True)
class TickClosure:
    """Why a missed tick no longer needs backfilling."""

    how: Closing
    at: datetime
    run: int | None = None  #: number of the run that recovered or superseded it
    who: str = ""  #: the person who acknowledged it, `user@host`
    because: str = ""  #: for people
