"""A clock that tests move, and an S3 server on this machine."""

import pytest

from spanwise.pipelines.input.profiling import profile
from spanwise.pipelines.input.tuning import timing


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
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # it knows the server of an earlier module
        bucket = f"lake-{port}"  # and moto knows its buckets
        s3fs.S3FileSystem().mkdir(bucket)
        yield f"s3://{bucket}"
    server.stop()
