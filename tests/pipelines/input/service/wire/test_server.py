"""Requests that wait for something new: not many at a time, and nobody loses by it."""

import threading
import time

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.wire import server
from spanwise.pipelines.input.service.wire.connection import ServiceConnection, this_process
from spanwise.pipelines.input.service.wire.requests import JoinJob, PollJob
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.pipelines.input.service.wire.server import WaitingPlaces
from tests.pipelines.input.service.servers import Service


def test_places_to_wait_are_few(monkeypatch):
    """Who finds none is told so; a place that was left is free."""
    monkeypatch.setattr(server, "MAX_WAITING", 1)
    waiting = WaitingPlaces()
    with waiting.place() as first, waiting.place() as second:
        pass
    with waiting.place() as third:
        pass

    assert (first, second, third) == (True, False, True)


def test_who_cannot_wait_at_the_dispatcher_is_answered_at_once(monkeypatch):
    """And asked to come again, the later the more consumers there are."""
    monkeypatch.setattr(server, "MAX_WAITING", 0)
    monkeypatch.setattr("spanwise.pipelines.input.service.dispatcher.jobs.POLLS_PER_S", 0.5)
    with Service(0) as service:
        dataset = inputs.register_dataset(service.target, inputs.range(10))
        connection = ServiceConnection(service.target, Security())
        client = connection.ask(JoinJob(dataset=dataset, mode="off", name="", epoch="0"))[0].client
        monkeypatch.setattr(service.dispatcher._keeper.changed, "wait", lambda _: pytest.fail("it waits"))
        answer, _ = connection.ask(PollJob(client=client, targets="any", process=this_process(), wait_s=10))

    assert answer.again_s == 10
    assert not answer.finished


def test_consumers_get_everything_though_none_may_wait(monkeypatch):
    """Neither at the dispatcher nor at workers; together they are given each element once."""
    monkeypatch.setattr(server, "MAX_WAITING", 0)
    monkeypatch.setattr("spanwise.pipelines.input.service.worker.worker._AGAIN_S", 0.01)
    found = []
    with Service(2) as service:
        dataset = inputs.range(100).map(lambda x: time.sleep(0.001) or x).distribute(service.target, "dynamic", "job")
        threads = [threading.Thread(target=lambda: found.extend(dataset.iterator(epoch=0))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(found) == list(range(100))
