"""Garbage collection: which artifacts of a pipeline are no longer in use, and removing their files.

A collection that is killed is continued by the next one:

1. Under the pipeline's lease, so that no running run can have chosen them, artifacts are marked as collected, many in
   one transaction. From then on no run begins to read them.
2. Still under the lease, each folder is renamed to a name that nothing reads, so nobody sees half a folder.
3. Renamed folders are removed, with or without the lease.
"""

from __future__ import annotations

import difflib
import gc
import itertools
import shutil
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from spanwise.orchestrator import lease, publisher
from spanwise.orchestrator.artifact import Artifact, Model, TransformGraph, Value, defined_kinds
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.collection import (
    COLLECTED,
    MARKS,
    Retention,
    RetentionDecision,
    combine_reasons,
    find_own_reasons,
)
from spanwise.orchestrator.component import Resolver
from spanwise.orchestrator.driver import histories_of
from spanwise.orchestrator.errors import Held, ResolutionError, RunError, StorageError, UsageError
from spanwise.orchestrator.history import History
from spanwise.orchestrator.lease import Clock, Lease
from spanwise.orchestrator.lineage import Direction, walk
from spanwise.orchestrator.renewal import current_first, find_renewed, place_of
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.run_dir import remove_working_files
from spanwise.orchestrator.serving import channel_of, find_pushed
from spanwise.orchestrator.span_resolver import SpanAwaiter, SpanResolver, WantedSpan
from spanwise.orchestrator.storage import UnfinishedUpload, open_bucket
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store, is_marked
from spanwise.orchestrator.verdict import find_joint_standings, find_origins_of_many, find_standings, first_verdicts
from spanwise.scheduler.backfill import record
from spanwise.scheduler.formatting import run_calendar
from spanwise.scheduler.inspect.disk_inventory import ASIDE, DiskInventory, Leftover, take_inventory
from spanwise.scheduler.ledger.schedule_status import user_name
from spanwise.scheduler.ledger.schedules import list_keys
from spanwise.scheduler.project.load import Loaded
from spanwise.scheduler.schedule.duration import parse_length
from spanwise.scheduler.schedule.schedule_key import DATA, WHOLE, part_of
from spanwise.scheduler.storage.pins import describe_pins
from spanwise.scheduler.storage.unfinished_pushes import find_unfinished_pushes

BATCH = 1000
"""How many artifacts are marked per lease, which takes about a second; a run may begin in between."""

POLL_S = 0.2

_PLANNERS = 3
"""The plans in the making. Python works for one of them while the database answers the others."""

LOOK_BACK = 3000
"""How many runs are searched for the last success of each node: one each quarter of an hour for a month."""


@dataclass(frozen=True, kw_only=True)
class CollectionContext:
    """What a collection works with."""

    store: Store
    root: Path
    retention: Retention
    now: datetime
    wait: bool = False  #: for the run that holds the pipeline, instead of skipping the pipeline
    clock: Clock = field(default_factory=Clock)  #: the lease's
    closed: Callable[[Run], None] = lambda _run: None  #: called with each run that had died, once it is closed


@dataclass(frozen=True, kw_only=True)
class CollectionPlan:
    """What a collection would remove of one pipeline."""

    pipeline: str
    calendar: Calendar  #: how it writes its spans
    inventory: DiskInventory
    decisions: tuple[RetentionDecision, ...]  #: about the artifacts in the inventory
    uploads: tuple[UnfinishedUpload, ...] = ()  #: of pushes that were killed
    unlisted: tuple[str, ...] = ()  #: why uploads of pushes could not be listed
    newest: tuple[int, State]  #: the newest run that was considered, and its state
    held: str = ""  #: who holds the pipeline, so that nothing can be removed now

    @cached_property
    def removals(self) -> tuple[Artifact, ...]:
        return tuple(decision.artifact for decision in self.decisions if decision.removes)

    @cached_property
    def kept(self) -> tuple[RetentionDecision, ...]:
        return tuple(decision for decision in self.decisions if not decision.removes)


@dataclass(frozen=True, kw_only=True)
class CollectionResult:
    """What a collection removed of one pipeline."""

    artifacts: tuple[Artifact, ...] = ()  #: includes those that an earlier collection had marked
    leftovers: tuple[Leftover, ...] = ()
    uploads: tuple[UnfinishedUpload, ...] = ()
    failures: tuple[str, ...] = ()  #: what could not be removed, and why; the next collection retries
    held: str = ""  #: who holds the pipeline, so that no more was removed


def override_retention(
    retention: Retention,
    *,
    last: int | None,
    last_of: Sequence[str],
    younger: str | None,
    marked: Sequence[str],
    logs: str | None,
) -> Retention:
    """The retention with options from the command line in place of settings; None and empty options change nothing.

    Raises:
        UsageError: an option is not a length of time, not TYPE=N, or not a mark.
    """
    for mark in marked:
        if mark not in (*MARKS, "none"):
            raise UsageError(f"--keep-marked {mark}: expected {', '.join(MARKS)} or none. Repeat it for several marks.")
    return Retention(
        last=retention.last if last is None else last,
        last_of={**retention.last_of, **dict(map(_kind_and_number, last_of))},
        younger=retention.younger if younger is None else parse_length(younger),
        marked=tuple(m for m in marked if m != "none") if marked else retention.marked,
        logs=retention.logs if logs is None else parse_length(logs),
    )


def _kind_and_number(text: str) -> tuple[str, int]:
    kind, _, number = text.partition("=")
    if not (kind and number.isascii() and number.isdigit()):
        raise UsageError(f"--keep-last-of {text}: expected a type and how many of it to keep, such as Model=30.")
    return kind, int(number)


def refuse_unknown_types(store: Store, retention: Retention) -> None:
    """Raises UsageError where a type of `last_of` is known to nobody: misspelt, it would keep nothing."""
    unknown = sorted(retention.last_of.keys() - defined_kinds())
    if not unknown:
        return
    known = sorted(defined_kinds().union(store.kinds()))
    for kind in unknown:
        if kind not in known:
            near = difflib.get_close_matches(kind, known, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"Keep the last of {kind}: there is no such type.{meant} Types: {', '.join(known)}.\n"
                "A type of your own is known once an artifact of it was published, or with the pipeline's file:  "
                "spanwise gc FILE"
            )


# --- deciding


def plan_collections(
    context: CollectionContext, pipelines: Sequence[str], loaded: Loaded | None = None
) -> Iterator[CollectionPlan]:
    """The plan of each of these pipelines, in their order. While one waits for the metadata, another is decided."""
    if len(pipelines) == 1:  # in this thread, which an interrupt ends at once
        yield plan_collection(context, pipelines[0], loaded)
        return
    planners = ThreadPoolExecutor(_PLANNERS)
    planned: deque[Future[CollectionPlan]] = deque()
    with _many_objects():
        try:
            for pipeline in pipelines:
                planned.append(planners.submit(plan_collection, context, pipeline, loaded))
                if len(planned) > _PLANNERS:
                    yield planned.popleft().result()
            while planned:
                yield planned.popleft().result()
        finally:
            planners.shutdown(cancel_futures=True)


def plan_collection(context: CollectionContext, pipeline: str, loaded: Loaded | None = None) -> CollectionPlan:
    """Decides what to remove of a pipeline, and why the rest is kept. Reads only.

    With `loaded`, what its resolvers would choose now is kept as well as what the last runs have chosen.
    """
    with _many_objects():
        return _plan(context, pipeline, loaded)


def _plan(context: CollectionContext, pipeline: str, loaded: Loaded | None) -> CollectionPlan:
    inventory = take_inventory(context.store, context.root, pipeline, now=context.now, logs=context.retention.logs)
    runs = _newest_runs(context.store, pipeline)
    newest = runs[0]
    holder = lease.current_after_collection(context.store, pipeline, context.clock)
    held = holder is not None and not holder.released and not lease.is_dead(context.store, holder, context.clock)
    uploads, unlisted = find_unfinished_pushes(context.store, runs, context.now)
    return CollectionPlan(
        pipeline=pipeline,
        calendar=run_calendar(newest),
        inventory=inventory,
        decisions=tuple(_decide(context, inventory.artifacts, find_uses(context.store, runs, loaded))),
        uploads=tuple(uploads),
        unlisted=tuple(unlisted),
        newest=(newest.number, newest.state),
        held=_holder(lease.held_message(holder)) if holder is not None and held else "",
    )


@contextmanager
def _many_objects() -> Iterator[None]:
    """Inside, Python looks for no cycles: it would search all objects again and again while there are ever more."""
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()


def _newest_runs(store: Store, pipeline: str) -> list[Run]:
    """Those among which each node that is still run has succeeded, newest first."""
    return list(store.runs(pipeline, limit=LOOK_BACK))


def find_uses(store: Store, runs: Sequence[Run], loaded: Loaded | None = None) -> dict[int, list[str]]:
    """Who uses which artifacts of a pipeline with these newest runs, by id, apart from a running run.

    In use are the artifacts of the newest run, which may be resumed; among the runs that others build on, those of the
    newest complete one, of each part where parts are scheduled, since a later part reads it, and of the last success of
    each node; those of unfinished backfills; and what the resolvers of `loaded` choose now.
    """
    uses: dict[int, dict[str, None]] = defaultdict(dict)
    succeeded: set[str] = set()
    keys = list_keys(store, runs[0].pipeline)
    by_parts = any(part_of(key) not in (WHOLE, DATA) for key in keys)
    complete: set[frozenset[str]] = set()  # of which nodes; all runs are of the same where no parts are scheduled
    for number, run in enumerate(runs):
        nodes = frozenset(run.nodes if by_parts else ())
        is_complete = run.ordinary and run.state is State.COMPLETE
        whole = number == 0 or (is_complete and nodes not in complete)
        complete |= {nodes} if is_complete else set()
        if not whole and (not run.ordinary or (run.nodes and succeeded.issuperset(run.nodes))):
            continue  # nothing of it can be in use; to read it takes four questions
        for execution in store.executions(run):
            if whole or (execution.state.succeeded and execution.node not in succeeded):
                _add_uses(uses, execution, run.name)
            if run.ordinary and execution.state.succeeded:
                succeeded.add(execution.node)
    for backfill, run in record.list_runs(store, record.list_unfinished(store, runs[0].pipeline)):
        for execution in store.executions(run):
            _add_uses(uses, execution, f"unfinished backfill {backfill.name}")
    if loaded is not None:
        for artifact, reason in _choices(store, loaded):
            uses[artifact.id][reason] = None
    return {artifact: list(reasons) for artifact, reasons in uses.items()}


def _add_uses(uses: dict[int, dict[str, None]], execution: Execution, where: str) -> None:
    verb = "chosen" if execution.chosen else "published"
    for artifact in itertools.chain(*execution.outputs.values()):
        uses[artifact.id][f"{verb} by {execution.node} in {where}"] = None
    if not execution.chosen:
        for artifact in itertools.chain(*execution.inputs.values()):
            uses[artifact.id][f"read by {execution.node} in {where}"] = None


def _choices(store: Store, loaded: Loaded) -> Iterator[tuple[Artifact, str]]:
    """What each resolver would choose now or later, or if a person accepted it; of a window with gaps, what exists."""
    run = Run(pipeline=loaded.pipeline.name, source=loaded.source, calendar=loaded.calendar.value)
    for node in loaded.pipeline:
        if isinstance(node, Resolver):
            histories = histories_of(store, run, node, {}, loaded.pipeline.scopes[node.name])
            chosen = f"{node.name} would choose it now"
            history = histories[node.source.key]
            if isinstance(node, SpanResolver):
                with suppress(ResolutionError):
                    for w in node.explain(history):
                        reason = f"{node.name} would choose it if accepted" if w.withheld else chosen
                        yield from ((artifact, reason) for artifact in _read_of(w, history))
            if isinstance(node, SpanAwaiter):
                for w in node.explain_awaited(history):
                    yield from ((artifact, f"{node.name} may choose it later") for artifact in _read_of(w, history))
            with suppress(ResolutionError):
                yield from ((artifact, chosen) for artifact in itertools.chain(*node.choose(histories).values()))


def _read_of(wanted: WantedSpan, history: History) -> list[Artifact]:
    """What a resolver reads of a span; of one that does not count, what it would read and what has to be accepted."""
    if wanted.withheld is not None:
        return [wanted.withheld.artifact, *history.published(wanted.span)[-1:]]
    return [wanted.chosen] if wanted.chosen is not None else []


def _decide(
    context: CollectionContext, artifacts: Sequence[Artifact], uses: Mapping[int, Sequence[str]]
) -> list[RetentionDecision]:
    """Looks up marks only of artifacts that would be removed without them."""
    artifacts = _current_last(context.store, artifacts)
    own = find_own_reasons(artifacts, context.retention, context.now)
    marks = _marks(context, [a for a in artifacts if a.id not in own and a.id not in uses])
    known = {**uses, **marks}
    kept = (a for a in artifacts if a.id in known or a.id in own)
    companions = _companions(context.store, [a for a in kept if a.is_a(Model)])
    decisions = combine_reasons(artifacts, known, own, companions=companions)
    return sorted(decisions, key=lambda decision: decision.artifact.id)


def _current_last(store: Store, artifacts: Iterable[Artifact]) -> list[Artifact]:
    """The artifacts by place, and at each place in the order in which they became current."""
    places: dict[str, list[Artifact]] = defaultdict(list)
    for artifact in sorted(artifacts, key=lambda artifact: artifact.id):
        places[place_of(artifact)].append(artifact)
    for place in find_renewed(store, [place for place, found in places.items() if len(found) > 1]):
        known = {artifact.id for artifact in places[place]}
        current = [*current_first(store, place, reversed(places[place]))]
        places[place] = [artifact for artifact in reversed(current) if artifact.id in known]
    return [*itertools.chain(*places.values())]


def _marks(context: CollectionContext, artifacts: Sequence[Artifact]) -> dict[int, list[str]]:
    """The pins and marks of those that have any, by id."""
    ids = {artifact.name: artifact.id for artifact in artifacts}
    reasons: dict[int, list[str]] = defaultdict(list)
    for name, pinned in describe_pins(context.store, artifacts).items():
        reasons[ids[name]].append(pinned)
    for mark in context.retention.marked:
        for name in _find_marked(context.store, mark, artifacts):
            reasons[ids[name]].append(mark)
    return reasons


def _find_marked(store: Store, mark: str, artifacts: Sequence[Artifact]) -> Collection[str]:
    """The names of those with a mark; what is made of a model without rows is blessed with it, and pushes it."""
    if mark == "pushed":
        models = {artifact.name for artifact in artifacts if artifact.is_a(Model)}
        return models & find_pushed(store, {channel_of(name) for name in models})
    asked = [(artifact, first_verdicts(artifact)) for artifact in artifacts]
    first = store.find_claims(mark, [*itertools.chain(*(names for _, names in asked))])
    judged = [artifact for artifact, names in asked if not first.keys().isdisjoint(names)] if first else []  # few are
    blessed = {name for name, standing in find_standings(store, "blessed", judged).items() if standing.holds()}
    rest = {a.name: a for a in artifacts if a.is_a(Model) and a.name not in blessed}
    origins = find_origins_of_many(store, rest.values(), artifacts)
    exports = {name: [rest[name], *made_of] for name, made_of in origins.items() if made_of}
    of_exports = find_joint_standings(store, exports)
    return blessed.union(name for name, standing in of_exports.items() if standing.holds())


def _companions(store: Store, models: Iterable[Artifact]) -> dict[int, list[int]]:
    """By model, the transform graph that it is served with and the model it was warm-started from."""
    lineage = walk(store, models, Direction.UP, depth=1)
    return {
        model: [i for i in step.inputs if lineage.artifacts[i].is_a(TransformGraph, Model)]
        for model in lineage.start
        if (step := lineage.producer(model)) is not None
    }


# --- collecting


def collect(context: CollectionContext, plan: CollectionPlan, loaded: Loaded | None = None) -> CollectionResult:
    """Removes what a plan says, except what has come into use or was pinned, blessed or pushed since.

    Raises:
        StoreError: the metadata cannot be written.
        Fenced: the lease was lost because this process was suspended; the next collection continues.
    """
    collection = _Collection(context, plan, loaded)
    collection.mark_all()
    collection.remove()
    return collection.result()


class _Collection:
    def __init__(self, context: CollectionContext, plan: CollectionPlan, loaded: Loaded | None) -> None:
        self._context = context
        self._store = context.store
        self._plan = plan
        self._loaded = loaded
        self._seen = None if plan.held else plan.newest  # None: the running run may use more by now
        self._used: Collection[int] = ()  # ids in use by newer runs
        self._needed: set[int] = set()  # ids of what models need that were to be removed, and are kept
        self._collected: dict[Path, Artifact] = {}  # by original location
        self._swept: dict[Path, Leftover] = {}
        self._aside: dict[Path, Path] = {}  # current location by original location
        self._failed: dict[Path, str] = {}
        self._aborted: list[UnfinishedUpload] = []
        self._unaborted: list[str] = []
        self._held = ""

    def mark_all(self) -> None:
        """Marks the removals, `BATCH` at a time, and sets them aside."""
        # Models before the graphs that they are served with, which go only if they do.
        removals = sorted(self._plan.removals, key=lambda artifact: artifact.is_a(TransformGraph))
        try:
            for first in range(0, max(len(removals), 1), BATCH):  # at least once, for what was interrupted
                with _leased(self._context, self._plan.pipeline) as mine:
                    half_removed = self._plan.inventory.half_removed if not first else ()
                    self._mark(mine, removals[first : first + BATCH], half_removed)
        except Held as held:
            self._held = _holder(str(held))

    def _mark(self, mine: Lease, candidates: Sequence[Artifact], half_removed: Sequence[Artifact]) -> None:
        collected = self._claim(mine, self._still_unused(candidates))
        for artifact in (*half_removed, *collected):
            location = Path(self._plan.inventory.locations[artifact.id])
            self._collected[location] = artifact
            self._set_aside(location)

    def _still_unused(self, candidates: Sequence[Artifact]) -> list[Artifact]:
        """The candidates that have not come into use and were not pinned, blessed or pushed since the plan was made."""
        newest = next(self._store.runs(self._plan.pipeline))
        if self._seen != (newest.number, newest.state):
            runs = _newest_runs(self._store, self._plan.pipeline)
            self._used = find_uses(self._store, runs, self._loaded).keys()
            self._seen = (newest.number, newest.state)
        marks = _marks(self._context, candidates)
        kept = {a.id for a in candidates if a.id in self._used or a.id in marks}
        models = [a for a in candidates if a.id in kept and a.is_a(Model)]
        self._needed.update(*_companions(self._store, models).values())
        return [a for a in candidates if a.id not in kept and a.id not in self._needed]

    def _claim(self, mine: Lease, artifacts: Sequence[Artifact]) -> Sequence[Artifact]:
        """Marks artifacts in one transaction; returns those that no other collection has marked."""
        claims = [_collected_claim(artifact, self._context.now) for artifact in artifacts]
        try:
            if claims:
                mine.write(lambda place: self._store.claim(place, *claims))
        except AlreadyClaimed:
            return self._claim(mine, [a for a in artifacts if not is_marked(self._store, COLLECTED, a)])
        return artifacts

    def remove(self) -> None:
        """Removes what was set aside and, unless a run holds the pipeline, leftovers."""
        if not self._held:
            for leftover in self._plan.inventory.leftovers:
                self._swept[leftover.path] = leftover
                self._set_aside(leftover.path)
        for place in (*self._collected, *self._swept):
            self._remove_from_archive(place)
        self._abort_uploads()
        for place, path in self._aside.items():
            try:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            except FileNotFoundError:
                pass  # another collection removed it first
            except OSError as error:
                self._failed[place] = _reason(error)
            if place.parent.name.isdigit():  # one of several in a folder, perhaps the last one
                with suppress(OSError):
                    place.parent.rmdir()

    def result(self) -> CollectionResult:
        return CollectionResult(
            artifacts=tuple(a for place, a in self._collected.items() if place not in self._failed),
            leftovers=tuple(left for place, left in self._swept.items() if place not in self._failed),
            uploads=tuple(self._aborted),
            failures=(*(f"{place}: {why}" for place, why in self._failed.items()), *self._unaborted),
            held=self._held,
        )

    def _abort_uploads(self) -> None:
        """Whoever holds the pipeline: no push takes as long as they are old."""
        for upload in self._plan.uploads:
            try:
                open_bucket(upload.url.home).abort_upload(upload)
                self._aborted.append(upload)
            except StorageError as error:
                self._unaborted.append(f"{upload.url}: {error}")

    def _remove_from_archive(self, place: Path) -> None:
        archive = self._store.archive
        if archive is None or place.name.startswith(ASIDE):
            return
        try:
            archive.remove(str(place))
        except StorageError as error:
            self._failed[place] = str(error)

    def _set_aside(self, place: Path) -> None:
        if place.name.startswith(ASIDE):
            self._aside[place] = place
            return
        aside = place.with_name(f"{ASIDE}{place.name}")
        try:
            place.rename(aside)
        except FileNotFoundError:
            return  # another collection renamed it first
        except OSError as error:
            self._failed[place] = _reason(error)
            return
        self._aside[place] = aside


@contextmanager
def _leased(context: CollectionContext, pipeline: str) -> Iterator[Lease]:
    """The pipeline's lease, once the runs that died are closed.

    Raises:
        Held: somebody holds it, and `wait` is not set.
    """
    while True:
        try:
            mine = lease.acquire(context.store, pipeline, lease.COLLECTING, clock=context.clock)
            break
        except Held:
            if not context.wait:
                raise
            context.clock.sleep(POLL_S)
    closed = False
    try:
        mine.start_heartbeat(0, lambda: None)  # no process to kill; the next write finds out whether it was lost
        dead = publisher.close_abandoned_runs(context.store, mine, context.root)
        for run in dead:
            remove_working_files(context.root, run, context.store.archive)
        closed = True
        yield mine
    finally:
        mine.release(closed=closed)
    for run in dead:
        context.closed(run)


def _collected_claim(artifact: Artifact, now: datetime) -> Claim:
    facts: dict[str, Value] = {"at": now.isoformat(), "who": user_name(), "size_bytes": artifact.size_bytes}
    return Claim(COLLECTED, artifact.name, facts)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _holder(held: str) -> str:
    return held.partition(", so nothing")[0]


def exit_code(results: Sequence[CollectionResult]) -> int:
    """1 when something could not be removed, 3 when runs hold every pipeline, else 0."""
    if any(result.failures for result in results):
        return RunError.exit_code
    return Held.exit_code if results and all(result.held for result in results) else 0
