"""The layout: how our records map to messages of ML Metadata. Pure functions, in both directions.

Names and types are TFX's where it has them, so programs that read TFX's metadata can read ours
(docs/decisions/0010-metadata-layout.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from ml_metadata.proto import metadata_store_pb2

from spanwise.orchestrator.artifact import Artifact, Value
from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.mlmd.places import Places
from spanwise.orchestrator.mlmd.rows import READ_BY_OTHERS, ArtifactRow, ContextRow, EventRow, ExecutionRow
from spanwise.orchestrator.mlmd.text import (
    Stored,
    decode,
    divide,
    encode,
    fits_an_integer,
    is_storable,
    join,
    name_piece,
)
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.orchestrator.store import Claim, SpanSummary

Proto: TypeAlias = Any
"""A message of ml_metadata, which has no types."""

CACHE = "execution_cache"
CLAIM = "spanwise.claim"
SPAN_INDEX = "spanwise.span"

INDEXED = frozenset({"accepted", "blessed", "collected", "pinned"})
"""The kinds of claims that are looked up for many artifacts at once, and so have an external id: their name."""

WRITE = "spanwise.write"
"""The property that identifies a write, whatever its content: a random word."""

_NO_COMPONENT = "spanwise.node"  # a type needs a name
_LONGEST_NAME = 255

_STATES = {
    State.RUNNING: metadata_store_pb2.Execution.RUNNING,
    State.COMPLETE: metadata_store_pb2.Execution.COMPLETE,
    State.CACHED: metadata_store_pb2.Execution.CACHED,
    State.FAILED: metadata_store_pb2.Execution.FAILED,
    State.CANCELED: metadata_store_pb2.Execution.CANCELED,
}
_STATE_OF = {number: state for state, number in _STATES.items()}

_OWN = "own:"
"""The prefix of an artifact's own properties that have a name of `_NOT_OWN`."""

_NOT_OWN = frozenset({*READ_BY_OTHERS, "files", "base_kinds", "split_names"})
"""Custom properties that are not the artifact's own, or may have pieces of a typed one beside them."""

_FACTS = frozenset({"content", "files", "size_bytes", "created", "producer", "base_kinds"})
"""The typed properties of an artifact that are not properties of ours."""


def name_of(text: str) -> str:
    """Returns the name if every database can store it.

    Raises:
        StoreError: some database cannot.
    """
    if len(text) > _LONGEST_NAME:
        raise StoreError(
            f"The name {text[:60]}… has {len(text)} characters; the limit is {_LONGEST_NAME}. "
            "Shorten the name of the pipeline or the node."
        )
    if not is_storable(text):
        raise StoreError(f"The name {text!r} holds a backslash, a NUL or half a character; the metadata stores none.")
    return text


def claim_name(kind: str, name: str) -> str:
    return f"{kind}:{name}"


def claim_context(claim: Claim, *, type_id: int, created: str, write: str) -> Proto:
    """`created` replaces a fact of that name."""
    name = name_of(claim_name(claim.kind, claim.name))
    context = metadata_store_pb2.Context(
        type_id=type_id, name=name, external_id=name if claim.kind in INDEXED else None
    )
    _fill(context.custom_properties, {**claim.facts, "created": created, WRITE: write})
    return context


def claim_of(context: ContextRow, kind: str, name: str) -> Claim:
    facts = _read(context.custom)
    del facts[WRITE]
    return Claim(kind, name, facts)


def run_context(run: Run, where: Places, *, type_id: int, write: str) -> Proto:
    name = name_of(run.name)
    context = metadata_store_pb2.Context(type_id=type_id, name=name, external_id=name)
    _fill(context.properties, {"pipeline_name": run.pipeline, "run_id": run.name})
    facts: dict[str, Value] = {
        "trigger": run.trigger.value,
        "cause": run.cause or None,
        "span": run.span,
        "calendar": run.calendar,
        "spans": dict(run.spans) or None,
        "exclude": list(run.exclude) or None,
        "from_scratch": run.from_scratch or None,
        "as_of": _iso(run.as_of),
        "replay": run.replay or None,
        "base": run.base,
        "behind": list(run.behind) or None,
        "nodes": list(run.nodes),
        "unselected": list(run.unselected) or None,
        "parameters": dict(run.parameters),
        "beam": dict(run.beam) or None,
        "typed": list(run.typed) or None,
        "source": where.record_source(run.source),
        "folder": where.record_source(run.folder) or None,
        "token": run.token,
        "host": run.host,
        "pid": run.pid,
        "state": run.state.value,
        "started": _iso(run.started),
        "ended": _iso(run.ended),
        "error": run.error,
        WRITE: write,
    }
    _fill(context.custom_properties, _present(facts))
    return context


def run_of(context: ContextRow, where: Places) -> Run:
    facts: Mapping[str, Any] = _read(context.custom)
    pipeline, number = context.name.rsplit("/", 1)
    return Run(
        pipeline=pipeline,
        number=int(number),
        trigger=Trigger(facts["trigger"]),
        cause=facts.get("cause", ""),
        span=facts.get("span"),
        calendar=facts["calendar"],
        spans=facts.get("spans", {}),
        exclude=tuple(facts.get("exclude", ())),
        from_scratch=facts.get("from_scratch", False),
        as_of=_time(facts.get("as_of")),
        replay=facts.get("replay", False),
        base=facts.get("base"),
        behind=tuple(facts.get("behind", ())),
        nodes=tuple(facts["nodes"]),
        unselected=tuple(facts.get("unselected", ())),
        parameters=facts["parameters"],
        beam=facts.get("beam", {}),
        typed=tuple(facts.get("typed", ())),
        source=where.resolve(facts["source"]),
        folder=where.resolve(facts.get("folder", "")),
        token=facts["token"],
        host=facts["host"],
        pid=facts["pid"],
        state=State(facts["state"]),
        started=_time(facts.get("started")),
        ended=_time(facts.get("ended")),
        error=facts.get("error"),
    )


def pipeline_context(pipeline: str, *, type_id: int) -> Proto:
    context = metadata_store_pb2.Context(type_id=type_id, name=name_of(pipeline))
    _fill(context.properties, {"pipeline_name": pipeline})
    return context


def node_context(pipeline: str, node: str, *, type_id: int) -> Proto:
    context = metadata_store_pb2.Context(type_id=type_id, name=name_of(node_name(pipeline, node)))
    _fill(context.properties, {"pipeline_name": pipeline, "component_id": node})
    return context


def node_name(pipeline: str, node: str) -> str:
    return f"{pipeline}.{node}"


def execution_type(component: str) -> str:
    return component or _NO_COMPONENT


def execution_message(execution: Execution, where: Places, *, type_id: int, write: str) -> Proto:
    """All but the artifacts, which events record. A key without artifacts has no event, so it is recorded here."""
    name = name_of(execution.name)
    message = metadata_store_pb2.Execution(
        id=execution.id or None,
        type_id=type_id,
        name=name,
        external_id=name,
        last_known_state=_STATES[execution.state],
    )
    typed: dict[str, Value] = {
        "pipeline_name": execution.pipeline,
        "run_id": execution.run_name,
        "component_id": execution.node,
        "state": execution.state.value,
    }
    _fill(message.properties, typed)
    facts: dict[str, Value] = {
        "attempt": execution.attempt,
        "replay": execution.replay or None,
        "parameters": dict(execution.parameters),
        "defaults": list(execution.defaults) or None,
        "key": execution.key or None,
        "key_parts": dict(execution.key_parts) or None,
        "empty_inputs": [key for key, artifacts in execution.inputs.items() if not artifacts] or None,
        "empty_outputs": [key for key, artifacts in execution.outputs.items() if not artifacts] or None,
        "reused": execution.reused,
        "reason": execution.reason,
        "error": execution.error,
        "log": where.record(execution.log) or None,
        "started": _iso(execution.started),
        "ended": _iso(execution.ended),
        "work_started": _iso(execution.work_started),
        "work_ended": _iso(execution.work_ended),
        WRITE: write,
    }
    _fill(message.custom_properties, _present(facts))
    return message


def is_ours(execution: ExecutionRow) -> bool:
    """Whether spanwise recorded it; other programs may write to the same database."""
    return WRITE in execution.custom


def execution_of(
    row: ExecutionRow, where: Places, events: Iterable[EventRow], artifacts: Mapping[int, Artifact]
) -> Execution:
    """`events` are those of this execution; `artifacts` holds at least the artifacts in them, by id."""
    typed: Mapping[str, Any] = _read(row.typed)
    facts: Mapping[str, Any] = _read(row.custom)
    inputs: dict[str, dict[int, Artifact]] = defaultdict(dict)
    outputs: dict[str, dict[int, Artifact]] = defaultdict(dict)
    for event in events:
        side = inputs if event.read else outputs
        for key, index in zip(event.steps[::2], event.steps[1::2], strict=True):
            side[str(key)][int(index)] = artifacts[event.artifact_id]
    return Execution(
        id=row.id,
        pipeline=typed["pipeline_name"],
        run=int(typed["run_id"].rpartition("/")[2]),
        node=typed["component_id"],
        attempt=facts["attempt"],
        replay=facts.get("replay", False),
        component="" if row.type == _NO_COMPONENT else row.type,
        state=_STATE_OF[row.state],
        parameters=facts["parameters"],
        defaults=tuple(facts.get("defaults", ())),
        key=facts.get("key", ""),
        key_parts=facts.get("key_parts", {}),
        inputs=_in_order(inputs, facts.get("empty_inputs", ())),
        outputs=_in_order(outputs, facts.get("empty_outputs", ())),
        reused=facts.get("reused"),
        reason=facts.get("reason"),
        error=facts.get("error"),
        log=where.resolve(facts.get("log", "")),
        started=_time(facts.get("started")),
        ended=_time(facts.get("ended")),
        work_started=_time(facts.get("work_started")),
        work_ended=_time(facts.get("work_ended")),
    )


def state_of(execution: ExecutionRow) -> State:
    return _STATE_OF[execution.state]


def event(places: Iterable[tuple[str, int]], *, is_input: bool, artifact_id: int = 0) -> Proto:
    """One event for all places of an artifact in an execution: a second event would be refused."""
    kind = metadata_store_pb2.Event.INPUT if is_input else metadata_store_pb2.Event.OUTPUT
    message = metadata_store_pb2.Event(type=kind, artifact_id=artifact_id or None)
    for key, index in places:
        message.path.steps.add().key = key
        message.path.steps.add().index = index
    return message


def places(artifacts: Mapping[str, Sequence[Artifact]]) -> dict[int, list[tuple[str, int]]]:
    """The places of each published artifact, by its id."""
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for key, row in artifacts.items():
        for index, artifact in enumerate(row):
            if artifact.id:
                found[artifact.id].append((key, index))
    return found


def artifact_message(artifact: Artifact, where: Places, *, type_id: int, producer: Execution, key: str) -> Proto:
    """Converts a draft that has its name and `created`, an output of `producer`."""
    name = name_of(artifact.name)
    uri = where.record(artifact.uri)
    if not is_storable(uri):
        raise StoreError(f"The URI {uri!r} holds a backslash, a NUL or half a character. Choose another root.")
    message = metadata_store_pb2.Artifact(
        type_id=type_id,
        name=name,
        external_id=name,
        uri=uri,
        state=metadata_store_pb2.Artifact.LIVE,
    )
    typed: dict[str, Value] = {
        "content": artifact.content,
        "files": dict(artifact.files) or None,
        "size_bytes": str(artifact.size_bytes),
        "created": _iso(artifact.created),
        "producer": producer.id,
        "base_kinds": list(artifact.base_kinds) or None,
    }
    custom = dict(artifact.properties)
    for own in ("span", "version"):
        if own in custom and fits_an_integer(custom[own]):
            typed[own] = custom.pop(own)
    if isinstance(custom.get("split_names"), list):
        # TFX's form, JSON text; it differs where a name has a backslash or a percent sign
        typed["split_names"] = str(encode(custom.pop("split_names"))).removeprefix("json:")
    _fill(message.properties, _present(typed), message.custom_properties)
    _fill(message.custom_properties, {_escape(name): value for name, value in custom.items()})
    others: dict[str, Value] = {"name": key, "pipeline_name": producer.pipeline, "producer_component": producer.node}
    _fill(message.custom_properties, others)
    return message


def artifact_of(row: ArtifactRow, where: Places) -> Artifact:
    facts: Mapping[str, Any] = join(row.typed, row.custom)
    properties = {name: decode(kept) for name, kept in facts.items() if name not in _FACTS}
    if "split_names" in properties:
        properties["split_names"] = decode(f"json:{facts['split_names']}")
    for name, kept in join(row.custom, row.custom).items():
        properties[name.removeprefix(_OWN)] = decode(kept)
    properties = dict(sorted(properties.items()))  # a database returns them in any order, and code may go by it
    return Artifact(
        where.resolve(row.uri),
        id=row.id,
        name=row.name,
        kind=row.type,
        base_kinds=decode(facts["base_kinds"]) if "base_kinds" in facts else (),  # type: ignore[arg-type]  # as we wrote it
        created=_time(facts.get("created")),
        content=str(decode(facts.get("content", ""))),
        files=decode(facts["files"]) if "files" in facts else None,  # type: ignore[arg-type]  # as we wrote it
        size_bytes=int(facts.get("size_bytes", 0)),
        properties=properties,
        archive=where.archive,
    )


def summary_of(span: int, publications: Sequence[ArtifactRow]) -> SpanSummary:
    """As `summarize_span` of their artifacts, without decoding the properties that it does not hold."""
    versions = {row.id: _version_of(row) for row in publications}
    newest = max(publications, key=lambda row: (versions[row.id] or -1, row.id))
    custom = join(newest.custom, newest.custom)
    rows = decode(custom["rows"]) if "rows" in custom else None
    created = newest.typed.get("created")
    return SpanSummary(
        span=span,
        artifact=newest.id,
        name=newest.name,
        content=str(newest.typed.get("content", "")),
        version=versions[newest.id],
        publications=len(publications),
        rows=sum(count for count in rows.values() if isinstance(count, int)) if isinstance(rows, dict) else None,
        created=None if created is None else _time(str(created)),
    )


def _version_of(artifact: ArtifactRow) -> int | None:
    for properties in (artifact.typed, artifact.custom):  # a large one does not fit the typed property
        if "version" in properties:
            version = decode(properties["version"])
            return version if isinstance(version, int) else None
    return None


def producer_of(row: ArtifactRow) -> int:
    """The id of the execution that produced it; 0 if another program recorded it."""
    return int(row.typed.get("producer", 0))


def write_of(row: ContextRow | ExecutionRow) -> str:
    """The last write that recorded a context or an execution."""
    return str(row.custom.get(WRITE, ""))


def _fill(properties: Proto, values: Mapping[str, Value], further: Proto | None = None) -> None:
    """`further` takes the further pieces of long texts, where `properties` are those that a type declares."""
    for key, value in values.items():
        kept = encode(value)
        target = properties[name_of(key)]
        if isinstance(kept, bool):
            target.bool_value = kept
        elif isinstance(kept, int):
            target.int_value = kept
        else:
            target.string_value, *pieces = divide(kept)
            for number, piece in enumerate(pieces, 2):
                (properties if further is None else further)[name_of(name_piece(key, number))].string_value = piece


def _escape(name: str) -> str:
    return f"{_OWN}{name}" if name in _NOT_OWN or name.startswith(_OWN) else name


def _read(properties: Mapping[str, Stored]) -> dict[str, Value]:
    return {key: decode(kept) for key, kept in join(properties, properties).items()}


def _in_order(side: Mapping[str, Mapping[int, Artifact]], empty: Iterable[str]) -> dict[str, tuple[Artifact, ...]]:
    found = {key: tuple(row[index] for index in sorted(row)) for key, row in side.items()}
    return {**found, **dict.fromkeys(empty, ())}


def _present(facts: Mapping[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in facts.items() if value is not None}


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
