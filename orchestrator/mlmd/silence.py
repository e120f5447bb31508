"""How long a database server may be silent before a connection to it counts as broken.

A host that vanishes, or a network that drops packets, sends no word that a connection has ended. ml-metadata sets no
limits and holds Python's lock while it waits, so a process that had just asked would stand still, with its heartbeat
and its signals, for a quarter of an hour, and for two hours where the server had acknowledged the question. The kernel
knows such limits for each socket; ml-metadata does not show its sockets, but they are descriptors of this process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

CONNECT_S = 10.0
"""A server that has not accepted a connection by then is unavailable."""

SILENT_S = 12
"""A server that has acknowledged nothing for so long is gone; less than the time for which a lease lives on."""

_IDLE_S, _INTERVAL_S = 4, 4
_PROBES = (SILENT_S - _IDLE_S) // _INTERVAL_S
_DESCRIPTORS = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")

_OPTIONS = {
    "TCP_KEEPIDLE": _IDLE_S,
    "TCP_KEEPINTVL": _INTERVAL_S,
    "TCP_KEEPCNT": _PROBES,
    "TCP_USER_TIMEOUT": SILENT_S * 1000,  # of what was sent and not acknowledged, in milliseconds
}

LIBPQ_OPTIONS = {
    "keepalives": 1,
    "keepalives_idle": _IDLE_S,
    "keepalives_interval": _INTERVAL_S,
    "keepalives_count": _PROBES,
    "tcp_user_timeout": SILENT_S * 1000,
}
"""The same limits, for a client of PostgreSQL that takes them."""

_bounding = threading.Lock()  # so that what opens in between is recognized


@contextlib.contextmanager
def bounded(host: str, port: int) -> Iterator[None]:
    """Inside, the connections that this process opens to `port` get limits.

    Raises:
        OSError: nothing accepts connections there.
    """
    socket.create_connection((host, port), CONNECT_S).close()
    with _bounding:
        before = _sockets()
        yield
        for descriptor in _sockets() - before:
            _bound(descriptor, port)


def _sockets() -> set[int]:
    found = set()
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            if stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                found.add(int(entry.name))
    return found


def _bound(descriptor: int, port: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.getpeername()[1] != port:
            return
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if hasattr(socket, name):  # not every system has each
                one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
