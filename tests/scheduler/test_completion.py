"""Completion: what a shell suggests while somebody types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = """
from spanwise import Component, Output, Pipeline, Report
print("loading")
class Say(Component):
    def run(self, report: Output[Report]) -> None:
        (report.path / "x").write_text("x")
def daily(name: str = "First") -> Pipeline:
    first = Say(name=name)
    return Pipeline("daily", [first, Say(name="Second", after=[first])])
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A pipeline that has run once."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "daily.py").write_text(PIPELINE)
    subprocess.run([sys.executable, "-m", "spanwise", "run", "daily.py"], cwd=folder, check=True, capture_output=True)
    return folder


def suggested(folder: Path, *words: str) -> list[str]:
    """What bash would be given for the last word."""
    line = {"COMP_WORDS": " ".join(["spanwise", *words]), "COMP_CWORD": str(len(words))}
    asked = subprocess.run(
        [Path(sys.executable).with_name("spanwise")],
        cwd=folder,
        env={**os.environ, "_SPANWISE_COMPLETE": "complete_bash", **line},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not asked.stderr
    return asked.stdout.split()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("show", "d"), ["daily", "daily/1"]),
        (("show", "daily/"), ["daily/1"]),
        (("diff", "daily/1", "daily/"), ["daily/1"]),
        (("runs", "d"), ["daily"]),
        (("logs", "daily/1", "S"), ["Second"]),
        (("why", "daily/1", ""), ["First", "Second"]),
        (("run", "daily.py", "--from", ""), ["First", "Second"]),
        (("run", "daily.py", "--param", "name=Other", "--to", "O"), ["Other"]),
        (("run", "nothing.py", "--from", ""), []),
        (("show", "--root", "elsewhere", "d"), []),
    ],
    ids=" ".join,
)
def test_a_word_becomes_what_is_there(project, words, names):
    """Runs, pipelines and nodes by name; nothing, and no message, where there is nothing to read."""
    assert suggested(project, *words) == names
