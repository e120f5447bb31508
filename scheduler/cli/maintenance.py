"""Commands that repair: stop a run, check the installation, back up and restore."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.scheduler.cli.app import (
    Config,
    Json,
    Root,
    Run,
    app,
    echo,
    location_options,
    print_document,
    read_settings,
)

if TYPE_CHECKING:
    from spanwise.scheduler.inspect.artifact_check import Checked

_EVERY_S = 5.0


@app.command()
def stop(
    run: Run,
    grace: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="How long its nodes may take to end. [default: grace_s, 10]"),
    ] = None,
    gone: Annotated[
        str,
        typer.Option(
            metavar="ENGINE",
            help="Close a dead run whose nodes were on this engine, such as ray:10.0.0.5:6379, which is gone for good.",
        ),
    ] = "",
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Stop a run, and wait until it has ended.

    Processes that do not end in time are killed; no process of the run is left.

    Example: spanwise stop flights
    """
    from spanwise.orchestrator.publisher import GoneEngine
    from spanwise.scheduler.inspect import find, records
    from spanwise.scheduler.ledger.schedule_status import user_name
    from spanwise.scheduler.project import root as home
    from spanwise.scheduler.run import openlineage
    from spanwise.scheduler.run import stop as stopping

    settings = read_settings(root, config)
    with home.open_to_record(settings) as store:
        grace_s = settings.grace_s if grace is None else grace
        found = find.run(store, run)
        if gone:
            engine = GoneEngine(name=gone, who=user_name())
            stopped = stopping.give_up_engine(store, found, settings.root, engine)
        else:
            by = f"`spanwise stop` of {user_name()}"
            stopped = stopping.stop(store, found, settings.root, grace_s=grace_s, by=by)
        if stopped.closed:
            openlineage.send_end(settings, store, stopped.run)
    if json:
        facts = {"how": stopped.how, "stopping_took_s": stopped.took_s}
        print_document({**records.run_document(stopped.run), **facts})
    else:
        typer.echo(str(stopped))


class VerifyProgress:
    """Prints how much was verified so far, every few seconds, to standard error."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _EVERY_S

    def show(self, checked: Checked) -> None:
        from spanwise.scheduler.formatting import format_size

        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            typer.echo(f"verified {checked.artifacts} artifacts, {format_size(checked.size_bytes)} …", err=True)


@app.command()
def doctor(
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Upgrade a database of an older ml-metadata. Copy it first.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every file of every artifact, and compare it with its digest.")
    ] = False,
    alert: Annotated[bool, typer.Option("--alert", help="Send a test message to every alert channel.")] = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Check everything that a run needs.

    The installation, the root, the metadata and their database, the artifacts of recent runs, the alert channels, and
    leftovers of earlier runs, each with the command that fixes it.

    Example: spanwise doctor
    """
    from spanwise.scheduler.inspect import doctor as checks

    found = []
    settings = read_settings(root, config)
    progress = VerifyProgress()
    options = location_options(root, config)
    for check in checks.run_checks(
        settings, migrate=migrate, alert=alert, deep=deep, elsewhere=options, progress=progress.show
    ):
        found.append(check)
        if not json:
            typer.echo(checks.format_check(check))
    if json:
        print_document([checks.check_document(check) for check in found])
    raise typer.Exit(1 if any(check.level == "fail" for check in found) else 0)


@app.command()
def backup(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the backup.")],
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Copy the root only: the metadata's server makes its own dump.")
    ] = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Copy the root and its metadata.

    The copy goes to a new folder, while runs and schedulers go on. What was published when it begins is in it.
    Snapshots of datasets, which are written again when they are missing, and files of running runs are not. Exit code 1
    when the root itself lacks files of recorded artifacts.

    Example: spanwise backup /backups/2024-06-01
    """
    from spanwise.scheduler.formatting import format_size, format_time
    from spanwise.scheduler.storage.backup import back_up

    options = location_options(root, config)
    made = back_up(read_settings(root, config), folder.expanduser(), files_only=files_only, elsewhere=options)
    if json:
        facts = {"artifacts": made.artifacts, "size_bytes": made.size_bytes, "metadata": made.with_metadata}
        lost = [{"artifact": d.artifact.name, "found": d.found, "fix": d.command} for d in made.damaged]
        print_document({"folder": str(made.folder), "at": made.at.isoformat(), **facts, "damaged": lost})
    else:
        what = f"{made.artifacts} artifacts, {format_size(made.size_bytes)}" if made.with_metadata else "files only"
        typer.echo(f"Backed up to {made.folder} as of {format_time(made.at)}: {what}.")
        for report in made.damaged:
            typer.echo(f"{report.artifact.name}: {report.found}\n      -> {report.command}", err=True)
    raise typer.Exit(1 if made.damaged else 0)


@app.command()
def restore(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that `spanwise backup` has made.")],
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Restore a backup.

    It is copied to the root and the metadata, where neither may exist yet. Runs that were running when the backup began
    are closed by the next run. Check the result with `spanwise doctor --deep`.

    Example: spanwise restore /backups/2024-06-01
    """
    from spanwise.scheduler.formatting import format_time
    from spanwise.scheduler.storage.backup import restore as restore_backup

    settings = read_settings(root, config)
    made = restore_backup(settings, folder.expanduser())
    if json:
        print_document({"root": settings.place, "at": made.at.isoformat(), "metadata": made.with_metadata})
    else:
        echo(
            f"Restored {settings.place} as of {format_time(made.at)}.\nVerify it:  spanwise doctor --deep", root, config
        )
