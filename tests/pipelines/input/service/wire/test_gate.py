"""Before a token is checked nobody makes a server hold memory; who has the token notices nothing."""

import re
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import flight

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire import gate
from spanwise.pipelines.input.service.wire.config import DispatcherConfig
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection
from spanwise.pipelines.input.service.wire.requests import GetStatus
from spanwise.pipelines.input.service.wire.security import Security
from tests.pipelines.input.service.servers import Service
from tests.pipelines.input.service.wire.test_security import Authority
from tests.servers import eventually

TOKEN = Security(token="secret")
MIB = 1 << 20


@contextmanager
def dispatcher_process(security=TOKEN):
    words = ["-m", "spanwise", "service", "dispatcher", "--port", "0"]
    environment = {"SPANWISE_SERVICE_TOKEN": security.token, "PYTHONPATH": ":".join(sys.path)}
    if security.is_tls:
        environment |= {
            "SPANWISE_SERVICE_CERTIFICATE": security.certificate,
            "SPANWISE_SERVICE_KEY": security.key,
        }
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process.pid, process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate()


def peak_bytes(pid):
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) << 10


@pytest.mark.slow
def test_who_has_no_token_makes_a_server_hold_nothing():
    """Neither by large requests nor by streams; it would hold all that is sent, since gRPC reads before it asks."""
    with dispatcher_process() as (pid, target):
        ServiceConnection(target, TOKEN).ask(GetStatus())
        before = peak_bytes(pid)
        for _ in range(3):
            with pytest.raises(flight.FlightError):
                list(flight.connect(target).do_action(flight.Action("join", b"x" * (256 * MIB))))
        for _ in range(200):
            raw = socket.create_connection(("127.0.0.1", int(target.rpartition(":")[2])))
            raw.close()
        grown = peak_bytes(pid) - before
        ServiceConnection(target, TOKEN).ask(GetStatus())

    assert grown < 64 * MIB


@pytest.fixture(params=["plain", "TLS"])
def security(request, tmp_path):
    """A token, without certificates and with."""
    return TOKEN if request.param == "plain" else Authority(tmp_path).security("server")


def test_who_has_the_token_sends_and_gets_as_much_as_ever(security):
    """A dataset that is larger than what may come before the token, and its elements."""
    values = np.random.default_rng(0).bytes(MIB)
    with Service(0, security=security) as service:
        service.add_worker(security=security, shared_bytes=0)
        ours = inputs.from_tensors(values).repeat(20).distribute(service.target, security=security)
        assert [element == values for element in ours] == [True] * 20
        strange = inputs.from_tensors(values).distribute(service.target, security=replace(security, token="wrong"))
        with pytest.raises(ServiceError, match="without its token"):
            list(strange)


def test_untrusted_that_say_nothing_do_not_keep_others_out(monkeypatch):
    """They have a short time each."""
    monkeypatch.setattr(gate, "UNTRUSTED", 2)
    monkeypatch.setattr(gate, "UNTRUSTED_S", 0.3)
    with DispatchServer(DispatcherConfig(security=TOKEN)) as dispatcher:
        port = int(dispatcher.target.rpartition(":")[2])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        trusted = DispatcherConnection(dispatcher.target, TOKEN)
        trusted.ask_until_answered(GetStatus(), threading.Event())
        for each in silent:
            each.settimeout(60)
            assert each.recv(100_000) is not None  # the settings of the server's HTTP/2, and then the end
            eventually(lambda each=each: each.recv(100_000) == b"")
            each.close()
        trusted.ask(GetStatus())


def test_behind_the_gate_nothing_can_be_reached_but_by_the_server_itself(security):
    """It listens at no port but the one that it names, and at no socket that has a name."""
    with dispatcher_process(security) as (pid, target):
        ServiceConnection(target, security).ask(GetStatus())
        ports = {int(row[1].partition(":")[2], 16) for row in sockets_of(pid, "tcp", 9) if row[3] == "0A"}
        names = [row[-1] for row in sockets_of(pid, "unix", 6) if "gate" in row[-1]]

    assert ports == {int(target.rpartition(":")[2])}
    assert names  # it has one, which was removed
    assert not any(Path(name).parent.exists() for name in names)


def sockets_of(pid, family, inode):
    """The rows of `/proc/net` of a process; in them, the number of the socket is at a place."""
    own = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            own.add(str(each.readlink()))
    rows = (line.split() for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:])
    return [row for row in rows if f"socket:[{row[inode]}]" in own]
