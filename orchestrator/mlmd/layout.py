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
from spanwise.orchestrator.mlmd.text import decode, encode, fits_an_integer, is_storable
from spanwise.orchestrator.run import Execution, Run, State, Trigger
from spanwise.orchestrator.store import Claim, SpanSummary

Proto: TypeAlias = Any
"""A message of ml_metadata, which has no types."""

CACHE = "execution_cache"
CLAIM = "spanwise.claim"
SPAN_INDEX = "spanwise.span"

INDEXED = frozenset({"accepted", "blessed", "collected", "pinned", "pushed"})
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

_READ_BY_OTHERS = ("name", "pipeline_name", "producer_component")
"""The custom properties by which TFX's tools tell artifacts apart. An artifact's own of such a name gets a prefix."""

_OWN = "own:"


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


def claim_of(context: Proto, kind: str, name: str) -> Claim:
    facts = _read(context.custom_properties)
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
        "nodes": list(run.nodes),
        "parameters": dict(run.parameters),
        "beam": dict(run.beam) or None,
        "typed": list(run.typed) or None,
        "source": where.record_source(run.source),
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


def run_of(context: Proto, where: Places) -> Run:
    facts: Mapping[str, Any] = _read(context.custom_properties)
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
        nodes=tuple(facts["nodes"]),
        parameters=facts["parameters"],
        beam=facts.get("beam", {}),
        typed=tuple(facts.get("typed", ())),
        source=where.resolve(facts["source"]),
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


def is_ours(execution: Proto) -> bool:
    """Whether spanwise recorded it; other programs may write to the same database."""
    return WRITE in execution.custom_properties


def execution_of(
    message: Proto, where: Places, events: Iterable[Proto], artifacts: Mapping[int, Artifact]
) -> Execution:
    """`events` are those of this execution; `artifacts` holds at least the artifacts in them, by id."""
    typed: Mapping[str, Any] = _read(message.properties)
    facts: Mapping[str, Any] = _read(message.custom_properties)
    inputs: dict[str, dict[int, Artifact]] = defaultdict(dict)
    outputs: dict[str, dict[int, Artifact]] = defaultdict(dict)
    for event in events:
        side = inputs if event.type == metadata_store_pb2.Event.INPUT else outputs
        steps = event.path.steps
        for key, index in zip(steps[::2], steps[1::2], strict=True):
            side[key.key][index.index] = artifacts[event.artifact_id]
    return Execution(
        id=message.id,
        pipeline=typed["pipeline_name"],
        run=int(typed["run_id"].rpartition("/")[2]),
        node=typed["component_id"],
        attempt=facts["attempt"],
        replay=facts.get("replay", False),
        component="" if message.type == _NO_COMPONENT else message.type,
        state=_STATE_OF[message.last_known_state],
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


def state_of(execution: Proto) -> State:
    return _STATE_OF[execution.last_known_state]


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
    }
    custom = dict(artifact.properties)
    for own in ("span", "version"):
        if own in custom and fits_an_integer(custom[own]):
            typed[own] = custom.pop(own)
    _fill(message.properties, _present(typed))
    if isinstance(custom.get("split_names"), list):
        # TFX's form, JSON text; it differs where a name has a backslash or a percent sign
        message.properties["split_names"].string_value = str(encode(custom.pop("split_names"))).removeprefix("json:")
    _fill(message.custom_properties, {_escape(name): value for name, value in custom.items()})
    others: dict[str, Value] = {"name": key, "pipeline_name": producer.pipeline, "producer_component": producer.node}
    _fill(message.custom_properties, others)
    return message


def artifact_of(message: Proto, where: Places) -> Artifact:
    typed: dict[str, Any] = {}
    for key, kept in message.properties.items():
        typed[key] = decode(f"json:{kept.string_value}") if key == "split_names" else _value(kept)
    content, files, size_bytes, created, _ = [
        typed.pop(key, None) for key in ("content", "files", "size_bytes", "created", "producer")
    ]
    return Artifact(
        where.resolve(message.uri),
        id=message.id,
        name=message.name,
        kind=message.type,
        created=_time(created),
        content=content or "",
        files=files,
        size_bytes=int(size_bytes or 0),
        properties={**typed, **_own(message)},
        archive=where.archive,
    )


def summary_of(span: int, publications: Sequence[Proto]) -> SpanSummary:
    """As `summarize_span` of their artifacts, without decoding the properties that it does not hold."""
    versions = {int(message.id): _version_of(message) for message in publications}
    newest = max(publications, key=lambda message: (versions[message.id] or -1, int(message.id)))
    rows = _value(newest.custom_properties["rows"]) if "rows" in newest.custom_properties else None
    created = newest.properties["created"].string_value if "created" in newest.properties else None
    return SpanSummary(
        span=span,
        artifact=int(newest.id),
        name=newest.name,
        content=newest.properties["content"].string_value if "content" in newest.properties else "",
        version=versions[newest.id],
        publications=len(publications),
        rows=sum(count for count in rows.values() if isinstance(count, int)) if isinstance(rows, dict) else None,
        created=_time(created),
    )


def _version_of(artifact: Proto) -> int | None:
    for properties in (artifact.properties, artifact.custom_properties):  # a large one does not fit the typed property
        if "version" in properties:
            version = _value(properties["version"])
            return version if isinstance(version, int) else None
    return None


def producer_of(message: Proto) -> int:
    """The id of the execution that produced it; 0 if another program recorded it."""
    return int(message.properties["producer"].int_value) if "producer" in message.properties else 0


def write_of(message: Proto) -> str:
    """The last write that recorded a context or an execution."""
    return str(message.custom_properties[WRITE].string_value) if WRITE in message.custom_properties else ""


def _fill(properties: Proto, values: Mapping[str, Value]) -> None:
    for key, value in values.items():
        kept = encode(value)
        target = properties[name_of(key)]
        if isinstance(kept, bool):
            target.bool_value = kept
        elif isinstance(kept, int):
            target.int_value = kept
        else:
            target.string_value = kept


def _escape(name: str) -> str:
    return f"{_OWN}{name}" if name in _READ_BY_OTHERS or name.startswith(_OWN) else name


def _own(artifact: Proto) -> dict[str, Value]:
    """The custom properties without those that only others read."""
    custom = artifact.custom_properties.items()
    return {name.removeprefix(_OWN): _value(kept) for name, kept in custom if name not in _READ_BY_OTHERS}


def _read(properties: Proto) -> dict[str, Value]:
    return {key: _value(kept) for key, kept in properties.items()}


def _value(kept: Proto) -> Value:
    text: str = kept.string_value  # empty where another field is set; most are texts, so they come first
    return decode(text or getattr(kept, kept.WhichOneof("value")))


def _in_order(side: Mapping[str, Mapping[int, Artifact]], empty: Iterable[str]) -> dict[str, tuple[Artifact, ...]]:
    found = {key: tuple(row[index] for index in sorted(row)) for key, row in side.items()}
    return {**found, **dict.fromkeys(empty, ())}


def _present(facts: Mapping[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in facts.items() if value is not None}


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
