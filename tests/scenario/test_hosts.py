"""Schedulers on two hosts with one database: each tick has one outcome, whatever happens to a host or its network.

`make test-hosts` runs these: they need root, network namespaces, PostgreSQL and MariaDB.
"""

import subprocess
import time

import pytest

from spanwise.orchestrator import State
from spanwise.pipelines.demo_servers import find_postgresql
from tests import mariadb, postgresql
from tests.scenario import hosts
from tests.scenario.ticking_place import FILE, Place

pytestmark = hosts.MARKS


class Shared(Place):
    """A folder that all hosts see, with the roots of each, and the database that they share."""

    def __init__(self, folder, monkeypatch, bridge, url):
        super().__init__(folder, monkeypatch)
        self.bridge, self.url = bridge, url
        self.root.mkdir()
        monkeypatch.setenv("SPANWISE_METADATA", url)

    @property
    def metadata(self):
        return self.url

    def start_on(self, host):
        """Starts a scheduler on a host."""
        with (self.folder / f"log.{len(self.started)}").open("w") as log:
            words = ["schedule", "start", f"{FILE}:often", "--root", str(self.root)]
            one = host.start("spanwise", *words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.started.append(one)
        number = len(self.started) - 1
        self.until(lambda _: "schedule-loaded" in self.logs(number))
        return one

    def completed(self):
        return [run for run in self.runs() if run.state is State.COMPLETE]

    def await_more(self, count=2):
        """Waits for so many more runs to complete; the seconds that it took."""
        began = time.monotonic()
        wanted = len(self.completed()) + count
        self.until(lambda _: len(self.completed()) >= wanted)
        return time.monotonic() - began

    def end(self):
        self.bridge.close()


@pytest.fixture(scope="module")
def programs():
    """Those of the databases, and those that make hosts, are installed."""
    missing = hosts.missing() or ("" if find_postgresql() else "PostgreSQL is not installed")
    assert not missing, missing
    assert mariadb.is_installed(), "MariaDB is not installed"


@pytest.fixture(params=[postgresql, mariadb], ids=lambda each: each.__name__.rpartition(".")[2])
def place(request, tmp_path, monkeypatch, programs):
    bridge = hosts.Bridge(tmp_path)
    with request.param.serve(bridge.address) as url:
        place = Shared(tmp_path, monkeypatch, bridge, url)
        try:
            yield place
        finally:
            place.end()


@pytest.mark.parametrize("ahead_s", [0, 120, -120])
@pytest.mark.parametrize("event", ["dies", "is cut off", "is paused"])
def test_the_scheduler_of_another_host_takes_over(place, event, ahead_s, record_property):
    """Its ticks go on; when the first host comes back it goes on too, and no tick has run twice."""
    place.every(3)
    first, second = place.bridge.add_host(), place.bridge.add_host(ahead_s=ahead_s)
    place.start_on(first)
    place.await_more()
    place.start_on(second)
    place.await_more()
    {"dies": first.die, "is cut off": first.cut, "is paused": first.pause}[event]()
    record_property("seconds until two runs of the other host", place.await_more())
    {"dies": lambda: place.start_on(first), "is cut off": first.join, "is paused": first.resume}[event]()
    place.await_more()
    second.die()
    place.await_more()
    first.die()
    place.settle()

    place.check()


def test_a_scheduler_that_is_cut_off_from_its_database_still_hears_signals(place):
    """Its connection is given up after some seconds, not after the quarter of an hour that TCP would wait."""
    place.every(2)
    host = place.bridge.add_host()
    scheduler = place.start_on(host)
    place.await_more()
    host.cut()
    time.sleep(4)  # it asks at least once a second
    host.terminate("spanwise")
    scheduler.wait(120)
    host.join()
    place.settle()

    place.check()
