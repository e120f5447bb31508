"""The dispatcher's host is lost, and another dispatcher takes over: consumers and workers find it, and nothing is lost.

The journal is in object storage: moto's, or a real server where SPANWISE_TEST_VERSITYGW names versitygw's program.
"""

import contextlib
import os
import pickle
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from spanwise.orchestrator.errors import ServiceError
from spanwise.orchestrator.storage import forget_buckets
from spanwise.pipelines import input as inputs
from spanwise.pipelines.demo_servers import serve_s3
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection
from spanwise.pipelines.input.service.wire.requests import ExchangeSplits, JoinJob
from spanwise.pipelines.input.service.wire.security import Security
from tests.contract.object_storage import SERVERS, serve
from tests.scenario.led import SOON_S, LedService, slow
from tests.scenario.served import Servers, learn
from tests.servers import eventually

GATEWAY = os.environ.get("SPANWISE_TEST_VERSITYGW")
ELEMENTS = 3_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["versitygw"] if GATEWAY else list(SERVERS or ["moto"]))
def home(request, tmp_path_factory):
    if request.param != "versitygw":
        with serve(request.param) as url:
            yield url
        return
    folder = tmp_path_factory.mktemp("s3")
    with serve_s3(Path(GATEWAY).absolute(), folder, "lake") as s3, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.items():
            patch.setenv(name, value)
        forget_buckets()
        yield "s3://lake"
    forget_buckets()


@pytest.fixture
def service(home, tmp_path):
    with LedService(tmp_path, home) as service:
        yield service


@pytest.fixture
def closed_later():
    with contextlib.ExitStack() as stack:
        yield stack


class Reader(threading.Thread):
    """A consumer in this process."""

    def __init__(self, url, mode, name, count=ELEMENTS):
        super().__init__(daemon=True)
        self.dataset = inputs.range(count).map(slow).distribute(url, mode, name)
        self.given, self.error = [], None
        self.start()

    def run(self):
        try:
            with self.dataset.iterator() as elements:
                for element in elements:
                    self.given.append(element)
        except Exception as error:  # noqa: BLE001  the test shows it
            self.error = error

    def await_elements(self, count):
        eventually(lambda: len(self.given) >= count or not self.is_alive(), SOON_S)

    def result(self):
        self.join(SOON_S)
        assert not self.is_alive(), f"it hangs after {len(self.given)} elements"
        assert self.error is None, self.error
        return self.given


def test_passes_go_on_whichever_dispatcher_is_killed(service):
    """Three times in a row, in the midst of their commits. Nobody was told an address."""
    leader = service.add_dispatcher()
    service.await_leader(1)
    for _ in range(2):
        service.add_worker()
    jobs = {
        mode: [Reader(service.url, mode, f"{mode}-job") for _ in range(2)]
        for mode in ("exactly_once", "at_least_once", "dynamic")
    }
    for token in (2, 3, 4):
        standby = service.add_dispatcher()
        standby.await_word(f"standby: the dispatcher {token - 1} ")
        busy = jobs["exactly_once"][0]
        busy.await_elements(len(busy.given) + 100)
        leader.end()
        leader, _ = standby, service.await_leader(token)
    seen = {mode: Counter(element for reader in pair for element in reader.result()) for mode, pair in jobs.items()}

    assert seen["exactly_once"] == Counter(range(ELEMENTS))
    assert seen["dynamic"] == Counter(range(ELEMENTS))  # no worker was lost
    assert seen["at_least_once"].keys() == set(range(ELEMENTS))


def test_what_was_committed_with_a_checkpoint_is_every_element_once(service, tmp_path):
    """A training stores and commits, while its dispatcher is killed, and so is the next one."""
    leader = service.add_dispatcher()
    service.await_leader(1)
    service.add_worker()
    path = tmp_path / "checkpoint"
    training = threading.Thread(target=learn, args=(path, service.url, 2_000, "exactly_once", None), daemon=True)
    training.start()
    for token in (2, 3):
        eventually(path.exists, SOON_S)
        stored = path.stat().st_mtime_ns
        standby = service.add_dispatcher()
        standby.await_word("standby: ")
        eventually(lambda stored=stored: path.stat().st_mtime_ns != stored or not training.is_alive(), SOON_S)
        leader.end()
        leader, _ = standby, service.await_leader(token)
    training.join(SOON_S)

    assert path.with_suffix(".end").exists()
    assert sorted(pickle.loads(path.read_bytes())[0]) == list(range(2_000))


def test_one_that_was_paused_acknowledges_nothing_after_another_has_taken_over(service, closed_later):
    """It is asked to commit as soon as it wakes, and all the while until it ends, which it does with the reason."""
    paused = service.add_dispatcher()
    old = service.await_leader(1).address
    inputs.register_dataset(service.url, inputs.range(1_000), dataset_id="d")
    connection = closed_later.enter_context(contextlib.closing(DispatcherConnection(service.url, Security())))
    joined, _ = connection.ask(JoinJob(dataset="d", mode="exactly_once", name="j", epoch="0"))
    leased, _ = connection.ask(ExchangeSplits(client=joined.client, number=1, want=8))
    first, second = leased.held[0][0], leased.held[1][0]
    standby = service.add_dispatcher()
    standby.await_word("standby: ")
    paused.process.send_signal(signal.SIGSTOP)
    try:
        service.await_leader(2)
        there = closed_later.enter_context(contextlib.closing(ServiceConnection(old, Security())))
        paused.process.send_signal(signal.SIGCONT)
        answers, number = [], 2
        while paused.process.poll() is None and number < 100_000:
            try:
                request = ExchangeSplits(client=joined.client, number=number, done=(first,), want=8)
                answers.append(there.ask(request, timeout_s=2.0))
            except ServiceError:
                pass
            number += 1
    finally:
        paused.process.send_signal(signal.SIGCONT)

    assert answers == []
    assert paused.process.wait(60) == 1
    assert "the dispatcher 1 has lost" in paused.log.read_text()
    commit = ExchangeSplits(client=joined.client, number=number, done=(second,), want=8)
    after, _ = connection.ask_until_answered(commit, threading.Event())
    assert first in dict(after.held)  # nobody has acknowledged its commit
    assert second not in dict(after.held)


def test_two_that_stand_by_take_over_one_after_the_other(service):
    """At most one leads; a dispatcher that is stopped lets the next one begin at once."""
    dispatchers = [service.add_dispatcher()]
    service.await_leader(1)
    dispatchers += [service.add_dispatcher() for _ in range(2)]
    for one in dispatchers[1:]:
        one.await_word("standby: ")
    dispatchers[0].process.send_signal(signal.SIGTERM)
    assert dispatchers[0].process.wait(60) == 0
    second = service.await_leader(2)
    (leading,) = [one for one in dispatchers[1:] if one.process.pid == second.pid]
    (waiting,) = [one for one in dispatchers[1:] if one.process.pid != second.pid]
    waiting.await_word("standby: the dispatcher 2 ")
    assert not waiting.says("dispatcher at")
    leading.end()

    assert service.await_leader(3).pid == waiting.process.pid


def test_a_dispatcher_that_was_paused_holds_nobody_for_silent(tmp_path):
    """In a folder or not: who has waited for it for longer than it waits for them keeps what it leases."""
    with Servers(tmp_path / "service", client_timeout_s=1) as servers:
        reader = Reader(servers.target, "exactly_once", "job")
        reader.await_elements(100)
        pid = servers.processes["dispatcher"].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(4)  # no clock is judged: the longer this takes the surer it is
        finally:
            os.kill(pid, signal.SIGCONT)

        assert Counter(reader.result()) == Counter(range(ELEMENTS))
