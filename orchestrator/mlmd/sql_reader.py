"""Reading the metadata by SQL, one statement for each question. It knows ml-metadata's tables, and writes nothing.

What it does not know how to answer, ml_metadata is asked: of tables of another version, of values that spanwise does
not write, of a server that does not let it in, and where psycopg2 is not installed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from spanwise.orchestrator.mlmd import batches
from spanwise.orchestrator.mlmd.connection import StoreConnection
from spanwise.orchestrator.mlmd.location import DatabaseServer
from spanwise.orchestrator.mlmd.postgresql import NotReadable, QueryRefused, ReadSession, TableLocked
from spanwise.orchestrator.mlmd.rows import ArtifactRow, ContextRow, EventRow, ExecutionRow, Reader

R = TypeVar("R", ContextRow, ArtifactRow, ExecutionRow, EventRow)

SCHEMA_VERSIONS = (10,)
"""The versions of ml-metadata's tables that the statements are for: that of 1.17 and 1.21."""

RETRY_S = 60.0
"""A server that did not let the session in is asked again after so long: it may have been starting, or full."""

_INPUT = 3  # the type of an event

log = logging.getLogger("spanwise.metadata")

# Several rows make one record, so the server makes JSON of them. A null value is one of a kind that we do not write.
_VALUE = """CASE
    WHEN p.string_value IS NOT NULL THEN CASE WHEN p.string_value NOT LIKE 'mlmd-struct::%' THEN to_json(p.string_value) END
    WHEN p.int_value IS NOT NULL THEN to_json(p.int_value)
    WHEN p.bool_value IS NOT NULL THEN to_json(p.bool_value) END"""  # noqa: E501
_CUSTOM = f"coalesce(json_object_agg(p.name, {_VALUE}) FILTER (WHERE p.is_custom_property), '{{}}') AS custom"
_TYPED = f"coalesce(json_object_agg(p.name, {_VALUE}) FILTER (WHERE NOT p.is_custom_property), '{{}}') AS typed"

_CONTEXTS = f"""SELECT json_build_array(c.id, c.type_id, c.name, p.custom) FROM context c,
    LATERAL (SELECT {_CUSTOM} FROM contextproperty p WHERE p.context_id = c.id) p WHERE """  # noqa: S608
_ARTIFACTS = f"""SELECT json_build_array(a.id, t.name, coalesce(a.name, ''), coalesce(a.uri, ''), p.typed, p.custom)
    FROM artifact a JOIN type t ON t.id = a.type_id,
    LATERAL (SELECT {_TYPED}, {_CUSTOM} FROM artifactproperty p WHERE p.artifact_id = a.id) p WHERE """  # noqa: S608
_EXECUTIONS = f"""SELECT json_build_array(
    e.id, e.type_id, t.name, coalesce(e.name, ''), coalesce(e.last_known_state, 0), p.typed, p.custom)
    FROM execution e JOIN type t ON t.id = e.type_id,
    LATERAL (SELECT {_TYPED}, {_CUSTOM} FROM executionproperty p WHERE p.execution_id = e.id) p WHERE """  # noqa: S608
_EVENTS = f"""SELECT json_build_array(v.artifact_id, v.execution_id, v.type = {_INPUT}, coalesce((SELECT json_agg(
    CASE WHEN s.is_index_step THEN to_json(s.step_index) ELSE to_json(s.step_key) END ORDER BY s.ctid)
    FROM eventpath s WHERE s.event_id = v.id), '[]')) FROM event v WHERE """  # noqa: S608

_LINKS = f"""SELECT json_build_array(v.artifact_id, v.execution_id, v.type = {_INPUT}, '[]'::json)
    FROM event v WHERE """  # noqa: S608
_SIDE = {None: "", True: f"v.type = {_INPUT} AND", False: f"v.type <> {_INPUT} AND"}

_NAMES = "external_id = ANY(ARRAY(SELECT json_array_elements_text($1::json)))"
_IDS = "= ANY(ARRAY(SELECT json_array_elements_text($1::json)::int))"
# One type, since the planner takes any of several for a good part of the table, and reads all of it.
_OF_TYPE = """c.type_id = (SELECT min(t.id) FROM type t WHERE t.type_kind = 2 AND coalesce(t.version, '') = ''
    AND t.name = $1::json ->> 0)"""
_AMONG = "= ANY(ARRAY(SELECT json_array_elements_text($1::json -> 1)))"
_EXISTING = f"SELECT to_json(c.name) FROM context c WHERE {_OF_TYPE} AND c.name {_AMONG}"  # noqa: S608
_IN_CONTEXT = "e.id = ANY(ARRAY(SELECT s.execution_id FROM association s WHERE s.context_id = ($1::json ->> 0)::int))"
_NEWEST = """e.id = (SELECT max(s.execution_id) FROM association s WHERE s.context_id = ($1::json ->> 0)::int)"""
_VERSION = "SELECT json_build_array(schema_version, pg_is_in_recovery(), $1::json) FROM mlmdenv"


class SqlReader:
    """A `Reader` of a PostgreSQL: one round trip for each question, on a connection of its own."""

    def __init__(
        self,
        where: DatabaseServer,
        connection: StoreConnection,
        otherwise: Reader,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._where = where
        self._connection = connection
        self._otherwise = otherwise
        self._session: ReadSession | None = None
        self._turn = threading.Lock()
        self._clock = clock
        self._process = os.getpid()
        self._not_before = -math.inf  # when a session may be opened
        self._connected = 0  # how often the connection had connected anew when the session was opened
        self._logged: set[str] = set()  # why ml_metadata was asked instead

    def context(self, kind: str, name: str) -> ContextRow | None:
        found = self._find(ContextRow, f"{_CONTEXTS} {_OF_TYPE} AND c.name = $1::json ->> 1", [kind, name])
        return self._otherwise.context(kind, name) if found is None else next(iter(found), None)

    def named_contexts(self, kind: str, names: Sequence[str]) -> list[ContextRow]:
        found = self._find(ContextRow, f"{_CONTEXTS} {_OF_TYPE} AND c.name {_AMONG}", [kind, list(names)])
        return self._otherwise.named_contexts(kind, names) if found is None else found

    def last_numbered(self, kind: str, prefix: str, seen: int) -> int:
        lost = False

        def exist(numbers: Sequence[int]) -> Collection[int]:
            nonlocal lost
            names = {f"{prefix}{number}": number for number in numbers}
            found = None if lost else self._ask(_EXISTING, [kind, list(names)])
            lost = found is None
            return [names[name] for name in found or ()]

        last = batches.find_last_number(seen, exist)
        return self._otherwise.last_numbered(kind, prefix, seen) if lost else last

    def contexts(self, names: Sequence[str]) -> list[ContextRow]:
        return self._answer(ContextRow, f"{_CONTEXTS} c.{_NAMES}", names, self._otherwise.contexts)

    def contexts_of_type(self, kind: str) -> list[ContextRow]:
        found = self._find(ContextRow, f"{_CONTEXTS} {_OF_TYPE}", [kind])
        return self._otherwise.contexts_of_type(kind) if found is None else found

    def artifacts(self, names: Sequence[str]) -> list[ArtifactRow]:
        return self._answer(ArtifactRow, f"{_ARTIFACTS} a.{_NAMES}", names, self._otherwise.artifacts)

    def artifacts_by_id(self, ids: Sequence[int]) -> list[ArtifactRow]:
        return self._answer(ArtifactRow, f"{_ARTIFACTS} a.id {_IDS}", ids, self._otherwise.artifacts_by_id)

    def executions(self, names: Sequence[str]) -> list[ExecutionRow]:
        return self._answer(ExecutionRow, f"{_EXECUTIONS} e.{_NAMES}", names, self._otherwise.executions)

    def executions_by_id(self, ids: Sequence[int]) -> list[ExecutionRow]:
        return self._answer(ExecutionRow, f"{_EXECUTIONS} e.id {_IDS}", ids, self._otherwise.executions_by_id)

    def executions_in(self, context: int) -> list[ExecutionRow]:
        found = self._find(ExecutionRow, f"{_EXECUTIONS} {_IN_CONTEXT}", [context])
        return self._otherwise.executions_in(context) if found is None else found

    def newest_in(self, context: int) -> list[ExecutionRow]:
        found = self._find(ExecutionRow, f"{_EXECUTIONS} {_NEWEST}", [context])
        return self._otherwise.newest_in(context) if found is None else found

    def events(self, executions: Sequence[int]) -> list[EventRow]:
        return self._answer(EventRow, f"{_EVENTS} v.execution_id {_IDS}", executions, self._otherwise.events)

    def links_of_artifacts(self, ids: Sequence[int], read: bool | None) -> list[EventRow]:
        statement = f"{_LINKS} {_SIDE[read]} v.artifact_id {_IDS}"
        return self._answer(EventRow, statement, ids, lambda ids: self._otherwise.links_of_artifacts(ids, read))

    def links_of_executions(self, ids: Sequence[int], read: bool | None) -> list[EventRow]:
        statement = f"{_LINKS} {_SIDE[read]} v.execution_id {_IDS}"
        return self._answer(EventRow, statement, ids, lambda ids: self._otherwise.links_of_executions(ids, read))

    def close(self) -> None:
        if os.getpid() != self._process:
            return  # the session goes on in the process that opened it, and a thread that is not here may have the turn
        with self._turn:
            self._drop()

    def _answer(
        self, row: type[R], statement: str, keys: Sequence[Any], otherwise: Callable[[Sequence[Any]], list[R]]
    ) -> list[R]:
        if not keys:
            return []
        found = self._find(row, statement, list(keys))
        return otherwise(keys) if found is None else found

    def _find(self, row: type[R], statement: str, parameter: Sequence[object]) -> list[R] | None:
        """The records, or None if ml_metadata has to be asked."""
        found = self._ask(statement, parameter)
        if found is None or any(None in values.values() for each in found for values in each if type(values) is dict):
            return None
        return [row(*each) for each in found]

    def _ask(self, statement: str, parameter: Sequence[object]) -> list[Any] | None:
        for _ in range(2):  # a lost connection is opened once more
            self._connection.make_ready()  # or the next write would have to, and fail if that breaks too
            with self._turn:
                try:
                    session = self._current()
                    return None if session is None else session.rows(statement, parameter)
                except TableLocked as error:  # for which ml_metadata would wait without an end, deaf to signals
                    raise self._connection.locked_error() from error
                except QueryRefused as refusal:
                    self._log(refusal)
                    return None
                except OSError:
                    self._drop()
            self._connection.suspect()  # it may be another server that answers now, and both must ask the same
        return None

    def _current(self) -> ReadSession | None:
        """None if the database cannot be read by SQL, now or ever.

        Raises:
            OSError: it cannot be reached.
        """
        if self._connected != self._connection.reconnects:
            self._drop()
        if self._session is None and self._clock() >= self._not_before:
            try:
                self._session = self._begin()
            except QueryRefused as refusal:
                self._not_before = math.inf if isinstance(refusal, NotReadable) else self._clock() + RETRY_S
                raise
            self._connected = self._connection.reconnects
            self._logged.clear()
        return self._session

    def _begin(self) -> ReadSession:
        session = ReadSession(self._where, lock_s=self._connection.deadline_s)
        with contextlib.ExitStack() as undo:
            undo.callback(session.close)
            (version, is_standby, _), *_ = session.rows(_VERSION, [])
            if version not in SCHEMA_VERSIONS:
                raise NotReadable(f"The tables have version {version}.")
            if is_standby:
                raise QueryRefused("The server is a standby, which may be behind what was written.")
            undo.pop_all()
        return session

    def _log(self, refusal: QueryRefused) -> None:
        """Why reading is slower, once for each reason."""
        if (reason := str(refusal)) not in self._logged:
            self._logged.add(reason)
            log.info("sql-reading-refused", extra={"metadata": str(self._where), "reason": reason})

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
