"""Failures: what an error of ml_metadata means to users, and what they type next.

ml_metadata passes on what a server says as text, without its codes, so the text decides.
"""

from __future__ import annotations

import re
import shlex

from ml_metadata import errors

from spanwise.orchestrator.errors import StoreCorrupt, StoreError, StoreTooNew, StoreUnavailable
from spanwise.orchestrator.mlmd.location import DatabaseServer, Location, SqliteFile, describe_read_only

NOT_CONNECTED = "connection pointer is NULL"
"""What ml_metadata says, and no more, when PostgreSQL does not let it in."""

_LOCKED_OUT = "Access denied|authentication failed|does not exist|no pg_hba.conf entry|not permitted|Unknown database"

_LONGEST_DETAIL = 200
_NO_TLS = ("require", "verify-ca", "verify-full")

_REFUSALS = {
    "statement pooling mode": (
        "is behind a PgBouncer whose pool_mode is statement, in which nothing can be written. "
        "Set pool_mode = transaction or session in pgbouncer.ini"
    ),
    "read-only transaction": (
        "can only be read: the server is a standby, or default_transaction_read_only is set ({detail}). Name the "
        "primary in the metadata's URL, or allow it:  ALTER ROLE {where.user} SET default_transaction_read_only = off"
    ),
    "permission denied for schema|no schema has been selected to create in": (
        "has no tables that {where.user} can see, and {where.user} may not make them ({detail}). Let the owner of the "
        "database run `spanwise doctor` once. Tables in another schema than public are found with: "
        "ALTER ROLE {where.user} SET search_path = …"
    ),
    "permission denied for": (
        "refuses {where.user} what it needs ({detail}). Let the owner of the tables run: "
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {where.user}; "
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {where.user};"
    ),
    'relation "mlmdenv" does not exist': (
        "has its tables in a schema where {where.user} does not look. Name that schema: "
        "ALTER ROLE {where.user} SET search_path = …"
    ),
    "due to statement timeout": (
        "canceled what takes longer than the statement_timeout of {where.user}. Let its owner raise it: "
        "ALTER ROLE {where.user} SET statement_timeout = '5min'"
    ),
    "due to lock timeout": (
        "was locked by others for longer than the lock_timeout of {where.user}. See what holds the locks: "
        "TABLE pg_stat_activity"
    ),
    "query_wait_timeout|no more connections allowed|too many (clients|connections)|connection slots are reserved": (
        "has no free connection ({detail}). Each process of spanwise has up to three: raise max_connections, or, of "
        "PgBouncer, default_pool_size and max_client_conn, or set pool_mode = transaction"
    ),
}
"""What PostgreSQL and PgBouncer say, as a pattern, and what it means. Where they say so, nothing was written."""


def translate_error(error: Exception, where: Location, *, reason: str = "") -> StoreError:
    """Translates an error of ml_metadata into one for users; `reason` is what else is known of it."""
    text, detail = str(error), reason or format_detail(error)
    if "is greater than library version" in text:
        return StoreTooNew(
            f"The metadata {where} was written by a newer ml-metadata ({detail}). "
            "Install it here too: pip install --upgrade ml-metadata"
        )
    if "is older than library version" in text:
        return StoreError(
            f"The metadata {where} was written by an older ml-metadata ({detail}). "
            "Make a copy of it, then bring it up to date: spanwise doctor --migrate"
        )
    if isinstance(error, errors.InvalidArgumentError | errors.NotFoundError | errors.FailedPreconditionError):
        return StoreError(f"The metadata store {where} refused the request: {detail}. Diagnose it: spanwise doctor")
    if isinstance(where, DatabaseServer):
        return StoreUnavailable(f"The metadata store {where} {_explain(detail, where, NOT_CONNECTED in text)}")
    return _file_error(text, detail, where)


def is_refusal(error: Exception, where: Location) -> bool:
    """Whether the server has answered, and its answer says that nothing was written and why."""
    return _find_refusal(format_detail(error), where) is not None


def is_locked_out(detail: str) -> bool:
    """Whether a server that runs does not let this user in, or has no such database: no restart changes that."""
    return re.search(_LOCKED_OUT, detail) is not None


def format_detail(error: Exception) -> str:
    """The reason alone, without the SQL and the values that surround it in the message."""
    text = re.sub(r"^Error when executing query: ", "", str(error)).split(" query:")[0]
    line = " ".join(text.rpartition("PostgreSQL metadata source error: ")[2].split())
    line = re.sub(r"^ERROR: +| LINE \d+: .*$", "", line).rstrip(". ")
    return line if len(line) <= _LONGEST_DETAIL else line[:_LONGEST_DETAIL] + "…"


def _explain(detail: str, where: DatabaseServer, not_connected: bool) -> str:
    refusal = _find_refusal(detail, where)
    if refusal is not None:
        return refusal.format(where=where, detail=detail)
    sslmode = where.options.get("sslmode", "")
    if not_connected and (sslmode in _NO_TLS or "no encryption" in detail):
        wanted = f"is unavailable with sslmode={sslmode}" if sslmode in _NO_TLS else "demands encryption"
        return (
            f"{wanted}. The client in ml-metadata 1.17.1 cannot encrypt connections to PostgreSQL: make a tunnel, and "
            f"name its end here as the host, without sslmode:  ssh -N -L 5432:localhost:{where.port} {where.host}"
        )
    return (
        f"is unavailable: {detail}. "
        f"Check that the server runs, and the user, password and database: nc -z {where.host} {where.port}"
    )


def _find_refusal(detail: str, where: Location) -> str | None:
    if not isinstance(where, DatabaseServer) or where.kind != "postgresql":
        return None
    return next((meaning for pattern, meaning in _REFUSALS.items() if re.search(pattern, detail)), None)


def _file_error(text: str, detail: str, where: SqliteFile) -> StoreError:
    file, folder = shlex.quote(str(where.path)), shlex.quote(str(where.path.parent))
    if re.search("not a database|malformed|no such (table|column)", text):
        return StoreCorrupt(
            f"{where} is not a metadata database, or is damaged ({detail}). "
            "Restore a backup. To start over, move it away with the artifacts that it records: "
            f"mv {folder} {shlex.quote(f'{where.path.parent}.damaged')}"
        )
    if "disk is full" in text:
        return StoreUnavailable(f"The disk of the metadata {where} is full. Free some space: df -h {folder}")
    if (read_only := where.find_read_only()) is not None:
        return StoreUnavailable(f"The metadata {where} cannot be written. {describe_read_only(read_only)}")
    return StoreUnavailable(
        f"The metadata store {where} is unavailable: {detail}. "
        f"Check its file, its folder and their disk: ls -ld {file} {folder}; df -h {folder}"
    )
