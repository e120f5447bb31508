"""What members of a service have to do, and how many workers that wants."""

import pytest

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.load import RecentLoad, wanted_workers
from spanwise.pipelines.input.service.wire.connection import ServiceConnection
from spanwise.pipelines.input.service.wire.requests import WorkerLoad
from spanwise.pipelines.input.service.wire.security import Security
from tests.pipelines.input.service.servers import Service
from tests.servers import eventually


@pytest.mark.parametrize(
    ("workers", "busy", "starved", "right"),
    [
        (2, 1.0, 0.0, 2),  # just enough
        (2, 1.0, 0.5, 4),  # consumers would take twice as much
        (2, 1.0, 0.96, 8),  # who knows how much; not more than four times as many at once
        (4, 0.4, 0.0, 2),  # half of them would do
        (4, 0.1, 0.9, 2),  # workers wait too: something else is slow
        (3, 1.0, 0.04, 3),  # as good as none waits
        (5, 0.0, 0.0, 1),
        (0, 0.0, 0.0, 1),
    ],
)
def test_as_many_workers_are_wanted_as_consumers_could_use(workers, busy, starved, right):
    """Busy ones, each as busy as it can be; never none."""
    assert wanted_workers(workers, busy, starved) == right


def test_a_load_is_told_by_what_came_lately():
    """Shares and rates are of the time between two tellings, not shorter than a quarter of a second."""
    lately = RecentLoad(WorkerLoad(busy_s=10.0, given=100, given_bytes=1000), now=0.0)
    lately.update(WorkerLoad(busy_s=10.1, given=110, given_bytes=1100), now=0.1)
    assert lately.busy == 0.0
    lately.update(WorkerLoad(busy_s=10.5, given=150, given_bytes=3000, buffered_bytes=7), now=1.0)

    assert (lately.busy, lately.given_per_s, lately.bytes_per_s) == (0.5, 50.0, 2000.0)
    assert lately.facts()["buffered_bytes"] == 7


def test_a_service_tells_what_it_does():
    """Elements, bytes, requests, splits: those of a pass that came to its end."""
    with Service(1) as service:
        assert len(list(inputs.range(1000).distribute(service.target, "dynamic"))) == 1000
        worker = service.workers[0].status()
        eventually(lambda: service.dispatcher.status()["workers"][0]["given"] == 1000)
        dispatcher = service.dispatcher.status()

    assert worker["given"] == 1000
    assert worker["given_bytes"] > 8 * 1000
    assert worker["requests"]["get"] > 0
    assert worker["errors"].get("get", 0) <= worker["requests"]["get"]
    assert dispatcher["splits_dealt"] == 250
    assert dispatcher["requests"]["join"] == 1
    assert dispatcher["wanted"] >= 1


def test_errors_are_counted():
    """Those of requests that were understood."""
    with Service(0) as service:
        connection = ServiceConnection(service.target, Security())
        for kind in ("get_dataset", "no such request"):
            with pytest.raises(ServiceError):
                connection.exchange(kind, b'{"dataset": "unknown"}')
        status = service.dispatcher.status()

    assert status["errors"] == {"get_dataset": 1}
    assert status["requests"] == {"get_dataset": 1}


def test_what_waits_on_a_worker_is_counted_as_buffered():
    """Until consumers have taken it; segments that were lent are told apart."""
    with Service(1) as service:
        elements = inputs.range(1 << 62).batch(1000).distribute(service.target).iterator()
        next(elements)
        eventually(lambda: service.workers[0].status()["buffered_bytes"] > 0)
        eventually(lambda: service.dispatcher.status()["workers"][0]["buffered_bytes"] > 0)
        elements.close()
