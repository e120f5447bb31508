"""Copies of a recorded pipeline: its rows in a PostgreSQL, once more for each further name. It knows the tables.

Recording a million artifacts one by one would take a day; what is read is the same.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from spanwise.pipelines.demo_servers import find_postgresql

#: Rows of these tables belong to the pipeline if they refer to one of its contexts; of all others, every row does.
_OF_CONTEXTS = {
    "context": "id", "contextproperty": "context_id", "association": "context_id", "attribution": "context_id",
    "parentcontext": "context_id",
}  # fmt: skip
_TABLES = (
    "artifact", "artifactproperty", "execution", "executionproperty", "event", "eventpath", *_OF_CONTEXTS,
)  # fmt: skip
_IDS = {"id", "artifact_id", "execution_id", "context_id", "event_id", "parent_context_id"}
_NUMBERS_OF_RECORDS = ("producer", "reused", "current_model_id")  #: properties that hold ids
_AT_ONCE = 50


def copy_pipeline(url: str, first: str, names: Sequence[str]) -> None:
    """Copies the only pipeline of a database under further names; they are as long as its own, and sorted after it."""
    digits = len(first) - 1
    assert [first, *names] == [f"{first[0]}{number:0{digits}}" for number in range(len(names) + 1)]
    columns: dict[str, list[str]] = {table: [] for table in _TABLES}
    listed = _psql(
        url, "SELECT table_name, column_name FROM information_schema.columns ORDER BY table_name, ordinal_position"
    )
    for table, column in (line.split("|") for line in listed.splitlines()):
        if table in columns:
            columns[table].append(column)
    stride = 1 + max(int(_psql(url, f"SELECT coalesce(max(id), 0) FROM {t}")) for t in _TABLES if "id" in columns[t])
    indexes = _psql(
        url,
        "SELECT indexname || '|' || indexdef FROM pg_indexes "
        "WHERE schemaname = 'public' AND indexdef NOT LIKE '%UNIQUE%' "
        f"AND tablename IN ({', '.join(repr(table) for table in _TABLES)})",
    ).splitlines()
    # An index is faster made than kept up to date.
    _psql(url, "".join(f"DROP INDEX {each.partition('|')[0]};" for each in indexes))
    contexts = f"SELECT id FROM context WHERE name LIKE '%{first}%' AND id < {stride}"
    for table in _TABLES:
        whose = f" AND {_OF_CONTEXTS[table]} IN ({contexts})" if table in _OF_CONTEXTS else ""
        some = next(column for column in columns[table] if column in _IDS)
        values = ", ".join(_copied(column, columns[table], first, digits, stride) for column in columns[table])
        for begin in range(1, len(names) + 1, _AT_ONCE):
            end = min(begin + _AT_ONCE - 1, len(names))
            _psql(
                url,
                f"INSERT INTO {table} ({', '.join(columns[table])}) SELECT {values} FROM {table} "
                f"CROSS JOIN generate_series({begin}, {end}) AS copy WHERE {some} < {stride}{whose}",
            )
        if "id" in columns[table]:
            _psql(url, f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT max(id) FROM {table}))")
    _psql(url, "SET maintenance_work_mem = '512MB';" + "".join(f"{each.partition('|')[2]};" for each in indexes))
    _psql(url, "VACUUM ANALYZE")


def list_places(url: str, names: Sequence[str]) -> list[str]:
    """Where the artifacts of some pipelines lie, relative to the root."""
    chosen = " OR ".join(f"uri LIKE '{name}/%'" for name in names)
    return _psql(url, f"SELECT uri FROM artifact WHERE {chosen}").splitlines()


def _copied(column: str, columns: Sequence[str], first: str, digits: int, stride: int) -> str:
    name = f"'{first[0]}' || lpad(copy::text, {digits}, '0')"
    if column in _IDS:
        return f"{column} + copy * {stride}"
    if column in ("name", "external_id") and "is_custom_property" not in columns:
        return f"replace({column}, '{first}', {name})"
    if column == "string_value":
        return f"replace({column}, '{first}', {name})"
    if column == "int_value":
        known = ", ".join(repr(each) for each in _NUMBERS_OF_RECORDS)
        return f"CASE WHEN name IN ({known}) THEN int_value + copy * {stride} ELSE int_value END"
    if column == "uri":  # it ends with the id of an execution
        number = f"(substring(uri from '[0-9]+$')::bigint + copy * {stride})::text"
        return f"regexp_replace(replace(uri, '{first}', {name}), '[0-9]+$', {number})"
    return column


def _psql(url: str, statements: str) -> str:
    programs = find_postgresql()
    assert programs is not None, "the server has been started from there"
    where = urlsplit(url)
    command: list[str | Path] = [
        programs / "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1",
        f"--host={where.hostname}", f"--port={where.port}", f"--username={where.username}",
        f"--dbname={where.path[1:]}",
    ]  # fmt: skip
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, input=statements, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
