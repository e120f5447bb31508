"""The command line: its commands, their options and their words. What a command does is elsewhere.

Nothing but typer is imported before a command is chosen, so that `spanwise --help` answers at once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from orchestrator.store import Store
    from scheduler.settings import Settings

EXIT_CODES = {
    0: "done",
    1: "the run failed, or what was asked for could not be done",
    2: "the command, the pipeline file or a setting was wrong; nothing was started",
    3: "another run holds the pipeline; nothing was started",
    130: "Ctrl-C",
}

_EPILOGUE = "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {words}" for code, words in EXIT_CODES.items())

app = typer.Typer(
    name="spanwise",
    help="Retrain models on data that keeps arriving, one span at a time.",
    epilog=_EPILOGUE,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


class Format(StrEnum):
    """How a graph is drawn."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


Root: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where artifacts, logs and the metadata are. [default: .spanwise]")
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings to read. [default: the nearest spanwise.toml above]")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else, on stdout.")]
File: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help="A Python file; FILE:NAME picks a pipeline in it when it has several.")
]
Run: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", help="flights/42, flights (its newest), or 42 when only one pipeline is known.")
]
Param: TypeAlias = Annotated[
    list[str], typer.Option(metavar="NAME=VALUE", help="An argument of the pipeline function. May be repeated.")
]
SomePipeline: TypeAlias = Annotated[str | None, typer.Argument(metavar="PIPELINE", help="Only those of this pipeline.")]
Limit: TypeAlias = Annotated[int, typer.Option(min=1, help="How many at most.")]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="Also what is left at its default; cut nothing short.")]
AsOf: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Choose among what was published by then, such as 2013-01-08T03:00Z."),
]


def _version(value: bool) -> None:
    if value:
        from orchestrator import __version__

        typer.echo(f"spanwise {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. May stand anywhere.")] = False,
) -> None:
    pass


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
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do all work again, also what was done before.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Nodes at once. [default: one for each processor, two at least]")
    ] = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Run a pipeline, or a part of it.

    Example: spanwise run flights.py --span 2013-01-08
    """
    from scheduler import launch

    words = [("--root", root), ("--config", config)]
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
        elsewhere=[word for name, value in words if value is not None for word in (name, str(value))],
    )
    outcome, loaded = launch.launch(wish, _settings(root, config), json=json)
    with contextlib.suppress(BrokenPipeError):  # the exit code is the run's, whoever reads along
        if json:
            _print_document(launch.document(outcome))
        else:
            sys.stdout.write(launch.told(outcome, wish, loaded.pipeline) + "\n")
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
    from scheduler import load, show

    loaded = load.load(file, typed=param, settings=_settings(root, config).params)
    if json:
        _print_document(show.pipeline_document(loaded.pipeline, loaded.parameters))
    else:
        typer.echo(show.pipeline(loaded.pipeline, loaded.parameters, whole=whole))


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
    from scheduler import graph as drawing
    from scheduler import load

    pipeline = load.load(file, typed=param, settings=_settings(root, config).params).pipeline
    if json:
        edges = [
            {"from": e.source, "to": e.target, "key": e.key or None, "past": e.past} for e in drawing.edges(pipeline)
        ]
        _print_document({"pipeline": pipeline.name, "layers": drawing.layers(pipeline), "edges": edges})
        return
    draw = {Format.TEXT: drawing.text, Format.MERMAID: drawing.mermaid, Format.SVG: drawing.svg}[format]
    typer.echo(draw(pipeline))


@app.command()
def runs(
    pipeline: SomePipeline = None, limit: Limit = 20, root: Root = None, config: Config = None, json: Json = False
) -> None:
    """List runs, newest first.

    Example: spanwise runs flights --limit 5
    """
    from scheduler import find, show

    def listed(store: Store) -> None:
        found = find.runs(store, pipeline, limit) if pipeline or store.pipelines() else []
        if json:
            _print_document([show.run_document(r) for r in found])
        else:
            typer.echo(show.runs(found, now=_now()) if found else "Nothing has run here yet.")

    _reading(root, config, listed)


@app.command()
def show(run: Run, whole: All = False, root: Root = None, config: Config = None, json: Json = False) -> None:
    """Show a run and its nodes.

    For each: why it was done, what it took, read and made, and what that tells.

    Example: spanwise show flights/42
    """
    from scheduler import find
    from scheduler import show as rendering

    def shown(store: Store) -> None:
        found = find.run(store, run)
        executions = store.executions(found)
        if json:
            calendar = rendering.calendar_of(found)
            nodes = [rendering.execution_document(e, calendar) for e in executions]
            _print_document({**rendering.run_document(found), "executions": nodes})
        else:
            typer.echo(rendering.run(found, executions, now=_now(), whole=whole))

    _reading(root, config, shown)


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
    from orchestrator.errors import UsageError
    from scheduler import find
    from scheduler import logs as reading

    if follow and json:
        raise UsageError("--follow prints lines as they come, and --json one document at the end; take one of them.")

    def printed(store: Store) -> None:
        found = find.run(store, run)
        if json:
            _print_document(reading.document(reading.logs(store, found, node)))
        elif follow:
            for line in reading.followed(store, found, node):
                typer.echo(line)
        else:
            typer.echo(reading.told(reading.logs(store, found, node)))

    _reading(root, config, printed)


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
    from scheduler import find
    from scheduler import show as rendering

    def listed(store: Store) -> None:
        found, calendars = find.published(store, pipeline, kind=type, span=span, limit=limit)
        if json:
            _print_document([rendering.artifact_document(a, calendars[a.name.partition("/")[0]]) for a in found])
        else:
            typer.echo(rendering.artifacts(found, calendars) if found else find.nothing(store, pipeline, type))

    _reading(root, config, listed)


@app.command()
def stop(
    run: Run,
    grace: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="How long its nodes have to end. [default: grace_s, 10]"),
    ] = None,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Stop a run, and wait until it has ended.

    What will not end is killed; afterwards nothing of the run is left.

    Example: spanwise stop flights
    """
    from scheduler import find
    from scheduler import root as home
    from scheduler import show as rendering
    from scheduler import stop as stopping

    settings = _settings(root, config)
    with home.read(settings) as store:
        grace_s = settings.grace_s if grace is None else grace
        stopped = stopping.stop(store, find.run(store, run), settings.root, grace_s=grace_s)
    if json:
        facts = {"how": stopped.how, "stopping_took_s": stopped.took_s}
        _print_document({**rendering.run_document(stopped.run), **facts})
    else:
        typer.echo(str(stopped))


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
    from scheduler import load
    from scheduler import window as windows
    from scheduler.launch import moment, span_typed

    settings = _settings(root, config)
    loaded = load.load(file, typed=param, settings=settings.params)
    end = None if at is None else span_typed(at, loaded.calendar)
    then = None if as_of is None else moment(as_of)

    def told(store: Store) -> None:
        found = windows.windows(loaded, store, at=end, as_of=then)
        if json:
            _print_document([windows.document(w, loaded.calendar) for w in found])
        else:
            if loaded.pipeline.name not in store.pipelines():
                typer.echo(f"No run of {loaded.pipeline.name!r} is recorded in {settings.root}.")
            typer.echo("\n\n".join(windows.told(w, loaded.calendar) for w in found))
        raise typer.Exit(1 if any(w.refusal for w in found) else 0)

    _reading(root, config, told)


@app.command()
def doctor(
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Bring a database of an older ml-metadata up to date. Copy it first.")
    ] = False,
    root: Root = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Check all that a run needs.

    The installation, the root, the metadata, and what earlier runs have left; with what to type.

    Example: spanwise doctor
    """
    from scheduler import doctor as examination

    found = []
    for check in examination.checks(_settings(root, config), migrate=migrate):
        found.append(check)
        if not json:
            typer.echo(examination.told(check))
    if json:
        _print_document([examination.document(check) for check in found])
    raise typer.Exit(1 if any(check.level == "fail" for check in found) else 0)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or does not exist.")],
    root: Root = None,
) -> None:
    """Write a small project that works.

    A pipeline, a few days of data, settings and a test.

    Example: spanwise init flights
    """
    from scheduler import starter

    typer.echo(starter.told(starter.write(folder, root)))


def _settings(root: Path | None, config: Path | None) -> Settings:
    from scheduler import settings

    return settings.read(config=config, root=root)


def _reading(root: Path | None, config: Path | None, act: Callable[[Store], None]) -> None:
    from scheduler import root as home

    with home.read(_settings(root, config)) as store:
        act(store)


def _print_document(document: object) -> None:
    from scheduler.show import json_text

    sys.stdout.write(json_text(document) + "\n")


def _now() -> datetime:
    return datetime.now(UTC)
