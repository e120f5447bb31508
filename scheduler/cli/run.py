"""Commands about a pipeline file: run it, validate it, draw it, ask for its window, write one to begin with."""

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
    File,
    Jobs,
    Json,
    NoCache,
    Param,
    Root,
    Run,
    app,
    elsewhere,
    print_document,
    reading_store,
    settings_of,
)

if TYPE_CHECKING:
    from spanwise.orchestrator.run_request import RunOutcome
    from spanwise.orchestrator.store import Store


class Format(StrEnum):
    """How a graph is drawn."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


@app.command()
def run(
    file: File,
    span: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="The span to ingest, as a date or number. [default: the newest there is]"),
    ] = None,
    first: Annotated[
        list[str], typer.Option("--from", metavar="NODE", help="Run this node and all after it. May be repeated.")
    ] = [],  # noqa: B006  typer copies it
    last: Annotated[
        list[str], typer.Option("--to", metavar="NODE", help="Run nothing after this node. May be repeated.")
    ] = [],  # noqa: B006
    skip: Annotated[
        list[str],
        typer.Option(metavar="NODE", help="Leave this node out, unless its inputs change. May be repeated."),
    ] = [],  # noqa: B006
    only: Annotated[list[str], typer.Option(metavar="NODE", help="Run this node alone. May be repeated.")] = [],  # noqa: B006
    base_run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="The run, or `latest`, whose outputs stand in for nodes left out. [default: the newest that has them]",
        ),
    ] = None,
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

    wish = launch.Wish(
        reference=file,
        span=span,
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
    outcome, _ = launch.launch(wish, settings_of(root, config), json=json)
    _end(outcome, root, config, json=json)


@app.command()
def resume(
    run: Run,
    param: Param = [],  # noqa: B006
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Do all that is left again, also what was done.")
    ] = False,
    jobs: Jobs = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Take up a run that did not finish.

    What it has done stands. The rest is run, for the same span, with the same arguments but for those given here.

    Example: spanwise resume flights/42
    """
    from spanwise.scheduler.run import resume as resuming
    from spanwise.scheduler.run.launch import Effort

    effort = Effort(jobs, cache=not no_cache)
    outcome, _ = resuming.resume(run, settings_of(root, config), effort, typed=param, json=json)
    _end(outcome, root, config, json=json)


def _end(outcome: RunOutcome, root: Path | None, config: Path | None, *, json: bool) -> NoReturn:
    """Prints what became of a run, and ends with its exit code."""
    from spanwise.scheduler.run import launch

    with contextlib.suppress(BrokenPipeError):  # the exit code is the run's, whoever reads along
        if json:
            print_document(launch.document(outcome))
        else:
            sys.stdout.write(launch.told(outcome, elsewhere(root, config)) + "\n")
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
    """Show a pipeline's nodes, running nothing.

    It is built, so that every mistake in its wiring is found.

    Example: spanwise validate flights.py
    """
    from spanwise.scheduler.inspect import records
    from spanwise.scheduler.project import load

    loaded = load.load(file, typed=param, settings=settings_of(root, config).params)
    if json:
        print_document(records.pipeline_document(loaded.pipeline, loaded.parameters))
    else:
        typer.echo(records.format_pipeline(loaded.pipeline, loaded.parameters, whole=whole))


@app.command()
def graph(
    file: File,
    format: Annotated[Format, typer.Option(help="How to draw it; each is printed.")] = Format.TEXT,  # noqa: A002
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

    pipeline = load.load(file, typed=param, settings=settings_of(root, config).params).pipeline
    if json:
        edges = [
            {"from": e.source, "to": e.target, "key": e.key or None, "past": e.past} for e in drawing.edges(pipeline)
        ]
        print_document({"pipeline": pipeline.name, "layers": drawing.layers(pipeline), "edges": edges})
        return
    draw = {Format.TEXT: drawing.text, Format.MERMAID: drawing.mermaid, Format.SVG: drawing.svg}[format]
    typer.echo(draw(pipeline))


@app.command()
def window(
    file: File,
    at: Annotated[
        str | None, typer.Option(metavar="SPAN", help="The span the window ends at. [default: the newest]")
    ] = None,
    as_of: AsOf = None,
    param: Param = [],  # noqa: B006
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show what the next run would learn from.

    Which spans and versions, which are missing or superseded, and why. Exit code 1 when a run would fail there.

    Example: spanwise window flights.py --at 2013-01-08
    """
    from spanwise.scheduler.inspect import window as windows
    from spanwise.scheduler.project import load
    from spanwise.scheduler.run.launch import moment, span_typed

    settings = settings_of(root, config)
    loaded = load.load(file, typed=param, settings=settings.params)
    end = None if at is None else span_typed(at, loaded.calendar)
    then = None if as_of is None else moment(as_of)

    def told(store: Store) -> None:
        found = windows.find_windows(loaded, store, at=end, as_of=then)
        if json:
            print_document([windows.window_document(w, loaded.calendar) for w in found])
        else:
            if loaded.pipeline.name not in store.pipelines():
                typer.echo(f"No run of {loaded.pipeline.name!r} is recorded in {settings.root}.")
            typer.echo("\n\n".join(windows.format_window(w, loaded.calendar) for w in found))
        raise typer.Exit(1 if any(w.refusal for w in found) else 0)

    reading_store(root, config, told)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or does not exist.")],
    root: Root = None,
) -> None:
    """Write a small project that works.

    A pipeline, a few days of data, settings and a test.

    Example: spanwise init flights
    """
    from spanwise.scheduler.project import starter

    typer.echo(starter.told(starter.write(folder, root)))
