"""A database server that goes away, as one that is restarted, at the moments at which that could cost something."""

import os
from contextlib import closing

import pytest

from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.orchestrator.mlmd import open_store
from spanwise.pipelines.demo_servers import find_postgresql
from spanwise.scheduler.project import root
from spanwise.scheduler.project.settings import Settings
from spanwise.scheduler.schedule.outcome import TickOutcome
from tests.contract.wire import Wire
from tests.postgresql import NEEDED, serve
from tests.scenario.ticking_place import Place
from tests.servers import eventually


@pytest.fixture(scope="module")
def server():
    if find_postgresql() is None:
        (pytest.fail if os.environ.get(NEEDED) else pytest.skip)("no PostgreSQL; make test-sql installs one")
    with serve() as url:
        yield url


@pytest.fixture
def wire(server, tmp_path):
    """The way to a database of the test's own."""
    wire = Wire(f"{server.rpartition('/')[0]}/{tmp_path.name.lower().replace('-', '_')}")
    yield wire
    wire.close()


def test_a_command_that_begins_while_its_server_is_restarted_waits_for_it(wire, tmp_path, monkeypatch, caplog):
    """It says so. One with another user, or with a root that was never used, is refused at once: that is no restart."""
    known = Settings(root=tmp_path, metadata=wire.url)
    with root.open_for_writing(known):
        pauses = []

    def pause(most_s):
        pauses.append(most_s)
        if len(pauses) == 3:
            wire.come_back()

    monkeypatch.setattr("spanwise.orchestrator.mlmd.connection._pause", pause)
    for opened in (root.open_for_writing, root.open_for_reading):
        pauses.clear()
        wire.go_away()
        with opened(known) as store:
            assert root.identity(store) == (tmp_path / root.NOTE).read_text().strip()
        assert len(pauses) == 3
    awaited = [record for record in caplog.records if record.message == "metadata-awaited"]
    pauses.clear()
    with (
        pytest.raises(StoreUnavailable, match="does not exist"),
        root.open_for_reading(Settings(root=tmp_path, metadata=wire.url.replace("spanwise@", "nobody@"))),
    ):
        pass
    wire.go_away()
    with (
        pytest.raises(StoreUnavailable, match="is unavailable"),
        root.open_for_writing(Settings(root=tmp_path / "new", metadata=wire.url)),
    ):
        pass

    assert [record.reason for record in awaited] == ["[Errno 111] Connection refused"] * 2
    assert pauses == []


class BehindWire(Place):
    """Its schedulers and their runs reach the metadata by a wire; the test does by the server."""

    def __init__(self, folder, monkeypatch, server, wire):
        super().__init__(folder, monkeypatch)
        self._server = f"{server.rpartition('/')[0]}/{wire.url.rpartition('/')[2]}"
        monkeypatch.setenv("SPANWISE_METADATA", wire.url)

    @property
    def metadata(self):
        return self._server

    def runs_logs(self):
        return "\n".join(log.read_text() for log in (self.root / "ticking" / ".schedule").glob("*.log"))


@pytest.fixture
def place(tmp_path, monkeypatch, server, wire):
    with closing(open_store(f"{server.rpartition('/')[0]}/{wire.url.rpartition('/')[2]}")):
        pass  # so that the tables are there
    place = BehindWire(tmp_path, monkeypatch, server, wire)
    yield place
    place.end()


def test_a_scheduled_run_that_starts_while_the_server_is_restarted_is_no_failure(place, wire):
    """It waits until the server is back; its tick has one attempt, without any retries."""
    place.every(3)
    scheduler = place.start()
    place.until(lambda entries: any(entry.end for entry in entries))
    place.set(hold="")
    eventually((place.folder / "held").exists)
    wire.go_away()
    (place.folder / "hold").unlink()
    eventually(lambda: "metadata-awaited" in place.runs_logs())
    wire.come_back()
    place.until(lambda entries: len(entries) > 3)
    scheduler.process.terminate()
    place.settle()

    place.check()
    assert {entry.end.outcome for entry in place.entries()} <= {
        TickOutcome.RAN,
        TickOutcome.SKIPPED,
        TickOutcome.MISSED,
    }
    assert {entry.attempts for entry in place.entries() if entry.end.outcome is TickOutcome.RAN} == {1}
