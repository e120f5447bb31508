"""Commands that trace artifacts and compare runs: lineage, taint, why and diff."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from spanwise.scheduler.cli.app import Config, Json, Root, Run, app, echo, open_client, print_document
from spanwise.scheduler.cli.completion import complete_node, complete_pipeline, complete_run


class LineageFormat(StrEnum):
    """The output formats of lineage."""

    TEXT = "text"
    MERMAID = "mermaid"


@app.command()
def lineage(
    artifact: Annotated[
        str,
        typer.Argument(metavar="ARTIFACT", help="Its name, as `spanwise artifacts` lists it, its id, or its folder."),
    ],
    down: Annotated[
        bool, typer.Option("--down/--up", help="What was made from it, not what it was made from.")
    ] = False,
    depth: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Follow at most N executions. [default: all]")
    ] = None,
    format: Annotated[LineageFormat, typer.Option(help="The format to print.")] = LineageFormat.TEXT,  # noqa: A002
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show what an artifact was made from.

    Across all runs, with the node that made each artifact. With --down, what was made from it.

    Example: spanwise lineage flights/Trainer/model/42
    """
    from spanwise.scheduler.inspect import lineage as lineages
    from spanwise.scheduler.inspect import verdicts

    with open_client(root, config) as client:
        found = client.artifact(artifact).lineage("down" if down else "up", depth=depth)
        store = client.session.store
        calendars = lineages.find_calendars(store, found.artifacts.values())
        if json:
            document = lineages.lineage_document(found, calendars)
            print_document({**document, "verdicts": verdicts.list_verdicts(store, found.artifacts.values())})
        else:
            said = verdicts.describe_verdicts(store, found.artifacts.values())
            mermaid = format is LineageFormat.MERMAID
            typer.echo(
                lineages.format_mermaid(found, calendars) if mermaid else lineages.format_tree(found, calendars, said)
            )


@app.command()
def tainted(
    span: Annotated[
        str, typer.Option(metavar="SPAN", help="The span with wrong data; NODE=SPAN where several nodes ingest.")
    ],
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar="PIPELINE",
            help="Its name, or its file. [default: the only one that has run]",
            autocompletion=complete_pipeline,
        ),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(metavar="V", help="The wrong version. [default: every superseded one, or else the newest]"),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Also list the other artifacts made from it.")] = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List models that learned from wrong data.

    Directly or through warm starts, with where each serves and the backfill that replaces it. Exit code 1 when one of
    them serves now.

    Example: spanwise tainted flights --span 2013-01-05
    """
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.inspect import taint as taints

    with open_client(root, config) as client:
        name, source = find.pipeline_or_file(client.session.store, pipeline, client.settings.params)
        found = client.pipeline(name).taint(span, version=version, source=source)
    if json:
        print_document(taints.taint_document(found))
    else:
        echo(taints.format_taint(found, whole=whole), root, config)
    raise typer.Exit(1 if found.serving else 0)


@app.command()
def diff(
    run: Run,
    other: Annotated[
        str, typer.Argument(metavar="RUN", help="The run to compare it with.", autocompletion=complete_run)
    ],
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show the differences between two runs.

    Parameters, code, spans and versions, schema, statistics, metrics and time.

    Example: spanwise diff flights/41 flights/42
    """
    from spanwise.scheduler.inspect import diff as diffs

    with open_client(root, config) as client:
        before, after = client.run_record(run), client.run_record(other)
        found = after.diff(before)
    if json:
        print_document(diffs.differences_document(before.run, after.run, found))
    else:
        typer.echo(diffs.format_differences(before.run, after.run, found))


@app.command()
def why(
    run: Run,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of the run.", autocompletion=complete_node)],
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Explain why a node was executed or reused.

    With the parts of its cache key that have changed since the last time.

    Example: spanwise why flights/42 Trainer
    """
    from spanwise.scheduler.inspect import why as explanations

    with open_client(root, config) as client:
        found = client.run_record(run).why(node)
    if json:
        print_document(explanations.explanation_document(found))
    else:
        typer.echo(explanations.format_explanation(found))
