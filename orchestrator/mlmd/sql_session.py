"""Sessions that only read, by SQL, beside ml-metadata: what those of PostgreSQL and SQLite have in common."""

from __future__ import annotations

from typing import Any, Protocol


class QueryRefused(Exception):
    """The database refuses the session or the statement."""


class NotReadable(QueryRefused):
    """Asking again would not help."""


class TableLocked(Exception):
    """Others have locked what was to be read for longer than the statement may wait."""


class SqlSession(Protocol):
    """One session, in which every transaction is one statement that reads. It knows no tables."""

    def rows(self, statement: str, parameter: object, ahead: object = None) -> list[Any]:
        """The rows of a statement whose only parameter is JSON, as JSON has them.

        `ahead` is the parameter of the same statement that is likely to be asked next, which may begin at once.

        Raises:
            QueryRefused: the database has answered with an error; the next statement may do better.
            TableLocked: others hold the table; it was not read.
            OSError: the session is lost.
        """

    def close(self) -> None:
        """Ends it."""
