"""Locations: where the metadata is, parsed from a URL. They hold the password and never print it."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from spanwise.orchestrator.errors import SettingsError

_PORTS = {"mysql": 3306, "postgresql": 5432}
OPTIONS = {
    "postgresql": ("sslmode", "sslrootcert", "sslcert", "sslkey"),
    "mysql": ("ssl_ca", "ssl_cert", "ssl_key"),
}
"""The options that a URL may have, by kind of server: how the connection is encrypted."""

_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_FORMS = (
    "It is a file such as .spanwise/metadata.db, mysql://user:password@host:3306/database "
    "or postgresql://user:password@host:5432/database."
)
_ESCAPES = "In a user or a password, write / # ? @ [ ] as %2F %23 %3F %40 %5B %5D."


@dataclass(frozen=True)
class SqliteFile:
    """A database in a file of this host. Several hosts need a server: SQLite's locks do not reach over a network."""

    path: Path  #: absolute

    @property
    def lock(self) -> Path:
        """The file whose lock writers hold."""
        return self.path.with_name(self.path.name + ".lock")

    def find_read_only(self) -> Path | None:
        """The first of its files that this user may not write, as where somebody else has run a pipeline."""
        beside = [self.path.with_name(self.path.name + end) for end in ("", "-wal", "-shm")]
        return next((p for p in (*beside, self.lock) if p.exists() and not os.access(p, os.W_OK)), None)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, kw_only=True)
class DatabaseServer:
    """A database on a server."""

    kind: Literal["mysql", "postgresql"]
    host: str
    port: int
    database: str
    user: str = ""
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict)  #: see `OPTIONS`

    @property
    def is_local(self) -> bool:
        """Whether it is reached through a socket in the file system: MySQL's client takes `localhost` for that."""
        return self.kind == "mysql" and self.host == "localhost"

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"{self.kind}://{user}{self.host}:{self.port}/{self.database}"


Location: TypeAlias = SqliteFile | DatabaseServer


def describe_read_only(path: Path) -> str:
    """Why this user may not write a file or a folder, and what to type."""
    user, quoted = _name_user(os.geteuid()), shlex.quote(str(path))
    if not path.exists():
        return f"Create it for {user}:  sudo install -d -o {user} {quoted}"
    found = path.stat()
    if found.st_uid != os.geteuid():
        folder = quoted if path.is_dir() else shlex.quote(str(path.parent))
        return (
            f"{path} belongs to {_name_user(found.st_uid)}, and you are {user}. Run as that user, or hand all of it "
            f"over:  sudo chown -R {user} {folder}"
        )
    if found.st_mode & stat.S_IWUSR and (not path.is_dir() or found.st_mode & stat.S_IXUSR):
        return f"{path} is on a file system that can only be read:  findmnt -T {quoted}"
    return f"{path} is write-protected. Make it writable:  chmod u+rwX {quoted}"


def _name_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may have no name for it
        return str(uid)


def parse_location(url: str) -> Location:
    """Parses a URL; a plain path, and the path after `sqlite:///`, are relative to the current folder.

    Raises:
        SettingsError: it is not the URL of a supported database.
    """
    if "://" not in url:
        scheme = url.partition(":")[0].lower()
        if ":" in url and scheme in (*_PORTS, "postgres", "sqlite"):
            raise SettingsError(f"The metadata's URL needs :// after {scheme!r}. {_FORMS}")  # it may hold a password
        return _file(url)
    scheme, _, rest = url.partition("://")
    if scheme.lower() in _PORTS and "@" in re.sub(r"[^/?#]*", "", rest, count=1):
        # what comes before the @ is the end of the password, and none of it may be shown
        raise SettingsError(f"The metadata's {scheme.lower()} URL has an @ after its host. {_ESCAPES} {_FORMS}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # from None: the cause quotes the part that it could not read, which may be the password
        raise SettingsError(f"The metadata's URL has no host and port that can be read. {_ESCAPES} {_FORMS}") from None
    if parts.scheme == "sqlite":
        if parts.netloc:
            raise SettingsError(f"The metadata's sqlite URL needs three slashes: sqlite:///path. {_FORMS}")
        return _file(unquote(parts.path.removeprefix("/")))
    if parts.scheme == "mysql":
        return _server("mysql", parts, port)
    if parts.scheme == "postgresql":
        return _server("postgresql", parts, port)
    raise SettingsError(f"The metadata cannot be stored in {parts.scheme!r}. {_FORMS}")


def _file(path: str) -> SqliteFile:
    if not path or path == ":memory:":
        raise SettingsError(f"The metadata needs a file; a database in memory is lost with its process. {_FORMS}")
    if "\0" in path:
        raise SettingsError(f"The metadata's path holds a NUL character. {_FORMS}")
    return SqliteFile(Path(path).expanduser().absolute())


def _server(kind: Literal["mysql", "postgresql"], parts: SplitResult, port: int | None) -> DatabaseServer:
    database = unquote(parts.path.removeprefix("/"))
    if not parts.hostname or not database:
        missing = "database" if parts.hostname else "host"
        raise SettingsError(f"The metadata's {kind} URL names no {missing}. {_FORMS}")
    return DatabaseServer(
        kind=kind,
        host=parts.hostname,
        port=port or _PORTS[kind],
        database=database,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        options=_options(kind, parts.query),
    )


def _options(kind: Literal["mysql", "postgresql"], query: str) -> dict[str, str]:
    """Refuses what it does not know: an option that is left out in silence may be the one that encrypts."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if name not in OPTIONS[kind]:
            raise SettingsError(
                f"The metadata's {kind} URL has the option {name!r}, which is unknown. It takes: "
                f"{', '.join(OPTIONS[kind])}."
            )
        if name == "sslmode" and value not in _SSL_MODES:
            raise SettingsError(f"The metadata's sslmode is {value!r}. It is one of: {', '.join(_SSL_MODES)}.")
    return options
