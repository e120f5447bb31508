"""Garbage: what a pipeline's folder holds that nobody has a use for any more; giving it up, and the words for that.

Who comes after a kill goes on where it fell:

1. Under the pipeline's lease, so that no run is there that may have chosen them, artifacts are marked as collected,
   many in one transaction. From then on no run begins to read them.
2. Still under the lease, each folder gets a name that nothing looks for, in one step: nobody sees half of one.
3. What has such a name is removed, lease or not.
"""

from __future__ import annotations

import itertools
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from spanwise.orchestrator import lease, publisher
from spanwise.orchestrator.artifact import Artifact, Model, TransformGraph, Value
from spanwise.orchestrator.base_run import LOOK_BACK
from spanwise.orchestrator.collection import COLLECTED, Fate, Retention, fates
from spanwise.orchestrator.component import Resolver
from spanwise.orchestrator.driver import past_of
from spanwise.orchestrator.errors import Held, NotRecorded, ResolutionError, RunError, UsageError
from spanwise.orchestrator.lease import Clock, Lease
from spanwise.orchestrator.lineage import Direction, walk
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.run_dir import remove_working_files
from spanwise.orchestrator.span import Calendar
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store, marked
from spanwise.scheduler.backfill import record
from spanwise.scheduler.backfill.record import Stage
from spanwise.scheduler.formatting import Document, format_count, format_size, format_table, run_calendar
from spanwise.scheduler.inspect import records
from spanwise.scheduler.inspect.window import Explains
from spanwise.scheduler.ledger import schedule_status
from spanwise.scheduler.project.load import Loaded
from spanwise.scheduler.schedule.duration import length
from spanwise.scheduler.storage.disk_inventory import ASIDE, Holdings, Leftover, holdings
from spanwise.scheduler.storage.pins import pinned

BATCH = 1000
"""So many are marked while the lease is held once, which is for a second or so; a run may begin in between."""

POLL_S = 0.2

_REASONS = 2  # of those for which an artifact stays are printed
_BACKFILLS = 20  # the newest, among which unfinished ones are looked for


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a collection works with."""

    store: Store
    root: Path
    retention: Retention
    now: datetime
    wait: bool = False  #: for the run that holds the pipeline, instead of leaving the pipeline alone
    clock: Clock = field(default_factory=Clock)  #: the lease's


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What would be done for one pipeline."""

    pipeline: str
    calendar: Calendar  #: how it shows its spans
    holdings: Holdings
    fates: tuple[Fate, ...]  #: of the artifacts among them
    newest: tuple[int, State]  #: the newest run that was looked at, and how it stood
    held: str = ""  #: who holds the pipeline, so that nothing can be done now

    @property
    def going(self) -> tuple[Artifact, ...]:
        return tuple(fate.artifact for fate in self.fates if fate.goes)


@dataclass(frozen=True, kw_only=True)
class Done:
    """What was done for one pipeline."""

    artifacts: tuple[Artifact, ...] = ()  #: given up, also those that a collection before had marked
    leftovers: tuple[Leftover, ...] = ()
    failures: tuple[str, ...] = ()  #: what could not be removed, and why; the next collection tries again
    held: str = ""  #: who holds the pipeline, so that no more was done


def overridden(
    retention: Retention,
    *,
    last: int | None,
    last_of: Sequence[str],
    younger: str | None,
    marked: Sequence[str],
    logs: str | None,
) -> Retention:
    """A retention with what was typed in place of what is set; None and nothing leave it as it is.

    Raises:
        UsageError: a length of time, or a number for a kind, that is none.
    """
    return Retention(
        last=retention.last if last is None else last,
        last_of={**retention.last_of, **dict(map(_kind_and_number, last_of))},
        younger=retention.younger if younger is None else length(younger),
        marked=tuple(m for m in marked if m != "none") if marked else retention.marked,
        logs=retention.logs if logs is None else length(logs),
    )


def _kind_and_number(text: str) -> tuple[str, int]:
    kind, _, number = text.partition("=")
    if not (kind and number.isascii() and number.isdigit()):
        raise UsageError(f"--keep-last-of {text}: say a type and how many of it stay, such as Model=30.")
    return kind, int(number)


# --- deciding


def plan(means: Means, pipeline: str, loaded: Loaded | None = None) -> Plan:
    """What of a pipeline would go, and why the rest stays. Reads only.

    With `loaded`, its resolvers are asked what a run would choose now, beside what the last runs have chosen.
    """
    found = holdings(means.store, means.root, pipeline, now=means.now, logs=means.retention.logs)
    newest = next(means.store.runs(pipeline))
    holder = lease.current_after_collection(means.store, pipeline, means.clock)
    held = holder is not None and not holder.released and not lease.is_dead(means.store, holder, means.clock)
    return Plan(
        pipeline=pipeline,
        calendar=run_calendar(newest),
        holdings=found,
        fates=tuple(_fates(means, found.artifacts, uses(means.store, pipeline, loaded))),
        newest=(newest.number, newest.state),
        held=_who(lease.held_message(holder)) if holder is not None and held else "",
    )


def uses(store: Store, pipeline: str, loaded: Loaded | None = None) -> dict[int, list[str]]:
    """Who has a use for which artifacts, by id, beside a run that is going.

    Those of the newest run, which may be resumed, and of the newest complete one; those of the last time that each
    node was done, among the runs that a partial run may be based on; those of unfinished backfills; and what the
    resolvers of `loaded` choose now.
    """
    found: dict[int, dict[str, None]] = defaultdict(dict)
    done: set[str] = set()
    complete = False
    for number, run in enumerate(itertools.islice(store.runs(pipeline), LOOK_BACK)):
        whole = number == 0 or (run.state is State.COMPLETE and not complete)
        complete = complete or run.state is State.COMPLETE
        for execution in store.executions(run):
            if whole or (execution.state.succeeded and execution.node not in done):
                _note(found, execution, run.name)
            if execution.state.succeeded:
                done.add(execution.node)
    for backfill in _unfinished(store, pipeline):
        for run in record.runs(store, backfill).values():
            for execution in store.executions(run):
                _note(found, execution, f"unfinished backfill {backfill.name}")
    if loaded is not None:
        for node, artifact in _choices(store, loaded):
            found[artifact.id][f"{node} would choose it now"] = None
    return {artifact: list(reasons) for artifact, reasons in found.items()}


def _note(found: dict[int, dict[str, None]], execution: Execution, who: str) -> None:
    verb = "chosen" if execution.chosen else "had"
    for artifact in itertools.chain(*execution.outputs.values()):
        found[artifact.id][f"{verb} by {execution.node} in {who}"] = None
    if not execution.chosen:
        for artifact in itertools.chain(*execution.inputs.values()):
            found[artifact.id][f"read by {execution.node} in {who}"] = None


def _unfinished(store: Store, pipeline: str) -> Iterator[record.Backfill]:
    with suppress(NotRecorded):
        newest = record.find(store, pipeline).number
        for number in range(newest, max(newest - _BACKFILLS, 0), -1):
            backfill = record.find(store, f"{pipeline}/{number}")
            if backfill.stage is not Stage.COMPLETE:
                yield backfill


def _choices(store: Store, loaded: Loaded) -> Iterator[tuple[str, Artifact]]:
    """What each resolver would choose now; of a window with gaps, what there is of it."""
    run = Run(pipeline=loaded.pipeline.name, source=loaded.source, calendar=loaded.calendar.value)
    for node in loaded.pipeline:
        if isinstance(node, Resolver):
            history = past_of(store, run, node.source)
            with suppress(ResolutionError):
                if isinstance(node, Explains):
                    yield from ((node.name, w.chosen) for w in node.explain(history) if w.chosen is not None)
                else:
                    yield from ((node.name, artifact) for artifact in node.resolve(history))


def _fates(means: Means, artifacts: Sequence[Artifact], told: Mapping[int, Sequence[str]]) -> list[Fate]:
    """The fates; marks are looked up only for what would go without them."""
    first = fates(artifacts, means.retention, means.now, told=told, companions={})
    marks = {f.artifact.id: found for f in first if f.goes and (found := _marks(means, f.artifact))}
    stay = [f.artifact for f in first if not f.goes or f.artifact.id in marks]
    companions = _companions(means.store, [a for a in stay if a.kind == Model.kind])
    return fates(artifacts, means.retention, means.now, told={**told, **marks}, companions=companions)


def _marks(means: Means, artifact: Artifact) -> list[str]:
    pin = pinned(means.store, artifact)
    return [*([pin] if pin else []), *(mark for mark in means.retention.marked if marked(means.store, mark, artifact))]


def _companions(store: Store, models: Iterable[Artifact]) -> dict[int, list[int]]:
    """By model, the transform graph that serves with it, and the model it was started from."""
    found = walk(store, models, Direction.UP, depth=1)
    needed = (TransformGraph.kind, Model.kind)
    return {
        model: [i for i in step.inputs if found.artifacts[i].kind in needed]
        for model in found.start
        if (step := found.made_by(model)) is not None
    }


# --- doing


def collect(means: Means, planned: Plan, loaded: Loaded | None = None) -> Done:
    """Gives up what a plan says, but for what somebody has come to use or has pinned since.

    Raises:
        StoreError: the metadata cannot be written.
        Fenced: the lease was lost, as this process stood still for long; the next collection goes on.
    """
    work = _Collection(means, planned, loaded)
    work.mark_all()
    work.remove()
    return work.done()


class _Collection:
    """One collection on its way."""

    def __init__(self, means: Means, planned: Plan, loaded: Loaded | None) -> None:
        self._means = means
        self._store = means.store
        self._plan = planned
        self._loaded = loaded
        self._seen = None if planned.held else planned.newest  # None: what was going may have used more since
        self._used: Collection[int] | None = None  # by runs that came since; None while there was none
        self._given_up: dict[Path, Artifact] = {}  # by where it lay
        self._swept: dict[Path, Leftover] = {}
        self._aside: dict[Path, Path] = {}  # where it is now, by where it lay
        self._failed: dict[Path, str] = {}
        self._held = ""

    def mark_all(self) -> None:
        """Marks what goes, so many at a time, and sets it aside."""
        todo = self._plan.going
        try:
            for first in range(0, max(len(todo), 1), BATCH):  # once at least, for what others have left
                with _leased(self._means, self._plan.pipeline) as mine:
                    self._mark(mine, todo[first : first + BATCH], begun=self._plan.holdings.begun if not first else ())
        except Held as held:
            self._held = _who(str(held))

    def _mark(self, mine: Lease, candidates: Sequence[Artifact], begun: Sequence[Artifact]) -> None:
        going = self._claimed(mine, self._spared(candidates))
        for artifact in (*begun, *going):
            place = self._plan.holdings.places[artifact.id]
            self._given_up[place] = artifact
            self._set_aside(place)

    def _spared(self, candidates: Sequence[Artifact]) -> list[Artifact]:
        """Those of them that nobody has come to use, or has pinned, since the plan was made."""
        newest = next(self._store.runs(self._plan.pipeline))
        if self._seen != (newest.number, newest.state):
            self._used = uses(self._store, self._plan.pipeline, self._loaded).keys()
            self._seen = (newest.number, newest.state)
        if self._used is None:
            return [artifact for artifact in candidates if not pinned(self._store, artifact)]
        return [a for a in candidates if a.id not in self._used and not _marks(self._means, a)]

    def _claimed(self, mine: Lease, going: Sequence[Artifact]) -> Sequence[Artifact]:
        """Marks them, in one transaction; gives those that no other collection has marked."""
        claims = [_claim(artifact, self._means.now) for artifact in going]
        try:
            if claims:
                mine.write(lambda place: self._store.claim(place, *claims))
        except AlreadyClaimed:
            return self._claimed(mine, [a for a in going if not marked(self._store, COLLECTED, a)])
        return going

    def remove(self) -> None:
        """Removes what was set aside and, unless somebody works there, what was left over."""
        if not self._held:
            for leftover in self._plan.holdings.leftovers:
                self._swept[leftover.path] = leftover
                self._set_aside(leftover.path)
        for place, path in self._aside.items():
            try:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            except FileNotFoundError:
                pass  # another collection was quicker
            except OSError as error:
                self._failed[place] = _said(error)
            if place.parent.name.isdigit():  # one of several in a folder, perhaps the last
                with suppress(OSError):
                    place.parent.rmdir()

    def done(self) -> Done:
        return Done(
            artifacts=tuple(a for place, a in self._given_up.items() if place not in self._failed),
            leftovers=tuple(left for place, left in self._swept.items() if place not in self._failed),
            failures=tuple(f"{place}: {why}" for place, why in self._failed.items()),
            held=self._held,
        )

    def _set_aside(self, place: Path) -> None:
        if place.name.startswith(ASIDE):
            self._aside[place] = place
            return
        aside = place.with_name(f"{ASIDE}{place.name}")
        try:
            place.rename(aside)
        except FileNotFoundError:
            return  # another collection was quicker
        except OSError as error:
            self._failed[place] = _said(error)
            return
        self._aside[place] = aside


@contextmanager
def _leased(means: Means, pipeline: str) -> Iterator[Lease]:
    """The pipeline's lease, once what dead runs have left open is closed.

    Raises:
        Held: somebody has it, and was not to be waited for.
    """
    while True:
        try:
            mine = lease.acquire(means.store, pipeline, lease.COLLECTING, clock=means.clock)
            break
        except Held:
            if not means.wait:
                raise
            means.clock.sleep(POLL_S)
    closed = False
    try:
        mine.start_heartbeat(0, lambda: None)  # no process works for it; that it is lost, the next write tells
        for run in publisher.close_abandoned_runs(means.store, mine, means.root):
            remove_working_files(means.root, run)
        closed = True
        yield mine
    finally:
        mine.release(closed=closed)


def _claim(artifact: Artifact, now: datetime) -> Claim:
    facts: dict[str, Value] = {"at": now.isoformat(), "who": schedule_status.me(), "size_bytes": artifact.size_bytes}
    return Claim(COLLECTED, artifact.name, facts)


def _said(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _who(held: str) -> str:
    return held.partition(", so nothing")[0]


def exit_code(collections: Sequence[Done]) -> int:
    """1 when something could not be removed, 3 when runs hold every pipeline, else 0."""
    if any(done.failures for done in collections):
        return RunError.exit_code
    return Held.exit_code if collections and all(done.held for done in collections) else 0


# --- words


def told(planned: Plan, done: Done | None, *, whole: bool = False) -> str:
    """A plan or, with `done`, what came of it, as text; `whole` also lists what stays, and why."""
    gone, leftovers = _going(planned, done)
    parts = [
        records.format_artifacts(gone, {planned.pipeline: planned.calendar}) if gone else "",
        _table(
            ("LEFT OVER", "SIZE", "WHY"),
            ((str(le.path), format_size(le.size_bytes), le.why) for le in leftovers),
        ),
        _table(
            ("STAYS", "SIZE", "WHY"),
            ((f.artifact.name, _size(f.artifact), _why(f.stays)) for f in _staying(planned) if whole),
        ),
        _table(("NOT OURS, LEFT ALONE", "WHY"), ((str(s.path), s.why) for s in planned.holdings.strangers)),
    ]
    if done is not None and done.failures:
        parts.append("\n".join(f"Could not be removed: {failure}" for failure in done.failures))
    return "\n\n".join([*filter(None, parts), _sum(planned, done, whole=whole)])


def document(planned: Plan, done: Done | None) -> Document:
    """The same for programs, with what stays."""
    gone, leftovers = _going(planned, done)
    return {
        "pipeline": planned.pipeline,
        "held": planned.held if done is None else done.held,
        "size_bytes": _total(gone, leftovers),
        "artifacts": [records.artifact_document(artifact, planned.calendar) for artifact in gone],
        "leftovers": [{"path": str(le.path), "why": le.why, "size_bytes": le.size_bytes} for le in leftovers],
        "stays": [
            {"artifact": f.artifact.name, "why": list(f.stays), "size_bytes": f.artifact.size_bytes}
            for f in _staying(planned)
        ],
        "strangers": [{"path": str(s.path), "why": s.why} for s in planned.holdings.strangers],
        "failures": [] if done is None else list(done.failures),
    }


def _going(planned: Plan, done: Done | None) -> tuple[Sequence[Artifact], Sequence[Leftover]]:
    if done is None:
        return (*planned.holdings.begun, *planned.going), planned.holdings.leftovers
    return done.artifacts, done.leftovers


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty when it has no rows."""
    found = list(rows)
    return format_table(headers, found) if found else ""


def _staying(planned: Plan) -> list[Fate]:
    return [fate for fate in planned.fates if not fate.goes]


def _why(reasons: Sequence[str]) -> str:
    more = f"; {len(reasons) - _REASONS} more" if len(reasons) > _REASONS else ""
    return f"{'; '.join(reasons[:_REASONS])}{more}"


def _size(artifact: Artifact) -> str:
    return format_size(artifact.size_bytes)


def _total(artifacts: Iterable[Artifact], leftovers: Iterable[Leftover]) -> int:
    return sum(a.size_bytes for a in artifacts) + sum(left.size_bytes for left in leftovers)


def _sum(planned: Plan, done: Done | None, *, whole: bool) -> str:
    gone, leftovers = _going(planned, done)
    stay = len(_staying(planned))
    what = f"{format_count(len(gone), 'artifact')} and {format_count(len(leftovers), 'leftover')}"
    rest = f"{format_count(stay, 'artifact')} {'stays' if stay == 1 else 'stay'}"
    size = format_size(_total(gone, leftovers))
    more = "" if whole or not stay else " See why: --dry-run --all"
    lines = [f"{planned.pipeline}: {what} {'would go' if done is None else 'went'}, {size}; {rest}.{more}"]
    held = planned.held if done is None else done.held
    if held:
        lines.append(f"{held}, so {'nothing can go' if done is None else 'no more went'} now. To wait for it: --wait")
    return "\n".join(lines)
