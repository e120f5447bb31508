"""A folder with a small pipeline in it, and the command, in this process or in one of its own."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spanwise.scheduler.main import main
from spanwise.scheduler.project import child_process
from tests import warm

PROJECT = Path(__file__).parents[2]

FLOW = '''
"""Three nodes; what they do is told by parameters."""
import time
from spanwise.orchestrator import Component, Input, Output, Pipeline, Report


class First(Component):
    def run(self, report: Output[Report], text: str) -> None:
        print("first says", text)
        (report.path / "text").write_text(text)


class Second(Component):
    def run(self, before: Input[Report], report: Output[Report], sleep_s: float, fail: bool) -> None:
        print("second begins")
        time.sleep(sleep_s)
        if fail:
            raise ValueError("as asked for")
        (report.path / "text").write_text("second")


class Third(Component):
    def run(self, before: Input[Report], report: Output[Report]) -> None:
        (report.path / "text").write_text("third")


def flow(text: str = "hello", sleep_s: float = 0.0, fail: bool = False) -> Pipeline:
    first = First(text=text)
    second = Second(before=first["report"], sleep_s=sleep_s, fail=fail)
    third = Third(before=second["report"])
    return Pipeline("flow", [first, second, third])
'''


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command does to the path and to the loaded modules ends with the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [n for n in os.environ if n.startswith("SPANWISE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _warm_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loads the files of schedulers and does their runs is forked from a process that has imported it."""
    monkeypatch.setattr(child_process, "command", lambda module: [*warm.command(), "-m", module])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def project(folder: Path) -> Path:
    """The current folder, with `flow.py`."""
    (folder / "flow.py").write_text(FLOW)
    return folder


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def spanwise(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs a command line here; gives exit code, stdout and stderr. How our modules log is as it was, afterwards."""
    ours = logging.getLogger("spanwise")
    before = ours.handlers[:], ours.level, ours.propagate

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    yield call
    ours.handlers[:], level, ours.propagate = before
    ours.setLevel(level)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT / "src"), "PYTHONUNBUFFERED": "1"}


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """Starts the command in a process of its own."""
    return _start([sys.executable, "-P", "-m", "spanwise", *words], cwd)


def start_warm(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """Starts the command in a warm process; what is started here passes signals on to it, and ends as it ends."""
    return _start([*warm.command(), *words], cwd)


def _start(command: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_warm(*words: str, cwd: Path, reads_data: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end in a warm process of its own."""
    return warm.run(*words, reads_data=reads_data, cwd=cwd, env=environment())


@pytest.fixture
def shell() -> Command:
    """Runs a command line in a process of its own; gives exit code, stdout and stderr."""

    def call(*words: str, cwd: Path | None = None) -> tuple[int, str, str]:
        done = run_warm(*words, cwd=cwd or Path.cwd())
        return done.returncode, done.stdout, done.stderr

    return call
