"""The root: the folder or URL of artifacts and logs, and the one metadata store that it belongs to.

The folders of a root are numbered by execution, so using it with another store would mix two histories. The store
records places relative to the root, so in another root none of its artifacts would be found. The store has an identity
and names the root that it was first used with; a root records the identity of its store, and keeps it when it is moved.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import NotRecorded, SettingsError, StorageError, StoreError, StoreUnavailable
from spanwise.orchestrator.run_dir import NOTE
from spanwise.orchestrator.store import AlreadyClaimed, Claim, MemoryStore, Store
from spanwise.scheduler.project.settings import Settings

if TYPE_CHECKING:
    from spanwise.orchestrator.storage.archive import BucketArchive

_COPIES = 5  # tries to copy a database that others write to
_IDENTITY = ("store", "identity")


@contextlib.contextmanager
def open_for_writing(settings: Settings, *, again: bool = False, awaits_server: bool = True) -> Iterator[Store]:
    """Opens the store for writing; creates the root and the database if necessary.

    `again`: this process has opened it before, so object storage is not asked once more whose root it is: it may be
    away, and what only the metadata are needed for goes on. A database server that this root was used with, and that is
    perhaps being restarted, is waited for if `awaits_server`.

    Raises:
        SettingsError: the root belongs to another store.
        StoreUnavailable: the root is not writable.
        StoreError: the database could not be opened; see `open_store`.
    """
    from spanwise.orchestrator.mlmd import open_store
    from spanwise.orchestrator.mlmd.location import describe_read_only

    try:
        settings.root.mkdir(parents=True, exist_ok=True)
        if not os.access(settings.root, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        whose = f"\n{describe_read_only(settings.root)}" if isinstance(error, PermissionError) else ""
        raise StoreUnavailable(
            f"The root {settings.root} is not writable: {error.strerror}. Use another root: --root DIR, or "
            f"`root` in spanwise.toml.{whose}"
        ) from error
    known = awaits_server and _recorded_identity(settings.root) is not None
    opened = open_store(settings.metadata, root=settings.root, archive=archive_of(settings), known=known)
    with contextlib.closing(opened) as store:
        claim_root(store, settings, again=again)
        yield store


@contextlib.contextmanager
def open_to_record(settings: Settings) -> Iterator[Store]:
    """Opens the store to record what a person says; where nothing was recorded yet, nothing is created.

    Raises:
        StoreUnavailable: its folder is read-only; see `refuse_read_only`.
    """
    refuse_read_only(settings)
    with open_for_reading(settings) as store:
        yield store


def refuse_read_only(settings: Settings) -> None:
    """Raises StoreUnavailable when the metadata is a file in a read-only folder: what is recorded in a copy is lost."""
    from spanwise.orchestrator.mlmd.location import SqliteFile, parse_location

    where = parse_location(settings.metadata)
    if isinstance(where, SqliteFile) and where.path.exists() and not os.access(where.path.parent, os.W_OK):
        raise StoreUnavailable(f"The metadata {where} is in a read-only folder, so nothing can be recorded there.")


@contextlib.contextmanager
def open_for_reading(settings: Settings, *, deadline_s: float = 30.0) -> Iterator[Store]:
    """Opens the store for reading; where nothing was recorded yet it is empty, and nothing is created.

    SQLite writes beside its file even to read, so of a file in a read-only folder a copy is opened. `deadline_s` is how
    long to wait for a database that others have locked, and for a server that this root was used with.
    """
    from spanwise.orchestrator.mlmd import open_store
    from spanwise.orchestrator.mlmd.location import SqliteFile, parse_location

    where, url = parse_location(settings.metadata), settings.metadata
    if isinstance(where, SqliteFile) and not where.path.exists():
        empty = MemoryStore()
        with naming_root(settings, lambda: empty):
            yield empty
        return
    with contextlib.ExitStack() as stack:
        if isinstance(where, SqliteFile) and not os.access(where.path.parent, os.W_OK):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spanwise-")))
            url = str(copy_database_files(where.path, folder))
        known, archive = _recorded_identity(settings.root) is not None, archive_of(settings)
        opened = open_store(url, root=settings.root, archive=archive, deadline_s=deadline_s, known=known)
        store = stack.enter_context(contextlib.closing(opened))
        check_root(store, settings)
        yield store


@contextlib.contextmanager
def naming_root(settings: Settings, read: Callable[[], Store]) -> Iterator[None]:
    """Adds to an error about what is not recorded, where nothing is, which root was read: it may be the wrong one."""
    try:
        yield
    except NotRecorded as error:
        where = describe_root(settings)
        if where in str(error) or read().pipelines():
            raise
        raise NotRecorded(f"{error}\n{where}") from error


def describe_root(settings: Settings) -> str:
    """Which root is read, and how to read another."""
    root = settings.url or settings.root.absolute()
    return f"The root is {root}. For another one, go to the folder of its project, or name it:  --root DIR"


def archive_of(settings: Settings) -> BucketArchive | None:
    """The root in object storage, if it is there."""
    if settings.url is None:
        return None
    from spanwise.orchestrator.storage import BucketArchive, parse_url

    return BucketArchive(settings.root.absolute(), parse_url(settings.url), settings.cache_bytes)


def copy_database_files(file: Path, folder: Path) -> Path:
    """Copies an SQLite file with its log of recent writes; begins anew when somebody wrote meanwhile.

    Raises:
        StoreUnavailable: it cannot be read, or is written to all the time.
    """
    files = [file, file.with_name(f"{file.name}-wal")]
    for _ in range(_COPIES):
        try:
            before = [_stamp(each) for each in files]
            for each in files:
                (folder / each.name).unlink(missing_ok=True)
                if each.exists():
                    shutil.copyfile(each, folder / each.name)
        except OSError as error:
            raise StoreUnavailable(f"The metadata {file} cannot be read: {error.strerror}.") from error
        if before == [_stamp(each) for each in files]:
            return folder / file.name
    raise StoreUnavailable(f"The metadata {file} is in a read-only folder and changes all the time; try again.")


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def check_root(store: Store, settings: Settings) -> None:
    """Raises SettingsError when the root or the store belongs to another. Reads only.

    While object storage cannot be read, it is enough for the records that the store was first used with this root.
    """
    claim, recorded = store.find_claim(*_IDENTITY), _recorded_identity(settings.root)
    if (recorded is None or recorded != _id_of(claim)) and (archive := archive_of(settings)) is not None:
        try:
            recorded = archive.claimed_by()  # this folder's copies may be those of a root that was emptied since
        except StorageError:
            if recorded is not None or claim is None or claim.facts.get("root") != _name_root(settings):
                raise
    _refuse_others(settings, recorded, claim)


def claim_root(store: Store, settings: Settings, *, again: bool = False) -> None:
    """Records in the root and in the store that they belong together.

    Raises:
        SettingsError: one of them belongs to another.
    """
    claim, recorded = store.find_claim(*_IDENTITY), _recorded_identity(settings.root)
    archive = archive_of(settings)
    if archive is not None and not (again and recorded == _id_of(claim)):
        # somebody may have emptied the bucket since this folder was made
        recorded = archive.claimed_by()
    _refuse_others(settings, recorded, claim)
    if recorded is not None and _recorded_identity(settings.root) == recorded:
        return
    if claim is None:
        with contextlib.suppress(AlreadyClaimed):  # another process was first, perhaps one with another root
            store.claim(Claim(*_IDENTITY, {"id": uuid.uuid4().hex, "root": _name_root(settings)}))
        claim = store.find_claim(*_IDENTITY)
        _refuse_others(settings, None, claim)
    known = str(_id_of(claim))
    if archive is not None and archive.claim(known) != known:
        raise _wrong_store_error(settings)
    draft = settings.root / f"{NOTE}.{os.getpid()}"
    try:
        draft.write_text(f"{known}\n", encoding="ascii")
        draft.replace(settings.root / NOTE)
    except OSError as error:
        raise StoreUnavailable(f"The root {settings.root} is not writable: {error.strerror}.") from error


def _recorded_identity(root: Path) -> str | None:
    try:
        return (root / NOTE).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"Could not read {root / NOTE}, which records the store of this root: {error}") from error


def identity(store: Store) -> str | None:
    """The unique id of a store; None until a root was used with it."""
    return _id_of(store.find_claim(*_IDENTITY))


def _id_of(claim: Claim | None) -> str | None:
    return None if claim is None else str(claim.facts["id"])


def _name_root(settings: Settings) -> str:
    """The root, for the store that it belongs to: a folder is one of its host's."""
    return settings.url or f"{socket.gethostname()}:{settings.root.resolve()}"


def _refuse_others(settings: Settings, recorded: str | None, claim: Claim | None) -> None:
    """Raises SettingsError unless the root, which records this store, and the store with this claim belong together.

    A root that records none belongs to an unused store, or to one that was first used with this very root: whoever
    was to record it in the root may have died, or the root was removed.
    """
    if recorded is not None and recorded != _id_of(claim):
        raise _wrong_store_error(settings)
    if recorded is None and claim is not None and claim.facts.get("root") != _name_root(settings):
        raise _wrong_root_error(settings, claim)


def _wrong_root_error(settings: Settings, claim: Claim) -> SettingsError:
    if settings.url:
        note = f"store the text {_id_of(claim)} as {settings.url}/{NOTE}"
    else:
        folder = settings.root.absolute()
        note = f"mkdir -p {shlex.quote(str(folder))} && echo {_id_of(claim)} > {shlex.quote(str(folder / NOTE))}"
    return SettingsError(
        f"The metadata {settings.redacted_metadata} belongs to another root than {settings.place}: it was first used "
        f"with {claim.facts.get('root', 'one that it does not name')}. Its artifacts would not be found here.\n"
        "Use that root, wherever it is now (`root` in spanwise.toml, or --root DIR), or other metadata for this one.\n"
        f"If its files are gone for good, go on without them:  {note}"
    )


def _wrong_store_error(settings: Settings) -> SettingsError:
    return SettingsError(
        f"The root {settings.place} belongs to another metadata store than {settings.redacted_metadata}: its folders "
        "are numbered by that store, so the two cannot be mixed.\n"
        "Use the metadata that the root was created with (`metadata` in spanwise.toml), or another root: --root DIR"
    )
