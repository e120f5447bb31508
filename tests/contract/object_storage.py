"""Object storage for tests: moto's server in a thread, and real servers where the environment names one.

`tests/contract/buckets.sh` starts the real ones and sets SPANWISE_TEST_S3, SPANWISE_TEST_AZ and, where it is given a
server of Google's protocol, SPANWISE_TEST_GS to JSON: the settings of the environment, and under `home` the URL of an
empty bucket.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spanwise.orchestrator.storage import ObjectUrl, forget_buckets

SERVERS = {
    name: json.loads(os.environ[f"SPANWISE_TEST_{name.upper()}"])
    for name in ("s3", "az", "gs")
    if os.environ.get(f"SPANWISE_TEST_{name.upper()}")
}


@contextlib.contextmanager
def serve(kind: str) -> Iterator[str]:
    """Yields the URL of a bucket that this process and its children can reach."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        settings = dict(SERVERS[kind]) if kind in SERVERS else stack.enter_context(_moto())
        home = settings.pop("home")
        for name, value in settings.items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        forget_buckets()
        yield home
        forget_buckets()


def endpoint(kind: str) -> str:
    """The address of a server that `serve` has put into the environment."""
    if kind == "gs":
        address: str = json.loads(os.environ["GOOGLE_SERVICE_ACCOUNT_KEY"])["gcs_base_url"]
        return address
    return os.environ["AWS_ENDPOINT_URL"]


def at_endpoint(kind: str, address: str) -> dict[str, str]:
    """What of the environment changes for a proxy before that server."""
    if kind == "gs":
        account = json.loads(os.environ["GOOGLE_SERVICE_ACCOUNT_KEY"])
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**account, "gcs_base_url": address})}
    return {"AWS_ENDPOINT_URL": address}


def make_folder(url: ObjectUrl) -> None:
    """Creates an object as a console does to show an empty folder: its key ends with a slash, which obstore leaves out."""
    if url.scheme != "s3":
        pytest.skip("boto3 speaks the protocol of S3")
    import boto3

    session = boto3.Session()  # the one that is shared keeps the credentials of the first server
    client = session.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name=os.environ["AWS_REGION"])
    client.put_object(Bucket=url.bucket, Key=f"{url.key}/", Body=b"")
    client.close()


_KILLED = """
import os, sys
from spanwise.orchestrator.storage import open_bucket, parse_url
import obstore
url = parse_url(sys.argv[1])
def content():
    yield bytes(12 << 20)
    yield bytes(12 << 20)
    os._exit(0)
obstore.put(open_bucket(url.home)._objects, url.key, content(), chunk_size=5 << 20)
"""


def begin_upload(url: str) -> None:
    """Has a process begin to upload an object in parts, and die."""
    subprocess.run([sys.executable, "-P", "-c", _KILLED, url], check=True)


@contextlib.contextmanager
def serve_at(address: str) -> Iterator[str]:
    """Yields the URL of a bucket that other hosts can reach at this address, with what they need in the environment."""
    with pytest.MonkeyPatch.context() as patch, _moto(address) as settings:
        home: str = settings.pop("home")
        for name, value in {**settings, "AWS_ALLOW_HTTP": "true"}.items():
            patch.setenv(name, value)
        yield home


@contextlib.contextmanager
def _moto(address: str = "127.0.0.1") -> Iterator[dict[str, Any]]:
    from moto.moto_server import werkzeug_app
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer
    from werkzeug.serving import BaseWSGIServer

    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        soon = functools.partialmethod(BaseWSGIServer.serve_forever, poll_interval=0.02)  # how long it takes to end
        patch.setattr(BaseWSGIServer, "serve_forever", soon)
        server.start()
        host, port = server.get_host_and_port()
        bucket = f"lake-{port}"  # moto knows the buckets of servers that have ended
        request = urllib.request.Request(f"http://{host}:{port}/{bucket}", method="PUT")
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=test/20130101/us-east-1/s3/aws4_request")
        urllib.request.urlopen(request).close()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("put_object", "_key_response_post"):
            patch.setattr(S3Response, name, _one_at_a_time(getattr(S3Response, name)))
        # For each request moto lists its 200 folders and tries 500 patterns, and werkzeug writes a line: half of the time.
        finder = werkzeug_app.DomainDispatcherApplication
        patch.setattr(finder, "get_backend_for_host", functools.cache(finder.get_backend_for_host))
        patch.setattr(werkzeug_app.MotoRequestHandler, "log_request", lambda *_: None)
        try:
            yield {
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": f"http://{host}:{port}",
                "home": f"s3://{bucket}",
            }
        finally:
            server.stop()


def _one_at_a_time(write: Callable[..., Any]) -> Callable[..., Any]:
    """Moto asks whether the condition of a write holds before it writes: of two at once, both would be let through."""

    @functools.wraps(write)
    def locked(*arguments: Any, **named: Any) -> Any:
        with _WRITING:
            return write(*arguments, **named)

    return locked


_WRITING = threading.RLock()
