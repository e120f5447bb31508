"""Backups: a copy of the root and its metadata that can be restored, made while schedulers and runs go on.

Artifacts are published after they were written, and never change. So a copy of the metadata that is older than the
copy of the files knows no artifact that was not copied. Only a collection between the two can remove one; then both
copies are brought up to date, and the newer metadata say that it was collected.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spanwise.orchestrator import durable
from spanwise.orchestrator.errors import SettingsError, StoreUnavailable, UsageError
from spanwise.orchestrator.mlmd.location import DatabaseServer, SqliteFile, parse_location
from spanwise.orchestrator.storage.url import refuse_url
from spanwise.scheduler.inspect.artifact_check import Checked, DamageReport, check_artifacts
from spanwise.scheduler.inspect.database_file import copy_database, find_database_damage
from spanwise.scheduler.inspect.database_server import format_dump_command
from spanwise.scheduler.inspect.disk_inventory import ASIDE
from spanwise.scheduler.project.settings import Settings

RECORD = "backup.json"
"""What makes a folder a backup; written last."""

_ROOT, _DATABASE = "root", "metadata.db"
_SNAPSHOTS = "snapshots"  # written again when they are missing
_PASSING = (".scratch", ".checkpoints")
_RUN_DEPTH, _OUTPUT_DEPTH = 3, 4  # PIPELINE/.runs/NUMBER, PIPELINE/NODE/OUTPUT/NUMBER
_ROUNDS = 3
_COPY = "Name a folder, and copy it to or from object storage with the tools of the storage, such as aws s3 sync"


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A finished backup."""

    folder: Path
    at: datetime  #: what was published by then is in it
    with_metadata: bool  #: false where the database has a server, whose own tools dump it
    artifacts: int
    size_bytes: int  #: of these artifacts
    damaged: tuple[DamageReport, ...] = ()  #: artifacts whose files are missing in the root as well


def back_up(
    settings: Settings, destination: Path, *, files_only: bool = False, elsewhere: Sequence[str] = ()
) -> Backup:
    """Copies the root and its metadata to a new folder.

    `elsewhere` is --root and --config as typed, for the commands that create damaged artifacts again.

    Raises:
        UsageError: the destination has something in it, lies in the root, or there is nothing to copy.
        SettingsError: the metadata is on a server, and `files_only` is not set.
        StoreError: the metadata cannot be read.
    """
    where = parse_location(settings.metadata)
    _check(settings, where, destination, files_only=files_only)
    at = datetime.now(UTC)
    copied = Backup(folder=destination, at=at, with_metadata=not files_only, artifacts=0, size_bytes=0)
    try:
        destination.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(_ROUNDS):
            if isinstance(where, SqliteFile) and not files_only:
                for name in (_DATABASE, f"{_DATABASE}-wal", f"{_DATABASE}-shm", f"{_DATABASE}.lock"):
                    (destination / name).unlink(missing_ok=True)
                copy_database(where.path, destination / _DATABASE)
            _copy_tree(settings.root, destination / _ROOT, _left_out(settings, where))
            if files_only:
                break
            copied = _compare(copied, settings.root, elsewhere)
            if not copied.damaged:
                break
        os.sync()
        facts = {"at": at.isoformat(), "metadata": copied.with_metadata}
        durable.put(destination / RECORD, [json.dumps(facts, indent=2).encode() + b"\n"])
    except OSError as error:
        raise StoreUnavailable(f"{error.filename or destination} could not be copied: {error.strerror}.") from error
    return copied


def restore(settings: Settings, source: Path) -> Backup:
    """Copies a backup to the root and the metadata of these settings, where neither may exist yet.

    Raises:
        UsageError: the folder is not a backup, or something is in the way.
        StoreError: the backup's database is damaged.
    """
    refuse_url("the backup's folder", source, fix=_COPY)
    facts = _read_record(source)
    where = parse_location(settings.metadata)
    if settings.url is not None:
        raise UsageError(f"The root is {settings.url}; a backup is restored to a folder. Name one: --root DIR")
    if settings.root.exists() and any(settings.root.iterdir()):
        raise UsageError(
            f"The root {settings.root} is not empty, and a restore never mixes two histories.\n"
            f"Move it aside:  {_move_aside(settings.root)}"
        )
    if facts["metadata"] and not isinstance(where, SqliteFile):
        raise UsageError(f"{source} holds an SQLite database, and the metadata is {where}. Choose a file: `metadata`.")
    if isinstance(where, SqliteFile) and facts["metadata"]:
        if there := [file for file in _database_files(where) if file.exists()]:
            commands = "\n".join(f"  {_move_aside(file, like=where.path)}" for file in there)
            raise UsageError(
                f"{there[0]} exists already. Move it aside, with what SQLite would read into the restored database:\n"
                f"{commands}"
            )
        if damage := find_database_damage(source / _DATABASE, deep=True):
            raise UsageError(f"The database of the backup, {source / _DATABASE}, is damaged: {damage}. Use another.")
    try:
        _copy_tree(source / _ROOT, settings.root, ())
        if isinstance(where, SqliteFile) and facts["metadata"]:
            where.path.parent.mkdir(parents=True, exist_ok=True)
            draft = where.path.with_name(f"{where.path.name}.restoring")
            draft.touch(mode=0o600)
            shutil.copyfile(source / _DATABASE, draft)
            shutil.copymode(source / _DATABASE, draft)
            os.sync()
            draft.replace(where.path)  # the last step: until then no command takes the root for whole
    except OSError as error:
        raise StoreUnavailable(f"{error.filename or source} could not be restored: {error.strerror}.") from error
    at = datetime.fromisoformat(str(facts["at"]))
    return Backup(folder=source, at=at, with_metadata=bool(facts["metadata"]), artifacts=0, size_bytes=0)


def _check(settings: Settings, where: SqliteFile | DatabaseServer, destination: Path, *, files_only: bool) -> None:
    refuse_url("the backup's folder", destination, fix=_COPY)
    _refuse_url(settings, where)
    if isinstance(where, DatabaseServer) and not files_only:
        raise SettingsError(
            f"The metadata is {where}, which its own tools dump. Dump it first, then copy the files:\n"
            f"  {format_dump_command(where)}\n"
            f"  spanwise backup {shlex.quote(str(destination))} --files-only"
        )
    if not settings.root.is_dir() or (isinstance(where, SqliteFile) and not where.path.exists()):
        raise UsageError(f"There is nothing to back up: {settings.root} holds no run yet.")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise UsageError(f"{destination} exists already. Name a new folder, for example {destination}-2.")
    if destination.resolve().is_relative_to(settings.root.resolve()):
        raise UsageError(f"{destination} lies in the root {settings.root}, which it is to protect. Name another.")


def _refuse_url(settings: Settings, where: SqliteFile | DatabaseServer) -> None:
    """Of a root in object storage there is nothing to copy: its bucket has versions and replicas of its own."""
    if settings.url is None:
        return
    if isinstance(where, SqliteFile):
        dump = f"sqlite3 {shlex.quote(str(where.path))} '.backup metadata.db'"
    else:
        dump = format_dump_command(where)
    raise SettingsError(
        f"The root is {settings.url}, which its storage protects: switch on versions or replication of the bucket. "
        f"To be restored, it needs the metadata as they were then or later. Copy those:\n  {dump}"
    )


def _read_record(source: Path) -> dict[str, object]:
    try:
        facts = json.loads((source / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError(
            f"{source} is not a finished backup: it has no {RECORD}. See: spanwise backup --help"
        ) from None
    return {"at": facts["at"], "metadata": facts["metadata"]}


def _compare(copied: Backup, root: Path, elsewhere: Sequence[str]) -> Backup:
    """Looks up in the copied metadata whether every artifact was copied."""
    from spanwise.orchestrator.mlmd import open_store

    checked = Checked()
    damaged: list[DamageReport] = []
    url = str(copied.folder.absolute() / _DATABASE)
    with contextlib.closing(open_store(url, root=copied.folder / _ROOT)) as store:
        for pipeline in store.pipelines():
            folders = (root.parent, copied.folder)
            damaged += check_artifacts(store, pipeline, checked, elsewhere=elsewhere, copied=folders)
    return Backup(
        folder=copied.folder,
        at=copied.at,
        with_metadata=copied.with_metadata,
        artifacts=checked.artifacts,
        size_bytes=checked.size_bytes,
        damaged=tuple(damaged),
    )


def _database_files(where: SqliteFile) -> list[Path]:
    """The database, and what a writer that was killed has left beside it: SQLite reads them together."""
    return [where.path.with_name(where.path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


def _move_aside(path: Path, *, like: Path | None = None) -> str:
    """The command that renames a file or folder to `….old`; of a database, its other files by the same new name."""
    named = like or path
    target = path.with_name(f"{named.name}.old{path.name.removeprefix(named.name)}")
    return shlex.join(["mv", str(path), str(target)])


def _left_out(settings: Settings, where: SqliteFile | DatabaseServer) -> Collection[Path]:
    root = settings.root.absolute()
    database = []
    if isinstance(where, SqliteFile):
        database = [*_database_files(where), where.lock]
    return {root / _SNAPSHOTS, *database}


def _copy_tree(source: Path, target: Path, left_out: Collection[Path]) -> None:
    """Copies what is not there yet; files that vanish meanwhile are left out, and links within the tree stay.

    Others may read a folder of the copy once all is copied, and only if they may read the original.

    Raises:
        UsageError: the target lies in a folder that a link in the source leads to.
    """
    copies: dict[tuple[int, int], Path] = {}  # of files with several names
    modes: dict[Path, int] = {}  # of new folders
    source = source.absolute()
    for here, found in _walk(source, source, left_out, (_real(source),), _real(target)):
        place = target / here.relative_to(source)
        if stat.S_ISDIR(found.st_mode):
            if not place.is_dir():
                place.mkdir(mode=0o700, parents=True)
                modes[place] = stat.S_IMODE(found.st_mode) | stat.S_IRWXU  # another round may add files
            continue
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISLNK(found.st_mode):
                place.unlink(missing_ok=True)
                place.symlink_to(here.readlink())
            elif not _is_copied(place, found):
                place.unlink(missing_ok=True)
                twin = copies.get((found.st_dev, found.st_ino))
                if twin is not None:
                    os.link(twin, place)
                else:
                    shutil.copy2(here, place)
        if found.st_nlink > 1 and place.exists():
            copies[found.st_dev, found.st_ino] = place
    for place, mode in modes.items():
        place.chmod(mode)


def _is_copied(place: Path, found: os.stat_result) -> bool:
    try:
        there = place.stat()
    except FileNotFoundError:
        return False
    return (there.st_size, there.st_mtime_ns) == (found.st_size, found.st_mtime_ns)


def _walk(
    root: Path, folder: Path, left_out: Collection[Path], tops: tuple[Path, ...], target: Path
) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields a folder of the root and everything below it, folders first, except what only a running run needs.

    A link that leads out of the tree stands for what it leads to. `tops` are the real places of the root and of the
    folders that such links on the way here lead to; no part of the tree is the real place `target`.
    """
    try:
        yield folder, folder.stat()
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        path = Path(entry.path)
        if path in left_out or _is_passing(path.relative_to(root)):
            continue
        outside = _place_outside(path, tops) if entry.is_symlink() else None
        if outside is not None and target.is_relative_to(outside):
            raise UsageError(f"{target} lies in {outside}, which {path} leads to. Name another folder.")
        if outside is not None and outside.is_dir():
            yield from _walk(root, path, left_out, (*tops, outside), target)
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(root, path, left_out, tops, target)
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            with contextlib.suppress(FileNotFoundError):
                yield path, path.lstat() if outside is None else path.stat()


def _place_outside(link: Path, tops: tuple[Path, ...]) -> Path | None:
    """The file or folder that a link leads to; None if it stays in its tree or leads in a circle, or to nothing."""
    try:
        is_absolute = link.readlink().is_absolute()
    except FileNotFoundError:  # collected meanwhile
        return None
    place = _real(link)
    is_within = not is_absolute and place.is_relative_to(tops[-1])
    if is_within or any(top.is_relative_to(place) for top in tops):
        return None
    return place if place.is_dir() or place.is_file() else None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # unlike `resolve`, which refuses links in a circle


def _is_passing(place: Path) -> bool:
    """Whether nothing needs a copy: PIPELINE/.runs/NUMBER/NODE.scratch, and what a collection is removing."""
    *home, name = place.parts
    if name.startswith(ASIDE):
        return len(home) < _OUTPUT_DEPTH or (len(home) == _OUTPUT_DEPTH and name.removeprefix(ASIDE).isdigit())
    return len(home) == _RUN_DEPTH and home[1] == ".runs" and name.endswith(_PASSING)
