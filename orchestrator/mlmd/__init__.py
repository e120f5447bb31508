"""ML Metadata: the real store. What is here opens it; only then is ml_metadata imported, which takes 0.25 s."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime

from spanwise.orchestrator.mlmd.location import parse_location
from spanwise.orchestrator.store import Store

__all__ = ["open_store"]


def open_store(
    url: str,
    *,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    deadline_s: float = 30.0,
    migrate: bool = False,
) -> Store:
    """Opens the metadata at `url`, and makes a new database where there is none.

    `url` is the path of an SQLite file, `sqlite:///path`, `mysql://user:password@host:port/database` or
    `postgresql://user:password@host:port/database`. `clock` stamps what is recorded. `deadline_s` is how long to wait
    for a database that others have locked. `migrate` brings the tables of an older ml-metadata up to this one's.

    Raises:
        SettingsError: the url is none of these.
        StoreUnavailable: the database cannot be reached, made or locked.
        StoreCorrupt: the file is no metadata database, or a damaged one.
        StoreTooNew: it was written by a newer ml-metadata.
        StoreError: it was written by an older one, and `migrate` is not set.
    """
    where = parse_location(url)
    # Read when the library is loaded: without it PostgreSQL's refusals of a taken name are printed on stderr.
    os.environ.setdefault("GLOG_minloglevel", "4")

    from spanwise.orchestrator.mlmd.store import MlmdStore

    return MlmdStore(where, clock=clock, deadline_s=deadline_s, migrate=migrate)
