"""Database servers: what their own tools say about the tables of the metadata, and the command that dumps them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanwise.orchestrator.mlmd.location import DatabaseServer

_TIMEOUT_S = 3600
_MOST_LINES = 5
_DAMAGED = 2  #: how pg_amcheck exits when it has found corruption


@dataclass(frozen=True)
class ServerCheck:
    """What was found."""

    damage: str = ""  #: empty if nothing
    why_not: str = ""  #: why nothing could be checked; empty if it was


def check_server(server: DatabaseServer) -> ServerCheck:
    """Has the tables checked by `mysqlcheck` or `pg_amcheck`; the password is passed in the environment."""
    program = next(filter(shutil.which, _programs(server)), "")
    if not program:
        return ServerCheck(why_not=f"{' or '.join(_programs(server))} is not installed here")
    variable = "MYSQL_PWD" if server.kind == "mysql" else "PGPASSWORD"
    try:
        done = subprocess.run(
            [program, *_arguments(server)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, variable: server.password, **_environment(server)},
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ServerCheck(why_not=f"{program} took longer than {_TIMEOUT_S} s")
    said = "; ".join([line.strip() for line in done.stdout.splitlines() if line.strip()][:_MOST_LINES])
    if done.returncode == 0:
        return ServerCheck(damage=said if server.kind == "mysql" else "")  # silent on tables that are whole
    if done.returncode == _DAMAGED and server.kind == "postgresql":
        return ServerCheck(damage=said or "pg_amcheck found corruption")
    return ServerCheck(why_not=f"{program} failed: {said or f'exit code {done.returncode}'}")


def format_check_command(server: DatabaseServer) -> str:
    """The check as a command for the server's own host; it asks for the password."""
    asking = [word for word in _arguments(server) if word != "--no-password"]
    return shlex.join([_programs(server)[0], "--password", *asking])


def format_dump_command(server: DatabaseServer) -> str:
    """The command that writes its database into `metadata.sql`; it asks for the password, where there is one."""
    program = ["mysqldump"] if server.kind == "mysql" else ["pg_dump"]
    asking = ["--password"] if server.password else []
    whole = ["--single-transaction"] if server.kind == "mysql" else []  # pg_dump always is
    environment = [f"{name}={value}" for name, value in _environment(server).items()]
    words = [*(["env", *environment] if environment else []), *program, *asking, *whole, *_connection(server)]
    return f"{shlex.join([*words, server.database])} > metadata.sql"


def _environment(server: DatabaseServer) -> dict[str, str]:
    """The options of the connection, as PostgreSQL's programs read them."""
    return {f"PG{name.upper()}": value for name, value in server.options.items()} if server.kind == "postgresql" else {}


def _programs(server: DatabaseServer) -> tuple[str, ...]:
    return ("mysqlcheck", "mariadb-check") if server.kind == "mysql" else ("pg_amcheck",)


def _connection(server: DatabaseServer) -> list[str]:
    where = [f"--host={server.host}", f"--port={server.port}"]
    user = f"--user={server.user}" if server.kind == "mysql" else f"--username={server.user}"
    where += [user] if server.user else []
    if server.kind == "mysql":
        names = {"ssl_ca": "ssl-ca", "ssl_cert": "ssl-cert", "ssl_key": "ssl-key"}
        where += [f"--{names[name]}={value}" for name, value in server.options.items() if name in names]
    return where


def _arguments(server: DatabaseServer) -> list[str]:
    quiet = ["--check", "--silent"] if server.kind == "mysql" else ["--no-password"]
    return [*_connection(server), *quiet, server.database]
