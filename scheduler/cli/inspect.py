"""Commands that show runs, logs and artifacts."""

from __future__ import annotations

from typing import Annotated

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
    echo,
    now,
    open_client,
    print_document,
)
from spanwise.scheduler.cli.completion import complete_node


@app.command()
def runs(
    pipeline: SomePipeline = None, limit: Limit = 20, root: Root = None, config: Config = None, json: Json = False
) -> None:
    """List runs, newest first.

    Example: spanwise runs flights --limit 5
    """
    from spanwise.scheduler.inspect import records
    from spanwise.scheduler.project.root import describe_root

    with open_client(root, config) as client:
        found = [record.run for record in client.runs(limit, pipeline=pipeline)]
    if json:
        print_document([records.run_document(run) for run in found])
    elif found:
        typer.echo(records.format_runs(found, now=now()))
    else:
        typer.echo(f"Nothing has run here yet.\n{describe_root(client.settings)}")


@app.command()
def show(run: Run, whole: All = False, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Show a run and its nodes.

    For each node: its reason, duration, parameters, inputs and outputs.

    Example: spanwise show flights/42
    """
    from spanwise.orchestrator.placement import find_placements
    from spanwise.scheduler.inspect import records, verdicts

    with open_client(root, config) as client:
        found = client.run_record(run)
        if json:
            print_document(found.document())
            return
        executions = [record.execution for record in found.executions()]
        placements = find_placements(client.session.store, executions)
        echo(records.format_run(found.run, executions, now=now(), whole=whole, placements=placements), root, config)
        if judged := verdicts.format_verdicts(client.session.store, verdicts.published(executions)):
            typer.echo(f"\n{judged}")


@app.command()
def logs(
    run: Run,
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="Only the log of this node.", autocompletion=complete_node)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the run has ended.")] = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Print the logs of a run.

    Example: spanwise logs flights Trainer --follow
    """
    from spanwise.orchestrator.errors import UsageError
    from spanwise.scheduler.run import logs as run_logs

    if follow and json:
        raise UsageError(
            "--follow and --json exclude each other: --follow prints lines as they come, --json one document."
        )

    with open_client(root, config) as client:
        found = client.run_record(run)
        if json:
            print_document(run_logs.logs_document(found.logs(node)))
        elif follow:
            for line in run_logs.follow_logs(client.session.store, found.run, node):
                typer.echo(line)
        else:
            typer.echo(run_logs.format_logs(found.logs(node)))


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
    """List artifacts, newest first.

    Example: spanwise artifacts flights --type Examples --span 2013-01-08
    """
    from spanwise.scheduler.inspect import find, records, verdicts
    from spanwise.scheduler.inspect.artifact_pages import PageFinder
    from spanwise.scheduler.inspect.collected import find_collected
    from spanwise.scheduler.project.root import describe_root

    with open_client(root, config) as client:
        found = client.artifacts(pipeline, kind=type, span=span, limit=limit)
        if json:
            pages = PageFinder()
            print_document([record.document(pages) for record in found])
        elif found:
            listed = [record.artifact for record in found]
            calendars = {record.pipeline: record.calendar for record in found}
            judged = verdicts.describe_verdicts(client.session.store, listed)
            gone = find_collected(client.session.store, listed)
            typer.echo(records.format_artifacts(listed, calendars, verdicts=judged, collected=gone))
        elif client.session.store.pipelines():
            typer.echo(find.no_artifacts_message(client.session.store, pipeline, type))
        else:
            typer.echo(f"Nothing has run here yet.\n{describe_root(client.settings)}")
