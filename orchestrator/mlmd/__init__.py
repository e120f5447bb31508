"""ML Metadata: the real store. `open_store` imports ml_metadata, which takes 0.25 s, only when it is called."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from spanwise.orchestrator.artifact import ArtifactArchive
from spanwise.orchestrator.mlmd.deferral import import_ml_metadata
from spanwise.orchestrator.mlmd.location import parse_location
from spanwise.orchestrator.store import Store

__all__ = ["open_store"]


def open_store(
    url: str,
    *,
    root: Path | None = None,
    archive: ArtifactArchive | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    deadline_s: float = 30.0,
    migrate: bool = False,
    known: bool = False,
) -> Store:
    """Opens the metadata at `url`; creates the database if there is none.

    `url` is the path of an SQLite file, `sqlite:///path`, `mysql://user:password@host:port/database` or
    `postgresql://user:password@host:port/database`. `root` is the folder of the artifacts and logs: places in it are
    recorded relative to it, so that both can be moved and copied. `archive` keeps the files of artifacts besides the
    root. `clock` stamps the records. `deadline_s` is how long to wait for a database that others have locked, and for a
    server that is restarted: when it is opened, only for one that is `known` to have answered before.
    `migrate` upgrades the tables of an older ml-metadata.

    Raises:
        SettingsError: the URL is none of these.
        StoreUnavailable: the database cannot be reached, created or locked.
        StoreCorrupt: the file is not a metadata database, or is damaged.
        StoreTooNew: it was written by a newer ml-metadata.
        StoreError: it was written by an older one, and `migrate` is not set.
    """
    where = parse_location(url)
    # The library reads it when it is imported; without it PostgreSQL's refusals of a taken name appear on stderr.
    os.environ.setdefault("GLOG_minloglevel", "4")

    import_ml_metadata()

    from spanwise.orchestrator.mlmd.store import MlmdStore

    return MlmdStore(
        where, root=root, archive=archive, clock=clock, deadline_s=deadline_s, migrate=migrate, known=known
    )
