"""Law 10: whatever the nodes have started, and however a run ends, no process of it is left."""

import fcntl
import json
import os
import pty
import signal
import termios
import time
from functools import partial

import pytest

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.errors import Held, RunError
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run import State
from spanwise.scheduler.run import stop as stopping
from tests.scenario.processes import Marked, frozen, kill, needs_freezer

NODES = ["Deaf", "Forking", "Daemon", "Shell", "Hidden", "Stopped", "Program"]
DEADLINE_S = 120.0  # of waits for what takes about a second on a quiet machine

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """Starts the run of unruly nodes; ends whatever the test leaves."""
    started = []

    def start(*words, **options):
        started.append(Marked("tests.scenario.unruly", tmp_path, *words, **options))
        return started[-1]

    yield start
    for run in started:
        run.end()


def all_ready(folder, nodes=NODES):
    deadline = time.monotonic() + DEADLINE_S
    while not all((folder / node).exists() for node in nodes):
        assert time.monotonic() < deadline, "the nodes never started"
        time.sleep(0.01)


def left_by(run, folder):
    """What lives of a run: who has inherited its mark, and who hides but was noted."""
    noted = [int(note.read_text()) for note in folder.glob("*.pid")]
    return [*run.alive(), *(pid for pid in noted if process.is_alive(process.identity(pid)))]


def kill_at_one_blow(run):
    """Kills the controller, the keeper and the server, so that none can do anything about the others' death."""
    victims = [run.server, run.keeper, run.pid]  # a child that has stopped is continued when its parent dies
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in victims:
            kill(pid, number)
    run.process.wait(timeout=DEADLINE_S)


@pytest.fixture
def store(tmp_path):
    """The metadata of the runs, opened when first asked for something."""
    opened = open_store(str(tmp_path / "metadata.db"))
    yield opened
    opened.close()


def ended(run):
    """What the run says of itself at its end."""
    return json.loads(run.read_until("end")[-1].removeprefix("end "))


@pytest.mark.parametrize(("ending", "state"), [("end", "complete"), ("fail", "failed"), ("hang", "failed")])
def test_a_node_leaves_no_process_when_it_has_ended(start, tmp_path, ending, state):
    """After a normal end, a failure and a timeout, all that the nodes started is gone before the run goes on."""
    run = start(ending)
    said = ended(run)
    run.process.wait(timeout=DEADLINE_S)

    assert said["states"] == dict.fromkeys(NODES, state)
    assert said["left"] == []
    assert left_by(run, tmp_path) == []


def test_a_stopped_run_leaves_no_process(start, tmp_path):
    """SIGTERM to the controller ends all nodes, after the grace those that will not, and is told as canceled."""
    run = start("wait")
    all_ready(tmp_path)
    kill(run.pid, signal.SIGTERM)
    said = ended(run)
    run.process.wait(timeout=DEADLINE_S)

    assert said["states"] == dict.fromkeys(NODES, "canceled")
    assert said["error"] == "stopped by SIGTERM"
    assert left_by(run, tmp_path) == []


@pytest.mark.parametrize("victim", ["pid", "server", "keeper"])
def test_a_killed_run_leaves_no_process(start, tmp_path, victim):
    """SIGKILL to the controller, to the server that forks the nodes, or to its keeper: nothing runs on."""
    run = start("wait")
    all_ready(tmp_path)
    kill(getattr(run, victim), signal.SIGKILL)

    assert run.gone_within(DEADLINE_S) == []
    assert left_by(run, tmp_path) == []


def test_stopping_a_run_whose_processes_were_killed_at_one_blow_ends_the_rest(start, tmp_path, store):
    """Whatever has detached itself, and however it hides, is gone when `stop` returns."""
    run = start("wait")
    all_ready(tmp_path)
    kill_at_one_blow(run)
    before = left_by(run, tmp_path)
    stopped = stopping.stop(store, store.run("unruly", 1), tmp_path, grace_s=0, by="a test")

    assert len(before) > 4
    assert (stopped.how, stopped.run.state) == ("closed", State.FAILED)
    assert left_by(run, tmp_path) == []


def test_the_next_run_ends_what_is_left_before_it_begins(start, tmp_path):
    """A run that died and left daemons does not run beside the next one."""
    first = start("wait")
    all_ready(tmp_path)
    kill_at_one_blow(first)
    before = left_by(first, tmp_path)
    noted = [process.identity(int(note.read_text())) for note in tmp_path.glob("*.pid")]
    second = start("end", "Deaf")
    second.read_until("run-started")
    after = [*first.alive(), *filter(process.is_alive, noted)]

    assert len(before) > 4
    assert after == []
    assert ended(second)["states"] == {"Deaf": "complete"}


def test_a_run_that_does_not_listen_is_killed_with_all_it_has_started(start, tmp_path, store, monkeypatch):
    """Its controller, keeper and server are stopped, so that none of them does anything: all the same nothing is left."""
    monkeypatch.setattr(stopping, "SLACK_S", 0.2)
    run = start("wait")
    all_ready(tmp_path)
    for pid in (run.server, run.keeper, run.pid):
        kill(pid, signal.SIGSTOP)
    stopped = stopping.stop(store, store.run("unruly", 1), tmp_path, grace_s=0, by="a test")

    assert (stopped.how, stopped.run.state, stopped.pid) == ("killed", State.CANCELED, run.pid)
    assert left_by(run, tmp_path) == []


@needs_freezer
def test_nothing_begins_while_a_process_lives_that_cannot_be_killed(start, tmp_path, store, monkeypatch):
    """It is named with its state, by `stop` and by whoever wants to begin, until it is gone."""
    monkeypatch.setattr(stopping, "SLACK_S", 0.2)
    monkeypatch.setattr(process, "kill", partial(process.kill, limit_s=0.5))
    run = start("wait", "Daemon")
    all_ready(tmp_path, ["Daemon"])
    daemon = int((tmp_path / "daemon").read_text())
    with frozen(daemon):
        with pytest.raises(
            RunError, match=rf"(?s)could not be: {daemon} \(state D: .*ps -o [^ ]+ -p {daemon}"
        ) as stuck:
            stopping.stop(store, store.run("unruly", 1), tmp_path, grace_s=0, by="a test")
        with pytest.raises(Held, match=rf"nothing was started: {daemon} \(state D: "):
            begin_and_end(store)
        with pytest.raises(RunError, match=rf"nothing was started: {daemon} \(state D: "):
            stopping.stop(store, store.run("unruly", 1), tmp_path, grace_s=0, by="a test")
        state = store.run("unruly", 1).state
    stopped = stopping.stop(store, store.run("unruly", 1), tmp_path, grace_s=0, by="a test")

    assert "killed" in str(stuck.value)
    assert state is State.RUNNING
    assert (stopped.how, stopped.run.state) == ("closed", State.CANCELED)
    assert left_by(run, tmp_path) == []
    begin_and_end(store)


def begin_and_end(store):
    """What every run does first and last."""
    mine = lease.acquire(store, "unruly", "a run")
    try:
        for holder in lease.unclosed_leases(store, mine):
            lease.mark_closed(store, holder)
    finally:
        mine.release()


@pytest.mark.skipif(
    "SPANWISE_TEST_BEAM_ENGINES" not in os.environ, reason="long: SPANWISE_TEST_BEAM_ENGINES=1 asks for it"
)
def test_the_processes_of_beam_are_ended(start, tmp_path, store):
    """Workers that Beam has started in processes of their own are found like all others."""
    run = start("wait", "Beaming")
    all_ready(tmp_path, ["Beaming"])
    kill_at_one_blow(run)
    stopping.stop(store, store.run("unruly", 1), tmp_path, grace_s=0, by="a test")

    assert left_by(run, tmp_path) == []


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
    run.process.wait(timeout=DEADLINE_S)
    os.close(ours)

    assert said["error"] == "stopped by SIGINT"
    assert said["states"] == dict.fromkeys(NODES, "canceled")
    assert not (tmp_path / "interrupted").exists()
    assert left_by(run, tmp_path) == []


def test_nohup_keeps_a_run_going(start, tmp_path):
    """What the starter has the run ignore, as nohup does with SIGHUP, does not stop it."""
    run = start("wait", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    all_ready(tmp_path)
    kill(run.pid, signal.SIGHUP)
    time.sleep(0.3)
    kill(run.pid, signal.SIGTERM)

    assert ended(run)["error"] == "stopped by SIGTERM"
