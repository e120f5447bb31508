"""Google Cloud Storage: what object_store asks of it, by a server that knows generations and nothing else.

No server of its protocol can be had here (docs/decisions/0110-object-storage.md), so this shows only that requests carry
the condition that Google documents: `x-goog-if-generation-match`, 0 for an object that must not exist.
"""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from spanwise.orchestrator.errors import Conflict
from spanwise.orchestrator.storage import forget_buckets, open_bucket, parse_url


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


@pytest.fixture
def bucket(monkeypatch):
    handler = type("Handler", (Generations,), {"objects": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    key = {"gcs_base_url": f"http://127.0.0.1:{server.server_address[1]}", "disable_oauth": True}
    unused = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key | unused))
    forget_buckets()
    yield open_bucket(parse_url("gs://lake"))
    server.shutdown()
    server.server_close()
    forget_buckets()


def test_an_object_is_created_once_and_replaced_only_as_the_writer_knows_it(bucket):
    """By its generation: its etag alone was refused by the library, so nothing could be replaced."""
    first = bucket.write("pointer", b"1", replacing="")
    with pytest.raises(Conflict):
        bucket.write("pointer", b"other", replacing="")
    second = bucket.write("pointer", b"2", replacing=first)

    with pytest.raises(Conflict):
        bucket.write("pointer", b"3", replacing=first)
    assert bucket.read("pointer") == (b"2", second)
    with pytest.raises(Conflict):
        bucket.write("another", b"3", replacing=first)
