"""Executors on an engine: what they promise where the engine, or an agent, does not do what it should."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from spanwise.orchestrator import Component, Output, Pipeline, Report, process, user_code
from spanwise.orchestrator.agents import agent_executor
from spanwise.orchestrator.agents.engine import AgentLost
from spanwise.orchestrator.agents.messages import Ping
from spanwise.orchestrator.agents.piped_line import PipedLine
from spanwise.orchestrator.agents.placed_executor import PlacedExecutor
from spanwise.orchestrator.errors import NodeFailed
from tests.contract.executor_jobs import Bench, until_ended, until_logged


class HereEngine:
    """Its agents are processes of this machine. While it is `lost`, it does not say what is left of them."""

    name = "here:"

    def __init__(self):
        self.lost = None
        self.asked = threading.Event()  # what is left, while it was lost
        self.agents = []

    def refuse(self, node, asked):
        pass

    def launch(self, mark, number, asked):
        self.agents.append(HereLine(self))
        return self.agents[-1]

    def end_all(self, mark):
        if self.lost is not None:
            raise self.lost
        return list(map(str, process.kill(mark)))

    def close(self):
        pass


class HereLine:
    """The line to an agent, over its standard streams."""

    place, agent, page_url = "here", "1", ""

    def __init__(self, engine):
        self._engine = engine
        self._cut = False
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spanwise.orchestrator.agents.piped_agent"],
            stdin=theirs_in, stdout=theirs_out, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._line = PipedLine(ours_in, ours_out)

    def wait_started(self, timeout_s):
        if not self._line.poll(timeout_s):
            return False
        self._line.recv()
        return True

    def send(self, message):
        try:
            self._line.send(message)
        except OSError as error:
            raise AgentLost("The agent was killed.", "died") from error

    def receive(self, timeout_s):
        if self._cut:
            raise AgentLost("The agent does not answer.", "preempted")
        self.send(Ping())
        found = []
        try:
            while self._line.poll(0.0 if found else timeout_s):
                found.append(self._line.recv())
        except (EOFError, OSError) as error:
            if not found:
                raise AgentLost("The agent was killed.", "died") from error
        return found

    def cut(self):
        """The way back is lost, and the agent goes on."""
        self._cut = True

    def end(self, started):
        if self._engine.lost is not None:
            self._engine.asked.set()
            raise self._engine.lost
        self._line.close()
        if started is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        self.process.kill()
        self.process.wait()
        self._line.close_all()
        return [] if started is None else list(map(str, process.kill(started.mark)))


@pytest.fixture
def engine():
    engine = HereEngine()
    yield engine
    for agent in engine.agents:
        agent.process.kill()
        agent.process.wait()


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_job_ends_also_where_its_engine_raises_what_it_should_not(engine, bench, monkeypatch):
    """Such as an error of its library: the run waited for the end of the job for ever."""
    monkeypatch.setattr(agent_executor, "_OUTLIVED_S", 0.0)
    with PlacedExecutor(bench.pipeline, engine, root=bench.root, away=bench.pipeline.order) as executor:
        job = bench.job("hangs")
        executor.start(job)
        until_logged(executor, job, "hanging")
        engine.lost = ConnectionError("no route to the cluster")
        engine.agents[0].process.kill()
        ended = until_ended(executor, within_s=20.0)
        engine.lost = None

    assert "may be left: ConnectionError: no route to the cluster" in ended.failure.message


def test_a_job_whose_agent_may_still_work_has_not_ended(engine, bench, monkeypatch):
    """Its slot of a pool was free, and its next attempt began beside it."""
    monkeypatch.setattr(agent_executor, "_OUTLIVED_S", float("inf"))
    with PlacedExecutor(bench.pipeline, engine, root=bench.root, away=bench.pipeline.order) as executor:
        job = bench.job("hangs")
        executor.start(job)
        until_logged(executor, job, "hanging")
        engine.lost = NodeFailed("The cluster does not answer.")
        engine.agents[0].cut()
        assert engine.asked.wait(60)
        heard = executor.wait(0.5)
        engine.lost = None

    assert not heard
    assert job.id in executor.running


IN_MAIN = """\
import sys
from pathlib import Path
from spanwise.orchestrator import Component, Output, Pipeline, Report
from spanwise.orchestrator.agents.placed_executor import PlacedExecutor
from tests.contract.executor_jobs import Bench, until_ended
from tests.orchestrator.agents.test_agent_executor import HereEngine
class Work(Component):
    def run(self, tally: Output[Report]) -> None:
        (tally.path / "x").touch()
bench = Bench(Path(sys.argv[1]), Work(name="Work"))
with PlacedExecutor(bench.pipeline, HereEngine(), root=bench.root, away=bench.pipeline.order) as executor:
    executor.start(bench.job(prepared={}))
    print(until_ended(executor).failure)
"""


def test_a_node_of_the_main_module_is_done_by_an_agent(tmp_path):
    """As of a script or a notebook: the agent has a main module of its own, of which the class is not."""
    script = tmp_path / "script.py"
    script.write_text(IN_MAIN)
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run(
        [sys.executable, script, tmp_path], check=False, capture_output=True, text=True, env=os.environ | paths
    )

    assert done.stdout == "None\n", done.stderr


HANGS = """\
import sys, time
if any("piped_agent" in word for word in sys.orig_argv):
    open({begun!r}, "w").close()
    time.sleep(1000)
def work(): ...
"""


class Call(Component):
    def run(self, report: Output[Report], function: Callable) -> None:
        function()


def test_a_job_can_be_stopped_while_its_code_is_loaded(engine, bench, tmp_path, monkeypatch):
    """A module that hangs as it is imported kept its node beyond any time limit, and from being stopped."""
    file, begun = tmp_path / "hanging_module.py", tmp_path / "begun"
    file.write_text(HANGS.format(begun=str(begun)))
    monkeypatch.setitem(sys.modules, "hanging_module", None)  # taken back at the end
    module = user_code.execute_file("hanging_module", str(file))
    pipeline = Pipeline("p", [Call(function=module.work, name="Work")])
    with PlacedExecutor(pipeline, engine, root=bench.root, away=pipeline.order) as executor:
        job = replace(bench.job(), prepared={}, outputs={"report": str(tmp_path / "report")})
        executor.start(job)
        while not begun.exists():
            executor.wait(0.05)
        executor.stop(job.id, "It took too long.", timed_out=True)
        ended = until_ended(executor, within_s=60.0)

    assert (ended.failure.message, ended.failure.timed_out) == ("It took too long.", True)


def test_what_may_be_left_after_closing_is_found_by_sweeping(engine, bench):
    """So that the lease of a run that failed is not released beside agents that nobody could ask about."""
    executor = PlacedExecutor(bench.pipeline, engine, root=bench.root, away=bench.pipeline.order)
    job = bench.job("hangs")
    executor.start(job)
    until_logged(executor, job, "hanging")
    engine.lost = NodeFailed("The cluster does not answer.")

    executor.close()

    assert "The cluster does not answer." in str(executor.sweep())
