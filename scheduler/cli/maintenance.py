"""Commands that repair: stop a run, check the installation."""

from __future__ import annotations

from typing import Annotated

import typer

from spanwise.scheduler.cli.app import Config, Json, Root, Run, app, print_document, read_settings


@app.command()
def stop(
    run: Run,
    grace: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="How long its nodes may take to end. [default: grace_s, 10]"),
    ] = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Stop a run, and wait until it has ended.

    Processes that do not end in time are killed; no process of the run is left.

    Example: spanwise stop flights
    """
    from spanwise.scheduler.inspect import find, records
    from spanwise.scheduler.ledger.schedule_status import user_name
    from spanwise.scheduler.project import root as home
    from spanwise.scheduler.run import stop as stopping

    settings = read_settings(root, config)
    with home.open_for_reading(settings) as store:
        grace_s = settings.grace_s if grace is None else grace
        by = f"`spanwise stop` of {user_name()}"
        stopped = stopping.stop(store, find.run(store, run), settings.root, grace_s=grace_s, by=by)
    if json:
        facts = {"how": stopped.how, "stopping_took_s": stopped.took_s}
        print_document({**records.run_document(stopped.run), **facts})
    else:
        typer.echo(str(stopped))


@app.command()
def doctor(
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Upgrade a database of an older ml-metadata. Copy it first.")
    ] = False,
    alert: Annotated[bool, typer.Option("--alert", help="Send a test message to every alert channel.")] = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Check everything that a run needs.

    The installation, the root, the metadata, the alert channels, and leftovers of earlier runs, each with the command
    that fixes it.

    Example: spanwise doctor
    """
    from spanwise.scheduler.inspect import doctor as checks

    found = []
    for check in checks.run_checks(read_settings(root, config), migrate=migrate, alert=alert):
        found.append(check)
        if not json:
            typer.echo(checks.format_check(check))
    if json:
        print_document([checks.check_document(check) for check in found])
    raise typer.Exit(1 if any(check.level == "fail" for check in found) else 0)
