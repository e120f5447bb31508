"""The reference says what the program does: every command, option, exit code and setting, and none that is not there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from spanwise.scheduler.cli import EXIT_CODES, app
from spanwise.scheduler.project.settings import NAMES, PREFIX

DOCS = Path(__file__).parents[1] / "docs"
CLI = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
SETTINGS = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
PROGRAM = typer.main.get_command(app)


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its full name; a command in a group is `schedule next`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


BY_NAME = dict(commands(PROGRAM))
COMMANDS = sorted(BY_NAME)


def section(title: str, level: str = "##") -> str:
    """What stands under a heading, up to the next of its level."""
    found = re.search(rf"^{level} {re.escape(title)}\n(.*?)(?=^#{{2,{len(level)}}} |\Z)", CLI, re.MULTILINE | re.DOTALL)
    assert found, f"docs/reference/cli.md has no section {title!r}"
    return found.group(1)


def options(command: str | None) -> set[str]:
    """Every option of a command, or of the program itself."""
    owner = PROGRAM if command is None else BY_NAME[command]
    return {word for parameter in owner.params for word in parameter.opts if word.startswith("-")}


def documented(text: str) -> set[str]:
    """Every option in the first column of the tables of a text."""
    cells = re.findall(r"^\| (`-.*?) \|", text, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"(?<=`)-[-\w]+", cell)}


def links(text: str) -> Iterator[str]:
    yield from re.findall(r"\]\(#([\w-]+)\)", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_in_its_section(command: str) -> None:
    """A changed command without changed docs fails here."""
    assert documented(section(f"spanwise {command}")) == options(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_listed_with_an_example(command: str) -> None:
    """In the table at the top, and in a console block of its own."""
    assert f"[`{command}`](#spanwise-{command.replace(' ', '-')})" in CLI
    assert f"$ spanwise {command} " in section(f"spanwise {command}") or command == "doctor"


def test_every_section_is_a_command() -> None:
    """A command that is gone is gone from the docs."""
    assert sorted(re.findall(r"^## spanwise ([\w ]+)$", CLI, re.MULTILINE)) == COMMANDS


def test_the_options_of_all_commands_are_documented() -> None:
    """Those of the program itself, and those that every command has; data services have no root."""
    common = documented(section("Common options"))

    assert options(None) <= common
    assert common - options(None) == {"--root", "--config", "--json", "--help", "-h"}
    assert all("--root" in options(command) for command in COMMANDS if not command.startswith("service "))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_an_example(command: str) -> None:
    """`spanwise COMMAND --help` shows how it is typed; the example is one of that command."""
    text = BY_NAME[command].help or ""

    assert f"Example: spanwise {command}" in text
    assert len(text.splitlines()[0]) <= 45, "the list of commands would cut it"


@pytest.mark.parametrize("code", EXIT_CODES)
def test_every_exit_code_is_documented(code: int) -> None:
    """As a row of the table, in the words of `--help`."""
    assert f"| {code} | {EXIT_CODES[code]}" in section("Exit codes", "###")


def test_every_setting_is_documented_with_its_variable() -> None:
    """And none that is not there."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)`", SETTINGS, re.MULTILINE)

    assert rows == [(name, f"{PREFIX}{name.upper()}") for name in NAMES]


def test_links_within_the_page_lead_somewhere() -> None:
    """Each names a heading."""
    headings = {
        re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", CLI, re.MULTILINE)
    }

    assert set(links(CLI)) <= headings
