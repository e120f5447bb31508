"""Backfills as they are recorded: what was planned, and, read off the runs it has made, what is done of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.errors import NotRecorded, StoreError
from spanwise.orchestrator.run import Run, Trigger
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store, last


class Stage(Enum):
    """Where a backfill stands. One that is going and whose process is gone was interrupted as well."""

    GOING = "going"
    INTERRUPTED = "interrupted"
    FAILED = "failed"  #: at its end; some of it is left
    COMPLETE = "complete"


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """One backfill."""

    pipeline: str
    number: int = 0  #: counts up from 1 within the pipeline; 0 until it is recorded
    source: str  #: the file its pipeline was loaded from, `/path/file.py:name`
    typed: tuple[str, ...]  #: arguments of the pipeline function, `name=value`
    calendar: str
    spans: tuple[int, ...]  #: what is run again, in this order
    train: tuple[str, ...]  #: the nodes that run once, at the end; empty when each span has a full run
    parallel: int
    from_scratch: bool
    began: datetime
    after_run: int  #: the newest run there was; its own have higher numbers
    stage: Stage = Stage.GOING

    @property
    def name(self) -> str:
        """`pipeline/number`, as it is typed and shown; and the cause of its runs, with `backfill ` before it."""
        return f"{self.pipeline}/{self.number}"

    @property
    def cause(self) -> str:
        return f"backfill {self.name}"


TRAIN = None
"""In place of a span: the run of the second part."""


def record(store: Store, backfill: Backfill) -> Backfill:
    """Records a backfill that begins, and gives it the next number of its pipeline."""
    while True:
        numbered = replace(backfill, number=_newest(store, backfill.pipeline) + 1)
        try:
            store.claim(_claim(numbered))
        except AlreadyClaimed:
            continue
        return numbered


def enter(store: Store, backfill: Backfill, stage: Stage) -> Backfill:
    """Notes where it stands now."""
    entered = replace(backfill, stage=stage)
    store.amend(_claim(entered))
    return entered


def find(store: Store, reference: str) -> Backfill:
    """The backfill that was typed: `flights/3`, or `flights` for its newest.

    Raises:
        NotRecorded: there is none.
    """
    pipeline, slash, number = reference.rpartition("/")
    if not slash:
        pipeline, number = reference, str(_newest(store, reference))
    claim = store.claimed("backfill", f"{pipeline}#{number}")
    if claim is None:
        newest = _newest(store, pipeline)
        there = f"its backfills are 1 to {newest}" if newest else f"{pipeline!r} was never backfilled here"
        raise NotRecorded(f"There is no backfill {reference}; {there}.")
    return _read(pipeline, int(number), claim.facts)


def runs(store: Store, backfill: Backfill) -> dict[int | None, Run]:
    """The newest run of each span, and of the second part under `TRAIN`, that the backfill has made."""
    found: dict[int | None, Run] = {}
    for run in store.runs(backfill.pipeline):
        if run.number <= backfill.after_run:
            break
        if run.trigger is Trigger.BACKFILL and run.cause == backfill.cause:
            found.setdefault(run.span, run)
    return found


def _newest(store: Store, pipeline: str) -> int:
    return last(lambda n: store.claimed("backfill", f"{pipeline}#{n}") is not None)


def _claim(backfill: Backfill) -> Claim:
    facts: dict[str, Value] = {
        "source": backfill.source,
        "typed": list(backfill.typed),
        "calendar": backfill.calendar,
        "spans": list(backfill.spans),
        "train": list(backfill.train),
        "parallel": backfill.parallel,
        "from_scratch": backfill.from_scratch,
        "began": backfill.began.isoformat(),
        "after_run": backfill.after_run,
        "stage": backfill.stage.value,
    }
    return Claim("backfill", f"{backfill.pipeline}#{backfill.number}", facts)


def _read(pipeline: str, number: int, facts: Mapping[str, Value]) -> Backfill:
    match dict(facts):
        case {
            "source": str(source), "typed": list(typed), "calendar": str(calendar), "spans": list(spans),
            "train": list(train), "parallel": int(parallel), "from_scratch": bool(from_scratch), "began": str(began),
            "after_run": int(after_run), "stage": str(stage),
        }:  # fmt: skip
            return Backfill(
                pipeline=pipeline,
                number=number,
                source=source,
                typed=tuple(map(str, typed)),
                calendar=calendar,
                spans=tuple(s for s in spans if isinstance(s, int)),
                train=tuple(map(str, train)),
                parallel=parallel,
                from_scratch=from_scratch,
                began=datetime.fromisoformat(began),
                after_run=after_run,
                stage=Stage(stage),
            )
    raise StoreError(f"Backfill {pipeline}/{number} in the metadata cannot be read: {facts!r}")
