"""A session of PostgreSQL that only reads, by psycopg2, which need not be installed. It knows no tables."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
from typing import Any

from spanwise.orchestrator.mlmd import silence
from spanwise.orchestrator.mlmd.location import DatabaseServer

_OPTIONS = "-c default_transaction_read_only=on -c jit=off"  # it compiles longer than a question takes


class QueryRefused(Exception):
    """The server refuses the connection or the statement."""


class NotReadable(QueryRefused):
    """Asking again would not help."""


class ReadSession:
    """One connection, in which every transaction is one statement that reads. It belongs to the process that opened it.

    Raises:
        NotReadable: psycopg2 is not installed.
        QueryRefused: the server does not let it in.
        OSError: nothing accepts connections there.
    """

    def __init__(self, where: DatabaseServer) -> None:
        try:
            import psycopg2
            from psycopg2 import extensions
        except ImportError as error:
            raise NotReadable(f"{error}: pip install 'spanwise[postgresql]'") from error

        self._error = psycopg2.Error
        self._prepared: dict[str, str] = {}  # the names of the statements that the server knows
        # libpq does not say whether it was refused or has reached nobody
        socket.create_connection((where.host, where.port), silence.CONNECT_S).close()
        named = {"user": where.user, "password": where.password, **where.options}
        try:
            self._connection = psycopg2.connect(
                host=where.host, port=where.port, dbname=where.database, options=_OPTIONS,
                client_encoding="UTF8", application_name="spanwise", connect_timeout=round(silence.CONNECT_S),
                **silence.LIBPQ_OPTIONS, **{name: value for name, value in named.items() if value},
            )  # fmt: skip
        except psycopg2.Error as error:
            raise QueryRefused(_first_line(error)) from error
        self._connection.autocommit = True
        as_text = extensions.new_type((extensions.JSON.values[0],), "JSON", extensions.UNICODE)
        extensions.register_type(as_text, self._connection)  # parsed at once, not row by row

    def rows(self, statement: str, parameter: object) -> list[Any]:
        """The rows of a statement whose only column is JSON, and whose only parameter, `$1`, is JSON.

        Raises:
            QueryRefused: the server has answered with an error; the next statement may do better.
            OSError: the connection is lost.
        """
        try:
            with self._connection.cursor() as cursor:
                if statement not in self._prepared:  # planning takes longer than finding a few rows
                    # Behind a pooler others may have prepared statements there: the name says which one it is.
                    name = f"spanwise_{hashlib.sha256(statement.encode()).hexdigest()[:16]}"
                    cursor.execute(f"PREPARE {name} (json) AS {statement}")
                    self._prepared[statement] = name
                cursor.execute(f"EXECUTE {self._prepared[statement]} (%s)", (json.dumps(parameter),))
                found = cursor.fetchall()
        except self._error as error:
            if self._connection.closed:
                raise ConnectionResetError(_first_line(error)) from error
            raise QueryRefused(_first_line(error)) from error
        except BaseException:
            self.close()  # whether the server has prepared the statement is unknown
            raise
        return json.loads(f"[{','.join(row for (row,) in found)}]") if found else []

    def close(self) -> None:
        with contextlib.suppress(self._error):
            self._connection.close()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
