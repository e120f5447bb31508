"""Commands that look at what has run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.scheduler.cli.app import (
    All,
    Config,
    Json,
    Limit,
    Root,
    Run,
    SomePipeline,
    app,
    now,
    print_document,
    reading_store,
)

if TYPE_CHECKING:
    from spanwise.orchestrator.store import Store


@app.command()
def runs(
    pipeline: SomePipeline = None, limit: Limit = 20, root: Root = None, config: Config = None, json: Json = False
) -> None:
    """List runs, newest first.

    Example: spanwise runs flights --limit 5
    """
    from spanwise.scheduler.inspect import find, records

    def listed(store: Store) -> None:
        found = find.runs(store, pipeline, limit) if pipeline or store.pipelines() else []
        if json:
            print_document([records.run_document(r) for r in found])
        else:
            typer.echo(records.format_runs(found, now=now()) if found else "Nothing has run here yet.")

    reading_store(root, config, listed)


@app.command()
def show(run: Run, whole: All = False, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Show a run and its nodes.

    For each: why it was done, what it took, read and made, and what that tells.

    Example: spanwise show flights/42
    """
    from spanwise.scheduler.formatting import run_calendar
    from spanwise.scheduler.inspect import find, records

    def shown(store: Store) -> None:
        found = find.run(store, run)
        executions = store.executions(found)
        if json:
            calendar = run_calendar(found)
            nodes = [records.execution_document(e, calendar) for e in executions]
            print_document({**records.run_document(found), "executions": nodes})
        else:
            typer.echo(records.format_run(found, executions, now=now(), whole=whole))

    reading_store(root, config, shown)


@app.command()
def logs(
    run: Run,
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="Only what this node printed.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Print what the nodes of a run have printed.

    Example: spanwise logs flights Trainer --follow
    """
    from spanwise.orchestrator.errors import UsageError
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.run import logs as reading

    if follow and json:
        raise UsageError("--follow prints lines as they come, and --json one document at the end; take one of them.")

    def printed(store: Store) -> None:
        found = find.run(store, run)
        if json:
            print_document(reading.document(reading.logs(store, found, node)))
        elif follow:
            for line in reading.followed(store, found, node):
                typer.echo(line)
        else:
            typer.echo(reading.told(reading.logs(store, found, node)))

    reading_store(root, config, printed)


@app.command()
def artifacts(
    pipeline: SomePipeline = None,
    type: Annotated[str | None, typer.Option(metavar="TYPE", help="Only this type, such as Model.")] = None,  # noqa: A002
    span: Annotated[str | None, typer.Option(metavar="SPAN", help="Only this span, as a date or number.")] = None,
    limit: Limit = 20,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List what runs have published, newest first.

    Example: spanwise artifacts flights --type Examples --span 2013-01-08
    """
    from spanwise.scheduler.inspect import find, records

    def listed(store: Store) -> None:
        found, calendars = find.published(store, pipeline, kind=type, span=span, limit=limit)
        if json:
            print_document([records.artifact_document(a, calendars[a.name.partition("/")[0]]) for a in found])
        else:
            typer.echo(records.format_artifacts(found, calendars) if found else find.nothing(store, pipeline, type))

    reading_store(root, config, listed)
