"""Every implementation of the store, opened the same way: what the contract's tests run on.

The servers take part when SPANWISE_TEST_MYSQL and SPANWISE_TEST_POSTGRESQL name one: see `databases.sh`.
"""

import contextlib
import logging
import os
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator.mlmd import open_store, sql_reader, sqlite_reader
from spanwise.orchestrator.store import MemoryStore

SERVERS = {
    name: os.environ[f"SPANWISE_TEST_{name.upper()}"]
    for name in ("mysql", "postgresql")
    if os.environ.get(f"SPANWISE_TEST_{name.upper()}")
}
REAL = ["sqlite", *SERVERS]
UNKNOWN_TABLES = ["postgresql, through ml-metadata"] if "postgresql" in SERVERS else []
"""Where the tables have a version that is not read by SQL, so that ml-metadata is asked everything."""

BY_SQL = "sqlite, by SQL"
"""Where also few records are read by SQL, as otherwise only many are."""


def session_of(store):
    """The session by which SQL was asked, or None."""
    opened = store._reader._idle
    assert len(opened) <= 1, "only threads that ask at the same time need more"
    return opened[0].session if opened else None


IN_CHILD = """
def in_child(act):
    child = os.fork()
    if not child:
        try:
            act()
            gc.collect()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
"""Part of a program that needs `gc` and `os`: does something in a forked child, which has to come to an end."""


@pytest.fixture
def reasons(caplog):
    """Why the metadata was not read by SQL, as far as the log says."""
    caplog.set_level(logging.INFO, logger=sql_reader.log.name)
    return lambda: [record.reason for record in caplog.records if record.name == sql_reader.log.name]


class Clock:
    """A time that stands until it is moved."""

    def __init__(self):
        self.now = datetime(2024, 1, 1, 3, 0, 0, 123456, tzinfo=UTC)

    def __call__(self):
        return self.now

    def forward(self, **by):
        self.now += timedelta(**by)
        return self.now


class Place:
    """Where one test's records are; opened as often as it likes, and from other processes by its `url`."""

    def __init__(self, kind, folder):
        self.kind = kind
        self.clock = Clock()
        self.url = "" if kind == "memory" else fresh_url(kind, folder)
        self._memory = MemoryStore(self.clock)
        self._opened = contextlib.ExitStack()

    def open(self, **options):
        if self.kind == "memory":
            return self._memory
        store = open_store(self.url, clock=self.clock, **options)
        self._opened.callback(store.close)
        return store

    def close(self):
        self._opened.close()


def fresh_url(kind, folder):
    """A database that is not there yet."""
    name = f"t{uuid.uuid4().hex[:16]}"
    return str(folder / f"{name}.db") if kind == "sqlite" else f"{SERVERS[kind].rsplit('/', 1)[0]}/{name}"


@pytest.fixture(params=["memory", *REAL, BY_SQL, *UNKNOWN_TABLES])
def place(request, tmp_path, monkeypatch):
    if request.param in UNKNOWN_TABLES:
        monkeypatch.setattr(sql_reader, "SCHEMA_VERSIONS", ())
    if request.param == BY_SQL:
        monkeypatch.setattr(sqlite_reader, "LEAST_KEYS", 1)
    place = Place(request.param.partition(",")[0], tmp_path)
    yield place
    place.close()


@pytest.fixture(params=REAL)
def real(request, tmp_path):
    """A place that several processes can open."""
    place = Place(request.param, tmp_path)
    yield place
    place.close()


@pytest.fixture
def store(place):
    return place.open()


@pytest.fixture
def clock(place):
    return place.clock
