"""Reading the metadata of an SQLite file: the statements for ml-metadata's tables there, for many records at once."""

from __future__ import annotations

import contextlib

from spanwise.orchestrator.mlmd.connection import StoreConnection
from spanwise.orchestrator.mlmd.location import SqliteFile
from spanwise.orchestrator.mlmd.rows import Reader
from spanwise.orchestrator.mlmd.sql_reader import INPUT, OF_OURS, SqlDialect, SqlReader, check_version
from spanwise.orchestrator.mlmd.sql_session import NotReadable, QueryRefused, SqlSession
from spanwise.orchestrator.mlmd.sqlite import FileSession

LEAST_KEYS = 500
"""About fewer, ml-metadata answers before the process has started."""

# Several rows make one record, so SQLite makes JSON of them. A null value is one of a kind that we do not write.
_VALUE = """CASE
    WHEN p.string_value IS NOT NULL THEN CASE WHEN p.string_value NOT GLOB 'mlmd-struct::*' THEN p.string_value END
    WHEN p.int_value IS NOT NULL THEN p.int_value
    WHEN p.bool_value IS NOT NULL THEN json(CASE WHEN p.bool_value THEN 'true' ELSE 'false' END) END"""
_CUSTOM = f"json_group_object(p.name, {_VALUE}) FILTER (WHERE p.is_custom_property)"
_TYPED = f"json_group_object(p.name, {_VALUE}) FILTER (WHERE NOT p.is_custom_property)"
_IS_READ = f"json(CASE WHEN v.type = {INPUT} THEN 'true' ELSE 'false' END)"
_STEP = "CASE WHEN s.is_index_step THEN s.step_index ELSE s.step_key END"
_KEYS = "IN (SELECT value FROM json_each(?1))"

_DIALECT = SqlDialect(
    contexts=f"""SELECT json_array(c.id, c.type_id, c.name),
        (SELECT json_array({_CUSTOM}) FROM ContextProperty p WHERE p.context_id = c.id)
        FROM Context c WHERE""",  # noqa: S608
    artifacts=f"""SELECT json_array(a.id, t.name, coalesce(a.name, ''), coalesce(a.uri, '')),
        (SELECT json_array({_TYPED}, {_CUSTOM}) FROM ArtifactProperty p WHERE p.artifact_id = a.id AND {OF_OURS})
        FROM Artifact a JOIN Type t ON t.id = a.type_id WHERE""",  # noqa: S608
    executions=f"""SELECT
        json_array(e.id, e.type_id, t.name, coalesce(e.name, ''), coalesce(e.last_known_state, 0)),
        (SELECT json_array({_TYPED}, {_CUSTOM}) FROM ExecutionProperty p WHERE p.execution_id = e.id)
        FROM Execution e JOIN Type t ON t.id = e.type_id WHERE""",  # noqa: S608
    events=f"""SELECT json_array(v.artifact_id, v.execution_id, {_IS_READ}),
        (SELECT json_array(json_group_array({_STEP})) FROM
            (SELECT * FROM EventPath WHERE event_id = v.id ORDER BY rowid) s)
        FROM Event v WHERE""",  # noqa: S608
    links=f"SELECT json_array(v.artifact_id, v.execution_id, {_IS_READ}) FROM Event v WHERE",  # noqa: S608
    external=_KEYS,
    ids=_KEYS,
    named="""c.type_id = (SELECT min(t.id) FROM Type t WHERE t.type_kind = 2 AND coalesce(t.version, '') = ''
        AND t.name = json_extract(?1, '$[0]')) AND c.name IN (SELECT value FROM json_each(?1, '$[1]'))""",
)

_VERSION = """SELECT json_array(schema_version), (SELECT json_array(json_group_object(
    s.value, CASE WHEN s.value = 'a' THEN '[1]' ELSE json('true') END) FILTER (WHERE s.value <> 'c'))
    FROM json_each(?1) s) FROM MLMDEnv"""
_SAMPLE, _MADE_OF_IT = ["a", "b", "c"], {"a": "[1]", "b": True}


class SqliteReader(SqlReader):
    """A `Reader` of a file: about many records it asks a process of its own, which it starts when it first has to."""

    def __init__(self, where: SqliteFile, connection: StoreConnection, otherwise: Reader) -> None:
        super().__init__(where, connection, otherwise, _DIALECT, least_keys=LEAST_KEYS)
        self._file = where

    def _begin(self) -> SqlSession:
        session = FileSession(self._file.path)
        with contextlib.ExitStack() as undo:
            undo.callback(session.close)
            (version, made), *_ = session.rows(_VERSION, _SAMPLE)
            check_version(version)
            if made != _MADE_OF_IT:  # whether JSON stays JSON on its way depends on the build and the version of SQLite
                raise NotReadable("This SQLite makes other JSON.")
            if not self._connection.is_at_its_place():
                raise QueryRefused("Another file was put in its place since it was opened.")
            undo.pop_all()
        return session
