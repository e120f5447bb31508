"""The program itself: what every command has in common, its options, exit codes and ways to print."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from spanwise.orchestrator.store import Store
    from spanwise.scheduler.project.settings import Settings

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
NoCache: TypeAlias = Annotated[bool, typer.Option("--no-cache", help="Do all work again, also what was done before.")]
Jobs: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Nodes at once. [default: one for each processor, two at least]")
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
        from spanwise.version import __version__

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


def settings_of(root: Path | None, config: Path | None) -> Settings:
    from spanwise.scheduler.project import settings

    return settings.read(config=config, root=root)


def reading_store(root: Path | None, config: Path | None, act: Callable[[Store], None]) -> None:
    from spanwise.scheduler.project import root as home

    with home.read(settings_of(root, config)) as store:
        act(store)


def print_document(document: object) -> None:
    from spanwise.scheduler.formatting import format_json

    sys.stdout.write(format_json(document) + "\n")


def now() -> datetime:
    return datetime.now(UTC)


def elsewhere(root: Path | None, config: Path | None) -> list[str]:
    """--root and --config as words, for a command that is to be typed next."""
    words = [("--root", root), ("--config", config)]
    return [word for name, value in words if value is not None for word in (name, str(value))]
