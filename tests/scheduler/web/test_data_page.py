"""The page of the data service and of snapshots: a real dispatcher and a real worker, and none at all."""

import contextlib
import json
from dataclasses import replace

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.config import DispatcherConfig, WorkerConfig
from spanwise.pipelines.input.service.worker.worker import WorkerServer
from spanwise.scheduler.web.queries import data
from tests.scheduler.web.conftest import ask
from tests.scheduler.web.test_pages import text_of
from tests.servers import eventually, free_ports


@pytest.fixture
def service():
    """A dispatcher with one worker."""
    dispatcher = DispatchServer(DispatcherConfig(port=0))
    worker = WorkerServer(WorkerConfig(dispatcher_address=dispatcher.target))
    yield dispatcher, worker
    worker.stop()
    dispatcher.stop()


def test_workers_jobs_and_consumers_of_a_service_are_shown(folder, site, service):
    """With how long consumers wait; the document is that of the command."""
    dispatcher, worker = service
    stream = inputs.range(1000).distribute(dispatcher.target, "dynamic", "flights")
    each = iter(stream)
    next(each)

    with ask(replace(site, dispatcher=dispatcher.target)) as browser:
        eventually(lambda: "flights" in text_of(browser.get("/data")))
        found = text_of(browser.get("/data"))
        document = browser.get("/api/service").json()
    each.close()

    assert worker.address in found
    assert "Consumers wait" in found
    assert [job["name"] for job in document["jobs"]] == ["flights"]
    assert [w["address"] for w in document["workers"]] == [worker.address]


def test_a_dispatcher_that_is_gone_holds_up_no_page(folder, site, monkeypatch):
    """The page says where it asked."""
    (port,) = free_ports(1)
    monkeypatch.setattr(data, "_PATIENCE_S", 0.05)

    with ask(replace(site, dispatcher=f"grpc://127.0.0.1:{port}")) as browser:
        first = browser.get("/data")
        eventually(lambda: "no answer yet" not in text_of(browser.get("/data")))

    assert first.status_code == 200
    assert str(port) in text_of(first)


def test_without_a_dispatcher_the_page_says_how_to_name_one(page):
    """And that no snapshot is stored."""
    found = text_of(page("/data"))

    assert "spanwise ui --dispatcher" in found
    assert "No snapshot is stored here." in found
    assert page("/api/service").json() is None


def test_snapshots_are_shown_with_their_sizes_and_ages(folder, page, spanwise):
    """As the command lists them."""
    place = folder / ".spanwise" / "snapshots"
    with contextlib.closing(iter(inputs.range(100).snapshot(str(place)))) as each:
        assert len(list(each)) == 100
    (listed,) = json.loads(spanwise("snapshot", "ls", "--json")[1])

    found = text_of(page("/data"))

    assert listed["fingerprint"][:12] in found
    assert "whole 100" in found
    assert "ago" in found
    assert page("/api/snapshots").json() == [listed]
