"""The store on ML Metadata: the methods of `Store`. `layout` knows how records are represented there.

The cost of no method grows with the history: lookups go by name, and lists belong to one run, one artifact or one
cache key. Names are looked up in groups by `external_id`, which is unique over all types.
"""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from ml_metadata.proto import metadata_store_pb2

from spanwise.orchestrator.artifact import Artifact, ArtifactArchive
from spanwise.orchestrator.errors import NotRecorded, StoreError
from spanwise.orchestrator.mlmd import batches, declarations, layout, span_index
from spanwise.orchestrator.mlmd.api_reader import ApiReader
from spanwise.orchestrator.mlmd.connection import MOST_RACES, NameTaken, Proto, StoreConnection
from spanwise.orchestrator.mlmd.context_store import ContextStore
from spanwise.orchestrator.mlmd.location import Location, SqliteFile
from spanwise.orchestrator.mlmd.places import Places
from spanwise.orchestrator.mlmd.postgresql_reader import PostgresqlReader
from spanwise.orchestrator.mlmd.rows import ArtifactRow, ContextRow, ExecutionRow, Reader
from spanwise.orchestrator.mlmd.sqlite_reader import SqliteReader
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Address, AlreadyClaimed, Claim, Entry, Link, SpanSummary, find_last
from spanwise.orchestrator.store import format_no_such_run as no_such_run

N = TypeVar("N", ContextRow, ArtifactRow, ExecutionRow)

_by_number = attrgetter("id")

_WORTH_REMEMBERING = 16  # lower numbers of claims are found as quickly

_SUMMARIZED = 500  # spans in one query, so that who reads the newest of them does not wait for all


class MlmdStore:
    """The store, on ML Metadata. An object belongs to the process that opened it; threads may share it."""

    def __init__(
        self,
        where: Location,
        *,
        root: Path | None = None,
        archive: ArtifactArchive | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        deadline_s: float = 30.0,
        migrate: bool = False,
        known: bool = False,
    ) -> None:
        self.archive = archive
        self._clock = clock
        self._places = Places(root, archive)
        self._connection = StoreConnection(where, deadline_s=deadline_s, migrate=migrate, known=known)
        self._reader: Reader = ApiReader(self._connection)
        if isinstance(where, SqliteFile):
            self._reader = SqliteReader(where, self._connection, self._reader)
        elif where.kind == "postgresql":
            self._reader = PostgresqlReader(where, self._connection, self._reader)
        self._contexts = ContextStore(self._connection, self._reader)
        self._last_numbers: dict[str, int] = {}  # the last known number by place; nothing is ever removed
        self._last_claims: dict[str, int] = {}  # of claims, by kind and prefix

    @property
    def home(self) -> str:
        return self._places.home

    # --- claims

    def claim(self, *claims: Claim) -> None:
        if not claims:
            return
        contexts, write = self._claim_contexts(claims)

        def landed() -> bool | None:
            found = self._contexts.find(layout.CLAIM, layout.claim_name(claims[0].kind, claims[0].name))
            return True if found and layout.write_of(found) == write else None

        try:
            self._connection.write_once(partial(self._contexts.put, contexts), landed)
        except NameTaken as error:
            raise AlreadyClaimed(_format_claims(claims)) from error

    def find_claim(self, kind: str, name: str) -> Claim | None:
        context = self._contexts.find(layout.CLAIM, layout.claim_name(kind, name))
        return context and layout.claim_of(context, kind, name)

    def find_claims(self, kind: str, names: Sequence[str]) -> dict[str, Claim]:
        prefix = layout.claim_name(kind, "")
        wanted = {prefix + name: name for name in names}
        indexed = kind in layout.INDEXED and self._contexts.claims_are_indexed()
        read = self._reader.contexts if indexed else partial(self._reader.named_contexts, layout.CLAIM)
        found = batches.read_named(read, list(wanted))
        return {wanted[full]: layout.claim_of(context, kind, wanted[full]) for full, context in found.items()}

    def last_claim(self, kind: str, prefix: str, *, seen: int = 0) -> int:
        place = layout.claim_name(kind, prefix)
        last = self._reader.last_numbered(layout.CLAIM, place, max(seen, self._last_claims.get(place, 0)))
        if last >= _WORTH_REMEMBERING:
            self._last_claims[place] = last
        return last

    def amend(self, claim: Claim) -> None:
        context = self._contexts.find(layout.CLAIM, layout.claim_name(claim.kind, claim.name))
        if context is None:
            raise NotRecorded(f"There is no {claim.kind} {claim.name!r} to amend.")
        old = layout.claim_of(context, claim.kind, claim.name)
        amended = layout.claim_context(
            claim, type_id=context.type_id, created=str(old.facts["created"]), write=layout.write_of(context)
        )
        amended.id = context.id
        self._connection.write_once(partial(self._contexts.put, [amended]))

    # --- runs

    def entry(self, id: int | None = None) -> Entry | None:  # noqa: A002
        return self._reader.entry(id)

    def begin_run(self, run: Run, *claims: Claim) -> Run:
        begun = replace(run, started=run.started or self._clock())
        for _ in range(MOST_RACES):
            begun = replace(begun, number=self._last_run(run.pipeline) + 1)
            claimed, write = self._claim_contexts(claims)
            context = layout.run_context(
                begun, self._places, type_id=self._contexts.type_id("context", declarations.RUN), write=write
            )
            fresh = [context, *claimed]
            if self._contexts.find(declarations.PIPELINE, run.pipeline) is None:  # so that each has a run
                type_id = self._contexts.type_id("context", declarations.PIPELINE)
                fresh.append(layout.pipeline_context(run.pipeline, type_id=type_id))
            try:
                ids = self._connection.write_once(
                    partial(self._contexts.put, fresh), partial(self._landed_run, begun.name, write)
                )
            except NameTaken as error:
                self._refuse_taken(claims, error)
                continue
            self._contexts.set_parent(ids[0], self._contexts.pipeline_id(run.pipeline))
            return begun
        raise self._connection.race_error(f"the next run of {run.pipeline!r}")

    def update_run(self, run: Run, *claims: Claim) -> None:
        old = self._run_context(run.pipeline, run.number)
        claimed, write = self._claim_contexts(claims)
        context = layout.run_context(run, self._places, type_id=old.type_id, write=write)
        context.id = old.id
        try:
            self._connection.write_once(
                partial(self._contexts.put, [context, *claimed]), partial(self._landed_run, run.name, write)
            )
        except NameTaken as error:
            raise AlreadyClaimed(_format_claims(claims)) from error  # nothing else in it is new

    def run(self, pipeline: str, number: int) -> Run:
        return layout.run_of(self._run_context(pipeline, number), self._places)

    def runs(self, pipeline: str, *, before: int | None = None, limit: int | None = None) -> Iterator[Run]:
        newest = self._last_run(pipeline)
        if before is not None:
            newest = min(newest, before - 1)
        for context in self._read_descending(self._reader.contexts, pipeline, newest, limit):
            yield layout.run_of(context, self._places)

    def latest_runs(self, limit: int) -> dict[str, list[Run]]:
        known = {name: self._last_numbers.get(name, 0) for name in self.pipelines()}
        find = partial(batches.read_named, self._reader.contexts)
        last = batches.find_last_numbers(known, find)
        self._last_numbers.update(last)
        found = find(batches.list_latest(last, limit))
        runs: dict[str, list[Run]] = {name: [] for name in known}
        for name in batches.list_latest(last, limit):
            if name in found:
                runs[name.rpartition("/")[0]].append(layout.run_of(found[name], self._places))
        return runs

    def pipelines(self) -> list[str]:
        return sorted(c.name for c in self._reader.contexts_of_type(declarations.PIPELINE))

    def kinds(self) -> list[str]:
        return sorted(known.name for known in self._connection.find("get_artifact_types") if not known.version)

    # --- executions

    def begin(self, execution: Execution, *claims: Claim) -> Execution:
        begun = replace(execution, inputs={}, outputs={}, started=execution.started or self._clock())
        home = self._contexts_of(execution)
        claimed, write = self._claim_contexts(claims)
        type_id = self._contexts.type_id("execution", layout.execution_type(execution.component))
        message = layout.execution_message(begun, self._places, type_id=type_id, write=write)
        contexts = [*home, *claimed]

        def put() -> int:
            return int(self._connection.write("put_execution", message, [], contexts, force_reuse_context=True)[0])

        def landed() -> int | None:
            found = self._reader.executions([begun.name])
            return found[0].id if found and layout.write_of(found[0]) == write else None

        try:
            return replace(begun, id=self._connection.write_once(put, landed))
        except NameTaken as error:
            self._refuse_taken(claims, error)
            raise AlreadyClaimed(f"execution {begun.name}") from error

    def publish(self, execution: Execution, *claims: Claim) -> Execution:
        begun = self._execution_row(execution.id)
        if begun is None:
            raise NotRecorded(f"Execution {execution.name} was never begun.")
        if layout.state_of(begun).ended:
            raise StoreError(f"Execution {execution.name} has ended as {layout.state_of(begun).value} already.")
        ended = replace(execution, ended=execution.ended or self._clock())
        self._insert_span_index(ended)
        for _ in range(MOST_RACES):
            named = replace(ended, outputs=self._assign_names(ended))
            try:
                return self._put_publication(named, begun.type_id, claims)
            except NameTaken as error:
                self._refuse_taken(claims, error)
        raise self._connection.race_error(f"the numbers of what {execution.name} made")

    def executions(self, run: Run) -> list[Execution]:
        context = self._contexts.find(declarations.RUN, run.name)
        if context is None:
            return []
        return self._with_artifacts(self._reader.executions_in(context.id))

    def executions_of(self, runs: Collection[Run]) -> list[Execution]:
        find = partial(batches.read_named, self._reader.executions)
        attempts = batches.find_numbered(batches.list_nodes(runs), find).values()
        rows = sorted(itertools.chain(*attempts))
        return [layout.execution_of(row, self._places, (), {}) for row in rows if layout.is_ours(row)]

    def execution(self, id: int) -> Execution:  # noqa: A002
        row = self._execution_row(id)
        if row is None:
            raise NotRecorded(f"There is no execution {id}.")
        return self._with_artifacts([row])[0]

    def find_cached(self, key: str) -> Execution | None:
        context = self._contexts.find(layout.CACHE, key) if key else None
        if context is None:
            return None
        return next(iter(self._with_artifacts(self._reader.newest_in(context.id))), None)

    # --- artifacts

    def artifact(self, name: str) -> Artifact:
        found = self._artifacts([name])
        if name not in found:
            raise NotRecorded(f"There is no artifact {name!r}.")
        return found[name]

    def newest(self, address: Address) -> Iterator[Artifact]:
        place = str(address)
        for row in self._read_descending(self._reader.artifacts, place, self._last_artifact(place)):
            yield layout.artifact_of(row, self._places)

    def spans(self, address: Address, *, below: int | None = None) -> Iterator[int]:
        def exist(names: Sequence[str]) -> set[str]:
            return {c.name for c in self._reader.contexts(names)}

        def published(spans: Sequence[int]) -> set[int]:
            firsts = {f"{address}/{span}/1": span for span in spans}
            return {firsts[name] for name in self._artifacts(list(firsts))}

        return span_index.descend(str(address), below, exist, published)

    def of_span(self, address: Address, span: int) -> list[Artifact]:
        return self.of_spans(address, [span])[span]

    def of_spans(self, address: Address, spans: Collection[int]) -> dict[int, list[Artifact]]:
        found: dict[int, list[Artifact]] = {span: [] for span in spans}
        left = list(found)
        for numbers in batches.grow_ranges(1):
            names = {span: [f"{address}/{span}/{number}" for number in numbers] for span in left}
            rows = batches.read_named(self._reader.artifacts, [*itertools.chain(*names.values())])
            for span in left:
                found[span] += [layout.artifact_of(rows[name], self._places) for name in names[span] if name in rows]
            left = [span for span in left if names[span][-1] in rows]
            if not left:
                break
        return found

    def span_summaries(self, address: Address, *, below: int | None = None) -> Iterator[SpanSummary]:
        def exist(names: Sequence[str]) -> set[str]:
            return set(batches.read_named(self._reader.contexts, names))

        find = partial(batches.read_named, self._reader.artifacts)
        candidates = span_index.list_candidates(str(address), below, exist)
        for start in range(0, len(candidates), _SUMMARIZED):
            places = {f"{address}/{span}": span for span in candidates[start : start + _SUMMARIZED]}
            found = batches.find_numbered(places, find)
            yield from (layout.summary_of(span, found[place]) for place, span in places.items() if place in found)

    def producer(self, artifact: Artifact) -> Execution:
        found = self._reader.artifacts_by_id([artifact.id])
        maker = layout.producer_of(found[0]) if found else 0
        row = self._execution_row(maker) if maker else None
        if row is None:
            raise NotRecorded(f"No execution is recorded as the producer of {artifact}.")
        return self._with_artifacts([row])[0]

    def consumers(self, artifact: Artifact) -> list[Execution]:
        readers = {link.execution for link in self._reader.links_of_artifacts([artifact.id], read=True)}
        return self._with_artifacts(self._reader.executions_by_id(sorted(readers))) if readers else []

    def links(
        self, *, artifacts: Collection[int] = (), executions: Collection[int] = (), read: bool | None = None
    ) -> list[Link]:
        found = [
            *batches.read_each(partial(self._reader.links_of_artifacts, read=read), artifacts),
            *batches.read_each(partial(self._reader.links_of_executions, read=read), executions),
        ]
        return list(dict.fromkeys(found)) if artifacts and executions else found  # only both have the same event

    def artifacts_by_id(self, ids: Collection[int]) -> list[Artifact]:
        rows = self._reader.each_artifact(batches.possible_ids(ids))
        return sorted((layout.artifact_of(row, self._places) for row in rows), key=_by_number)

    def executions_by_id(self, ids: Collection[int]) -> list[Execution]:
        rows = sorted(batches.read_each(self._reader.executions_by_id, ids), key=_by_number)
        return [layout.execution_of(row, self._places, (), {}) for row in rows if layout.is_ours(row)]

    def close(self) -> None:
        self._reader.close()
        self._connection.close()

    # --- writing

    def _put_publication(self, execution: Execution, type_id: int, claims: Sequence[Claim]) -> Execution:
        """One transaction: the execution, its events, its new artifacts, its claims and its places."""
        claimed, write = self._claim_contexts(claims)
        message = layout.execution_message(execution, self._places, type_id=type_id, write=write)
        drafts = [(key, index) for key, row in execution.outputs.items() for index, a in enumerate(row) if not a.id]
        new = []
        for key, index in drafts:
            artifact = execution.outputs[key][index]
            artifact_type = self._contexts.type_id("artifact", artifact.kind)
            draft = layout.artifact_message(artifact, self._places, type_id=artifact_type, producer=execution, key=key)
            new.append((draft, layout.event([(key, index)], is_input=False)))
        # Events alone, without their artifacts: a put of an artifact that has an id would empty its other properties.
        old = [
            (None, layout.event(places, is_input=is_input, artifact_id=artifact_id))
            for is_input, side in ((True, execution.inputs), (False, execution.outputs))
            for artifact_id, places in layout.places(side).items()
        ]
        contexts = [*self._contexts_of(execution), *claimed]
        if execution.key and execution.state is State.COMPLETE:
            known = self._contexts.find(layout.CACHE, execution.key)
            contexts.append(_by_id(known.id) if known else self._contexts.named(layout.CACHE, execution.key))

        def put() -> list[int]:
            answer = self._connection.write("put_execution", message, new + old, contexts, force_reuse_context=True)
            return list(answer[1])[: len(new)]

        def landed() -> list[int] | None:
            found = self._execution_row(execution.id)
            if found is None or layout.write_of(found) != write:
                return None
            made = self._artifacts([draft.name for draft, _ in new])
            return [made[draft.name].id for draft, _ in new]

        ids = dict(zip(drafts, self._connection.write_once(put, landed), strict=True))
        outputs = {
            key: tuple(a if a.id else _with_id(a, ids[key, index]) for index, a in enumerate(row))
            for key, row in execution.outputs.items()
        }
        return replace(execution, outputs=outputs)

    def _assign_names(self, execution: Execution) -> dict[str, tuple[Artifact, ...]]:
        """Returns the outputs, the new ones with a name, `created` and the class that reading them returns."""
        taken: dict[str, int] = defaultdict(int)
        created = self._clock()

        def named(key: str, artifact: Artifact) -> Artifact:
            if artifact.id:
                return artifact
            place = _place(Address.of_output(execution, key), artifact)
            taken[place] += 1
            return Artifact(
                artifact.uri,
                name=f"{place}/{self._last_artifact(place) + taken[place]}",
                kind=artifact.kind,
                base_kinds=artifact.base_kinds,
                created=created,
                content=artifact.content,
                files=artifact.files,
                size_bytes=artifact.size_bytes,
                properties=artifact.properties,
                archive=self.archive,
            )

        return {key: tuple(named(key, artifact) for artifact in row) for key, row in execution.outputs.items()}

    def _insert_span_index(self, execution: Execution) -> None:
        """Inserts the missing names of the span index; they may exist without an artifact, not the reverse."""
        for key, row in execution.outputs.items():
            address = str(Address.of_output(execution, key))
            spans = {a.properties.get("span") for a in row if not a.id}
            for span in sorted(s for s in spans if isinstance(s, int)):
                self._contexts.insert_span_index(span_index.index_names(address, span))

    def _claim_contexts(self, claims: Sequence[Claim]) -> tuple[list[Proto], str]:
        """The contexts to insert, and the random word that identifies this write."""
        write = uuid.uuid4().hex
        if not claims:
            return [], write
        if len({(c.kind, c.name) for c in claims}) < len(claims):
            raise AlreadyClaimed(_format_claims(claims))
        type_id = self._contexts.type_id("context", layout.CLAIM)
        created = self._clock().isoformat()
        return [layout.claim_context(c, type_id=type_id, created=created, write=write) for c in claims], write

    def _refuse_taken(self, claims: Sequence[Claim], error: NameTaken) -> None:
        """Raises AlreadyClaimed if the taken name was that of a claim; claims are never removed, so it exists now."""
        taken = [c for c in claims if self.find_claim(c.kind, c.name) is not None]
        if taken:
            raise AlreadyClaimed(_format_claims(taken)) from error

    # --- reading

    def _contexts_of(self, execution: Execution) -> list[Proto]:
        """The contexts of an execution, by id alone, which leaves their properties unchanged."""
        run = self._run_context(execution.pipeline, execution.run)
        node = self._contexts.node_id(execution.pipeline, execution.node)
        return [_by_id(i) for i in (self._contexts.pipeline_id(execution.pipeline), run.id, node)]

    def _run_context(self, pipeline: str, number: int) -> ContextRow:
        context = self._contexts.find(declarations.RUN, f"{pipeline}/{number}")
        if context is None:
            raise NotRecorded(no_such_run(pipeline, number, self._last_run(pipeline)))
        return context

    def _landed_run(self, name: str, write: str) -> list[int] | None:
        context = self._contexts.find(declarations.RUN, name)
        return [context.id] if context and layout.write_of(context) == write else None

    def _execution_row(self, id: int) -> ExecutionRow | None:  # noqa: A002
        found = self._reader.executions_by_id([id])
        return found[0] if found and layout.is_ours(found[0]) else None

    def _artifacts(self, names: Sequence[str]) -> dict[str, Artifact]:
        """The artifacts that exist among these names, by name."""
        if not names:
            return {}
        return {row.name: layout.artifact_of(row, self._places) for row in self._reader.artifacts(names)}

    def _with_artifacts(self, rows: Iterable[ExecutionRow]) -> list[Execution]:
        """The executions, in the order in which they began."""
        ours = sorted(row for row in rows if layout.is_ours(row))
        if not ours:
            return []
        events = defaultdict(list)
        for event in self._reader.events([row.id for row in ours]):
            events[event.execution_id].append(event)
        ids = sorted({event.artifact_id for group in events.values() for event in group})
        found = self._reader.artifacts_by_id(ids) if ids else []
        artifacts = {row.id: layout.artifact_of(row, self._places) for row in found}
        return [layout.execution_of(row, self._places, events[row.id], artifacts) for row in ours]

    def _last_run(self, pipeline: str) -> int:
        last = self._reader.last_numbered(declarations.RUN, f"{pipeline}/", self._last_numbers.get(pipeline, 0))
        self._last_numbers[pipeline] = last
        return last

    def _last_artifact(self, place: str) -> int:
        seen = self._last_numbers.get(place, 0)
        further = find_last(lambda further: bool(self._artifacts([f"{place}/{seen + further}"])))
        self._last_numbers[place] = seen + further
        return seen + further

    def _read_descending(
        self, read: Callable[[Sequence[str]], list[N]], place: str, newest: int, limit: int | None = None
    ) -> Iterator[N]:
        """Yields the rows numbered at a place, from `newest` down to 1, or `limit` of them."""
        for offsets in batches.grow_ranges(0) if limit is None else [range(limit)]:
            names = [f"{place}/{newest - offset}" for offset in offsets if offset < newest]
            if not names:
                return
            found = batches.read_named(read, names)
            yield from (found[name] for name in names if name in found)


def _place(address: Address, artifact: Artifact) -> str:
    span = artifact.properties.get("span")
    return str(address) if span is None else f"{address}/{span}"


def _with_id(draft: Artifact, id: int) -> Artifact:  # noqa: A002
    return Artifact(
        draft.uri,
        id=id,
        name=draft.name,
        kind=draft.kind,
        base_kinds=draft.base_kinds,
        created=draft.created,
        content=draft.content,
        files=draft.files,
        size_bytes=draft.size_bytes,
        properties=draft.properties,
        archive=draft.archive,
    )


def _by_id(id: int) -> Proto:  # noqa: A002
    return metadata_store_pb2.Context(id=id)


def _format_claims(claims: Sequence[Claim]) -> str:
    return ", ".join(f"{c.kind} {c.name}" for c in claims)
