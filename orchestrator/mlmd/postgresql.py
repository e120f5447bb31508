"""A session of PostgreSQL that only reads, by psycopg2, which need not be installed. It knows no tables.

The server may be a pooler such as PgBouncer, which hands each transaction to another session of the real server: what
a session is set to or has prepared is then another's. So the settings go with each statement and end with it, and
what was prepared is not relied on.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spanwise.orchestrator.mlmd import silence
from spanwise.orchestrator.mlmd.location import DatabaseServer
from spanwise.orchestrator.mlmd.sql_session import NotReadable, QueryRefused, TableLocked

_POLL_READ = 1  # psycopg2.extensions.POLL_READ
_SETTINGS = "SET TRANSACTION READ ONLY; SET LOCAL jit = off; SET LOCAL lock_timeout = {};"
"""They precede each statement, in one message, which is one transaction; jit compiles longer than a question takes."""


class ReadSession:
    """One connection, in which every transaction is one statement that reads. It belongs to the process that opened it.

    A statement waits `lock_s` for the locks of others, and handlers of signals run meanwhile.

    Raises:
        NotReadable: psycopg2 is not installed.
        QueryRefused: the server does not let it in.
        OSError: nothing accepts connections there.
    """

    def __init__(self, where: DatabaseServer, *, lock_s: float = 30.0) -> None:
        try:
            import psycopg2
            from psycopg2 import errors, extensions
        except ImportError as error:
            raise NotReadable(f"{error}: pip install 'spanwise[postgresql]'") from error

        self._error = psycopg2.Error
        self._lock_timeout = errors.LockNotAvailable
        # Others that the pooler gives the same session have prepared it there, or it was prepared in another session.
        self._of_a_pooler = (errors.DuplicatePreparedStatement, errors.InvalidSqlStatementName)
        self._prepared: dict[str, str] | None = {}  # the names of the statements that the server knows; None: no use
        self._settings = _SETTINGS.format(max(1, round(lock_s * 1000)))
        self._limit_s: float | None = silence.CONNECT_S  # until the first answer: a pooler may have no session to spare
        # libpq does not say whether it was refused or has reached nobody
        socket.create_connection((where.host, where.port), silence.CONNECT_S).close()
        named = {"user": where.user, "password": where.password, **where.options}
        try:
            self._connection = psycopg2.connect(
                host=where.host, port=where.port, dbname=where.database, async_=True,
                client_encoding="UTF8", application_name="spanwise",
                **silence.LIBPQ_OPTIONS, **{name: value for name, value in named.items() if value},
            )  # fmt: skip
            with self._ending():
                self._wait()
        except psycopg2.Error as error:
            raise QueryRefused(_first_line(error)) from error
        as_text = extensions.new_type((extensions.JSON.values[0],), "JSON", extensions.UNICODE)
        extensions.register_type(as_text, self._connection)  # parsed at once, not row by row

    def rows(self, statement: str, parameter: object, ahead: object = None) -> list[Any]:  # noqa: ARG002
        """The rows of a statement whose only column is JSON, and whose only parameter, `$1`, is JSON.

        Raises:
            QueryRefused: the server has answered with an error; the next statement may do better.
            TableLocked: others hold the table; it was not read.
            OSError: the connection is lost.
        """
        try:
            with self._ending():
                found = self._find(statement, json.dumps(parameter))
        except self._lock_timeout as error:
            raise TableLocked(_first_line(error)) from error
        except self._error as error:
            if self._connection.closed:
                raise ConnectionResetError(_first_line(error)) from error
            raise QueryRefused(_first_line(error)) from error
        self._limit_s = None
        return json.loads(f"[{','.join(itertools.chain.from_iterable(found))}]") if found else []

    def close(self) -> None:
        with contextlib.suppress(self._error):
            self._connection.close()

    def _find(self, statement: str, parameter: str) -> list[tuple[str]]:
        if self._prepared is not None:
            try:
                return self._execute(f"EXECUTE {self._prepare(statement, self._prepared)} (%s)", parameter)
            except self._of_a_pooler:
                self._prepared = None
        with self._connection.cursor() as cursor:
            literal = cursor.mogrify("%s", (parameter,)).decode()
        return self._execute(statement.replace("$1", literal))

    def _prepare(self, statement: str, prepared: dict[str, str]) -> str:
        """The name under which the server has the statement: planning takes longer than finding a few rows."""
        if statement not in prepared:
            # Behind a pooler others may have prepared statements there: the name says which one it is.
            name = f"spanwise_{hashlib.sha256(statement.encode()).hexdigest()[:16]}"
            self._execute(f"PREPARE {name} (json) AS {statement}")
            prepared[statement] = name
        return prepared[statement]

    def _execute(self, sql: str, *values: str) -> list[tuple[str]]:
        with self._connection.cursor() as cursor:
            cursor.execute(f"{self._settings} {sql}", values or None)
            self._wait()
            return list(cursor.fetchall()) if cursor.description else []

    def _wait(self) -> None:
        """Waits for the answer here: in libpq, no handler of a signal would run before it comes."""
        until = math.inf if self._limit_s is None else time.monotonic() + self._limit_s
        while state := self._connection.poll():  # 0 when there is nothing more to wait for
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise QueryRefused(f"The server has not let the session in within {self._limit_s:g} s.")
            waiting = select.poll()
            waiting.register(self._connection.fileno(), select.POLLIN if state == _POLL_READ else select.POLLOUT)
            waiting.poll(None if math.isinf(left_s) else left_s * 1000)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Inside, whatever is not the server's answer ends the session: what the server does is unknown then."""
        try:
            yield
        except self._error:
            raise
        except BaseException:
            self.close()
            raise


def find_refusal(where: DatabaseServer) -> str:
    """Why the server lets no plain session in, or "" if it does, or if psycopg2 is not there to ask."""
    try:
        ReadSession(replace(where, options={"sslmode": "disable"})).close()
    except NotReadable:
        return ""
    except (QueryRefused, OSError) as error:
        return str(error)
    return ""


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
