"""Law 10: whatever the nodes have started, and however a run ends, no process of it is left."""

import fcntl
import json
import os
import pty
import signal
import termios
import time

import pytest

from tests.scenario.processes import Marked, kill

NODES = ["Deaf", "Forking", "Daemon", "Shell"]
SOON_S = 10.0  # on a machine that does other things too

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """Starts the run of unruly nodes; ends whatever the test leaves."""
    started = []

    def start(ending, **options):
        started.append(Marked("tests.scenario.unruly", tmp_path, ending, **options))
        return started[-1]

    yield start
    for run in started:
        run.end()


def all_ready(folder):
    deadline = time.monotonic() + 20
    while not all((folder / node).exists() for node in NODES):
        assert time.monotonic() < deadline, "the nodes never started"
        time.sleep(0.01)


def ended(run):
    """What the run says of itself at its end."""
    return json.loads(run.read_until("end")[-1].removeprefix("end "))


@pytest.mark.parametrize(("ending", "state"), [("end", "complete"), ("fail", "failed"), ("hang", "failed")])
def test_a_node_leaves_no_process_when_it_has_ended(start, ending, state):
    """After a normal end, a failure and a timeout, all that the nodes started is gone before the run goes on."""
    run = start(ending)
    said = ended(run)
    run.process.wait(timeout=SOON_S)

    assert said["states"] == dict.fromkeys(NODES, state)
    assert said["left"] == []
    assert run.alive() == []


def test_a_stopped_run_leaves_no_process(start, tmp_path):
    """SIGTERM to the controller ends all nodes, after the grace those that will not, and is told as canceled."""
    run = start("wait")
    all_ready(tmp_path)
    asked = time.monotonic()
    kill(run.pid, signal.SIGTERM)
    said = ended(run)
    run.process.wait(timeout=SOON_S)

    assert said["states"] == dict.fromkeys(NODES, "canceled")
    assert said["error"] == "stopped by SIGTERM"
    assert time.monotonic() - asked < SOON_S
    assert run.alive() == []


@pytest.mark.parametrize("victim", ["pid", "server", "keeper"])
def test_a_killed_run_leaves_no_process(start, tmp_path, victim):
    """SIGKILL to the controller, to the server that forks the nodes, or to its keeper: nothing runs on."""
    run = start("wait")
    all_ready(tmp_path)
    kill(getattr(run, victim), signal.SIGKILL)

    assert run.gone_within(SOON_S) == []


def test_ctrl_c_reaches_the_controller_alone(start, tmp_path):
    """Ctrl-C in a terminal goes to the whole foreground group; the nodes are in none of it and are stopped in order."""
    ours, theirs = pty.openpty()

    def take_terminal():
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    run = start("wait", stdin=theirs, preexec_fn=take_terminal)
    os.close(theirs)
    all_ready(tmp_path)
    os.write(ours, b"\x03")
    said = ended(run)
    run.process.wait(timeout=SOON_S)
    os.close(ours)

    assert said["error"] == "stopped by SIGINT"
    assert said["states"] == dict.fromkeys(NODES, "canceled")
    assert not (tmp_path / "interrupted").exists()
    assert run.alive() == []


def test_nohup_keeps_a_run_going(start, tmp_path):
    """What the starter has the run ignore, as nohup does with SIGHUP, does not stop it."""
    run = start("wait", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    all_ready(tmp_path)
    kill(run.pid, signal.SIGHUP)
    time.sleep(0.3)
    kill(run.pid, signal.SIGTERM)

    assert ended(run)["error"] == "stopped by SIGTERM"
