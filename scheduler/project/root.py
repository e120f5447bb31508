"""The root: the folder of artifacts and logs, and the one metadata store it belongs to.

Executions number the folders of a root, so a root that is used with another store's numbers would mix two
histories. The store has an identity, and each root notes whose it is.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from spanwise.orchestrator.errors import SettingsError, StoreError, StoreUnavailable
from spanwise.orchestrator.store import AlreadyClaimed, Claim, MemoryStore, Store
from spanwise.scheduler.project.settings import Settings

NOTE = ".spanwise-store"
_IDENTITY = ("store", "identity")


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[Store]:
    """The store, to write to: the root and the database are made where they are missing.

    Raises:
        SettingsError: the root belongs to another store.
        StoreUnavailable: the root cannot be written to.
        StoreError: the database cannot be opened; see `open_store`.
    """
    from spanwise.orchestrator.mlmd import open_store

    try:
        settings.root.mkdir(parents=True, exist_ok=True)
        if not os.access(settings.root, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise StoreUnavailable(
            f"The root {settings.root} cannot be written to: {error.strerror}. Name another: --root DIR, or "
            f"`root` in spanwise.toml."
        ) from error
    with contextlib.closing(open_store(settings.metadata)) as store:
        claim_root(store, settings)
        yield store


@contextlib.contextmanager
def read(settings: Settings) -> Iterator[Store]:
    """The store, to look at; where nothing was ever recorded it is an empty one, and nothing is made."""
    from spanwise.orchestrator.mlmd import open_store
    from spanwise.orchestrator.mlmd.location import SqliteFile, location

    where = location(settings.metadata)
    if isinstance(where, SqliteFile) and not where.path.exists():
        yield MemoryStore()
        return
    with contextlib.closing(open_store(settings.metadata)) as store:
        noted = _noted(settings.root)
        if noted is not None and noted != identity(store):
            raise _another(settings)
        yield store


def claim_root(store: Store, settings: Settings) -> None:
    """Notes in the root which store it belongs to, or raises SettingsError when it belongs to another."""
    noted, known = _noted(settings.root), identity(store)
    if noted is not None and noted != known:
        raise _another(settings)
    if noted is not None:
        return
    if known is None:
        with contextlib.suppress(AlreadyClaimed):  # another first user was quicker; theirs it is
            store.claim(Claim(*_IDENTITY, {"id": uuid.uuid4().hex}))
        known = identity(store)
    draft = settings.root / f"{NOTE}.{os.getpid()}"
    try:
        draft.write_text(f"{known}\n", encoding="ascii")
        draft.replace(settings.root / NOTE)
    except OSError as error:
        raise StoreUnavailable(f"The root {settings.root} cannot be written to: {error.strerror}.") from error


def _noted(root: Path) -> str | None:
    try:
        return (root / NOTE).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{root / NOTE}, which says whose this root is, cannot be read: {error}") from error


def identity(store: Store) -> str | None:
    """What tells a store from every other; None while no root was used with it."""
    claim = store.claimed(*_IDENTITY)
    return None if claim is None else str(claim.facts["id"])


def _another(settings: Settings) -> SettingsError:
    return SettingsError(
        f"The root {settings.root} belongs to another metadata store than {settings.shown_metadata}: what is in it "
        "was numbered by that one, so the two cannot be mixed.\n"
        "Name the metadata that it was used with (`metadata` in spanwise.toml), or another root: --root DIR"
    )
