"""A proxy before a server of object storage that fails requests as networks and services do."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias

Answer: TypeAlias = tuple[int, list[tuple[str, str]], bytes]
"""The status, the headers and the body."""

_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code} of a test</Message></Error>'


@dataclass(frozen=True)
class Fault:
    """What happens to a request instead of an answer, or besides it."""

    status: int = 0  #: of an error that the proxy answers with
    code: str = ""
    reset: bool = False  #: the connection is reset before the answer
    cut: bool = False  #: the connection ends in the middle of the answer's body
    short: bool = False  #: it ends there too, and what was sent before arrives
    lost: bool = False  #: the request is done, and its answer is lost
    delay_s: float = 0.0


class FaultyProxy:
    """Passes requests on; `decide` says what goes wrong with each, by its method and path."""

    def __init__(self, upstream: str, port: int = 0) -> None:
        self.decide: Callable[[str, str], Fault | None] = lambda _method, _path: None
        self.requests: list[tuple[str, str]] = []
        self._upstream = urllib.parse.urlsplit(upstream).netloc
        self._turn = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def fail(self, fault: Fault, times: int = 10**9, *, method: str = "", containing: str = "") -> list[str]:
        """Has the next requests of a method fail; the list gets the paths of those that did."""
        failed: list[str] = []

        def decide(asked: str, path: str) -> Fault | None:
            if len(failed) >= times or method not in ("", asked) or containing not in path:
                return None
            failed.append(path)
            return fault

        self.decide = decide
        return failed

    def note(self, method: str, path: str) -> Fault | None:
        with self._turn:
            self.requests.append((method, path))
            return self.decide(method, path)

    def forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        return self.ask(handler.command, handler.path, handler.headers, body)

    def ask(self, method: str, path: str, headers: Message, body: bytes) -> Answer:
        """Makes a request of the server."""
        connection = http.client.HTTPConnection(self._upstream, timeout=300)
        try:
            connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in ("connection", "expect", "content-length"):
                    connection.putheader(name, value)
            if body or "Content-Length" in headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultyProxy

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner.note(self.command, self.path)
        if fault is not None and fault.delay_s:
            time.sleep(fault.delay_s)
        if fault is not None and fault.reset:
            self._reset()
            return
        if fault is not None and fault.status:
            text = _ERROR.format(code=fault.code).encode()
            status, headers, content = fault.status, [("Content-Type", "application/xml")], text
        else:
            status, headers, content = self.owner.forward(self, body)
        if fault is not None and fault.lost:
            self._reset()
            return
        self.send_response_only(status)
        lengths = [value for name, value in headers if name.lower() == "content-length"]
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "keep-alive"):
                self.send_header(name, value)
        self.send_header("Content-Length", lengths[0] if self.command == "HEAD" and lengths else str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is not None and fault.cut:
            self.wfile.write(content[: len(content) // 2])
            self._reset()
            return
        if fault is not None and fault.short:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        self.wfile.write(content)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815  the library's names


@contextmanager
def proxied(upstream: str) -> Iterator[FaultyProxy]:
    """A proxy before a server."""
    proxy = FaultyProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
