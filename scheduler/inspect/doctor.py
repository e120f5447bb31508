"""The doctor: checks everything a run needs and what earlier runs have left, and names the commands that fix it."""

from __future__ import annotations

import itertools
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.artifact import Model
from spanwise.orchestrator.errors import SpanwiseError, StorageError
from spanwise.orchestrator.run_dir import run_dir
from spanwise.orchestrator.serving import last_pushes, version_instead
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert as alerting
from spanwise.scheduler.alerts import channel, outbox
from spanwise.scheduler.formatting import Document, add_options, as_document, format_size, format_time
from spanwise.scheduler.inspect.artifact_check import Checked, check_artifacts
from spanwise.scheduler.inspect.database_file import find_database_damage
from spanwise.scheduler.inspect.disk_inventory import find_leftovers
from spanwise.scheduler.inspect.rollback import find_rollback
from spanwise.scheduler.ledger.holder import is_heard, is_left_open
from spanwise.scheduler.project.root import archive_of, check_root
from spanwise.scheduler.project.settings import Settings

if TYPE_CHECKING:
    from spanwise.orchestrator.mlmd.location import DatabaseServer

Level = Literal["ok", "warn", "fail"]

LIBRARIES = (
    "apache-beam", "apprise", "croniter", "ml-metadata", "pyarrow", "pydantic", "rich", "typer",
)  # fmt: skip
LEAST_FREE_BYTES = 1_000_000_000
LOOK_BACK = 50
"""How many recent runs of a pipeline are searched for ones that were not closed."""

_OLDEST, _NEWEST = (3, 11), (3, 13)
_MANY = 5


@dataclass(frozen=True)
class HealthCheck:
    """The result of one check."""

    name: str
    level: Level
    found: str
    fix: str = ""  #: the command that fixes it


def run_checks(
    settings: Settings,
    *,
    migrate: bool = False,
    alert: bool = False,
    deep: bool = False,
    elsewhere: Sequence[str] = (),
    progress: Callable[[Checked], None] = lambda _checked: None,
) -> Iterator[HealthCheck]:
    """Runs every check in turn.

    `migrate` also upgrades an older database, `alert` also sends a message to every channel, and `deep` reads every
    file of every artifact; `progress` is then called with what was read so far. `elsewhere` is --root and --config as
    typed, for the commands.
    """
    checks = itertools.chain(
        [_python()],
        _libraries(),
        [_settings(settings)],
        _root(settings.root),
        _bucket(settings) if settings.url is not None else (),
        _metadata(settings, migrate=migrate, deep=deep, elsewhere=elsewhere, progress=progress),
        _alerts(settings, alert=alert),
    )
    for check in checks:
        yield replace(check, fix=add_options(check.fix, elsewhere))


def format_check(check: HealthCheck) -> str:
    """A check as a line, with the command that fixes it below."""
    line = f"{check.level:<4}  {check.name}: {check.found}"
    below = check.fix.replace("\n", "\n         ")
    return f"{line}\n      -> {below}" if below else line


def check_document(check: HealthCheck) -> Document:
    """A check for programs."""
    return {**as_document(check), "fix": check.fix or None}


def _python() -> HealthCheck:
    version = sys.version_info
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if _OLDEST <= version[:2] <= _NEWEST:
        return HealthCheck("python", "ok", found)
    return HealthCheck("python", "fail", found, "Use Python 3.11, 3.12 or 3.13: python3.11 -m venv .venv")


def _libraries() -> Iterator[HealthCheck]:
    for name in LIBRARIES:
        try:
            yield HealthCheck(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            yield HealthCheck(name, "fail", "not installed", f"pip install {name}")


def _settings(settings: Settings) -> HealthCheck:
    return HealthCheck("settings", "ok", str(settings.file) if settings.file else "no spanwise.toml: defaults apply")


def _root(root: Path) -> Iterator[HealthCheck]:
    from spanwise.orchestrator.mlmd.location import describe_read_only

    there = next(p for p in (root, *root.parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        how = describe_read_only(root) if there.is_dir() else f"{there} is not a folder."
        yield HealthCheck("root", "fail", f"{root} is not writable", f"{how}\nOr use another root: --root DIR")
        return
    yield HealthCheck("root", "ok", str(root) if there == root else f"{root} (created by the first run)")
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE_BYTES:
        place = shlex.quote(str(there))
        look = f"Free some space: df -h {place}; du -sh {place}/*"
        yield HealthCheck("free space", "warn", f"{format_size(free)} left", look)
    else:
        yield HealthCheck("free space", "ok", f"{format_size(free)} left")


def _bucket(settings: Settings) -> Iterator[HealthCheck]:
    """Whether the root in object storage can be reached, and the metadata from other machines too."""
    from spanwise.orchestrator.mlmd.location import SqliteFile, parse_location

    archive = archive_of(settings)
    assert archive is not None
    try:
        archive.claimed_by()
    except SpanwiseError as error:
        yield HealthCheck("object storage", "fail", "cannot be used", str(error))
        return
    yield HealthCheck("object storage", "ok", f"{settings.url} can be read; copies are in {settings.root}")
    if isinstance(parse_location(settings.metadata), SqliteFile):
        server = 'metadata = "postgresql://user@host/database" in spanwise.toml'
        yield HealthCheck("machines", "ok", f"only this one has the metadata; for several:  {server}")


def _metadata(
    settings: Settings, *, migrate: bool, deep: bool, elsewhere: Sequence[str], progress: Callable[[Checked], None]
) -> Iterator[HealthCheck]:
    from spanwise.orchestrator.mlmd import open_store
    from spanwise.orchestrator.mlmd.location import DatabaseServer, SqliteFile, describe_read_only, parse_location

    try:
        where = parse_location(settings.metadata)
        if isinstance(where, SqliteFile) and not where.path.exists():
            yield HealthCheck("metadata", "ok", f"{where} (created by the first run)")
            return
        if (
            isinstance(where, SqliteFile)
            and where.path.is_file()
            and (damage := find_database_damage(where.path, deep=deep))
        ):
            yield _damaged_database(where.path, damage)
            return
        store = open_store(settings.metadata, root=settings.root, archive=archive_of(settings), migrate=migrate)
    except SpanwiseError as error:
        yield HealthCheck("metadata", "fail", "could not open", str(error))
        return
    try:
        if isinstance(where, SqliteFile) and (file := where.find_read_only()) is not None:
            yield HealthCheck("metadata", "fail", f"{where} can only be read", describe_read_only(file))
        yield HealthCheck("metadata", "ok", f"{where} opens with ml-metadata {metadata.version('ml-metadata')}")
        if isinstance(where, DatabaseServer) and where.kind == "postgresql" and find_spec("psycopg2") is None:
            how = "through ml-metadata; psycopg2, which reads PostgreSQL several times faster, is not installed"
            yield HealthCheck("reading", "warn", how, "pip install 'spanwise[postgresql]'")
        if deep and isinstance(where, DatabaseServer):
            yield _server(where)
        yield (belongs := _identity(store, settings))
        if belongs.level == "fail":
            return  # all in this root would look as if nobody needed it, and all in the store as if it were lost
        yield from _pipelines(store, settings.root, deep=deep, elsewhere=elsewhere, progress=progress)
    except SpanwiseError as error:
        yield HealthCheck("metadata", "fail", "unavailable", str(error))
    finally:
        store.close()


def _pipelines(
    store: Store, root: Path, *, deep: bool, elsewhere: Sequence[str], progress: Callable[[Checked], None]
) -> Iterator[HealthCheck]:
    pipelines = store.pipelines()
    for pipeline in pipelines:
        yield _lease(store, pipeline)
        yield from _open_runs(store, pipeline)
        yield from _scratch(store, root, pipeline)
        yield from _serving(store, pipeline)
        yield from _artifacts(store, pipeline, deep=deep, elsewhere=elsewhere, progress=progress)
    yield _leftovers(store, root, pipelines)


def _alerts(settings: Settings, *, alert: bool) -> Iterator[HealthCheck]:
    try:
        routes = channel.read_routes(settings.alerts)
        if not routes.channels:
            yield HealthCheck("alerts", "ok", "not configured: [alerts] in spanwise.toml has no urls")
            return
        channel.check_channels(routes)
    except SpanwiseError as error:
        yield HealthCheck("alerts", "fail", "not usable", str(error))
        return
    yield HealthCheck("alerts", "ok", f"sent to {', '.join(c.name for c in routes.channels)}")
    try:
        waiting = outbox.list_waiting(settings.place)
    except SpanwiseError as error:
        yield HealthCheck("outbox", "fail", "cannot be read", str(error))
        return
    if left := [letter for letter in waiting if letter.todo]:
        tried = [f"{name}: {a.error}" for letter in left for name, a in letter.todo.items() if a.error]
        since = f"{len(left)} not sent yet, the oldest since {format_time(left[0].since)}"
        yield HealthCheck("outbox", "warn", "; ".join(dict.fromkeys([since, *tried])), "spanwise doctor --alert")
    if alert:
        trial = alerting.trial_alert(at=datetime.now(UTC), site=alerting.local_site())
        for name, fault in outbox.send_now(routes.channels, trial).items():
            yield HealthCheck(
                f"message to {name}", "fail" if fault else "ok", fault or "accepted: check that it has arrived"
            )


def _identity(store: Store, settings: Settings) -> HealthCheck:
    try:
        check_root(store, settings)
    except StorageError as error:
        return HealthCheck("root and metadata", "fail", "could not be checked", str(error))
    except SpanwiseError as error:
        return HealthCheck("root and metadata", "fail", "do not belong together", str(error))
    return HealthCheck("root and metadata", "ok", "belong together")


def _serving(store: Store, pipeline: str) -> Iterator[HealthCheck]:
    """Whether what was pushed last serves: restored metadata do not know what was pushed after the backup."""
    for push in last_pushes(store, pipeline):
        try:
            instead = version_instead(store, push)
        except StorageError as error:
            yield HealthCheck(f"what serves of {pipeline}", "warn", f"cannot be seen: {error}")
            continue
        if instead is not None and instead.push is None:
            found = f"{instead.place} serves, which is newer than the last recorded push, {push.model} by {push.run}"
            again = find_rollback(store, push)
            which = (
                "" if again is None else "push that, or " if again.model == push.model else "push an earlier one, or "
            )
            found = f"{found}; {which}run the pipeline, which pushes a newer model"
            yield HealthCheck(f"what serves of {pipeline}", "warn", found, "" if again is None else again.command)


def _server(server: DatabaseServer) -> HealthCheck:
    from spanwise.scheduler.inspect.database_server import check_server, format_check_command

    checked = check_server(server)
    if checked.damage:
        return HealthCheck(
            "database",
            "fail",
            f"{server} is damaged: {checked.damage}",
            "restore the database from a backup of its server",
        )
    if checked.why_not:
        return HealthCheck("database", "warn", f"not checked: {checked.why_not}", format_check_command(server))
    return HealthCheck("database", "ok", "its tables and indexes are sound")


def _damaged_database(file: Path, damage: str) -> HealthCheck:
    return HealthCheck(
        "metadata",
        "fail",
        f"{file} is damaged: {damage}",
        "stop everything that uses it, move it and the root aside, then:  spanwise restore BACKUP",
    )


def _artifacts(
    store: Store, pipeline: str, *, deep: bool, elsewhere: Sequence[str], progress: Callable[[Checked], None]
) -> Iterator[HealthCheck]:
    """Whether the artifacts of recent runs are on disk; `deep`: whether those of all runs are as published."""
    checked, damaged = Checked(), 0
    runs = None if deep else LOOK_BACK
    reports = check_artifacts(store, pipeline, checked, runs=runs, deep=deep, elsewhere=elsewhere, progress=progress)
    try:
        for report in reports:
            damaged += 1
            otherwise = "give it up" if report.artifact.is_a(Model) else "create it again"
            fix = f"restore it from a backup, or {otherwise}: {report.command}"
            yield HealthCheck(f"artifact {report.artifact.name}", "fail", report.found, fix)
    except StorageError as error:  # or the disk is full that the copies are on
        yield HealthCheck(f"artifacts of {pipeline}", "fail", "could not be checked", str(error))
        return
    size = format_size(checked.size_bytes)
    what = f"of {checked.artifacts} verified ({size})" if deep else f"of {checked.artifacts} from recent runs on disk"
    yield HealthCheck(f"artifacts of {pipeline}", "fail" if damaged else "ok", f"{checked.artifacts - damaged} {what}")


def _lease(store: Store, pipeline: str) -> HealthCheck:
    holder = lease.current(store, pipeline)
    name = f"lease of {pipeline}"
    if holder is None or holder.released:
        return HealthCheck(name, "ok", "free")
    who = f"{holder.purpose} (pid {holder.who.pid} on {holder.who.host}, since {format_time(holder.acquired)})"
    alive = process.is_alive(holder.who)
    if alive is False:
        found = f"left by {who}, which died; this command releases it, or the next run"
        return HealthCheck(name, "warn", found, f"spanwise stop {pipeline}")
    if alive is None and not is_heard(store, holder):
        found = f"held by {who}; no heartbeat since {format_time(holder.last_beat)}; this command releases it"
        return HealthCheck(name, "warn", found, f"spanwise stop {pipeline}")
    return HealthCheck(name, "ok", f"held by {who}")


def _open_runs(store: Store, pipeline: str) -> Iterator[HealthCheck]:
    for run in itertools.islice(store.runs(pipeline), LOOK_BACK):
        if is_left_open(store, run):
            yield HealthCheck(
                f"run {run.name}", "warn", "not closed: its controller is gone", f"spanwise stop {run.name}"
            )


def _scratch(store: Store, root: Path, pipeline: str) -> Iterator[HealthCheck]:
    left = [
        folder
        for run in itertools.islice(store.runs(pipeline), LOOK_BACK)
        if run.state.ended
        for folder in run_dir(root, run).glob("*.scratch")
    ]
    if left:
        yield _removable(f"scratch of {pipeline}", left, "folders left over")


def _leftovers(store: Store, root: Path, pipelines: Sequence[str]) -> HealthCheck:
    """What runs that died, and interrupted collections, have left below the nodes; in the root lie other things too."""
    try:
        left = [leftover.path for pipeline in pipelines for leftover in find_leftovers(store, root, pipeline)]
    except OSError as error:
        return HealthCheck("leftovers", "warn", f"{error.filename} cannot be read: {error.strerror}")
    if not left:
        return HealthCheck("leftovers", "ok", "none")
    return _removable("leftovers", left, "output folders that nothing reads")


def _removable(name: str, folders: Sequence[Path], what: str) -> HealthCheck:
    """Folders that nothing reads, and the command that removes them; of many, the first ones."""
    more = f"; remove {_MANY} of them, then check again" if len(folders) > _MANY else ""
    found = f"{len(folders)} {what}{more}"
    return HealthCheck(name, "warn", found, f"rm -r {shlex.join(map(str, folders[:_MANY]))}")
