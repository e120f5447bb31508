"""The program itself: the options, exit codes and output that all commands share."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from typer.models import CommandInfo

from spanwise.scheduler.cli.completion import complete_pipeline, complete_run
from spanwise.scheduler.cli.conversion import convert_plainly

if TYPE_CHECKING:
    from spanwise.scheduler.client import Client
    from spanwise.scheduler.project.settings import Settings

EXIT_CODES = {
    0: "success",
    1: "the run or the command failed",
    2: "the command, the pipeline file or a setting is wrong; nothing was started",
    3: "another run holds the pipeline; nothing was started",
    130: "Ctrl-C",
}

_EPILOGUE = "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())

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
    str | None, typer.Option(metavar="DIR", help="The folder or URL of artifacts and logs. [default: .spanwise]")
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The settings file. [default: the nearest spanwise.toml above]")
]
Because: TypeAlias = Annotated[str, typer.Option(metavar="TEXT", help="The reason; recorded with who and when.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
File: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help="A Python file; FILE:NAME selects a pipeline if it has several.")
]
Run: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="flights/42, flights (its newest), or 42 when only one pipeline is known.",
        autocompletion=complete_run,
    ),
]
Param: TypeAlias = Annotated[
    list[str], typer.Option(metavar="NAME=VALUE", help="An argument of the pipeline function. May be repeated.")
]
NoCache: TypeAlias = Annotated[bool, typer.Option("--no-cache", help="Do not reuse results from the cache.")]
Jobs: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Parallel nodes. [default: one per processor, at least two]")
]
SomePipeline: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="PIPELINE", help="Only this pipeline.", autocompletion=complete_pipeline)
]
Limit: TypeAlias = Annotated[int, typer.Option(min=1, max=10**9, metavar="N", help="The maximum number to list.")]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="Include defaults, and shorten nothing.")]
Exclude: TypeAlias = Annotated[
    list[str],
    typer.Option(
        metavar="SPAN",
        help="Leave a span, or A..B, out of all windows; NODE=SPAN out of one. May be repeated.",
    ),
]
AsOf: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Use only artifacts published by then, such as 2013-01-08T03:00Z."),
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
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Allowed at any position.")
    ] = False,
) -> None:
    pass


def find_command(arguments: Sequence[str]) -> Callable[..., object]:
    """The program with the one command that the arguments name; if they name none, with a list of all."""
    if "_SPANWISE_COMPLETE" in os.environ:  # the shell asks, and may mean an option of any
        return _build(app)
    return _build_named(next((word for word in arguments if not word.startswith("-")), ""))


def _build(program: typer.Typer) -> Callable[..., object]:
    convert_plainly()
    return typer.main.get_command(program)


@functools.cache
def _build_named(name: str) -> Callable[..., object]:
    """The program with the command or group of this name alone, if there is one: to build all takes 35 ms."""
    program = copy.copy(app)
    program.registered_commands = [one for one in app.registered_commands if name == _name(one)]
    program.registered_groups = [
        one for one in app.registered_groups if one.typer_instance and name == one.typer_instance.info.name
    ]
    return _build(program if program.registered_commands or program.registered_groups else _outline())


def _name(command: CommandInfo) -> str:
    assert command.callback is not None, "set by the decorator"
    return command.name or typer.main.get_command_name(command.callback.__name__)


def _outline() -> typer.Typer:
    """The program with all commands and groups, but without what is in them: enough to list them."""
    program = copy.copy(app)
    program.registered_commands, program.registered_groups = [], []
    for command in app.registered_commands:
        listed = copy.copy(command)
        listed.name, listed.help = _name(command), command.help or inspect.getdoc(command.callback)
        listed.callback = _do_nothing
        program.registered_commands.append(listed)
    for group in app.registered_groups:
        empty = copy.copy(group)
        empty.typer_instance = copy.copy(group.typer_instance)
        if empty.typer_instance is not None:
            empty.typer_instance.registered_commands, empty.typer_instance.registered_groups = [], []
        program.registered_groups.append(empty)
    return program


def _do_nothing() -> None:
    pass


def read_settings(root: str | None, config: Path | None) -> Settings:
    from spanwise.scheduler.project import settings

    return settings.read(config=config, root=root)


@contextlib.contextmanager
def open_client(root: str | None, config: Path | None) -> Iterator[Client]:
    """What notebooks and the web page use too; commands print what it returns."""
    from spanwise.scheduler.client import Client
    from spanwise.scheduler.project.root import naming_root

    settings = read_settings(root, config)
    with Client(settings, config=config) as client, naming_root(settings, lambda: client.session.store):
        yield client


def print_document(document: object) -> None:
    from spanwise.scheduler.formatting import format_json

    sys.stdout.write(format_json(document) + "\n")


def echo(text: str, root: str | None, config: Path | None) -> None:
    """Prints a text whose commands are for the same root and settings as this one."""
    from spanwise.scheduler.formatting import add_options

    typer.echo(add_options(text, location_options(root, config)))


def now() -> datetime:
    return datetime.now(UTC)


def location_options(root: str | None, config: Path | None) -> list[str]:
    """--root and --config as arguments, for a command that is printed."""
    options = [("--root", root), ("--config", config)]
    return [text for name, value in options if value is not None for text in (name, str(value))]
