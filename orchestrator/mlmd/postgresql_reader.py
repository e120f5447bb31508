"""Reading the metadata of a PostgreSQL: the statements for ml-metadata's tables there, one for each question."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from spanwise.orchestrator.mlmd.connection import StoreConnection
from spanwise.orchestrator.mlmd.location import DatabaseServer
from spanwise.orchestrator.mlmd.postgresql import ReadSession
from spanwise.orchestrator.mlmd.rows import ContextRow, ExecutionRow, Reader
from spanwise.orchestrator.mlmd.sql_reader import INPUT, OF_OURS, SqlDialect, SqlReader, check_version
from spanwise.orchestrator.mlmd.sql_session import QueryRefused, SqlSession
from spanwise.orchestrator.store import Entry

_MOST_SESSIONS = 2
"""The questions that the server answers at once for one process; the answers of more would wait for Python."""

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
    LATERAL (SELECT {_TYPED}, {_CUSTOM} FROM artifactproperty p WHERE p.artifact_id = a.id AND {OF_OURS}) p WHERE """  # noqa: S608
_EXECUTIONS = f"""SELECT json_build_array(
    e.id, e.type_id, t.name, coalesce(e.name, ''), coalesce(e.last_known_state, 0), p.typed, p.custom)
    FROM execution e JOIN type t ON t.id = e.type_id,
    LATERAL (SELECT {_TYPED}, {_CUSTOM} FROM executionproperty p WHERE p.execution_id = e.id) p WHERE """  # noqa: S608
_EVENTS = f"""SELECT json_build_array(v.artifact_id, v.execution_id, v.type = {INPUT}, coalesce((SELECT json_agg(
    CASE WHEN s.is_index_step THEN to_json(s.step_index) ELSE to_json(s.step_key) END ORDER BY s.ctid)
    FROM eventpath s WHERE s.event_id = v.id), '[]')) FROM event v WHERE """  # noqa: S608

_LINKS = f"SELECT json_build_array(v.artifact_id, v.execution_id, v.type = {INPUT}) FROM event v WHERE "  # noqa: S608
_TEXTS = "= ANY(ARRAY(SELECT json_array_elements_text($1::json)))"
_IDS = "= ANY(ARRAY(SELECT json_array_elements_text($1::json)::int))"
# One type, since the planner takes any of several for a good part of the table, and reads all of it.
_OF_TYPE = """c.type_id = (SELECT min(t.id) FROM type t WHERE t.type_kind = 2 AND coalesce(t.version, '') = ''
    AND t.name = $1::json ->> 0)"""
_AMONG = "= ANY(ARRAY(SELECT json_array_elements_text($1::json -> 1)))"
_LAST = f"""WITH RECURSIVE step (last, size) AS (
    SELECT ($1::json ->> 2)::bigint, 1 << 30
    UNION ALL SELECT last + CASE WHEN EXISTS (SELECT FROM context c WHERE {_OF_TYPE}
        AND c.name = ($1::json ->> 1) || (last + size)) THEN size ELSE 0 END, size / 2 FROM step WHERE size > 0)
    SELECT to_json(max(last)) FROM step"""  # noqa: S608
_IN_CONTEXT = "e.id = ANY(ARRAY(SELECT s.execution_id FROM association s WHERE s.context_id = ($1::json ->> 0)::int))"
_NEWEST = """e.id = (SELECT max(s.execution_id) FROM association s WHERE s.context_id = ($1::json ->> 0)::int)"""
_ENTRY = """SELECT json_build_array(c.id, c.name, c.create_time_since_epoch) FROM context c
    WHERE c.id = coalesce(($1::json ->> 0)::int, (SELECT max(id) FROM context))"""
_VERSION = "SELECT json_build_array(schema_version, pg_is_in_recovery(), $1::json) FROM mlmdenv"

_DIALECT = SqlDialect(
    contexts=_CONTEXTS,
    artifacts=_ARTIFACTS,
    executions=_EXECUTIONS,
    events=_EVENTS,
    links=_LINKS,
    external=_TEXTS,
    ids=_IDS,
    named=f"{_OF_TYPE} AND c.name {_AMONG}",
)


class PostgresqlReader(SqlReader):
    """A `Reader` of a PostgreSQL: one round trip for each question, on connections of its own."""

    def __init__(
        self,
        where: DatabaseServer,
        connection: StoreConnection,
        otherwise: Reader,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(where, connection, otherwise, _DIALECT, most_sessions=_MOST_SESSIONS, clock=clock)
        self._server = where

    def context(self, kind: str, name: str) -> ContextRow | None:
        found = self._find(ContextRow, f"{_CONTEXTS} {_OF_TYPE} AND c.name = $1::json ->> 1", [kind, name])
        return self._otherwise.context(kind, name) if found is None else next(iter(found), None)

    def last_numbered(self, kind: str, prefix: str, seen: int) -> int:
        found = self._ask(_LAST, [kind, prefix, seen])
        return self._otherwise.last_numbered(kind, prefix, seen) if found is None else int(found[0])

    def contexts_of_type(self, kind: str) -> list[ContextRow]:
        found = self._find(ContextRow, f"{_CONTEXTS} {_OF_TYPE}", [kind])
        return self._otherwise.contexts_of_type(kind) if found is None else found

    def entry(self, id: int | None) -> Entry | None:  # noqa: A002
        found = self._ask(_ENTRY, [id])
        return self._otherwise.entry(id) if found is None else next((Entry(*each) for each in found), None)

    def executions_in(self, context: int) -> list[ExecutionRow]:
        found = self._find(ExecutionRow, f"{_EXECUTIONS} {_IN_CONTEXT}", [context])
        return self._otherwise.executions_in(context) if found is None else found

    def newest_in(self, context: int) -> list[ExecutionRow]:
        found = self._find(ExecutionRow, f"{_EXECUTIONS} {_NEWEST}", [context])
        return self._otherwise.newest_in(context) if found is None else found

    def _begin(self) -> SqlSession:
        session = ReadSession(self._server, lock_s=self._connection.deadline_s)
        with contextlib.ExitStack() as undo:
            undo.callback(session.close)
            (version, is_standby, _), *_ = session.rows(_VERSION, [])
            check_version(version)
            if is_standby:
                raise QueryRefused("The server is a standby, which may be behind what was written.")
            undo.pop_all()
        return session

    def _suspect(self) -> None:
        self._connection.suspect()  # it may be another server that answers now, and both must ask the same
