"""Databases: querying one, without revealing its password.

SQLite comes with Python; others have a driver of Arrow Database Connectivity (ADBC).

A connection is written as a URL without a password, or as `env:NAME`, the name of an environment variable that holds
the URL. Only that text is ever recorded, logged or shown; the URL stays in the process that connects.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote

from spanwise.components.ingest.query import Query, Value
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import ParameterError, SettingsError, UnreadableInput

if TYPE_CHECKING:
    import pyarrow as pa

_SCHEME = re.compile(r"([a-z][a-z0-9]*)(?:\+[a-z0-9]+)?:")
_ENVIRONMENT = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_PASSWORDS = (
    re.compile(r"://[^/@]*?:(?P<secret>.*)@", re.DOTALL),
    re.compile(r"[?&;](?:[a-z_]*(?:password|secret|token|key))=(?P<secret>[^&;]*)", re.IGNORECASE),
)
_DRIVERS = {"postgresql": "postgresql", "postgres": "postgresql"}
_EXAMPLE = "connection='env:WAREHOUSE_URL', with WAREHOUSE_URL=postgresql://user:password@host/database"


def check_connection(text: str, who: str) -> None:
    """Refuses a text that is no connection, and one whose password would be recorded.

    Raises:
        ParameterError: the message does not show the connection, as it may hold a password.
    """
    if _ENVIRONMENT.fullmatch(text):
        return
    if not _SCHEME.match(text):
        raise ParameterError(
            f"{who} is neither a URL, such as sqlite:///data/rides.db, nor the name of an environment variable that "
            f"holds one: {_EXAMPLE}"
        )
    if any(found["secret"] for pattern in _PASSWORDS if (found := pattern.search(text))):
        raise ParameterError(
            f"{who} has a password in it, which would be stored in the metadata of every run. Put the URL into an "
            f"environment variable and name that: {_EXAMPLE}"
        )


@contextmanager
def connect(connection: str, who: str) -> Iterator[Database]:
    """Opens a connection, which is closed afterwards.

    Raises:
        SettingsError: the environment variable is not set.
        ParameterError: there is no driver for this kind of database.
        UnreadableInput: the database cannot be reached, or refuses.
    """
    url = _url(connection, who)
    scheme = cast("re.Match[str]", _SCHEME.match(url))[1]
    driver = _driver(scheme, who)
    database = Database(who=f"{who} ({connection})", scheme=scheme, url=url, driver=driver)
    with database.translate_errors("cannot be reached"):
        if scheme == "sqlite":
            opened = driver.connect(_path(url), uri=True, isolation_level=None)
        else:
            # one transaction, so that a pool between us and a PostgreSQL keeps our settings with our query
            opened = driver.connect(url, autocommit=not _is_postgresql(scheme))
    try:
        database.connection = opened
        if _is_postgresql(scheme):
            # what a timestamp without a zone means to the server: UTC, as everywhere here
            with database.translate_errors("refuses to speak of UTC"), opened.cursor() as cursor:
                cursor.execute("SET TIME ZONE 'UTC'")
        yield database
    finally:
        opened.close()


class Database:
    """An open connection."""

    def __init__(self, *, who: str, scheme: str, url: str, driver: Any) -> None:
        self.who = who
        self.scheme = scheme
        self.connection: Any = None  # the driver's, which carries no types
        self._url = url
        self._driver = driver

    @contextmanager
    def query(self, query: Query, span: int, calendar: Calendar) -> Iterator[pa.RecordBatchReader]:
        """The answer to a query, batch by batch; read it inside the `with`.

        PostgreSQL's driver streams an answer (by COPY) only to a query without parameters; with one it holds all of
        it in memory. There the values are bound to settings of the transaction, which the query reads.

        Raises:
            UnreadableInput: the database refuses the query, or fails while it answers.
        """
        with self.translate_errors("refuses the query"), closing(self.connection.cursor()) as cursor:
            if _is_postgresql(self.scheme):
                text, settings = query.bind_settings(span, calendar)
                for name, value in settings.items():
                    cursor.execute("SELECT set_config($1, $2, true)", (name, value))
                    cursor.fetchall()
                with self._with_dimensions(cursor, text) as answer:
                    yield answer
                return
            else:
                text, values = query.bind(span, calendar)
                if self.scheme == "sqlite":
                    from spanwise.components.ingest.sqlite_answer import read_answer

                    with read_answer(cursor.execute(text, list(map(_as_text, values))), self.who) as answer:
                        yield answer
                    return
                cursor.execute(text, list(values) or None)
            yield cursor.fetch_record_batch()

    @contextmanager
    def _with_dimensions(self, cursor: Any, text: str) -> Iterator[pa.RecordBatchReader]:
        """The answer of a PostgreSQL. Its driver flattens arrays of several dimensions, so they are asked for."""
        from spanwise.components.ingest.answers import drop_dimensions

        schema = cursor.adbc_execute_schema(text)
        arrays = [place for place, field in enumerate(schema) if _is_postgresql_array(field)]
        if not arrays:
            cursor.execute(text)
            yield cursor.fetch_record_batch()
            return
        named = [f'"{place}" AS "{name.replace(chr(34), chr(34) * 2)}"' for place, name in enumerate(schema.names)]
        asked = [f'array_ndims("{place}") > 1' for place in arrays]
        places = ", ".join(f'"{place}"' for place in range(len(schema)))
        cursor.execute(f"SELECT {', '.join(named + asked)} FROM ({text}) AS answer ({places})")  # noqa: S608  ours
        yield drop_dimensions(cursor.fetch_record_batch(), [schema.names[place] for place in arrays], self.who)

    def refuse_renamed(self, query: Query, span: int, calendar: Calendar, who: str) -> None:
        """Refuses columns that get other names when the query is put into brackets.

        SQLite does that to names that differ at most by case, which it does not tell apart; others leave them alone.

        Raises:
            ParameterError: names two such columns.
            UnreadableInput: the database refuses the query.
        """
        if self.scheme != "sqlite":
            return
        text, values = query.bind(span, calendar)
        with self.translate_errors("refuses the query"), closing(self.connection.cursor()) as cursor:
            found = cursor.execute(text, list(map(_as_text, values))).description or ()
        known: dict[str, str] = {}
        for name, *_ in found:
            if (twin := known.get(name.lower())) is not None:
                raise ParameterError(
                    f"{who} gives two columns called '{twin}' and '{name}', of which SQLite would rename one where "
                    f"partition_by orders them; name one otherwise: AS {name}_2"
                )
            known[name.lower()] = name

    @property
    def shares_snapshots(self) -> bool:
        """Whether several connections can see the database at one moment."""
        return _is_postgresql(self.scheme)

    def share_snapshot(self) -> str:
        """The name of this moment, which all queries here see from now on, for other connections until this is closed.

        Raises:
            UnreadableInput: the database refuses.
        """
        with self.translate_errors("shares no snapshot"), self.connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT pg_export_snapshot()")
            return str(cursor.fetchone()[0])

    def take_snapshot(self, snapshot: str) -> None:
        """Sees the database as at the moment of that name; before any query.

        Raises:
            UnreadableInput: the database refuses, as the other connection may be gone.
        """
        with self.translate_errors("has no such snapshot any more"), self.connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    def scan_in_order(self) -> None:
        """Finds rows that a query does not order as they lie in their tables, which is the same each time it is run.

        Other databases are left as they are.

        Raises:
            UnreadableInput: the database refuses.
        """
        if not _is_postgresql(self.scheme):
            return
        with self.translate_errors("refuses to scan in order"), self.connection.cursor() as cursor:
            # otherwise from where another scan of the table is, and by several workers in turn
            cursor.execute("SET LOCAL synchronize_seqscans = off")
            cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")

    def one(self, query: Query, span: int, calendar: Calendar, what: str) -> object:
        """The one value that a query gives; None when it gives null, or nothing.

        Raises:
            ParameterError: it gives more than one.
            UnreadableInput: as above.
        """
        with self.query(query, span, calendar) as answer:
            table = answer.read_all()
        if table.num_columns != 1 or table.num_rows > 1:
            raise ParameterError(
                f"{self.who}: {what} gives {table.num_rows} rows of {table.num_columns} columns; it must give one "
                "value."
            )
        return table.column(0)[0].as_py() if table.num_rows else None

    @contextmanager
    def translate_errors(self, what: str) -> Iterator[None]:
        """The driver's errors as ours, without the password, which some messages quote."""
        import pyarrow as pa

        try:
            yield
        except (self._driver.Error, sqlite3.Warning, pa.ArrowException) as error:
            # not "from error": its own text would be in the node's log
            raise UnreadableInput(f"{self.who}: the database {what}: {_redact(str(error), self._url)}") from None


def _url(connection: str, who: str) -> str:
    named = _ENVIRONMENT.fullmatch(connection)
    if named is None:
        return connection
    url = os.environ.get(named[1], "").strip()
    if not url:
        raise SettingsError(
            f"{who}: the environment variable {named[1]} is not set. Set it to the URL of the database: "
            f"{named[1]}=postgresql://user:password@host/database"
        )
    if not _SCHEME.match(url):
        raise SettingsError(
            f"{who}: what the environment variable {named[1]} holds is no URL; it begins with the kind of database: "
            f"{named[1]}=postgresql://user:password@host/database"
        )
    return url


def _driver(scheme: str, who: str) -> Any:
    if scheme == "sqlite":
        return sqlite3
    name = _DRIVERS.get(scheme, scheme)
    try:
        return import_module(f"adbc_driver_{name}.dbapi")
    except ImportError as error:
        if scheme in _DRIVERS:
            raise ParameterError(
                f"{who}: {name} needs its ADBC driver, which is not installed: pip install 'spanwise[sql]'"
            ) from error
        raise ParameterError(
            f"{who}: there is no driver for '{scheme}' databases here. That of PostgreSQL comes with "
            f"'spanwise[sql]', SQLite needs none; for others there may be one: pip install adbc-driver-{scheme}"
        ) from error


def _is_postgresql(scheme: str) -> bool:
    return _DRIVERS.get(scheme) == "postgresql"


def _is_postgresql_array(field: pa.Field[Any]) -> bool:
    import pyarrow as pa

    # a type that somebody has given such a name is none
    return pa.types.is_list(field.type) and (field.metadata or {}).get(b"POSTGRESQL:type", b"").startswith(b"_")


def _path(url: str) -> str:
    """What SQLite calls the file: `sqlite:///data/rides.db` is data/rides.db here, with four slashes from the root.

    It is opened for reading only: a file that is not there must not come into being.
    """
    path = url.removeprefix("sqlite:").removeprefix("//")
    path = path.removeprefix("/") if url.startswith("sqlite://") else path
    return path if path == ":memory:" else f"file:{quote(unquote(path))}?mode=ro"


def _as_text(value: Value) -> Value:
    """SQLite has no type for time; this is the form of its own date functions."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return str(value) if isinstance(value, date) else value


def _redact(said: str, url: str) -> str:
    secrets = {url}
    for pattern in _PASSWORDS:
        secrets |= {found["secret"] for found in pattern.finditer(url)}
    for secret in sorted({*secrets, *map(unquote, secrets)} - {""}, key=len, reverse=True):
        said = said.replace(secret, "***")
    return " ".join(said.split()).removesuffix(".") + "."
