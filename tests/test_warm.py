"""Warm commands: they end as cold ones do, and not later."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from spanwise.orchestrator import process
from tests import warm
from tests.scheduler.conftest import FLOW, environment, run_warm, start

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("words", [("--version",), ("run", "nothing.py"), ("nonsense",)], ids=" ".join)
def test_a_warm_command_says_what_a_cold_one_says(tmp_path, words):
    """The same exit code, stdout and stderr."""
    cold = start(*words, cwd=tmp_path)
    out, err = cold.communicate()

    done = run_warm(*words, cwd=tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (cold.returncode, out, err)


@pytest.fixture
def running(tmp_path):
    """A warm run whose second node would take ten minutes, and the process that works."""
    (tmp_path / "flow.py").write_text(FLOW)
    client = subprocess.Popen(
        [*warm.command(), "run", "flow.py", "--param", "sleep_s=600"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    with client:
        while "second begins" not in (line := client.stdout.readline()):
            assert line, "it ended too early"
        shown = json.loads(run_warm("show", "1", "--json", cwd=tmp_path).stdout)
        yield client, process.identity(shown["pid"])
        client.kill()


def test_a_signal_reaches_the_process_that_works(running, tmp_path):
    """It stops its run, and the client ends with its exit code."""
    client, worker = running

    client.send_signal(signal.SIGINT)
    client.communicate(timeout=300)

    assert client.returncode == 130
    assert not process.is_alive(worker)
    assert json.loads(run_warm("show", "1", "--json", cwd=tmp_path).stdout)["state"] == "canceled"


def test_who_is_killed_takes_the_process_that_works_along(running):
    """As there is nobody left who could end it."""
    client, worker = running

    client.kill()

    deadline = time.monotonic() + 300
    while process.is_alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_runs_where_and_as_it_is_told(tmp_path):
    """In the folder and with the variables of who asks, whatever the server has."""
    (tmp_path / "flow.py").write_text(FLOW)
    with_root = {**environment(), "SPANWISE_ROOT": "elsewhere"}

    done = subprocess.run([*warm.command(), "run", "flow.py"], cwd=tmp_path, env=with_root, check=True)

    assert done.returncode == 0
    assert Path(tmp_path, "elsewhere", "metadata.db").is_file()
    assert "SPANWISE_ROOT" not in os.environ


@pytest.mark.parametrize("sent", [b"", b"\0\0\1\0", b"\0\0\1\0half of what is asked"])
def test_who_goes_away_while_it_asks_ends_no_server(sent, tmp_path):
    """As a client that is killed when it has just begun: hundreds of tests have no server then."""
    with socket.socket(socket.AF_UNIX) as line, Path(os.devnull).open() as nothing:
        line.connect(str(warm.place_of_server(reads_data=False)))
        if sent:
            socket.send_fds(line, [sent], [nothing.fileno()] * 3)

    assert run_warm("--version", cwd=tmp_path).returncode == 0


def test_a_signal_that_comes_as_its_process_ends_ends_no_server():
    """The server has seen it come, reaps the process and closes the line, and only then would read it."""
    server, line = warm.Server.__new__(warm.Server), socket.socket(socket.AF_UNIX)
    server.running = {}
    line.close()

    server.hear(line)
