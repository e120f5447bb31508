"""Workers of the data service on engines: real ones, small, on this machine, whose processes are killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.config import DispatcherConfig
from spanwise.pipelines.input.service.wire.connection import ServiceConnection, Unreachable
from spanwise.pipelines.input.service.wire.requests import GetStatus
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.scheduler.cli import app
from tests.contract.executor_jobs import is_gone
from tests.servers import eventually, free_ports

ELEMENTS = 80
TOKEN = "correct-horse-battery-staple"
SECURITY = Security(token=TOKEN)


class Local:
    options = ("--on", "local")

    def __init__(self, own):
        """Nothing to start."""


class OnRay:
    def __init__(self, own):
        from tests.contract.ray_cluster import start_ray

        self.options = ("--on", "ray", "--cluster", own.enter_context(start_ray(cpus=3)).address)


class OnSlurm:
    """Two machines of two processors."""

    options = ("--on", "slurm")

    def __init__(self, own):
        from tests.contract.slurm_cluster import SlurmCluster

        cluster = SlurmCluster("one", "other")
        own.callback(cluster.close)
        own.enter_context(pytest.MonkeyPatch.context()).setenv("SLURM_CONF", str(cluster.configuration))


def on(engine):
    """Skipped where the engine is not asked for."""
    name = engine.__name__[2:].upper()
    return pytest.param(
        engine,
        id=engine.__name__,
        marks=pytest.mark.skipif(f"SPANWISE_TEST_{name}" not in os.environ, reason="make test-engines"),
    )


@pytest.fixture(scope="module", params=[pytest.param(Local, id="Local"), on(OnRay), on(OnSlurm)])
def cluster(request):
    with contextlib.ExitStack() as own:
        yield request.param(own)


@contextlib.contextmanager
def command(cluster, target, *words, workers=2):
    """`spanwise service worker --on`, in the foreground of another process."""
    line = ["service", "worker", target, *cluster.options, "--workers", str(workers)]
    running = subprocess.Popen(
        [sys.executable, "-m", "spanwise", *line, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SPANWISE_SERVICE_TOKEN": TOKEN},
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def workers(target):
    """Their addresses by their ids; one that is started again has another id."""
    there = ServiceConnection(target, SECURITY).ask(GetStatus())[0].workers
    return {each.worker: each.address for each in there}


def placed(number):
    time.sleep(0.01)
    return number, os.getpid()


def read(target, kill=None):
    """All elements; the process of the first worker that has given some is killed meanwhile, if this is wanted."""
    found = []
    dataset = inputs.range(ELEMENTS).map(placed).distribute(target, "exactly_once", security=SECURITY)
    with dataset.iterator() as elements:
        for element in elements:
            found.append(element)
            if kill is not None and len(found) == 20:
                os.kill(element[1], kill)
    return found


def others(pid):
    """What may be seen of all processes but one and its own: command lines and environments."""
    ours = {os.getpid(), pid, *process.descendants(pid)}
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and int(each.name) not in ours:
            with contextlib.suppress(OSError):
                yield (each / "cmdline").read_bytes() + (each / "environ").read_bytes()


@pytest.mark.slow
def test_workers_on_a_cluster_are_placed_restarted_and_ended(cluster):
    """When one is killed, another is started, and the reading goes on: no element is lost or there twice. SIGTERM ends them. The token is seen nowhere."""
    config = DispatcherConfig(security=SECURITY, worker_timeout_s=5.0)
    with DispatchServer(config) as dispatcher, command(cluster, dispatcher.target, "--host", "127.0.0.1") as running:
        eventually(lambda: len(workers(dispatcher.target)) == 2, 240.0)
        first = workers(dispatcher.target)
        seen = b"".join(others(running.pid))
        before = read(dispatcher.target, kill=signal.SIGKILL)
        eventually(lambda: len(workers(dispatcher.target)) == 2 and workers(dispatcher.target) != first, 240.0)
        second = workers(dispatcher.target)
        after = read(dispatcher.target)
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=300)
        eventually(lambda: not any(is_served(address) for address in second.values()), 60.0)

    assert Counter(number for number, _ in before) == Counter(number for number, _ in after) == one_each()
    assert len(first.keys() & second.keys()) == 1
    assert running.returncode == 0
    assert out.startswith(f"2 workers on {cluster.options[1]}")
    assert "worker-lost" in err
    assert TOKEN.encode() not in seen
    assert TOKEN not in out + err


def one_each():
    return dict.fromkeys(range(ELEMENTS), 1)


def is_served(address):
    try:
        ServiceConnection(address, SECURITY).fetch(b"{}", 2.0)
    except Unreachable:
        return False
    except ServiceError:
        return True
    return True


@pytest.mark.slow
def test_a_killed_command_leaves_no_worker(cluster):
    """Its workers end with it, however it ends."""
    with DispatchServer(DispatcherConfig(security=SECURITY)) as dispatcher:
        with command(cluster, dispatcher.target, "--host", "127.0.0.1") as running:
            eventually(lambda: len(workers(dispatcher.target)) == 2, 240.0)
            pids = {pid for _, pid in read(dispatcher.target)}
            os.kill(running.pid, signal.SIGKILL)
        eventually(lambda: all(map(is_gone, pids)), 120.0)

    assert pids


def test_a_worker_that_cannot_serve_ends_the_command(cluster):
    """To start it again would not help, so the command says why, and ends the others."""
    (port,) = free_ports(1)
    with DispatchServer(DispatcherConfig(security=SECURITY)) as dispatcher, contextlib.ExitStack() as own:
        running = own.enter_context(
            command(cluster, dispatcher.target, "--host", "127.0.0.1", "--port", str(port), workers=2)
        )
        _, err = running.communicate(timeout=240)

    assert running.returncode != 0
    assert f"failed: the data service cannot listen at 127.0.0.1:{port}" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "2"], "--workers and --cluster need --on"),
        (["--on", "ray", "--address", "here:1"], "--on starts several"),
        (["--on", "local", "--cluster", "here:1"], "--on local is this machine"),
        (["--on", "dask"], "There is no executor 'dask'. There are: local, "),
    ],
    ids=["no engine", "one address", "cluster of one machine", "unknown engine"],
)
def test_what_does_not_go_together_is_refused(words, message):
    """Before anything is started."""
    result = CliRunner().invoke(app, ["service", "worker", "grpc://127.0.0.1:1", *words])

    assert message in str(result.exception)
