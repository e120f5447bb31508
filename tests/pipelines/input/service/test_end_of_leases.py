"""Leases are given in time, and their end is known: nobody takes a consumer that was given more for one that is done."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.client import lease_reader
from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.config import DispatcherConfig
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.requests import (
    ExchangeSplits,
    Heartbeat,
    JoinJob,
    PollJob,
    RegisterDataset,
    WorkerLoad,
)
from spanwise.pipelines.input.service.wire.security import Security
from tests.pipelines.input.service.servers import Service

SOON_S = 300.0
IDLE = WorkerLoad(busy_s=0, given=0, given_bytes=0, buffered_bytes=0, lent_bytes=0)


@pytest.fixture
def server():
    with DispatchServer(DispatcherConfig(worker_timeout_s=600, client_timeout_s=600)) as running:  # nobody is silent
        yield running


@pytest.fixture
def connection(server):
    """A client of a dispatcher that knows a dataset of four splits."""
    with contextlib.closing(ServiceConnection(server.target, Security())) as connected:
        connected.ask(RegisterDataset(dataset="few", structure="", splits=(4,)))
        yield connected


def two_consumers(connection):
    join = JoinJob(dataset="few", mode="exactly_once", name="shared", epoch="0")
    return [connection.ask(join)[0].client for _ in range(2)]


def test_a_consumer_waits_for_splits_that_another_one_has_just_been_given(connection):
    """That one may die before it has read them."""
    one, other = two_consumers(connection)
    given = connection.ask(ExchangeSplits(client=one, number=1, want=4, at_end=True, keeps=True))[0].held
    assert len(given) == 4
    assert not connection.ask(ExchangeSplits(client=other, number=1, want=4, at_end=True))[0].finished
    connection.ask(ExchangeSplits(client=one, number=2, want=4, at_end=True, keeps=True))  # it has yielded them
    assert connection.ask(ExchangeSplits(client=other, number=2, want=4, at_end=True))[0].finished


def test_who_waits_for_the_end_is_woken_by_the_last_commit_of_another(server, connection, monkeypatch):
    """It need not ask again and again."""
    connection.ask(Heartbeat(worker="w", address="127.0.0.1:1", process="p", wait_s=0, load=IDLE))
    one, other = two_consumers(connection)
    connection.ask(ExchangeSplits(client=one, number=1, want=4))
    connection.ask(ExchangeSplits(client=other, number=1, want=4, at_end=True))
    changed, waiting = server._keeper.changed, threading.Event()
    wait = changed.wait
    monkeypatch.setattr(changed, "wait", lambda _: waiting.set() or wait())  # whose time is never up
    poll = PollJob(client=other, targets="any", process="p", wait_s=10)

    with ThreadPoolExecutor() as pool:
        polling = pool.submit(connection.ask, poll)
        waiting.wait(SOON_S)
        connection.ask(ExchangeSplits(client=one, number=2, done=(0, 1, 2, 3), want=4))
        view, _ = polling.result(SOON_S)

    assert view.leasable
    assert connection.ask(ExchangeSplits(client=other, number=2, want=4, at_end=True))[0].finished


def test_consumers_say_what_they_need_when_they_need_it(monkeypatch):
    """They lease more and end without being asked, however long they may be quiet."""
    monkeypatch.setattr(lease_reader, "_QUIET_S", 1e6)
    found = []
    with Service(2) as service:
        dataset = inputs.range(300).distribute(service.target, "exactly_once", job_name="shared")
        threads = [
            threading.Thread(target=lambda: found.extend(dataset.iterator(epoch=0)), daemon=True) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON_S)

    assert not any(thread.is_alive() for thread in threads)
    assert sorted(found) == list(range(300))
