"""The connection to one ML Metadata store: its locks, retries and reconnects, and the meaning of its errors.

SQLite. Its journal is a write-ahead log, so readers never wait. Writers take turns by an advisory lock on a
side file, `<database>.lock`: ml-metadata begins its transactions as readers, and SQLite answers two of them that want
to write at the same moment with an error at once; its own retry then sleeps seconds.

Python's `sqlite3` switches the log on before ml-metadata opens the file. Each of the two has its own SQLite, and POSIX
drops all of a process's locks on a file when it closes *any* descriptor of it, so this happens only while nothing in
this process has the file open. The list of open descriptors says so, whoever opened the file.

Servers. A broken connection is opened again; a server that does not let it in, as one that is restarted, is waited for
as long as a locked database, also for the first connection to one that has answered before. Whether an interrupted
write has landed is unknown here; the caller catches `ConnectionLost` and checks. ml-metadata waits for a server without
an end, and no thread of the process runs meanwhile, so the sockets that it opens are bounded: see
`orchestrator.mlmd.silence`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import re
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ml_metadata import errors
from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2

from spanwise.orchestrator import logs
from spanwise.orchestrator.errors import StoreCorrupt, StoreError, StoreUnavailable
from spanwise.orchestrator.mlmd import postgresql, silence
from spanwise.orchestrator.mlmd.failures import NOT_CONNECTED, format_detail, is_locked_out, is_refusal, translate_error
from spanwise.orchestrator.mlmd.location import DatabaseServer, Location, SqliteFile, describe_read_only

Proto: TypeAlias = Any
"""A message of ml_metadata, which has no types."""

T = TypeVar("T")

MOST_RACES = 1000
"""How often another process may take the next name before this is an error."""

OWN_COLLATION = "CREATE DATABASE … CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
"""What tells capitals from small letters."""

_MOST_TRIES = 3  # of a write; the second may fail because the first was only late

_MAKES_DATABASE = "Creating database"

_LEFT_OPEN = "Transaction already open"

_LOCK_POLL_S, _RESTART_POLL_S = 0.008, 0.4

log = logging.getLogger("spanwise.metadata")

_opening = threading.Lock()  # no other thread may open a file between the check and its use

_BROKEN = (errors.InternalError, errors.UnavailableError, errors.CancelledError, errors.UnknownError)


class ConnectionLost(Exception):
    """The connection to a server broke during a write; whether the write has landed is unknown."""


class NameTaken(Exception):
    """The name to insert exists already; nothing was written."""


class StoreConnection:
    """One open store, of the process that opened it.

    `deadline_s` is how long to wait for a database that others have locked, and for a server that has gone away; one
    that is down already is waited for if it is `known`.
    """

    def __init__(self, where: Location, *, deadline_s: float, migrate: bool = False, known: bool = False) -> None:
        self._where = where
        self.deadline_s = deadline_s
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._lock_file: int | None = None
        self._broken = False
        self._opened_file: os.stat_result | None = None
        self.reconnects = 0  #: how often it has connected anew: perhaps to another server
        _silence_ml_metadata()
        if isinstance(where, DatabaseServer):
            logs.show_facts(log.name)
            self._store = self._connect(migrate=migrate, known=known)
            return
        try:
            where.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(where.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if where.lock.exists() and (file := where.find_read_only()) is not None:
                raise StoreUnavailable(f"The metadata {where} cannot be written. {describe_read_only(file)}") from error
            raise StoreUnavailable(
                f"The metadata {where} cannot be written: {error.strerror}. It needs a folder that you may write to: "
                f"ls -ld {shlex.quote(str(where.path.parent))}"
            ) from error
        try:
            with self._writing(), _opening:
                _prepare(where)
                self._store = self._connect(migrate=migrate)
        except BaseException:
            os.close(self._lock_file)
            raise

    def read(self, method: str, *arguments: object, **options: object) -> Proto:
        """Reads; the methods are those of ml_metadata's MetadataStore."""
        try:
            return self._ask(method, arguments, options)
        except errors.NotFoundError as error:
            raise translate_error(error, self._where) from error

    def find(self, method: str, *arguments: object) -> list[Proto]:
        """Reads what may not exist: the methods that look up many names raise if they find none."""
        try:
            return list(self._ask(method, arguments, {}))
        except errors.NotFoundError:
            return []

    def write(self, method: str, *arguments: object, **options: object) -> Proto:
        """Writes in one transaction.

        Raises:
            ConnectionLost: never from SQLite, whose transactions end with an answer.
            NameTaken: a name in it is taken; nothing was written.
        """
        with self._writing():
            try:
                return self._ask(method, arguments, options, writes=True)
            except errors.AlreadyExistsError as error:
                raise NameTaken(format_detail(error)) from error
            except errors.NotFoundError as error:
                raise translate_error(error, self._where) from error

    def write_once(self, put: Callable[[], T], landed: Callable[[], T | None] = lambda: None) -> T:
        """Writes; if the connection broke, checks whether the write has landed, and repeats it if not.

        It may land even after that check. Then the server, which makes one wait for the other, refuses the second.
        """
        lost = ConnectionLost()
        for tries in range(_MOST_TRIES):
            try:
                return put()
            except ConnectionLost as error:
                lost = error
                done = landed()
            except NameTaken:
                done = landed() if tries else None
                if done is None:
                    raise
            if done is not None:
                return done
        raise StoreUnavailable(
            f"The metadata {self} lost its connection {_MOST_TRIES} times in one write ({lost}). "
            "Look at the server's log, then run again."
        ) from lost

    def race_error(self, what: str) -> StoreError:
        """The error of one who was refused a name as taken, again and again."""
        capitals = isinstance(self._where, DatabaseServer) and self._where.kind == "mysql"
        folded = f", or two names differ in capitals alone, which it takes for one: {OWN_COLLATION}" if capitals else ""
        return StoreError(
            f"The metadata {self} refused {what} {MOST_RACES} times as taken, but it does not exist. "
            f"Another program may have recorded that name{folded}. Check the metadata: spanwise doctor"
        )

    def close(self) -> None:
        """Closes the connection; later reads and writes raise StoreError. Ends nothing in a fork of its process."""
        if os.getpid() != self._pid:
            return  # ml_metadata would say goodbye to the server, on the socket of the process that opened it
        self._store = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def __str__(self) -> str:
        return str(self._where)

    def _ask(
        self, method: str, arguments: tuple[object, ...], options: dict[str, object], *, writes: bool = False
    ) -> Proto:
        waiting_until = time.monotonic() + self.deadline_s
        while True:
            try:
                return self._ask_once(method, arguments, options, writes=writes)
            except errors.AbortedError as error:  # locked, or the loser of a deadlock: rolled back, so safe to repeat
                if time.monotonic() >= waiting_until:
                    raise self.locked_error() from error
                _pause()

    def _ask_once(
        self, method: str, arguments: tuple[object, ...], options: dict[str, object], *, writes: bool
    ) -> Proto:
        """Calls the method; repeats once a read of a server whose connection broke, and what could not begin."""
        repeatable = isinstance(self._where, DatabaseServer) and not writes
        left_open = False
        while True:
            self.make_ready()
            try:
                return getattr(self._store, method)(*arguments, **options)
            except (errors.AbortedError, errors.AlreadyExistsError, errors.NotFoundError):
                raise
            except _BROKEN as error:
                self._broken = True
                if isinstance(self._where, DatabaseServer) and writes and not is_refusal(error, self._where):
                    raise ConnectionLost(format_detail(error)) from error
                if not repeatable:
                    raise translate_error(error, self._where) from error
                repeatable = False
            except errors.StatusError as error:
                # Of the last question, which was answered: its connection broke before that transaction had ended.
                if left_open or _LEFT_OPEN not in str(error):
                    raise translate_error(error, self._where) from error
                self._broken = left_open = True

    def suspect(self) -> None:
        """Says that another connection to the server was lost: the next question begins by connecting anew."""
        self._broken = True

    def is_at_its_place(self) -> bool:
        """Whether who opens the file now opens the one that is open here: another may have been put in its place."""
        opened, where = self._opened_file, self._where
        return opened is not None and isinstance(where, SqliteFile) and _is_same(where.path, opened)

    def make_ready(self) -> None:
        """Connects anew if the connection broke.

        Raises:
            StoreError: it was closed, or is another process's.
        """
        self._check_owner()
        if self._store is None:
            raise self._closed()
        if self._broken:
            # Reconnects to a server. On a file, ml_metadata leaves its transaction open after SQLite has ended it by
            # itself, as on a full disk, which would block all later writes.
            self._store = self._connect(again=isinstance(self._where, DatabaseServer))
            self._broken = False
            self.reconnects += 1

    def _check_owner(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"The metadata {self._where} was opened by process {self._pid} and used by its child {os.getpid()}. "
                "A connection does not survive a fork: open it in the child, after the fork: open_store(…)"
            )

    def _connect(self, *, migrate: bool = False, known: bool = False, again: bool = False) -> Proto:
        """Connects. A server that is `known`, or has let this process in (`again`), is perhaps being restarted."""
        config = _config(self._where)
        waiting_until = time.monotonic() + self.deadline_s
        awaited = False
        while True:
            try:
                with self._bounded():
                    store = metadata_store.MetadataStore(config, enable_upgrade_migration=migrate)
                self._opened_file = self._where.path.stat() if isinstance(self._where, SqliteFile) else None
            except (RuntimeError, OSError, errors.StatusError) as error:
                if _MAKES_DATABASE in str(error) and not config.mysql.skip_db_creation:
                    config.mysql.skip_db_creation = True  # a role that may not, and that need not if there is one
                    continue
                reason = self._find_reason(error)
                away = again or (known and not is_locked_out(reason or format_detail(error)))
                # Processes that create a server's tables at the same moment conflict.
                if not (away or _is_transient(error)) or time.monotonic() >= waiting_until:
                    raise translate_error(error, self._where, reason=reason) from error
                if away and not awaited:
                    awaited, facts = True, {"metadata": str(self), "reason": reason or format_detail(error)}
                    log.warning("metadata-awaited", extra={**facts, "up_to_s": self.deadline_s})
                _pause(_RESTART_POLL_S if away else _LOCK_POLL_S)
            else:
                return store

    def _find_reason(self, error: Exception) -> str:
        """What the server says to a session that it does not let in, which ml_metadata leaves out."""
        where = self._where
        if isinstance(where, DatabaseServer) and where.kind == "postgresql" and NOT_CONNECTED in str(error):
            return postgresql.find_refusal(where)
        return ""

    def _bounded(self) -> contextlib.AbstractContextManager[None]:
        """Inside, connections to the server are given up when it is silent."""
        where = self._where
        if isinstance(where, SqliteFile) or where.is_local:
            return contextlib.nullcontext()
        return silence.bounded(where.host, where.port)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Holds the writers' lock; a server has its own."""
        if isinstance(self._where, DatabaseServer):
            yield
            return
        self._check_owner()
        with self._turn:  # threads share the descriptor, so the file's lock does not separate them
            lock = self._lock_file
            if lock is None:
                raise self._closed()
            self._take(lock)
            try:
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)

    def _take(self, lock: int) -> None:
        waiting_until = time.monotonic() + self.deadline_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= waiting_until:
                    raise self.locked_error() from error
                _pause()
            else:
                return

    def _closed(self) -> StoreError:
        return StoreError(f"The metadata {self._where} was closed; open it again: open_store(…)")

    def locked_error(self) -> StoreUnavailable:
        """The error of one who has waited for the locks of others for too long."""
        if isinstance(self._where, DatabaseServer):
            return StoreUnavailable(
                f"The metadata {self._where} was locked by others for {self.deadline_s:g} s. "
                "See what holds the locks: SHOW PROCESSLIST (MySQL), TABLE pg_stat_activity (PostgreSQL)"
            )
        return StoreUnavailable(
            f"The metadata {self._where} was locked by another process for {self.deadline_s:g} s. "
            f"See which: {shlex.join(['fuser', '-v', str(self._where.lock), str(self._where.path)])}"
        )


def _is_transient(error: Exception) -> bool:
    return isinstance(error, errors.AbortedError) or bool(
        re.search("locked|busy|already exists|duplicate|deadlock|concurrent", str(error), re.IGNORECASE)
    )


def _pause(most_s: float = _LOCK_POLL_S) -> None:
    time.sleep(random.uniform(most_s / 8, most_s))  # noqa: S311  so that two that wait do not wake together


def _config(where: Location) -> Proto:
    config = metadata_store_pb2.ConnectionConfig()
    config.retry_options.max_num_retries = 1  # 0 would retry forever
    if isinstance(where, SqliteFile):
        config.sqlite.filename_uri = str(where.path)
        config.sqlite.connection_mode = metadata_store_pb2.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    elif where.kind == "mysql":
        config.mysql.host, config.mysql.port, config.mysql.database = where.host, where.port, where.database
        config.mysql.user, config.mysql.password = where.user, where.password
        for name, value in where.options.items():
            setattr(config.mysql.ssl_options, name.removeprefix("ssl_"), value)
    else:
        config.postgresql.host, config.postgresql.port = where.host, str(where.port)
        config.postgresql.dbname = _quote(where.database)
        config.postgresql.user = _quote(where.user)
        if where.password:  # libpq takes the option after an empty one for its value, so sslmode would be the password
            config.postgresql.password = _quote(where.password)
        for name, value in where.options.items():
            setattr(config.postgresql.ssloption, name, _quote(value))
    return config


def _quote(value: str) -> str:
    """A value as libpq wants it, to which ml-metadata passes it as it is: a space would begin another option.

    https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-KEYWORD-VALUE
    """
    if not re.search(r"[\s'\\]", value):
        return value
    escaped = re.sub(r"(['\\])", r"\\\1", value)
    return f"'{escaped}'"


def _prepare(where: SqliteFile) -> None:
    """Switches the write-ahead log on, and refuses a file that is not a database. The caller holds both locks."""
    if _open_here(where):
        return
    try:
        head = _head(where.path)
        if head[18:20] == b"\x02\x02":  # SQLite's file format: the log is on already
            return
        if head and not head.startswith(b"SQLite format 3\0"):
            raise translate_error(sqlite3.DatabaseError("file is not a database"), where)
        with contextlib.closing(sqlite3.connect(where.path, timeout=1)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if tables and "MLMDEnv" not in tables:
                raise StoreCorrupt(
                    f"{where} is an SQLite database of something else; it holds {', '.join(sorted(tables)[:5])}. "
                    "Name a new file for the metadata."
                )
            # A database that others use without the log cannot be switched now; it works without, but slower.
            with contextlib.suppress(sqlite3.OperationalError):
                database.execute("PRAGMA journal_mode=WAL").fetchall()
    except (OSError, sqlite3.Error) as error:
        raise translate_error(error, where) from error


def _head(path: Path) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(20)


def _open_here(where: SqliteFile) -> bool:
    """Whether this process has the file open, through whatever library."""
    try:
        wanted = where.path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise translate_error(error, where) from error
    for descriptor in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.path.samestat(os.fstat(int(descriptor.name)), wanted):
                return True
    return False


def _is_same(path: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), file)
    except OSError:
        return False


def _silence_ml_metadata() -> None:
    """Stops ml_metadata from logging its settings, which include the password, and errors that are handled here."""
    absl = logging.getLogger("absl")
    if _not_from_ml_metadata not in absl.filters:
        absl.addFilter(_not_from_ml_metadata)


def _not_from_ml_metadata(record: logging.LogRecord) -> bool:
    return f"{os.sep}ml_metadata{os.sep}" not in record.pathname
