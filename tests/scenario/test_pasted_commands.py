"""Commands that are printed work when they are pasted, in a project whose folder, file and root have spaces (law 19)."""

import shlex
import shutil
from pathlib import Path

import pytest

from spanwise.scheduler.main import main
from tests.scenario.inline import run_inline
from tests.scheduler.cli.test_judge import PIPELINE

FILE = "my project/my days.py"
ROOT = ["--root", "my root"]


class Terminal:
    """What is typed or pasted, and what it prints."""

    def __init__(self, capsys) -> None:
        self._capsys = capsys
        self.printed = ""

    def type(self, *words) -> int:
        code = main(list(words))
        captured = self._capsys.readouterr()
        self.printed = captured.out + captured.err
        return code

    def paste(self, part: str) -> int:
        """The printed command that has this part, as a shell would split it; TEXT is what a person fills in."""
        commands = (line.partition("spanwise ")[2] for line in self.printed.splitlines())
        (command,) = dict.fromkeys(found for found in commands if part in found)
        return self.type(*shlex.split(command.replace("TEXT", "'looked at it'")))


@pytest.fixture
def terminal(tmp_path, monkeypatch, capsys):
    place = tmp_path / "a folder"
    (place / "my project").mkdir(parents=True)
    monkeypatch.chdir(place)
    Path(FILE).write_text(PIPELINE.replace('"data"', '"my data"'))
    run_inline(monkeypatch)
    return Terminal(capsys)


def arrive(span, *, rows, version=1):
    file = Path("my data", str(span), f"v{version}", "rows.csv")
    file.parent.mkdir(parents=True)
    file.write_text("x\n" + "".join(f"{n}\n" for n in range(rows)))


def learned():
    models = sorted(Path("my root/days/Learn/model").glob("*/spans"), key=lambda p: int(p.parent.name))
    return [model.read_text() for model in models]


def test_what_a_gate_and_a_gap_print(terminal):
    """Accept, train with it, ingest a new version, resume."""
    arrive(1, rows=10)
    arrive(2, rows=2)
    assert terminal.type("run", f"{FILE}:days", "--span", "1", *ROOT) == 0
    assert terminal.type("run", f"{FILE}:days", "--span", "2", *ROOT) == 1
    assert terminal.paste("accept") == 0
    assert terminal.paste("backfill") == 0
    assert terminal.type("refuse", FILE, "--span", "2", "--because", "too small after all", *ROOT) == 0
    arrive(3, rows=10)
    assert terminal.type("run", FILE, "--span", "3", *ROOT) == 1
    printed = terminal.printed
    arrive(2, rows=9, version=2)
    assert terminal.paste("--to Big") == 0
    terminal.printed = printed
    assert terminal.paste("resume") == 0
    assert learned() == ["1v1", "1v1 2v1", "2v2 3v1"]


def test_what_a_part_and_a_resume_print(terminal):
    """Run what lies between, or read what is older all the same; run the span again."""
    for span in (1, 2):
        arrive(span, rows=10)
    for span in (1, 2):
        assert terminal.type("run", FILE, "--span", str(span), *ROOT) == 0
    arrive(2, rows=11, version=2)
    assert terminal.type("run", FILE, "--span", "2", "--to", "Big", *ROOT) == 0
    assert terminal.type("run", FILE, "--from", "Learn", *ROOT) == 2
    printed = terminal.printed
    assert terminal.paste("--base-run") == 0
    terminal.printed = printed
    assert terminal.paste("--from RollingWindow") == 0
    arrive(3, rows=2)
    assert terminal.type("run", FILE, "--span", "3", *ROOT) == 1
    failed = "days/" + str(max(int(path.name) for path in Path("my root/days/.runs").iterdir()))
    arrive(3, rows=12, version=2)
    assert terminal.type("run", FILE, "--span", "3", *ROOT) == 0
    assert terminal.type("resume", failed, *ROOT) == 2
    assert terminal.paste("--span 3 --root") == 0
    assert learned()[-1] == "2v2 3v2"


def test_what_a_refusal_of_learned_data_prints(terminal):
    """Which models learned from it, and how to train without it."""
    arrive(1, rows=10)
    arrive(2, rows=10)
    for span in (1, 2):
        assert terminal.type("run", FILE, "--span", str(span), *ROOT) == 0
    arrive(2, rows=11, version=2)
    assert terminal.type("tainted", FILE, "--span", "2", *ROOT) == 0
    assert terminal.paste("backfill") == 0
    assert learned()[-1] == "1v1 2v2"


def test_what_missing_files_print(terminal):
    """The command that creates them again, also the one that an error prints."""
    arrive(1, rows=10)
    assert terminal.type("run", FILE, "--span", "1", *ROOT) == 0
    shutil.rmtree(next(Path("my root/days/ExampleGen/examples").glob("1*")))
    assert terminal.type("run", FILE, "--from", "Learn", "--no-cache", *ROOT) == 1
    printed = terminal.printed
    assert terminal.paste("--span 1") == 0
    assert terminal.type("run", FILE, "--from", "Learn", "--no-cache", *ROOT) == 2  # it would read what is gone
    assert terminal.paste("--from RollingWindow") == 0
    terminal.printed = printed
    assert terminal.paste("resume") == 2
    assert terminal.paste("days.py' --root") == 0


def test_what_a_backup_of_a_server_prints(terminal, monkeypatch):
    """The folder is one word."""
    monkeypatch.setenv("SPANWISE_METADATA", "mysql://ann:secret@nowhere.invalid/ml")

    assert terminal.type("backup", "my backup") == 2
    assert "spanwise backup 'my backup' --files-only" in terminal.printed
