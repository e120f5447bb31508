"""The entry point: what a person reads when a command fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spanwise.scheduler.main import main

COLLECTOR = """
import gc

import typer

from spanwise import Pipeline

print("commands walked:", any(found is typer.Typer for found in gc.get_objects()), "collects:", gc.isenabled())

def nothing() -> Pipeline:
    return Pipeline("nothing", [])
"""


def test_control_characters_of_a_name_are_escaped_in_an_error(tmp_path, monkeypatch, capsys):
    """A name that came from data or from another person must not move the cursor or hide a line."""
    monkeypatch.chdir(tmp_path)

    assert main(["run", "a\x1b[2Kb\rc.py"]) == 2
    assert "There is no file a\\x1b[2Kb\\rc.py." in capsys.readouterr().err


def test_the_lines_of_an_error_stay(tmp_path, monkeypatch, capsys):
    """A message of several lines is printed in several lines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.py").write_text("x = (\n")

    assert main(["run", "given.py"]) == 2
    assert "SyntaxError" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("show", "flights/1"), 2, "Nothing has run here yet."),
        (("run", "gone.py"), 2, "There is no file gone.py."),
        (("runs", "--nope"), 2, "No such option: --nope"),
        (("schedule", "acknowledge", "flights"), 2, "Missing option '--because'."),
    ],
)
def test_with_json_an_error_is_json(tmp_path, monkeypatch, capsys, words, code, says):
    """One document on stderr, also of a mistake in the command line; nothing on stdout."""
    monkeypatch.chdir(tmp_path)

    assert main([*words, "--json"]) == code

    out, err = capsys.readouterr()
    document = json.loads(err)
    assert out == ""
    assert says in document["error"]
    assert document["exit_code"] == code


def test_with_json_exit_codes_are_those_without(tmp_path, monkeypatch, capsys):
    """Success, and a list that is not empty."""
    monkeypatch.chdir(tmp_path)

    assert main(["runs", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"
    assert main(["doctor", "--json", "--root", "/dev/null/x"]) == 1


def test_an_error_without_arguments_is_printed(monkeypatch, capsys):
    """Whatever fails before a command is known is said, too."""
    monkeypatch.setattr("spanwise.scheduler.main._import_commands", lambda: Path("/nothing/there").read_text())

    assert main([]) == 1
    assert capsys.readouterr().err == "spanwise: /nothing/there: No such file or directory\n"


def test_the_garbage_collector_does_not_walk_the_imported_commands(tmp_path):
    """It works in a command, and leaves out what the program has imported before, which never becomes garbage."""
    (tmp_path / "nothing.py").write_text(COLLECTOR)

    command = [sys.executable, "-m", "spanwise", "validate", "nothing.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert "commands walked: False collects: True" in done.stdout
