"""Forks of a process that uses Flight refuse to, where they would wait for ever."""

import subprocess
import sys

import pytest

from spanwise.components import Trainer
from spanwise.components.training.elastic.job import ElasticJob
from tests.components.flow import Bench, Lake

SERVER = """
import sys
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.server import FlightServer
print(FlightServer("127.0.0.1", 0, Security(), actions={}, limit_bytes=1024).target, flush=True)
sys.stdin.read()
"""
USED = """
import gc, os, signal, subprocess, sys
from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.server import FlightServer

target = sys.argv[1]

def connect():
    connection = ServiceConnection(target, Security())
    connection._client.wait_for_available()
    return connection

connection = connect()
"""
IN_FORK = """
if os.fork() == 0:
    signal.alarm(60)
    try:
        connect()
        FlightServer("127.0.0.1", 0, Security(), actions={}, limit_bytes=1024)
    except ServiceError as error:
        print(error, flush=True)
        os._exit(7)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.wait()[1])
os._exit(code if code >= 0 else 1)
"""


@pytest.fixture(scope="module")
def target():
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        yield server.stdout.readline().strip()
        server.stdin.close()


def ran(target, *program):
    command = [sys.executable, "-c", "".join(program), target]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_fork_of_a_process_that_uses_flight_refuses_to(target):
    """It names the way out; without the refusal it would wait for threads that it has not."""
    found = ran(target, USED, IN_FORK)

    assert found.returncode == 7, found.stderr
    assert "Close its readers" in found.stdout
    assert "spanwise run" in found.stdout


def test_a_fork_of_a_process_that_has_closed_what_used_flight_uses_it_too(target):
    """Then gRPC has ended its threads, and begins anew in the fork."""
    found = ran(target, USED, "connection.close(); del connection; gc.collect()\n", IN_FORK)

    assert found.returncode == 0, found.stderr


def test_an_elastic_job_after_a_reader_that_is_open_fails_and_says_why(target, tmp_path):
    """As in a notebook that reads from a service and then runs a pipeline."""
    program = f"""
from pathlib import Path
from tests.pipelines.input.service.wire.test_forks import train
train(Path({str(tmp_path)!r}))
os._exit(0)
"""

    found = ran(target, USED, program)

    assert "Close its readers" in found.stderr
    assert found.returncode == 1


def train(folder):
    job = ElasticJob(dataset_fn=batches, init=lambda _: {}, gradient=apply, apply=apply, save=apply)
    lake = Lake(rows={1: {"x": [1, 2, 3]}}, splits=["train"])
    trainer = Trainer(examples=lake["examples"], run_fn=job, workers=1)
    result = Bench(folder).run(lake, trainer)
    raise SystemExit(result.executions["Trainer"].error)


def batches(rows):
    return rows.batch(2)


def apply(*values):
    return values[0]
