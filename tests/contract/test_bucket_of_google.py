"""Google Cloud Storage: conditions hold on the servers of the tests as on Google's own testbench.

`tests/contract/buckets.sh` starts it where SPANWISE_TEST_STORAGE_TESTBENCH names it. It has generations and their
conditions as Google has, and of the XML interface only reading and writing. The library cannot use it, which wants the
etag of what it has written; so all servers get the same requests here, and have to give the same answers.

Without other servers, one of a few lines shows that the library's requests carry the condition that Google documents:
`x-goog-if-generation-match`, 0 for an object that must not exist.
"""

import contextlib
import hashlib
import json
import os
import threading
import uuid
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from spanwise.orchestrator.errors import Conflict
from spanwise.orchestrator.storage import forget_buckets, open_bucket, parse_url

SERVERS_OF_GOOGLE = {
    name: json.loads(os.environ[variable])
    for name, variable in {"gs": "SPANWISE_TEST_GS", "testbench": "SPANWISE_TEST_GS_TESTBENCH"}.items()
    if os.environ.get(variable)
}


class Generations(BaseHTTPRequestHandler):
    objects: dict[str, tuple[bytes, int]]

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["content-length"]))
        _, generation = self.objects.get(self.path, (b"", 0))
        if self.headers.get("x-goog-if-generation-match", str(generation)) != str(generation):
            self.answer(412)
            return
        self.objects[self.path] = (content, generation + 1)
        self.answer(200, self.objects[self.path])

    def do_GET(self):
        found = self.objects.get(self.path)
        self.answer(404) if found is None else self.answer(200, found, found[0])

    do_HEAD = do_GET  # noqa: N815  the name that http.server calls

    def answer(self, status, found=None, body=b""):
        self.send_response(status)
        if found is not None:
            self.send_header("ETag", f'"{hashlib.md5(found[0]).hexdigest()}"')
            self.send_header("x-goog-generation", str(found[1]))
            self.send_header("last-modified", "Tue, 24 Nov 2026 00:00:00 GMT")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def few_lines():
    """The account of a server of a few lines."""
    handler = type("Handler", (Generations,), {"objects": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    key = {"gcs_base_url": f"http://127.0.0.1:{server.server_address[1]}", "disable_oauth": True}
    unused = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    yield json.dumps(key | unused)
    server.shutdown()
    server.server_close()


def account_of(name, stack):
    server = SERVERS_OF_GOOGLE.get(name)
    return server["GOOGLE_SERVICE_ACCOUNT_KEY"] if server else stack.enter_context(few_lines())


@pytest.fixture(params=["few lines", *(name for name in SERVERS_OF_GOOGLE if name == "gs")])
def bucket(request, monkeypatch):
    with contextlib.ExitStack() as stack:
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", account_of(request.param, stack))
        forget_buckets()
        yield open_bucket(parse_url("gs://lake"))
        forget_buckets()


@pytest.fixture(params=["few lines", *SERVERS_OF_GOOGLE])
def connection(request):
    with contextlib.ExitStack() as stack:
        address = json.loads(account_of(request.param, stack))["gcs_base_url"]
        yield stack.enter_context(contextlib.closing(HTTPConnection(address.removeprefix("http://"))))


@pytest.fixture
def key():
    return uuid.uuid4().hex


def test_an_object_is_created_once_and_replaced_only_as_the_writer_knows_it(bucket, key):
    """By its generation: its etag alone was refused by the library, so nothing could be replaced."""
    first = bucket.write(key, b"1", replacing="")
    with pytest.raises(Conflict):
        bucket.write(key, b"other", replacing="")
    second = bucket.write(key, b"2", replacing=first)

    with pytest.raises(Conflict):
        bucket.write(key, b"3", replacing=first)
    assert bucket.read(key) == (b"2", second)
    with pytest.raises(Conflict):
        bucket.write(f"{key}-other", b"3", replacing=first)


def test_servers_heed_conditions_as_googles_testbench_does(connection, key):
    """0 is nothing yet; any other number is the generation that there is, which each write changes."""

    def ask(method, generation=None, name=key):
        headers = {} if generation is None else {"x-goog-if-generation-match": generation}
        connection.request(method, f"/lake/{name}", b"content" if method == "PUT" else None, headers)
        answer = connection.getresponse()
        answer.read()
        return answer

    assert ask("PUT", "1").status == 412, "there is nothing"
    assert ask("PUT", "0").status == 200
    assert ask("PUT", "0").status == 412
    first = ask("HEAD").headers["x-goog-generation"]
    assert ask("PUT", str(int(first) + 1)).status == 412
    assert ask("PUT", first).status == 200
    assert ask("PUT", first).status == 412
    second = ask("GET").headers["x-goog-generation"]
    assert second != first
    assert ask("PUT").status == 200, "whatever there is"
    assert ask("PUT", second).status == 412
    assert ask("GET", name=f"{key}-other").status == 404
