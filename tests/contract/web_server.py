"""A web server for tests: some files by name, in parts where it is asked to, and the requests that it has answered."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class WebFiles:
    """What the server has."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes] = {}  #: by path: `/a.csv`
        self.sends_parts = True
        self.sends_tags = True  #: ETag, which tells one revision of a file from another
        self.requests: list[tuple[str, str, int]] = []  #: method, path, and how many bytes were sent


@contextlib.contextmanager
def serve_web() -> Iterator[WebFiles]:
    """Serves until the context ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_arguments: object) -> None:
            """Silent."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            content = there.files.get(unquote(self.path.partition("?")[0]))
            if content is None:
                self._answer(404, b"")
                return
            wanted = self.headers.get("If-Match")
            tag = f'"{hash(content)}"'
            if wanted not in (None, tag):
                self._answer(412, b"")
                return
            tags = {"ETag": tag} if there.sends_tags else {}
            span = self.headers.get("Range")
            if span is None or not there.sends_parts:
                self._answer(200, content, **tags)
                return
            first, last = (int(text) for text in span.removeprefix("bytes=").split("-"))
            extent = f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}"
            self._answer(206, content[first : last + 1], **tags, **{"Content-Range": extent})

        def _answer(self, status: int, content: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            sent = content if self.command == "GET" else b""
            there.requests.append((self.command, self.path, len(sent)))
            self.wfile.write(sent)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    there = WebFiles(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield there
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
