"""The folder of a run: what continues it is typed there, or refused with the command that goes there."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.run.folder import refuse_elsewhere
from tests.scheduler.conftest import Command, run_warm

COPY = """
import shutil
from pathlib import Path
from spanwise.orchestrator import Component, Input, Output, Pipeline, Report

class First(Component):
    def run(self, report: Output[Report]) -> None:
        (report.path / "text").write_text("first")

class Copy(Component):
    def run(self, before: Input[Report], report: Output[Report], data: str, fail: bool) -> None:
        if fail:
            raise ValueError("as asked for")
        shutil.copy(Path(data), report.path / "text")

def copied(data: str = "data", fail: bool = False) -> Pipeline:
    first = First()
    return Pipeline("copied", [first, Copy(before=first["report"], data=data, fail=fail)])
"""
AS_ASKED = "[params.copied]\nfail = false\n"


@pytest.fixture
def project(tmp_path: Path, spanwise: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a run that failed, and the current folder: another project with data of the same name."""
    here, other = tmp_path / "the project", tmp_path / "other"
    for place in (here, other):
        place.mkdir()
        (place / "data").write_text(place.name)
        (place / "spanwise.toml").write_text(AS_ASKED)
    (here / "copied.py").write_text(COPY)
    monkeypatch.chdir(here)
    assert spanwise("run", "copied.py", "--param", "fail=true")[0] == 1
    monkeypatch.chdir(other)
    return here


def pasted(said: str) -> subprocess.CompletedProcess[str]:
    """Types the command that a message prints, in the folder to which it goes."""
    (line,) = re.findall(r"(?:^|: ) *(cd .*)$", said, re.MULTILINE)
    go, _, command = line.partition(" && ")
    folder = Path(shlex.split(go)[1])
    assert folder.is_absolute()
    return run_warm(*shlex.split(command)[1:], cwd=folder)


def read_copy(root: Path) -> str:
    (copy,) = root.glob("copied/Copy/report/*/text")
    return copy.read_text()


def test_a_run_is_not_continued_in_another_folder(project: Path, spanwise: Command) -> None:
    """It would read that folder's files and settings; the command that goes to its own folder is printed."""
    root = project / ".spanwise"
    code, _, said = spanwise("resume", "copied/1", "--root", "../the project/.spanwise", "--param", "fail=false")

    assert code == 2
    assert f"copied/1 began in {project}" in said
    done = pasted(said)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_copy(root) == "the project"


def test_a_run_of_a_project_that_was_moved_continues_where_it_is_now(
    project: Path, spanwise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder has moved along."""
    monkeypatch.chdir(project.rename(project.with_name("moved")))

    assert spanwise("resume", "copied/1", "--param", "fail=false")[0] == 0

    assert read_copy(Path(".spanwise").absolute()) == "the project"


def test_a_run_whose_folder_is_gone_is_not_continued(project: Path, spanwise: Command) -> None:
    """No folder is taken for it; its pipeline can be run again where its files are."""
    with_file = Path("copied.py")
    shutil.copy(project / "copied.py", with_file)
    sub = Path("sub")
    sub.mkdir()
    done = run_warm("run", "../copied.py", "--param", "fail=true", cwd=sub.absolute())
    assert done.returncode == 1
    sub.rmdir()

    code, _, said = spanwise("resume", "copied/1")

    assert code == 2
    assert "which is not on this machine" in said
    assert "spanwise run copied.py --param fail=true" in said


def test_the_command_that_runs_a_complete_run_again_goes_to_its_folder(project: Path, spanwise: Command) -> None:
    """Pasted where it was printed, it would read the files of that folder."""
    root = "../the project/.spanwise"
    assert run_warm("resume", "copied/1", "--param", "fail=false", cwd=project).returncode == 0

    code, _, said = spanwise("resume", "copied/2", "--root", root)

    assert code == 2
    assert "is complete" in said
    assert "spanwise run copied.py --param fail=true" in said
    assert pasted(said).returncode == 0
    assert read_copy(project / ".spanwise") == "the project"


def test_a_run_of_which_no_folder_is_recorded_continues_in_this_one(tmp_path: Path) -> None:
    """As runs did before folders were recorded."""
    settings = Settings(root=tmp_path, metadata="m.db")

    refuse_elsewhere("", settings, who="Run p/1", source="/p.py", words=["spanwise", "resume", "p/1"])
