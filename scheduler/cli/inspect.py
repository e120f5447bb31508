"""Commands that show runs, logs and artifacts."""

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
    read_store,
)
from spanwise.scheduler.cli.completion import complete_node

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

    def print_runs(store: Store) -> None:
        found = find.runs(store, pipeline, limit) if pipeline or store.pipelines() else []
        if json:
            print_document([records.run_document(r) for r in found])
        else:
            typer.echo(records.format_runs(found, now=now()) if found else "Nothing has run here yet.")

    read_store(root, config, print_runs)


@app.command()
def show(run: Run, whole: All = False, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Show a run and its nodes.

    For each node: its reason, duration, parameters, inputs and outputs.

    Example: spanwise show flights/42
    """
    from spanwise.scheduler.formatting import run_calendar
    from spanwise.scheduler.inspect import find, records, verdicts

    def print_run(store: Store) -> None:
        found = find.run(store, run)
        executions = store.executions(found)
        if json:
            calendar = run_calendar(found)
            nodes = [records.execution_document(e, calendar) for e in executions]
            said = verdicts.list_verdicts(store, verdicts.published(executions))
            print_document({**records.run_document(found), "executions": nodes, "verdicts": said})
        else:
            typer.echo(records.format_run(found, executions, now=now(), whole=whole))
            if judged := verdicts.format_verdicts(store, verdicts.published(executions)):
                typer.echo(f"\n{judged}")

    read_store(root, config, print_run)


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
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.run import logs as run_logs

    if follow and json:
        raise UsageError(
            "--follow and --json exclude each other: --follow prints lines as they come, --json one document."
        )

    def print_logs(store: Store) -> None:
        found = find.run(store, run)
        if json:
            print_document(run_logs.logs_document(run_logs.read_logs(store, found, node)))
        elif follow:
            for line in run_logs.follow_logs(store, found, node):
                typer.echo(line)
        else:
            typer.echo(run_logs.format_logs(run_logs.read_logs(store, found, node)))

    read_store(root, config, print_logs)


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

    def print_artifacts(store: Store) -> None:
        found, calendars = find.artifacts(store, pipeline, kind=type, span=span, limit=limit)
        if json:
            print_document(
                [
                    {
                        **records.artifact_document(a, calendars[a.name.partition("/")[0]]),
                        "verdicts": verdicts.list_verdicts(store, [a]),
                    }
                    for a in found
                ]
            )
        else:
            typer.echo(
                records.format_artifacts(found, calendars, verdicts=verdicts.describe_verdicts(store, found))
                if found
                else find.no_artifacts_message(store, pipeline, type)
            )

    read_store(root, config, print_artifacts)
