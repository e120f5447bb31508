"""A clock that tests move, and an S3 server on this machine."""

import pytest

from spanwise.pipelines.input.profiling import profile
from spanwise.pipelines.input.tuning import timing
from tests.contract.object_storage import serve


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self):
        self.now_ns = 0
        self.readings = 0

    def read_ns(self):
        self.readings += 1
        return self.now_ns

    def advance(self, seconds):
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch):
    """The clock of profiles and timed streams; what profiling itself costs is a given number."""
    clock = Clock()
    monkeypatch.setattr(profile, "perf_counter", lambda: clock.now_ns / 1e9)
    monkeypatch.setattr(profile, "overhead_s", lambda: 3e-7)
    monkeypatch.setattr(timing, "_clock", clock.read_ns)
    return clock


@pytest.fixture(scope="module")
def s3_url():
    """The URL of a bucket on an S3 server on this machine."""
    with serve("moto") as home:
        yield home
