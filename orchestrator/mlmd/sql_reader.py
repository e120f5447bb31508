"""Reading the metadata by SQL, one statement for each question about many records. It knows no dialect of SQL.

What it does not know how to answer, ml_metadata is asked: of tables of another version, of values that spanwise does
not write, and where no session can be opened.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import contains, itemgetter
from typing import Any, TypeVar

from spanwise.orchestrator.mlmd import batches
from spanwise.orchestrator.mlmd.connection import StoreConnection
from spanwise.orchestrator.mlmd.location import Location
from spanwise.orchestrator.mlmd.rows import READ_BY_OTHERS, ArtifactRow, ContextRow, EventRow, ExecutionRow, Reader
from spanwise.orchestrator.mlmd.sql_session import NotReadable, QueryRefused, SqlSession, TableLocked
from spanwise.orchestrator.store import Entry, Link

R = TypeVar("R", ContextRow, ArtifactRow, ExecutionRow, EventRow, Link)

SCHEMA_VERSIONS = (10,)
"""The versions of ml-metadata's tables that the statements are for: that of 1.17 and 1.21."""

RETRY_S = 60.0
"""A database that did not let the session in is asked again after so long: it may have been starting, or full."""

INPUT = 3
"""The type of the event of an artifact that was read."""

OF_OURS = f"NOT (p.is_custom_property AND p.name IN {READ_BY_OTHERS})"
"""Of the properties `p` of an artifact, those that are read."""

log = logging.getLogger("spanwise.metadata")

_SIDE = {None: "", True: f"v.type = {INPUT} AND", False: f"v.type <> {INPUT} AND"}


@dataclass(frozen=True, kw_only=True)
class SqlDialect:
    """The parts of statements. Their parameter is JSON: the keys, or a type of contexts and names of that type.

    What they select are the fields of a row. A null among its properties is a value of a kind that we do not write.
    """

    contexts: str  #: all of them, as `c`; this and the next four end with WHERE
    artifacts: str  #: as `a`
    executions: str  #: as `e`
    events: str  #: as `v`
    links: str  #: as `v`
    external: str  #: that what is before it is among the keys, external ids
    ids: str  #: the same of ids
    named: str  #: that `c` is of this type and has one of these names


_VALUES: Mapping[type, Sequence[int]] = {ContextRow: (3,), ArtifactRow: (4, 5), ExecutionRow: (5, 6)}
"""Where rows have values of properties. One that is null is of a kind that we do not write."""


@dataclass
class _OpenSession:
    session: SqlSession
    reconnects: int  #: how often the connection had connected anew when it was opened
    asker: int = 0  #: the thread that asked last


class SqlReader:
    """A `Reader` by SQL of what is asked about at least `least_keys` records at once; `otherwise` reads the rest.

    A thread has a session to itself while it asks. One is opened when it is first needed, and a further one, up to
    `most_sessions`, when the others are busy. A subclass opens them, and may know how to ask about more.
    """

    def __init__(
        self,
        where: Location,
        connection: StoreConnection,
        otherwise: Reader,
        dialect: SqlDialect,
        *,
        least_keys: int = 1,
        most_sessions: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._where = where
        self._connection = connection
        self._otherwise = otherwise
        self._sql = dialect
        self._least_keys = least_keys
        self._most_sessions = most_sessions
        self._idle: list[_OpenSession] = []
        self._busy = 0  # the threads that have a session, or are opening one
        self._changed = threading.Condition()
        self._clock = clock
        self._process = os.getpid()
        self._not_before = -math.inf  # when a session may be opened
        self._logged: set[str] = set()  # why ml_metadata was asked instead

    def context(self, kind: str, name: str) -> ContextRow | None:
        return self._otherwise.context(kind, name)

    def named_contexts(self, kind: str, names: Sequence[str]) -> list[ContextRow]:
        statement = f"{self._sql.contexts} {self._sql.named}"
        found = None if self._are_few(names) else self._find(ContextRow, statement, [kind, list(names)])
        return self._otherwise.named_contexts(kind, names) if found is None else found

    def last_numbered(self, kind: str, prefix: str, seen: int) -> int:
        return self._otherwise.last_numbered(kind, prefix, seen)

    def contexts(self, names: Sequence[str]) -> list[ContextRow]:
        statement = f"{self._sql.contexts} c.external_id {self._sql.external}"
        return self._answer(ContextRow, statement, names, self._otherwise.contexts)

    def contexts_of_type(self, kind: str) -> list[ContextRow]:
        return self._otherwise.contexts_of_type(kind)

    def entry(self, id: int | None) -> Entry | None:  # noqa: A002
        return self._otherwise.entry(id)

    def artifacts(self, names: Sequence[str]) -> list[ArtifactRow]:
        statement = f"{self._sql.artifacts} a.external_id {self._sql.external}"
        return self._answer(ArtifactRow, statement, names, self._otherwise.artifacts)

    def artifacts_by_id(self, ids: Sequence[int]) -> list[ArtifactRow]:
        statement = f"{self._sql.artifacts} a.id {self._sql.ids}"
        return self._answer(ArtifactRow, statement, ids, self._otherwise.artifacts_by_id)

    def each_artifact(self, ids: Sequence[int]) -> Iterator[ArtifactRow]:
        """While the caller works on a group of them, the next is being read."""
        statement = f"{self._sql.artifacts} a.id {self._sql.ids}"
        groups = batches.split(ids)
        for group, following in itertools.zip_longest(groups, groups[1:], fillvalue=()):
            yield from self._answer(ArtifactRow, statement, group, self._otherwise.artifacts_by_id, following)

    def executions(self, names: Sequence[str]) -> list[ExecutionRow]:
        statement = f"{self._sql.executions} e.external_id {self._sql.external}"
        return self._answer(ExecutionRow, statement, names, self._otherwise.executions)

    def executions_by_id(self, ids: Sequence[int]) -> list[ExecutionRow]:
        statement = f"{self._sql.executions} e.id {self._sql.ids}"
        return self._answer(ExecutionRow, statement, ids, self._otherwise.executions_by_id)

    def executions_in(self, context: int) -> list[ExecutionRow]:
        return self._otherwise.executions_in(context)

    def newest_in(self, context: int) -> list[ExecutionRow]:
        return self._otherwise.newest_in(context)

    def events(self, executions: Sequence[int]) -> list[EventRow]:
        statement = f"{self._sql.events} v.execution_id {self._sql.ids}"
        return self._answer(EventRow, statement, executions, self._otherwise.events)

    def links_of_artifacts(self, ids: Sequence[int], read: bool | None) -> list[Link]:
        statement = f"{self._sql.links} {_SIDE[read]} v.artifact_id {self._sql.ids}"
        return self._answer(Link, statement, ids, lambda ids: self._otherwise.links_of_artifacts(ids, read))

    def links_of_executions(self, ids: Sequence[int], read: bool | None) -> list[Link]:
        statement = f"{self._sql.links} {_SIDE[read]} v.execution_id {self._sql.ids}"
        return self._answer(Link, statement, ids, lambda ids: self._otherwise.links_of_executions(ids, read))

    def close(self) -> None:
        if os.getpid() != self._process:
            return  # the sessions go on in the process that opened them, and a thread that is not here may have one
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
            while self._idle:
                self._idle.pop().session.close()

    def _begin(self) -> SqlSession:
        """A session that reads what ml_metadata reads.

        Raises:
            NotReadable: never by SQL.
            QueryRefused: not now.
            OSError: the database cannot be reached.
        """
        raise NotImplementedError

    def _suspect(self) -> None:
        """Called when a session was lost."""

    def _are_few(self, keys: Sequence[Any]) -> bool:
        return len(keys) < self._least_keys

    def _answer(
        self,
        row: type[R],
        statement: str,
        keys: Sequence[Any],
        otherwise: Callable[[Sequence[Any]], list[R]],
        following: Sequence[Any] = (),
    ) -> list[R]:
        """The records of these keys; `following` are those that will be asked about next."""
        if not keys:
            return []
        ahead = None if not following or self._are_few(following) else list(following)
        found = None if self._are_few(keys) else self._find(row, statement, list(keys), ahead)
        return otherwise(keys) if found is None else found

    def _find(
        self, row: type[R], statement: str, parameter: Sequence[object], ahead: Sequence[object] | None = None
    ) -> list[R] | None:
        """The records, or None if ml_metadata has to be asked."""
        found = self._ask(statement, parameter, ahead)
        if found is None or any(_hold_null(found, place) for place in _VALUES.get(row, ())):
            return None
        return list(map(row._make, found))

    def _ask(
        self, statement: str, parameter: Sequence[object], ahead: Sequence[object] | None = None
    ) -> list[Any] | None:
        lost = OSError()
        for _ in range(2):  # a lost session is opened once more
            self._connection.make_ready()  # or the next write would have to, and fail if that breaks too
            try:
                with self._take_session() as taken:
                    if taken is None:
                        return None
                    # The question of another thread would come between, and what was read ahead would be lost.
                    alone, taken.asker = taken.asker == threading.get_ident(), threading.get_ident()
                    return taken.session.rows(statement, parameter, ahead if alone else None)
            except TableLocked as error:  # for which ml_metadata would wait without an end, deaf to signals
                raise self._connection.locked_error() from error
            except QueryRefused as refusal:
                self._log(refusal)  # the next statement may do better
                return None
            except OSError as error:
                lost = error
            self._suspect()
        self._refuse(QueryRefused(str(lost)))
        return None

    @contextlib.contextmanager
    def _take_session(self) -> Iterator[_OpenSession | None]:
        """A session for this thread alone, closed if it is lost; None if there can be none by SQL, now or ever.

        Raises:
            OSError: the database cannot be reached.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._busy < (self._most_sessions if self._may_open() else 1))
            taken = self._idle.pop() if self._idle else None
            self._busy += 1
        try:
            if taken is not None and taken.reconnects != self._connection.reconnects:
                taken.session.close()
                taken = None
            if taken is None and self._may_open():
                taken = self._open_session()
            yield taken
        except OSError:
            if taken is not None:
                taken.session.close()
                taken = None
            raise
        finally:
            with self._changed:
                self._idle += [taken] if taken is not None else []
                self._busy -= 1
                self._changed.notify_all()

    def _may_open(self) -> bool:
        return self._clock() >= self._not_before

    def _open_session(self) -> _OpenSession | None:
        reconnects = self._connection.reconnects
        try:
            session = self._begin()
        except QueryRefused as refusal:
            self._refuse(refusal)
            return None
        self._logged.clear()
        return _OpenSession(session, reconnects)

    def _refuse(self, refusal: QueryRefused) -> None:
        """Leaves the next questions to ml_metadata too."""
        self._not_before = math.inf if isinstance(refusal, NotReadable) else self._clock() + RETRY_S
        self._log(refusal)

    def _log(self, refusal: QueryRefused) -> None:
        """Why reading is slower, once for each reason."""
        if (reason := str(refusal)) not in self._logged:
            self._logged.add(reason)
            log.info("sql-reading-refused", extra={"metadata": str(self._where), "reason": reason})


def _hold_null(found: Sequence[Any], place: int) -> bool:
    """Whether a value of the properties at this place of a row is null. Without a loop in Python: these are many."""
    return any(map(contains, map(dict.values, map(itemgetter(place), found)), itertools.repeat(None)))


def check_version(version: object) -> None:
    """Raises NotReadable where the statements are not known to be right."""
    if version not in SCHEMA_VERSIONS:
        raise NotReadable(f"The tables have version {version}.")
