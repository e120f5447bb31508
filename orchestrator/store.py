"""The store: the interface to the metadata. `MlmdStore` implements it; `MemoryStore` is a public double for tests.

It rests on three ideas:

*Names are the index.* Every record has a unique name and is looked up by it, so no query reads the history: runs
and artifacts are numbered, and galloping finds the last number (`find_last`).

*A claim is an inserted unique name.* Of many who try, exactly one succeeds. Locks, ticks, leases and marks are claims.

*Every write of a run carries a claim*, the next place in its lease's journal, inserted in the same transaction.
Whoever takes a lease over seals the journal by claiming that place first, so no later write of the old holder lands.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, Self

from spanwise.orchestrator.artifact import Artifact, ArtifactArchive, Value
from spanwise.orchestrator.errors import NotRecorded, StoreError
from spanwise.orchestrator.run import Execution, Run, State


class AlreadyClaimed(Exception):
    """The name exists already; nothing was written."""


@dataclass(frozen=True)
class Claim:
    """A unique name to insert; `kind` is its purpose (lease, journal, tick, pushed, …)."""

    kind: str
    name: str
    facts: Mapping[str, Value] = field(default_factory=dict)

    def get_int(self, fact: str) -> int:
        """Returns a fact that is a whole number.

        Raises:
            StoreError: it is not one; another program has written it.
        """
        value = self.facts[fact]
        if isinstance(value, bool) or not isinstance(value, int):
            raise StoreError(
                f"The metadata holds {value!r} as {fact} of {self.kind} {self.name!r}, not a whole number."
            )
        return value


@dataclass(frozen=True)
class Address:
    """Where to find a channel's artifacts: the outputs under `key` of `node`, over all runs of `pipeline`."""

    pipeline: str
    node: str
    key: str

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.node}/{self.key}"

    @classmethod
    def of_output(cls, execution: Execution, key: str) -> Self:
        """Where an output of an execution is published.

        Each replay has addresses of its own, `pipeline/node/key@run`, so that no other run ever finds what it made.
        """
        return cls(execution.pipeline, execution.node, f"{key}@{execution.run}" if execution.replay else key)


class Link(NamedTuple):
    """An execution read an artifact, or had it as an output, produced or reused."""

    artifact: int  #: id
    execution: int  #: id
    read: bool


class Entry(NamedTuple):
    """That a run, a claim or a group of these was recorded: what has the id after a restore is no equal one."""

    id: int
    name: str
    created_ms: int  #: since 1970, by the clock of the process that recorded it


@dataclass(frozen=True, slots=True)
class SpanSummary:
    """What was published for one span: how often, and the newest version, whose newest publication it describes."""

    span: int
    artifact: int  #: id
    name: str  #: of that artifact
    content: str  #: its digest
    version: int | None
    publications: int
    rows: int | None  #: of all splits
    created: datetime | None


def summarize_span(span: int, publications: Sequence[Artifact]) -> SpanSummary:
    """The summary of what `of_span` returns, at least one artifact."""
    newest = max(publications, key=lambda a: (_version_of(a) or -1, a.id))
    rows = newest.properties.get("rows")
    return SpanSummary(
        span=span,
        artifact=newest.id,
        name=newest.name,
        content=newest.content,
        version=_version_of(newest),
        publications=len(publications),
        rows=sum(count for count in rows.values() if isinstance(count, int)) if isinstance(rows, dict) else None,
        created=newest.created,
    )


def _version_of(artifact: Artifact) -> int | None:
    version = artifact.properties.get("version")
    return version if isinstance(version, int) else None


class Store(Protocol):
    """The interface to the metadata. All times are UTC.

    The threads of a process may share a store: while the loop of a run reads and writes, its heartbeat amends the
    lease. Each method is atomic and blocks the others no longer than a transaction takes. When a method returns, every
    reader in every process sees what it has written.

    Every method that writes takes claims, which are inserted in the same transaction. If one of them exists already,
    or two have the same name, it raises AlreadyClaimed and writes nothing.
    """

    @property
    def archive(self) -> ArtifactArchive | None:
        """Where the files of artifacts are kept besides the root."""

    @property
    def home(self) -> str:
        """What tells the root from copies of it; empty where it has none."""

    def claim(self, *claims: Claim) -> None:
        """Inserts all claims, or raises AlreadyClaimed and inserts none."""

    def find_claim(self, kind: str, name: str) -> Claim | None:
        """Returns the claim of that name, with its latest facts, including `created` (ISO 8601, UTC)."""

    def find_claims(self, kind: str, names: Sequence[str]) -> dict[str, Claim]:
        """The claims that exist among many names, by name; a few queries for the marks of thousands of artifacts."""

    def last_claim(self, kind: str, prefix: str, *, seen: int = 0) -> int:
        """The number of the last of the claims `<prefix>1`, `<prefix>2`, …, or 0; `seen` is one that exists, or 0."""

    def amend(self, claim: Claim) -> None:
        """Replaces the facts of a claim that the caller holds.

        Raises:
            NotRecorded: there is no such claim.
        """

    def entry(self, id: int | None = None) -> Entry | None:  # noqa: A002
        """The entry with this id, or the newest of all, in one query; None if there is none."""

    def begin_run(self, run: Run, *claims: Claim) -> Run:
        """Records a run under the next number of its pipeline."""

    def update_run(self, run: Run, *claims: Claim) -> None:
        """Replaces the record of a run."""

    def run(self, pipeline: str, number: int) -> Run:
        """Returns one run.

        Raises:
            NotRecorded: there is no run of that number; the message says which there are.
        """

    def runs(self, pipeline: str, *, before: int | None = None, limit: int | None = None) -> Iterator[Run]:
        """Yields the runs with a number below `before`, newest first; read no more than you need.

        With `limit`, at most so many, which are read at once.
        """

    def latest_runs(self, limit: int) -> dict[str, list[Run]]:
        """The last runs of every pipeline, by its name, newest first; a few queries, however many pipelines there are.

        A run that begins meanwhile may be missing.
        """

    def pipelines(self) -> list[str]:
        """The names of all pipelines that have ever run."""

    def kinds(self) -> list[str]:
        """The names of all kinds of which an artifact was ever published, by any pipeline."""

    def begin(self, execution: Execution, *claims: Claim) -> Execution:
        """Records an execution as running and assigns its id; inputs and outputs follow with `publish`.

        If its name (pipeline, run, node and attempt) is taken, it raises AlreadyClaimed.

        Raises:
            NotRecorded: there is no such run.
        """

    def publish(self, execution: Execution, *claims: Claim) -> Execution:
        """Ends an execution: its state, inputs and outputs become visible in one transaction.

        Outputs with id 0 are new; they get an id, a name and `created`. The name is the address and a number that
        counts up: `pipeline/node/key/<n>`, or `pipeline/node/key/<span>/<n>` for kinds with a span. The others are
        outputs of an earlier execution and get an event only.

        Raises:
            NotRecorded: it was never begun.
            StoreError: it has ended already.
        """

    def executions(self, run: Run) -> list[Execution]:
        """All executions of a run, in the order in which they began, with inputs and outputs."""

    def executions_of(self, runs: Collection[Run]) -> list[Execution]:
        """The executions of several runs, in the order in which they began, without inputs and outputs: see `links`.

        Those of the nodes that the runs name, in a few queries.
        """

    def execution(self, id: int) -> Execution:  # noqa: A002
        """Returns one execution, with inputs and outputs."""

    def find_cached(self, key: str) -> Execution | None:
        """Returns the newest complete execution with this cache key, with its outputs."""

    def artifact(self, name: str) -> Artifact:
        """Returns one artifact by its unique name.

        Raises:
            NotRecorded: there is no artifact of that name.
        """

    def newest(self, address: Address) -> Iterator[Artifact]:
        """Yields the artifacts without a span, newest first."""

    def spans(self, address: Address, *, below: int | None = None) -> Iterator[int]:
        """Yields the spans published at the address, highest first, lower than `below`."""

    def of_span(self, address: Address, span: int) -> list[Artifact]:
        """All artifacts of this span at the address, of any version, oldest first."""

    def of_spans(self, address: Address, spans: Collection[int]) -> dict[int, list[Artifact]]:
        """The same of each of many spans, in a few queries; empty for a span that was never published."""

    def span_summaries(self, address: Address, *, below: int | None = None) -> Iterator[SpanSummary]:
        """Yields what was published for each span at the address, highest span first, lower than `below`.

        Cheap: a few queries for thousands of spans, and only what a summary holds is decoded.
        """

    def producer(self, artifact: Artifact) -> Execution:
        """Returns the execution that first published the artifact.

        Raises:
            NotRecorded: no such execution is known.
        """

    def consumers(self, artifact: Artifact) -> list[Execution]:
        """The executions that read the artifact, oldest first."""

    def links(
        self, *, artifacts: Collection[int] = (), executions: Collection[int] = (), read: bool | None = None
    ) -> list[Link]:
        """Returns every link of any of these ids, or only those that read or that do not, in no particular order.

        With `artifacts_by_id` and `executions_by_id`, a walk over many artifacts needs one query per step.
        """

    def artifacts_by_id(self, ids: Collection[int]) -> list[Artifact]:
        """The artifacts that exist among these ids."""

    def executions_by_id(self, ids: Collection[int]) -> list[Execution]:
        """The executions that exist among these ids, oldest first, without inputs and outputs: see `links`."""

    def close(self) -> None:
        """Closes the connection."""


def find_last(exists: Callable[[int], bool]) -> int:
    """Returns the highest n with `exists(n)`, where 1..n exist and nothing above; 0 if there is none.

    Gallops (1, 2, 4, …), then bisects: about 2 log2(n) calls, however long the history.
    """
    high = 1
    while exists(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low


class MemoryStore:
    """The store in memory, for tests and experiments; nothing outlives the process.

    `clock` returns the current time (UTC); tests pass one that they control.
    """

    def __init__(
        self,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        archive: ArtifactArchive | None = None,
    ) -> None:
        self.archive = archive
        self.home = ""
        self._clock = clock
        self._lock = threading.RLock()
        self._entries: list[Entry] = []
        self._claims: dict[tuple[str, str], Claim] = {}
        self._runs: dict[str, list[Run]] = {}
        self._executions: dict[int, Execution] = {}
        self._artifacts: dict[str, Artifact] = {}
        self._at: dict[str, list[str]] = {}  # address, or address/span -> artifact names in order
        self._spans: dict[str, set[int]] = {}
        self._producers: dict[int, int] = {}  # execution id by artifact id
        self._ids = itertools.count(1)

    def claim(self, *claims: Claim) -> None:
        with self._lock:
            names = {(c.kind, c.name) for c in claims}
            if len(names) < len(claims) or names & self._claims.keys():
                raise AlreadyClaimed(", ".join(f"{c.kind} {c.name}" for c in claims))
            for claim in claims:
                stamped = {**claim.facts, "created": self._clock().isoformat()}
                self._claims[claim.kind, claim.name] = replace(claim, facts=stamped)
                self._enter(f"{claim.kind}:{claim.name}")

    def _enter(self, name: str) -> None:
        self._entries.append(Entry(len(self._entries), name, int(self._clock().timestamp() * 1000)))

    def find_claim(self, kind: str, name: str) -> Claim | None:
        return self._claims.get((kind, name))

    def find_claims(self, kind: str, names: Sequence[str]) -> dict[str, Claim]:
        return {name: claim for name in names if (claim := self.find_claim(kind, name)) is not None}

    def last_claim(self, kind: str, prefix: str, *, seen: int = 0) -> int:
        return seen + find_last(lambda further: self.find_claim(kind, f"{prefix}{seen + further}") is not None)

    def amend(self, claim: Claim) -> None:
        with self._lock:
            old = self._claims.get((claim.kind, claim.name))
            if old is None:
                raise NotRecorded(f"There is no {claim.kind} {claim.name!r} to amend.")
            self._claims[claim.kind, claim.name] = replace(
                claim, facts={**claim.facts, "created": old.facts["created"]}
            )

    def entry(self, id: int | None = None) -> Entry | None:  # noqa: A002
        with self._lock:
            return next(iter(self._entries[-1 if id is None else id :]), None)

    def begin_run(self, run: Run, *claims: Claim) -> Run:
        with self._lock:
            self.claim(*claims)
            runs = self._runs.setdefault(run.pipeline, [])
            begun = replace(run, number=len(runs) + 1, started=run.started or self._clock())
            runs.append(begun)
            self._enter(begun.name)
            return begun

    def update_run(self, run: Run, *claims: Claim) -> None:
        with self._lock:
            self.run(run.pipeline, run.number)
            self.claim(*claims)
            self._runs[run.pipeline][run.number - 1] = run

    def run(self, pipeline: str, number: int) -> Run:
        runs = self._runs.get(pipeline, [])
        if not 1 <= number <= len(runs):
            raise NotRecorded(format_no_such_run(pipeline, number, len(runs)))
        return runs[number - 1]

    def runs(self, pipeline: str, *, before: int | None = None, limit: int | None = None) -> Iterator[Run]:
        runs = self._runs.get(pipeline, [])
        yield from itertools.islice(reversed(runs if before is None else runs[: max(before - 1, 0)]), limit)

    def latest_runs(self, limit: int) -> dict[str, list[Run]]:
        return {name: list(itertools.islice(self.runs(name), limit)) for name in self.pipelines()}

    def pipelines(self) -> list[str]:
        return sorted(self._runs)

    def kinds(self) -> list[str]:
        return sorted({artifact.kind for artifact in list(self._artifacts.values())})

    def begin(self, execution: Execution, *claims: Claim) -> Execution:
        with self._lock:
            self.run(execution.pipeline, execution.run)
            if any(e.name == execution.name for e in self._of_run(execution.pipeline, execution.run)):
                raise AlreadyClaimed(f"execution {execution.name}")
            self.claim(*claims)
            started = execution.started or self._clock()
            begun = replace(execution, id=next(self._ids), inputs={}, outputs={}, started=started)
            self._executions[begun.id] = begun
            return begun

    def publish(self, execution: Execution, *claims: Claim) -> Execution:
        with self._lock:
            if execution.id not in self._executions:
                raise NotRecorded(f"Execution {execution.name} was never begun.")
            begun = self._executions[execution.id]
            if begun.state.ended:
                raise StoreError(f"Execution {execution.name} has ended as {begun.state.value} already.")
            self.claim(*claims)
            outputs = {k: tuple(self._place(execution, k, a) for a in v) for k, v in execution.outputs.items()}
            ended = replace(execution, outputs=outputs, ended=execution.ended or self._clock())
            self._executions[ended.id] = ended
            return ended

    def _place(self, execution: Execution, key: str, artifact: Artifact) -> Artifact:
        if artifact.id:
            return artifact
        address = Address.of_output(execution, key)
        span = artifact.properties.get("span")
        place = str(address) if span is None else f"{address}/{span}"
        names = self._at.setdefault(place, [])
        published = Artifact(
            artifact.uri,
            id=next(self._ids),
            name=f"{place}/{len(names) + 1}",
            kind=artifact.kind,
            base_kinds=artifact.base_kinds,
            created=self._clock(),
            content=artifact.content,
            files=artifact.files,
            size_bytes=artifact.size_bytes,
            properties=artifact.properties,
            archive=self.archive,
        )
        names.append(published.name)
        self._producers[published.id] = execution.id
        self._artifacts[published.name] = published
        if isinstance(span, int):
            self._spans.setdefault(str(address), set()).add(span)
        return published

    def executions(self, run: Run) -> list[Execution]:
        return sorted(self._of_run(run.pipeline, run.number), key=lambda e: e.id)

    def _of_run(self, pipeline: str, number: int) -> Iterator[Execution]:
        return (e for e in list(self._executions.values()) if (e.pipeline, e.run) == (pipeline, number))

    def executions_of(self, runs: Collection[Run]) -> list[Execution]:
        nodes = {run.name: run.nodes for run in runs}
        found = (e for e in list(self._executions.values()) if e.node in nodes.get(e.run_name, ()))
        return [replace(e, inputs={}, outputs={}) for e in sorted(found, key=lambda e: e.id)]

    def execution(self, id: int) -> Execution:  # noqa: A002
        if id not in self._executions:
            raise NotRecorded(f"There is no execution {id}.")
        return self._executions[id]

    def find_cached(self, key: str) -> Execution | None:
        hits = (e for e in list(self._executions.values()) if key and e.key == key and e.state is State.COMPLETE)
        return max(hits, key=lambda e: e.id, default=None)

    def artifact(self, name: str) -> Artifact:
        if name not in self._artifacts:
            raise NotRecorded(f"There is no artifact {name!r}.")
        return self._artifacts[name]

    def newest(self, address: Address) -> Iterator[Artifact]:
        for name in reversed(self._at.get(str(address), [])):
            yield self._artifacts[name]

    def spans(self, address: Address, *, below: int | None = None) -> Iterator[int]:
        known = self._spans.get(str(address), set())
        yield from sorted((s for s in known if below is None or s < below), reverse=True)

    def of_span(self, address: Address, span: int) -> list[Artifact]:
        return [self._artifacts[name] for name in self._at.get(f"{address}/{span}", [])]

    def of_spans(self, address: Address, spans: Collection[int]) -> dict[int, list[Artifact]]:
        return {span: self.of_span(address, span) for span in spans}

    def span_summaries(self, address: Address, *, below: int | None = None) -> Iterator[SpanSummary]:
        for span in self.spans(address, below=below):
            yield summarize_span(span, self.of_span(address, span))

    def producer(self, artifact: Artifact) -> Execution:
        if artifact.id not in self._producers:
            raise NotRecorded(f"No execution is recorded as the producer of {artifact}.")
        return self._executions[self._producers[artifact.id]]

    def consumers(self, artifact: Artifact) -> list[Execution]:
        readers = (
            e
            for e in list(self._executions.values())
            if any(a.id == artifact.id for a in itertools.chain(*e.inputs.values()))
        )
        return sorted(readers, key=lambda e: e.id)

    def links(
        self, *, artifacts: Collection[int] = (), executions: Collection[int] = (), read: bool | None = None
    ) -> list[Link]:
        found = (
            Link(artifact=artifact.id, execution=execution.id, read=is_input)
            for execution in list(self._executions.values())
            for is_input, side in ((True, execution.inputs), (False, execution.outputs))
            if read in (None, is_input)
            for artifact in itertools.chain(*side.values())
            if artifact.id in artifacts or execution.id in executions
        )
        return list(dict.fromkeys(found))

    def artifacts_by_id(self, ids: Collection[int]) -> list[Artifact]:
        return [a for a in list(self._artifacts.values()) if a.id in ids]

    def executions_by_id(self, ids: Collection[int]) -> list[Execution]:
        return [replace(self._executions[i], inputs={}, outputs={}) for i in sorted(set(ids)) if i in self._executions]

    def close(self) -> None:
        """Does nothing."""


def format_no_such_run(pipeline: str, number: int, newest: int) -> str:
    """Formats the message for a run that does not exist; `newest` is the highest number, 0 for none."""
    if not newest:
        return f"{pipeline!r} has never run here. See what has: spanwise runs"
    return f"{pipeline!r} has no run {number}; its runs are 1 to {newest}. See them: spanwise runs {pipeline}"


def is_marked(store: Store, mark: str, artifact: Artifact) -> bool:
    """Whether an artifact has a mark, such as `pushed` or `collected`; marks are permanent (verdicts are not)."""
    return store.find_claim(mark, artifact.name) is not None


def number_of(name: str) -> int:
    """The number at the end of an artifact's name."""
    return int(name.rsplit("/", 1)[1])
