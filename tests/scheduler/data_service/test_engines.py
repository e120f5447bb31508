"""Workers on clusters of Ray and Dask: real ones, small, on this machine, whose processes are killed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spanwise.orchestrator.errors import ServiceError, SettingsError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.config import DispatcherConfig, WorkerConfig
from spanwise.pipelines.input.service.wire.connection import ServiceConnection, Unreachable
from spanwise.pipelines.input.service.wire.requests import GetStatus
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.scheduler.cli import app
from spanwise.scheduler.data_service.engines import Engine, spread, start
from tests.pipelines.input.service.servers import eventually, free_ports

ELEMENTS = 200
TOKEN = "correct-horse-battery-staple"
SECURITY = Security(token=TOKEN)


class Cluster:
    """Machines of an engine, all on this one, as processes with a log."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []
        (self.port,) = free_ports(1)

    def start(self, *words, **environment):
        ours = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
        environment = {**os.environ, **ours, **environment}
        with (self.folder / f"{len(self.started)}.log").open("w") as log:
            running = subprocess.Popen(
                words, stdout=log, stderr=log, cwd=self.folder, env=environment, start_new_session=True
            )
        self.started.append(running)

    def stop(self):
        for each in reversed(self.started):
            each.terminate()
        for each in self.started:
            try:
                each.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()

    def said(self):
        return "".join(log.read_text() for log in self.folder.glob("*.log"))

    def logs(self):
        """What the engine keeps of itself."""
        return "".join(file.read_text(errors="replace") for file in self.folder.rglob("*") if file.is_file())


class OfRay(Cluster):
    """One machine: two of Ray's on one host need more of it than tests have."""

    name = "ray"
    machines = 1

    def open(self):
        self.address = f"127.0.0.1:{self.port}"
        small = ["--num-cpus=3", "--object-store-memory=80000000", "--include-dashboard=false", "--disable-usage-stats"]
        where = ["--node-ip-address=127.0.0.1", f"--port={self.port}", f"--temp-dir={self.folder}"]
        patience = {"RAY_raylet_start_wait_time_s": "240", "RAY_gcs_server_request_timeout_seconds": "240"}
        self.start(script("ray"), "start", "--head", "--block", *small, *where, **patience)
        eventually(lambda: "Ray runtime started" in self.said(), 240.0)


class OfDask(Cluster):
    name = "dask"
    machines = 2

    def open(self):
        self.address = f"tcp://127.0.0.1:{self.port}"
        self._dask("scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")
        for host in ("127.0.0.1", "127.0.0.2"):
            self._dask("worker", self.address, "--host", host, "--nworkers", "1", "--nthreads", "2", "--no-dashboard")
        eventually(lambda: self.said().count("Registered to:") == 2, 240.0)

    def _dask(self, *words):
        self.start(script("dask"), *words, DASK_TEMPORARY_DIRECTORY=str(self.folder))


def script(name):
    return str(Path(sys.executable).parent / name)


NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: make test-engines")
NEEDS_DASK = pytest.mark.skipif(find_spec("distributed") is None, reason="Dask is not installed")


@pytest.fixture(
    params=[
        pytest.param(OfRay, id="ray", marks=[pytest.mark.slow, NEEDS_RAY]),
        pytest.param(OfDask, id="dask", marks=[pytest.mark.slow, NEEDS_DASK]),
    ]
)
def cluster(request):
    folder = Path(tempfile.mkdtemp(prefix="spanwise-"))  # pytest's own are too long for Ray's sockets
    cluster = request.param(folder)
    try:
        cluster.open()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def command(cluster, target, *words, workers=2):
    """`spanwise service worker --on`, in the foreground of another process."""
    line = ["service", "worker", target, "--on", cluster.name, "--workers", str(workers), "--cluster", cluster.address]
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
    return number, os.getpid(), os.getppid()


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
    """What may be seen of all processes but one: command lines and environments."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) not in {pid, os.getpid()}:
            with contextlib.suppress(OSError):
                yield (process / "cmdline").read_bytes() + (process / "environ").read_bytes()


def test_workers_on_a_cluster_are_placed_restarted_and_ended(cluster):
    """They are spread over the machines; when one is killed, the engine starts another, and the reading goes on: no element is lost
    or there twice. SIGTERM ends them. The token is seen nowhere.
    """
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

    assert Counter(number for number, *_ in before) == Counter(number for number, *_ in after) == one_each()
    assert len({machine for *_, machine in before}) == cluster.machines
    assert len(first.keys() & second.keys()) == 1
    assert running.returncode == 0
    assert out.startswith(f"2 workers on {cluster.name.title()}\n")  # Ray tells of the process that was killed
    assert TOKEN.encode() not in seen
    assert TOKEN not in cluster.logs() + out + err


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


def test_workers_are_dealt_to_hosts_in_turn():
    """One to each host, then a second one to those that have threads left; who finds none waits anywhere."""
    threads = {"a": 2, "b": 1, "c": 3}

    assert spread(threads, 2) == ["a", "b"]
    assert spread(threads, 5) == ["a", "b", "c", "a", "c"]
    assert spread(threads, 8) == ["a", "b", "c", "a", "c", "c", None, None]
    assert spread({}, 2) == [None, None]


@pytest.mark.parametrize("engine", Engine)
def test_an_engine_that_is_not_installed_is_named_with_its_extra(engine, monkeypatch):
    """The message is what to type."""
    for module in ("ray", "dask.config"):
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(SettingsError, match=rf"is not installed: pip install 'spanwise\[{engine}\]'"):
        start(engine, None, WorkerConfig(dispatcher_address="here:1"), 1, own_address=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "2"], "--workers and --cluster need --on"),
        (["--on", "dask", "--address", "here:1"], "--on starts several"),
        pytest.param(["--on", "dask"], "set DASK_SCHEDULER_ADDRESS", marks=NEEDS_DASK),
    ],
    ids=["no engine", "one address", "no cluster"],
)
def test_what_does_not_go_together_is_refused(words, message):
    """Before anything is started."""
    result = CliRunner().invoke(app, ["service", "worker", "grpc://127.0.0.1:1", *words])

    assert message in str(result.exception)


@NEEDS_DASK
def test_a_cluster_that_does_not_answer_is_an_error():
    """Not a traceback of the engine's."""
    (port,) = free_ports(1)
    config = WorkerConfig(dispatcher_address="here:1")

    with pytest.raises(ServiceError, match=rf"no cluster answers at tcp://127.0.0.1:{port}: .* Start one"):
        start(Engine.DASK, f"tcp://127.0.0.1:{port}", config, 1, own_address=True)
