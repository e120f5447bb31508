"""Commands that trace artifacts and compare runs: lineage, taint, why and diff."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.scheduler.cli.app import All, Config, Json, Root, Run, app, print_document, read_settings, read_store
from spanwise.scheduler.cli.completion import complete_node, complete_pipeline, complete_run

if TYPE_CHECKING:
    from spanwise.orchestrator.store import Store


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
    from spanwise.orchestrator.lineage import Direction, walk
    from spanwise.scheduler.inspect import find, verdicts
    from spanwise.scheduler.inspect import lineage as lineages

    settings = read_settings(root, config)

    def print_lineage(store: Store) -> None:
        start = find.artifact(store, artifact, settings.root)
        found = walk(store, [start], Direction.DOWN if down else Direction.UP, depth=depth)
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

    read_store(root, config, print_lineage)


@app.command()
def tainted(
    span: Annotated[str, typer.Option(metavar="SPAN", help="The span with wrong data, as a date or number.")],
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
    whole: All = False,
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
    from spanwise.scheduler.run.span_options import parse_span

    settings = read_settings(root, config)

    def print_taint(store: Store) -> None:
        name, source = find.pipeline_or_file(store, pipeline, settings.params)
        calendar = taints.find_calendar(store, name, span)
        wrong = parse_span(span, calendar)
        found = taints.trace_taint(store, name, wrong, version=version, source=source, calendar=calendar)
        if json:
            print_document(taints.taint_document(found))
        else:
            typer.echo(taints.format_taint(found, whole=whole))
        raise typer.Exit(1 if found.serving else 0)

    read_store(root, config, print_taint)


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
    from spanwise.scheduler.inspect import find

    def print_differences(store: Store) -> None:
        before, after = find.run(store, run), find.run(store, other)
        found = diffs.compare_runs(store, before, after)
        if json:
            print_document(diffs.differences_document(before, after, found))
        else:
            typer.echo(diffs.format_differences(before, after, found))

    read_store(root, config, print_differences)


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
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.inspect import why as explanations

    def print_explanation(store: Store) -> None:
        found = explanations.explain(store, find.run(store, run), node)
        if json:
            print_document(explanations.explanation_document(found))
        else:
            typer.echo(explanations.format_explanation(found))

    read_store(root, config, print_explanation)
