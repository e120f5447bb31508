"""Commands that say where things come from: lineage, taint, and why one run is not as another."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.scheduler.cli.app import All, Config, Json, Root, Run, app, print_document, reading_store, settings_of

if TYPE_CHECKING:
    from spanwise.orchestrator.store import Store


class Format(StrEnum):
    """How lineage is drawn."""

    TEXT = "text"
    MERMAID = "mermaid"


@app.command()
def lineage(
    artifact: Annotated[
        str,
        typer.Argument(metavar="ARTIFACT", help="Its name, as `spanwise artifacts` has it; its id; or its folder."),
    ],
    down: Annotated[bool, typer.Option("--down/--up", help="What was made of it, not what it was made of.")] = False,
    depth: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many executions far. [default: all the way]")
    ] = None,
    format: Annotated[Format, typer.Option(help="How to draw it; each is printed.")] = Format.TEXT,  # noqa: A002
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show what an artifact was made of.

    Over all runs, with who made it; or, with --down, what was made of it.

    Example: spanwise lineage flights/Trainer/model/42
    """
    from spanwise.orchestrator.lineage import Direction, walk
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.inspect import lineage as rendering

    settings = settings_of(root, config)

    def shown(store: Store) -> None:
        start = find.artifact(store, artifact, settings.root)
        found = walk(store, [start], Direction.DOWN if down else Direction.UP, depth=depth)
        calendars = rendering.calendars(store, found.artifacts.values())
        if json:
            print_document(rendering.document(found, calendars))
        else:
            draw = {Format.TEXT: rendering.text, Format.MERMAID: rendering.mermaid}[format]
            typer.echo(draw(found, calendars))

    reading_store(root, config, shown)


@app.command()
def tainted(
    span: Annotated[str, typer.Option(metavar="SPAN", help="The span whose data was wrong, as a date or number.")],
    pipeline: Annotated[
        str | None,
        typer.Argument(metavar="PIPELINE", help="Its name, or its file. [default: the only one that has run]"),
    ] = None,
    version: Annotated[
        int | None, typer.Option(metavar="V", help="That version of it. [default: every superseded one]")
    ] = None,
    whole: All = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List the models that learned from wrong data.

    Directly or through warm starts, where each serves, and the backfill that replaces it. Exit code 1 when one serves
    now.

    Example: spanwise tainted flights --span 2013-01-05
    """
    from spanwise.scheduler.formatting import run_calendar
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.inspect import taint as tracing
    from spanwise.scheduler.run.launch import span_typed

    settings = settings_of(root, config)

    def told(store: Store) -> None:
        name, source = find.pipeline_or_file(store, pipeline, settings.params)
        newest = find.latest(store, name)
        assert newest is not None, "it was found among those that have run"
        wrong = span_typed(span, run_calendar(newest))
        found = tracing.taint(store, name, wrong, version=version, source=source)
        if json:
            print_document(tracing.document(found))
        else:
            typer.echo(tracing.told(found, whole=whole))
        raise typer.Exit(1 if found.serving else 0)

    reading_store(root, config, told)


@app.command()
def diff(
    run: Run,
    other: Annotated[str, typer.Argument(metavar="RUN", help="The run it is compared with.")],
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show what two runs do not have in common.

    Parameters, code, spans and versions, schema, statistics, metrics and time.

    Example: spanwise diff flights/41 flights/42
    """
    from spanwise.scheduler.inspect import diff as comparing
    from spanwise.scheduler.inspect import find

    def told(store: Store) -> None:
        before, after = find.run(store, run), find.run(store, other)
        found = comparing.differences(store, before, after)
        if json:
            print_document(comparing.document(before, after, found))
        else:
            typer.echo(comparing.told(before, after, found))

    reading_store(root, config, told)


@app.command()
def why(
    run: Run,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of the run.")],
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Say why a node was done, or reused.

    And what of its cache key has changed since the time before.

    Example: spanwise why flights/42 Trainer
    """
    from spanwise.scheduler.inspect import find
    from spanwise.scheduler.inspect import why as reasons

    def told(store: Store) -> None:
        found = reasons.why(store, find.run(store, run), node)
        if json:
            print_document(reasons.document(found))
        else:
            typer.echo(reasons.told(found))

    reading_store(root, config, told)
