"""A relay into a network namespace that holds what it is given for a while each way, as a network does.

    python -m benchmarks.service_relay NAMESPACE DELAY_S PORT …

Whoever connects to a port of 127.0.0.1 here reaches the same port of 127.0.0.1 in the namespace. Each chunk is passed
on when its time has come, and chunks behind it are taken meanwhile: the delay takes nothing from the throughput, but
the relay copies each byte twice, on a processor of this machine. It replaces netem, which few kernels have.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

CLONE_NEWNET: Final = 0x40000000
CHUNK_BYTES: Final = 1 << 20
HELD_BYTES: Final = 64 << 20  #: more would be a network without congestion


class Way:
    """One direction of a connection: what has been read, each with the moment from which it may go on."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay_s: float) -> None:
        self._source, self._sink, self._delay_s = source, sink, delay_s
        self._held: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        for work in (self._take, self._pass_on):
            threading.Thread(target=work, daemon=True).start()

    def _take(self) -> None:
        chunk = b"."
        while chunk:
            try:
                chunk = self._source.recv(CHUNK_BYTES)
            except OSError:
                chunk = b""
            with self._changed:
                self._held.append((time.monotonic() + self._delay_s, chunk))
                self._bytes += len(chunk)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._bytes < HELD_BYTES)

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held)
                due, chunk = self._held.popleft()
                self._bytes -= len(chunk)
                self._changed.notify_all()
            if (left_s := due - time.monotonic()) > 0:
                time.sleep(left_s)
            try:
                self._sink.sendall(chunk)
            except OSError:
                chunk = b""
            if not chunk:
                with suppress(OSError):
                    self._sink.shutdown(socket.SHUT_WR)
                return


def relay(listener: socket.socket, namespace: int, delay_s: float) -> None:
    """Passes on the connections of one port; its thread lives in the namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "the namespace cannot be entered")
    port = listener.getsockname()[1]
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", port))
        except OSError:
            near.close()
            continue
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Way(near, far, delay_s)
        Way(far, near, delay_s)


def main(name: str, delay_s: float, ports: list[int]) -> None:
    listeners = [socket.create_server(("127.0.0.1", port)) for port in ports]  # they stay in the namespace of now
    namespace = os.open(Path("/run/netns", name), os.O_RDONLY)
    for listener in listeners:
        threading.Thread(target=relay, args=(listener, namespace, delay_s), daemon=True).start()
    print("relaying", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), [int(port) for port in sys.argv[3:]])
