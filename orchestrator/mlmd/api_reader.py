"""Reading the metadata through the methods of ml_metadata, on any database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ml_metadata.metadata_store import ListOptions, OrderByField
from ml_metadata.proto import metadata_store_pb2

from spanwise.orchestrator.errors import StoreError
from spanwise.orchestrator.mlmd import batches
from spanwise.orchestrator.mlmd.connection import OWN_COLLATION, Proto, StoreConnection
from spanwise.orchestrator.mlmd.rows import READ_BY_OTHERS, ArtifactRow, ContextRow, EventRow, ExecutionRow
from spanwise.orchestrator.mlmd.text import Stored
from spanwise.orchestrator.store import Entry, Link, find_last


class ApiReader:
    """A `Reader` that asks ml_metadata: several round trips to a server for each question."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    def context(self, kind: str, name: str) -> ContextRow | None:
        found = self._connection.read("get_context_by_type_and_name", kind, name)
        if found is not None and found.name != name:
            raise self._same_name_error(name, found.name)
        return None if found is None else _context_row(found)

    def named_contexts(self, kind: str, names: Sequence[str]) -> list[ContextRow]:
        return [row for name in names if (row := self.context(kind, name)) is not None]

    def last_numbered(self, kind: str, prefix: str, seen: int) -> int:
        return seen + find_last(lambda further: self.context(kind, f"{prefix}{seen + further}") is not None)

    def contexts(self, names: Sequence[str]) -> list[ContextRow]:
        return [_context_row(m) for m in self._find_named("get_contexts_by_external_ids", names)]

    def contexts_of_type(self, kind: str) -> list[ContextRow]:
        return [_context_row(m) for m in self._connection.read("get_contexts_by_type", kind)]

    def entry(self, id: int | None) -> Entry | None:  # noqa: A002
        if id is None:
            newest = ListOptions(limit=1, order_by=OrderByField.ID, is_asc=False)
            found = self._connection.read("get_contexts", list_options=newest)
        else:
            found = self._connection.find("get_contexts_by_id", [id])
        return next((Entry(m.id, m.name, m.create_time_since_epoch) for m in found), None)

    def artifacts(self, names: Sequence[str]) -> list[ArtifactRow]:
        return [_artifact_row(m) for m in self._find_named("get_artifacts_by_external_ids", names)]

    def artifacts_by_id(self, ids: Sequence[int]) -> list[ArtifactRow]:
        return [_artifact_row(m) for m in self._connection.find("get_artifacts_by_id", ids)]

    def each_artifact(self, ids: Sequence[int]) -> Iterator[ArtifactRow]:
        return batches.read_each(self.artifacts_by_id, ids)

    def executions(self, names: Sequence[str]) -> list[ExecutionRow]:
        return [_execution_row(m) for m in self._find_named("get_executions_by_external_ids", names)]

    def executions_by_id(self, ids: Sequence[int]) -> list[ExecutionRow]:
        return [_execution_row(m) for m in self._connection.find("get_executions_by_id", ids)]

    def executions_in(self, context: int) -> list[ExecutionRow]:
        return [_execution_row(m) for m in self._connection.read("get_executions_by_context", context)]

    def newest_in(self, context: int) -> list[ExecutionRow]:
        newest = ListOptions(limit=1, order_by=OrderByField.ID, is_asc=False)
        found = self._connection.read("get_executions_by_context", context, list_options=newest)
        return [_execution_row(m) for m in found]

    def events(self, executions: Sequence[int]) -> list[EventRow]:
        return [_event_row(m) for m in self._connection.find("get_events_by_execution_ids", executions)]

    def links_of_artifacts(self, ids: Sequence[int], read: bool | None) -> list[Link]:
        found = self._connection.find("get_events_by_artifact_ids", ids)
        return [_link(m) for m in found if read in (None, _is_read(m))]

    def links_of_executions(self, ids: Sequence[int], read: bool | None) -> list[Link]:
        found = self._connection.find("get_events_by_execution_ids", ids)
        return [_link(m) for m in found if read in (None, _is_read(m))]

    def close(self) -> None:
        """It has nothing of its own: the connection is its owner's."""

    def _find_named(self, method: str, names: Sequence[str]) -> list[Proto]:
        found = self._connection.find(method, names)
        for other in {message.external_id for message in found}.difference(names):
            raise self._same_name_error(
                next((name for name in names if name.lower() == other.lower()), names[0]), other
            )
        return found

    def _same_name_error(self, name: str, other: str) -> StoreError:
        return StoreError(
            f"In the metadata {self._connection}, {name!r} and {other!r} are the same name, because of its "
            f"collation. Rename one, or create the database with another collation: {OWN_COLLATION}"
        )


def _context_row(message: Proto) -> ContextRow:
    return ContextRow(message.id, message.type_id, message.name, _values(message.custom_properties))


def _artifact_row(message: Proto) -> ArtifactRow:
    typed, custom = _values(message.properties), _values(message.custom_properties)
    for name in READ_BY_OTHERS:
        custom.pop(name, None)
    return ArtifactRow(message.id, message.type, message.name, message.uri, typed, custom)


def _execution_row(message: Proto) -> ExecutionRow:
    typed, custom = _values(message.properties), _values(message.custom_properties)
    state = message.last_known_state
    return ExecutionRow(message.id, message.type_id, message.type, message.name, state, typed, custom)


def _event_row(message: Proto) -> EventRow:
    steps = [step.key if step.HasField("key") else step.index for step in message.path.steps]
    return EventRow(message.artifact_id, message.execution_id, _is_read(message), steps)


def _link(message: Proto) -> Link:
    return Link(message.artifact_id, message.execution_id, _is_read(message))


def _is_read(message: Proto) -> bool:
    return bool(message.type == metadata_store_pb2.Event.INPUT)


def _values(properties: Proto) -> dict[str, Stored]:
    return {key: _value(kept) for key, kept in properties.items()}


def _value(kept: Proto) -> Stored:
    text: str = kept.string_value  # empty where another field is set; most are texts, so they come first
    value: Stored = text or getattr(kept, kept.WhichOneof("value"))
    return value
