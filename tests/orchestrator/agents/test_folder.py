"""The folder of an agent: relative paths of a pipeline are of the folder of its run, on whichever machine a node is."""

import os
import subprocess
import sys
from pathlib import Path

from spanwise.orchestrator import Component, Output, Pipeline, Report
from spanwise.orchestrator.agents.piped_line import PipedLine
from spanwise.orchestrator.agents.placed_executor import PlacedExecutor
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.store import MemoryStore
from tests.scenario.hosts_engine import HostLine, HostsEngine


class Copy(Component):
    def run(self, report: Output[Report]) -> None:
        (report.path / "text").write_text(Path("data").read_text())


class ElsewhereLine(HostLine):
    """An agent on this machine, started in another folder."""

    agent = page_url = ""

    def __init__(self, folder: Path) -> None:
        self.place = "elsewhere"
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self._agent = subprocess.Popen(
            [sys.executable, "-m", "spanwise.orchestrator.agents.piped_agent"],
            stdin=theirs_in, stdout=theirs_out, start_new_session=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._line = PipedLine(ours_in, ours_out)


class ElsewhereEngine(HostsEngine):
    def launch(self, mark, number, asked):
        return ElsewhereLine(next(self._places))


def test_an_agent_reads_what_is_in_the_folder_of_the_run(tmp_path, monkeypatch):
    """It is started by another user's service, or where a cluster was started."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "data").write_text(folder.name)
    monkeypatch.chdir(here)
    pipeline = Pipeline("copied", [Copy()])
    with PlacedExecutor(pipeline, ElsewhereEngine([there]), root=here / "root", away=pipeline.order) as executor:
        outcome = run(pipeline, executor=executor, store=MemoryStore(), root=here / "root", request=RunRequest())

    assert outcome.succeeded, outcome.executions["Copy"].error
    (report,) = outcome.executions["Copy"].outputs["report"]
    assert (report.path / "text").read_text() == "here"
