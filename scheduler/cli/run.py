"""Commands for a pipeline file: run it, validate it, draw it, show its window, create one."""

from __future__ import annotations

import contextlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from spanwise.scheduler.cli.app import (
    All,
    AsOf,
    Config,
    Exclude,
    File,
    Jobs,
    Json,
    NoCache,
    Param,
    Root,
    Run,
    app,
    echo,
    location_options,
    open_client,
    print_document,
    read_settings,
)
from spanwise.scheduler.cli.completion import complete_node

if TYPE_CHECKING:
    from spanwise.orchestrator.run_request import RunOutcome


class GraphFormat(StrEnum):
    """The output formats of a graph."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


@app.command()
def run(
    file: File,
    span: Annotated[
        list[str],
        typer.Option(
            metavar="SPAN",
            help="The span to ingest, such as 2013-01-08 or 7; NODE=SPAN for one of several nodes that ingest. "
            "May be repeated. [default: the newest]",
        ),
    ] = [],  # noqa: B006
    first: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="NODE",
            help="Run this node and all nodes after it. May be repeated.",
            autocompletion=complete_node,
        ),
    ] = [],  # noqa: B006  typer copies it
    last: Annotated[
        list[str],
        typer.Option(
            "--to", metavar="NODE", help="Run no nodes after this one. May be repeated.", autocompletion=complete_node
        ),
    ] = [],  # noqa: B006
    skip: Annotated[
        list[str],
        typer.Option(
            metavar="NODE",
            help="Skip this node unless its inputs change. May be repeated.",
            autocompletion=complete_node,
        ),
    ] = [],  # noqa: B006
    only: Annotated[
        list[str],
        typer.Option(metavar="NODE", help="Run only this node. May be repeated.", autocompletion=complete_node),
    ] = [],  # noqa: B006
    base_run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="The run, or `latest`, that supplies outputs of skipped nodes. [default: the newest that has them]",
        ),
    ] = None,
    exclude: Exclude = [],  # noqa: B006
    param: Param = [],  # noqa: B006
    as_of: AsOf = None,
    no_cache: NoCache = False,
    jobs: Jobs = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Run a pipeline, or a part of it.

    Example: spanwise run flights.py --span 2013-01-08
    """
    from spanwise.scheduler.run import launch

    options = launch.RunOptions(
        reference=file,
        span=span,
        exclude=exclude,
        first=first,
        last=last,
        skip=skip,
        only=only,
        base=base_run,
        params=param,
        as_of=as_of,
        cache=not no_cache,
        jobs=jobs,
    )
    outcome, _ = launch.launch(options, read_settings(root, config), json=json)
    _end(outcome, root, config, json=json)


@app.command()
def resume(
    run: Run,
    param: Param = [],  # noqa: B006
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not reuse results from the cache.")] = False,
    jobs: Jobs = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Resume a run that did not complete.

    Keeps the nodes that succeeded and runs the rest, for the same span and with the same `--param`s, except those given
    here. Other arguments come from the settings and the file as they are now.

    Example: spanwise resume flights/42
    """
    from spanwise.scheduler.run import resume as resuming
    from spanwise.scheduler.run.launch import ExecutionOptions

    execution = ExecutionOptions(jobs, cache=not no_cache)
    outcome, _ = resuming.resume(run, read_settings(root, config), execution, typed=param, json=json)
    _end(outcome, root, config, json=json)


def _end(outcome: RunOutcome, root: str | None, config: Path | None, *, json: bool) -> NoReturn:
    """Prints the outcome of a run, and exits with its exit code."""
    from spanwise.scheduler.run import launch

    with contextlib.suppress(BrokenPipeError):  # the exit code is the run's, also when nobody reads its output
        if json:
            print_document(launch.outcome_document(outcome))
        else:
            sys.stdout.write(launch.format_run_outcome(outcome, location_options(root, config)) + "\n")
            sys.stdout.flush()
    raise typer.Exit(launch.exit_code(outcome))


@app.command()
def validate(
    file: File,
    param: Param = [],  # noqa: B006
    whole: All = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Check a pipeline without running it.

    Builds the pipeline, which finds every mistake in its wiring, and shows its nodes.

    Example: spanwise validate flights.py
    """
    from spanwise.scheduler.inspect import records
    from spanwise.scheduler.project import load

    loaded = load.load(file, typed=param, settings=read_settings(root, config).params)
    if json:
        print_document(records.pipeline_document(loaded.pipeline, loaded.parameters))
    else:
        typer.echo(records.format_pipeline(loaded.pipeline, loaded.parameters, whole=whole))


@app.command()
def graph(
    file: File,
    format: Annotated[GraphFormat, typer.Option(help="The format to print.")] = GraphFormat.TEXT,  # noqa: A002
    param: Param = [],  # noqa: B006
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Draw a pipeline.

    Example: spanwise graph flights.py --format svg > flights.svg
    """
    from spanwise.scheduler.inspect import graph as drawing
    from spanwise.scheduler.project import load

    pipeline = load.load(file, typed=param, settings=read_settings(root, config).params).pipeline
    if json:
        edges = [
            {"from": e.source, "to": e.target, "key": e.key or None, "past": e.past}
            for e in drawing.list_edges(pipeline)
        ]
        print_document({"pipeline": pipeline.name, "layers": drawing.assign_layers(pipeline), "edges": edges})
        return
    draw = {
        GraphFormat.TEXT: drawing.format_text,
        GraphFormat.MERMAID: drawing.format_mermaid,
        GraphFormat.SVG: drawing.draw_svg,
    }[format]
    typer.echo(draw(pipeline))


@app.command()
def window(
    file: File,
    at: Annotated[
        str | None, typer.Option(metavar="SPAN", help="The last span of the window. [default: the newest]")
    ] = None,
    as_of: AsOf = None,
    exclude: Exclude = [],  # noqa: B006
    param: Param = [],  # noqa: B006
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show the window of the next run.

    The spans and versions that each resolver would choose, which are missing or superseded, and why. Exit code 1 when a
    run would fail.

    Example: spanwise window flights.py --at 2013-01-08
    """
    from spanwise.scheduler.inspect import window as windows
    from spanwise.scheduler.run.launch import parse_time
    from spanwise.scheduler.run.span_options import parse_end, parse_exclusions

    with open_client(root, config) as client:
        loaded = client.load(file, params=param)
        end = None if at is None else parse_end(at, loaded.pipeline)
        then = None if as_of is None else parse_time(as_of)
        excluded = parse_exclusions(exclude, loaded.pipeline)
        found = windows.find_windows(loaded, client.session.store, at=end, as_of=then, exclude=excluded)
        if json:
            print_document([windows.window_document(w, loaded.calendar) for w in found])
        else:
            if loaded.pipeline.name not in client.session.store.pipelines():
                typer.echo(f"No run of {loaded.pipeline.name!r} is recorded in {client.settings.place}.")
            echo("\n\n".join(windows.format_window(w) for w in found), root, config)
        raise typer.Exit(1 if any(w.refusal for w in found) else 0)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder, new or not; no file is overwritten.")],
    root: Root = None,
) -> None:
    """Create a working example project.

    With a pipeline, a few days of data, settings and a test.

    Example: spanwise init flights
    """
    from spanwise.scheduler.project import starter

    typer.echo(starter.format_next_steps(starter.write_project(folder, root)))
