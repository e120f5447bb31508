"""How often a consumer asks: as often as it is in need, so that a crowd of them leaves a worker time to work."""

import time

from spanwise.orchestrator.errors import FunctionFailed
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.client.reader import _LITTLE_BYTES, BUFFER_BYTES, TaskReader
from tests.pipelines.input.service.servers import Service

SOON_S = 60.0


def test_who_uses_nothing_asks_seldom():
    """A worker makes elements one by one meanwhile; each of them was a request. All of them come, in order."""
    made = 60

    def slowly(number):
        time.sleep(0.02)
        return number

    with Service(1) as service:
        elements = inputs.range(made).map(slowly).distribute(service.target).iterator()
        with elements:
            first = next(elements)
            (worker,) = service.workers
            deadline = time.monotonic() + SOON_S
            while worker.status()["busy_s"] < 0.02 * made and time.monotonic() < deadline:
                time.sleep(0.05)
            requests = worker.status()["requests"]["get"]
            found = [first, *elements]

    assert requests < made / 3
    assert found == list(range(made))


def test_who_has_used_half_asks_at_once(monkeypatch):
    """However long it would rest otherwise: else this would take hours."""
    monkeypatch.setattr("spanwise.pipelines.input.service.client.reader._REST_S", 10 * SOON_S)
    monkeypatch.setattr("spanwise.pipelines.input.service.client.reader._LONGEST_REST_S", 10 * SOON_S)
    count = 4 * _LITTLE_BYTES // 24  # more than one answer holds while the first elements are used
    with Service(2) as service:
        found = sorted(inputs.range(count).map(lambda number: number).distribute(service.target, "dynamic"))

    assert found == list(range(count))


def test_who_holds_many_errors_asks_for_no_more():
    """A dataset whose elements all fail filled the memory of its consumer."""
    reader = TaskReader(inputs.range(3).distribute("127.0.0.1:1").op, "0")
    reader._keep(1, [FunctionFailed("no")] * (BUFFER_BYTES // 1_000))
    has_room = reader._has_room(1)
    reader.close()

    assert not has_room
