"""The doctor: looks at everything a run needs and at what earlier runs have left, and says what to type."""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Literal

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.errors import NotRecorded, SpanwiseError
from spanwise.orchestrator.run import State
from spanwise.orchestrator.run_dir import run_dir
from spanwise.orchestrator.store import Store
from spanwise.scheduler.alerts import alert as words
from spanwise.scheduler.alerts import channel, outbox
from spanwise.scheduler.formatting import Document, format_size, format_time
from spanwise.scheduler.project.root import claim_root
from spanwise.scheduler.project.settings import Settings

Level = Literal["ok", "warn", "fail"]

LIBRARIES = (
    "apache-beam", "apprise", "croniter", "ml-metadata", "pyarrow", "pydantic", "pydantic-settings", "rich", "typer",
)  # fmt: skip
LEAST_FREE_BYTES = 1_000_000_000
LOOK_BACK = 50
"""How many runs of a pipeline are looked through for what was left open."""

_OLDEST, _NEWEST = (3, 11), (3, 13)
_MANY = 5
_MOST_FOLDERS = 2000


@dataclass(frozen=True)
class Check:
    """What was found of one thing."""

    name: str
    level: Level
    found: str
    todo: str = ""  #: what to type


def checks(settings: Settings, *, migrate: bool = False, alert: bool = False) -> Iterator[Check]:
    """Everything that is looked at, in turn.

    `migrate` brings an older database up to date on the way, `alert` sends a message to every channel.
    """
    yield _python()
    yield from _libraries()
    yield _settings(settings)
    yield from _root(settings.root)
    yield from _metadata(settings, migrate=migrate)
    yield from _alerts(settings, alert=alert)


def told(check: Check) -> str:
    """A check as a line, with what to type below it."""
    line = f"{check.level:<4}  {check.name}: {check.found}"
    return f"{line}\n      -> {check.todo}" if check.todo else line


def document(check: Check) -> Document:
    """A check for programs."""
    return {"name": check.name, "level": check.level, "found": check.found, "todo": check.todo or None}


def _python() -> Check:
    version = sys.version_info
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if _OLDEST <= version[:2] <= _NEWEST:
        return Check("python", "ok", found)
    return Check("python", "fail", found, "Use Python 3.11, 3.12 or 3.13: python3.11 -m venv .venv")


def _libraries() -> Iterator[Check]:
    for name in LIBRARIES:
        try:
            yield Check(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Check(name, "fail", "is not installed", f"pip install {name}")


def _settings(settings: Settings) -> Check:
    return Check("settings", "ok", str(settings.file) if settings.file else "no spanwise.toml: the defaults hold")


def _root(root: Path) -> Iterator[Check]:
    there = next(p for p in (root, *root.parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Check("root", "fail", f"{root} cannot be written to", f"chmod u+rwx {there}, or name another: --root DIR")
        return
    yield Check("root", "ok", str(root) if there == root else f"{root} (made by the first run)")
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE_BYTES:
        yield Check("free space", "warn", f"{format_size(free)} left", f"Make room: df -h {there}; du -sh {there}/*")
    else:
        yield Check("free space", "ok", f"{format_size(free)} left")


def _metadata(settings: Settings, *, migrate: bool) -> Iterator[Check]:
    from spanwise.orchestrator.mlmd import open_store
    from spanwise.orchestrator.mlmd.location import SqliteFile, location

    try:
        where = location(settings.metadata)
        if isinstance(where, SqliteFile) and not where.path.exists():
            yield Check("metadata", "ok", f"{where} (made by the first run)")
            return
        store = open_store(settings.metadata, migrate=migrate)
    except SpanwiseError as error:
        yield Check("metadata", "fail", "does not open", str(error))
        return
    try:
        yield Check("metadata", "ok", f"{where} opens with ml-metadata {metadata.version('ml-metadata')}")
        if settings.root.is_dir():
            yield _identity(store, settings)
        for pipeline in store.pipelines():
            yield _lease(store, pipeline)
            yield from _open_runs(store, pipeline)
            yield from _scratch(store, settings.root, pipeline)
        yield _leftovers(store, settings.root)
    except SpanwiseError as error:
        yield Check("metadata", "fail", "does not answer", str(error))
    finally:
        store.close()


def _alerts(settings: Settings, *, alert: bool) -> Iterator[Check]:
    try:
        routes = channel.routes(settings.alerts)
        if not routes.channels:
            yield Check("alerts", "ok", "go nowhere: [alerts] in spanwise.toml has no urls")
            return
        channel.check(routes)
    except SpanwiseError as error:
        yield Check("alerts", "fail", "cannot be sent", str(error))
        return
    yield Check("alerts", "ok", f"go to {', '.join(c.name for c in routes.channels)}")
    if left := [letter for letter in outbox.waiting(settings.root) if letter.todo]:
        tried = [f"{name}: {a.error}" for letter in left for name, a in letter.todo.items() if a.error]
        since = f"{len(left)} could not be sent yet, the oldest since {format_time(left[0].since)}"
        yield Check("outbox", "warn", "; ".join(dict.fromkeys([since, *tried])), "spanwise doctor --alert")
    if alert:
        trial = words.trial(at=datetime.now(UTC), site=words.here())
        for name, fault in outbox.tell(routes.channels, trial).items():
            yield Check(f"message to {name}", "fail" if fault else "ok", fault or "was taken: look whether it has come")


def _identity(store: Store, settings: Settings) -> Check:
    try:
        claim_root(store, settings)
    except SpanwiseError as error:
        return Check("root and metadata", "fail", "do not belong together", str(error))
    return Check("root and metadata", "ok", "belong together")


def _lease(store: Store, pipeline: str) -> Check:
    holder = lease.current(store, pipeline)
    name = f"lease of {pipeline}"
    if holder is None or holder.released:
        return Check(name, "ok", "free")
    who = f"{holder.purpose} (pid {holder.who.pid} on {holder.who.host}, since {format_time(holder.acquired)})"
    alive = process.alive(holder.who)
    if alive is False:
        return Check(
            name, "warn", f"left by {who}, which is dead", f"spanwise stop {pipeline}  (the next run does it too)"
        )
    if alive is None:
        return Check(name, "ok", f"held by {who}; it last answered {format_time(holder.last_beat)}")
    return Check(name, "ok", f"held by {who}")


def _open_runs(store: Store, pipeline: str) -> Iterator[Check]:
    holder = lease.current(store, pipeline)
    for run in itertools.islice(store.runs(pipeline), LOOK_BACK):
        held = holder is not None and not holder.released and holder.token == run.token
        if run.state is State.RUNNING and not (held and process.alive(holder.who) is not False):  # type: ignore[union-attr]  # `held` says it
            yield Check(f"run {run.name}", "warn", "was left open: its controller is gone", f"spanwise stop {run.name}")


def _scratch(store: Store, root: Path, pipeline: str) -> Iterator[Check]:
    left = [
        folder
        for run in itertools.islice(store.runs(pipeline), LOOK_BACK)
        if run.state.ended
        for folder in run_dir(root, run).glob("*.scratch")
    ]
    if left:
        named = " ".join(map(str, left[:_MANY])) + (" …" if len(left) > _MANY else "")
        yield Check(f"scratch of {pipeline}", "warn", f"{len(left)} folders were left", f"rm -r {named}")


def _leftovers(store: Store, root: Path) -> Check:
    """Output folders of executions that published nothing; a run that dies leaves them, and nothing ever reads them."""
    folders = itertools.islice(root.glob("[!.]*/[!.]*/*/*"), _MOST_FOLDERS)
    left = [folder for folder in folders if folder.name.isdigit() and not _in_use(store, int(folder.name))]
    if not left:
        return Check("leftovers", "ok", "none")
    named = " ".join(map(str, left[:_MANY])) + (" …" if len(left) > _MANY else "")
    return Check("leftovers", "warn", f"{len(left)} output folders that were never published", f"rm -r {named}")


def _in_use(store: Store, execution: int) -> bool:
    try:
        return store.execution(execution).state in (State.COMPLETE, State.RUNNING)
    except NotRecorded:
        return False
