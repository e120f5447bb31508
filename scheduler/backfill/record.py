"""Records of backfills: what was planned, and which of its runs exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path

from spanwise.orchestrator.artifact import Value
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import NotRecorded, StoreError
from spanwise.orchestrator.mlmd.places import Places
from spanwise.orchestrator.record import from_plain, to_plain
from spanwise.orchestrator.run import Run, Trigger
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store


class BackfillStage(Enum):
    """The state of a backfill. A backfill whose process died while `RUNNING` was interrupted, too."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"  #: it has ended, and some of it is left
    COMPLETE = "complete"


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """One backfill."""

    pipeline: str
    number: int = 0  #: counts up from 1 within the pipeline; 0 until it is recorded
    source: str  #: the file its pipeline was loaded from, `/path/file.py:name`
    typed: tuple[str, ...]  #: arguments of the pipeline function, `name=value`
    calendar: str
    spans: tuple[int, ...]  #: what to run again, in this order
    train: tuple[str, ...]  #: the nodes that run once, at the end; empty when each span has a full run
    parallel: int
    from_scratch: bool
    began: datetime
    after_run: int  #: the newest earlier run; its own runs have higher numbers
    folder: str = ""  #: where it was planned: relative paths of its pipeline are of this folder; empty where unknown
    source_node: str = ""  #: the node whose spans these are, where each that ingests has its own
    joined: tuple[Mapping[str, str], ...] = ()  #: for each of them, the spans of other nodes that are joined with it
    stage: BackfillStage = BackfillStage.RUNNING

    @property
    def name(self) -> str:
        """`pipeline/number`; the cause of its runs is this name after `backfill `."""
        return f"{self.pipeline}/{self.number}"

    @property
    def cause(self) -> str:
        return f"backfill {self.name}"


TRAIN = None
"""Used in place of a span: the run of the training part."""


def record_backfill(store: Store, backfill: Backfill, root: Path) -> Backfill:
    """Records a new backfill, with the next number of its pipeline; its file and folder as a run records them."""
    while True:
        numbered = replace(backfill, number=newest_backfill(store, backfill.pipeline) + 1)
        try:
            store.claim(_claim(numbered, root))
        except AlreadyClaimed:
            continue
        return numbered


def set_stage(store: Store, backfill: Backfill, stage: BackfillStage, root: Path) -> Backfill:
    """Records the stage of a backfill."""
    changed = replace(backfill, stage=stage)
    store.amend(_claim(changed, root))
    return changed


def find_backfill(store: Store, reference: str, root: Path | None = None) -> Backfill:
    """The backfill that a reference names: `flights/3`, or `flights` for its newest.

    Without the root, its file and folder are as they are recorded.

    Raises:
        NotRecorded: there is none.
    """
    pipeline, slash, number = reference.rpartition("/")
    if not slash:
        pipeline, number = reference, str(newest_backfill(store, reference))
    claim = store.find_claim("backfill", f"{pipeline}#{number}")
    if claim is None:
        newest = newest_backfill(store, pipeline)
        known = f"its backfills are 1 to {newest}" if newest else f"{pipeline!r} was never backfilled here"
        raise NotRecorded(f"There is no backfill {reference}; {known}.")
    return _read(pipeline, int(number), claim.facts, root)


def backfill_runs(store: Store, backfill: Backfill) -> dict[int | None, Run]:
    """The newest run of the backfill for each span, and of the training part under `TRAIN`."""
    found: dict[int | None, Run] = {}
    for _, run in list_runs(store, [backfill]):
        found.setdefault(_span_of(backfill, run), run)
    return found


def list_runs(store: Store, backfills: Sequence[Backfill]) -> Iterator[tuple[Backfill, Run]]:
    """The runs of backfills of one pipeline, newest first, each with the backfill that has made it."""
    by_cause = {backfill.cause: backfill for backfill in backfills}
    before = min((backfill.after_run for backfill in backfills), default=0)
    for run in store.runs(backfills[0].pipeline) if backfills else ():
        if run.number <= before:
            break
        if run.trigger is Trigger.BACKFILL and run.cause in by_cause:
            yield by_cause[run.cause], run


def _span_of(backfill: Backfill, run: Run) -> int | None:
    """Which of the spans of a backfill one of its runs is of: with several, that of the node that they are of."""
    label = run.spans.get(backfill.source_node)
    return run.span if label is None else Calendar.from_name(backfill.calendar).parse(label)


def list_unfinished(store: Store, pipeline: str) -> list[Backfill]:
    """The backfills of a pipeline that are not complete, however old; with their files as they are recorded."""
    names = {f"{pipeline}#{number}": number for number in range(1, newest_backfill(store, pipeline) + 1)}
    claims = store.find_claims("backfill", list(names))
    found = [_read(pipeline, names[name], claim.facts, None) for name, claim in claims.items()]
    return [backfill for backfill in found if backfill.stage is not BackfillStage.COMPLETE]


def newest_backfill(store: Store, pipeline: str) -> int:
    """The number of the newest backfill of a pipeline; 0 if there is none."""
    return store.last_claim("backfill", f"{pipeline}#")


def _claim(backfill: Backfill, root: Path) -> Claim:
    where = Places(root)
    recorded = replace(
        backfill, source=where.record_source(backfill.source), folder=where.record_source(backfill.folder)
    )
    facts = to_plain(recorded, without=("pipeline", "number"))
    return Claim("backfill", f"{backfill.pipeline}#{backfill.number}", facts)


def _read(pipeline: str, number: int, facts: Mapping[str, Value], root: Path | None) -> Backfill:
    where = Places(root)
    try:
        found = from_plain(Backfill, {**facts, "pipeline": pipeline, "number": number})
        return replace(found, source=where.resolve(found.source), folder=where.resolve(found.folder))
    except ValueError as error:
        raise StoreError(f"Could not read backfill {pipeline}/{number} from the metadata: {error}") from error
