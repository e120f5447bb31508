"""Health: a small HTTP server for metrics, and for whether the loop that they describe still runs.

It changes nothing and asks for no password, so it listens on this machine alone unless an address is given.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from spanwise.orchestrator.errors import UsageError

log = logging.getLogger("spanwise.scheduler")

LATE_S = 120.0
"""A loop that has not run for this long counts as stuck; one that waits for a locked database does not."""

_PATIENCE_S = 10.0  # with who asks and then says nothing
_HIGHEST_PORT = 65535
_END_S = 0.1  # between two looks whether to end
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class ListenAddress:
    """Where to listen."""

    host: str
    port: int  #: 0 takes one that is free

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"


class MetricsSource(Protocol):
    """What the pages are about."""

    @property
    def turned_s(self) -> float:
        """When its loop last turned, on the monotonic clock."""

    def page(self, accept: str) -> tuple[bytes, str]:
        """Its metrics as text, in the form that the reader accepts, and the name of that form."""


def parse_address(typed: str, option: str = "--listen") -> ListenAddress:
    """The address that was typed: `9188` on this machine alone, `192.0.2.7:9188`, `[::1]:9188`, or a name.

    Raises:
        UsageError: it is none; or no host is named before the colon, which elsewhere means to listen everywhere.
    """
    host, colon, port = typed.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not port.isascii() or not port.isdigit() or int(port) > _HIGHEST_PORT:
        raise UsageError(f"{option} {typed}: no port. Write {option} 9188, or {option} ADDRESS:9188.")
    if colon and not host:
        raise UsageError(
            f"{option} {typed}: no address. For this machine alone write {option} {port}; for all that reach it, "
            f"{option} 0.0.0.0:{port}."
        )
    return ListenAddress(host or "127.0.0.1", int(port))


@contextlib.contextmanager
def serve_metrics(
    where: ListenAddress, metrics: MetricsSource, *, late_s: float = LATE_S, option: str = "--listen"
) -> Iterator[ListenAddress]:
    """Answers on that address, in threads of its own; yields the address with the port that was taken.

    Raises:
        UsageError: it cannot listen there.
    """
    server = _server(where, metrics, late_s, option)
    found = ListenAddress(where.host, server.server_address[1])
    log.info("metrics-served", extra={"url": f"http://{found}/metrics"})
    if not where.loopback:
        log.warning("metrics-exposed", extra={"reason": f"whoever reaches {found} can read them"})
    thread = threading.Thread(target=server.serve_forever, args=[_END_S], name="health", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _server(where: ListenAddress, metrics: MetricsSource, late_s: float, option: str) -> ThreadingHTTPServer:
    class BoundHealthPage(HealthPage):
        shown = metrics
        late = late_s

    class HealthServer(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, _request: object, client_address: object) -> None:
            log.warning("request-failed", extra={"by": client_address}, exc_info=True)  # noqa: LOG014  it is called while one is handled

    try:
        family, *_, at = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0]
        HealthServer.address_family = family
        return HealthServer(at[:2], BoundHealthPage)  # type: ignore[arg-type]  # host and port come first, in either family
    except OSError as error:
        raise UsageError(f"{option} {where}: {error.strerror}. Name another, for example {option} 9189.") from error


class HealthPage(BaseHTTPRequestHandler):
    """Two pages."""

    shown: MetricsSource
    late: float
    timeout = _PATIENCE_S
    server_version = "spanwise"
    sys_version = ""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                self._answer(HTTPStatus.OK, *self.shown.page(self.headers.get("Accept", "")))
            case "/healthz":
                quiet_s = time.monotonic() - self.shown.turned_s
                status = HTTPStatus.OK if quiet_s <= self.late else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(status, f"the loop last ran {quiet_s:.1f} s ago\n".encode(), _TEXT)
            case _:
                self._answer(HTTPStatus.NOT_FOUND, b"The pages are /metrics and /healthz\n", _TEXT)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        log.debug("request-served", extra={"by": self.client_address[0], "line": format % arguments})
