"""A way to a server that can be cut: at once, between the next COMMIT and its answer, or while that COMMIT is on its way.

It runs in a process of its own: ml_metadata lets no other thread run while it waits for its server.
"""

import contextlib
import multiprocessing
import socket
import threading
import time
from urllib.parse import urlsplit

from tests.forkserver import FORKS

LATE_S = 1.0  # in which the client has connected again and repeats what it had sent


class Wire:
    """The near end: `url` leads through it to the server."""

    def __init__(self, url):
        parts = urlsplit(url)
        self._orders, theirs = multiprocessing.Pipe()
        self._process = FORKS.Process(target=_serve, args=(theirs, parts.hostname, parts.port), daemon=True)
        self._process.start()
        self.url = url.replace(f":{parts.port}/", f":{self._orders.recv()}/")

    @property
    def armed(self):
        """Whether the COMMIT or ROLLBACK at which it is to be cut is still to come."""
        return self._order("armed?")

    def cut(self):
        self._order("cut")

    def lose_the_next_commits_answer(self):
        self._order("lose")

    def delay_the_next_commit(self):
        """Cuts there, but what was sent arrives a moment later: the server had much to do, or waited for a standby."""
        self._order("delay")

    def drop_the_next_rollback(self):
        """Cuts before it arrives: a question that found nothing has been answered, and its transaction is to end."""
        self._order("drop")

    def go_away(self):
        """Cuts, and accepts nobody until `come_back`, as a server that is restarted."""
        self._order("away")

    def come_back(self):
        self._order("back")

    def close(self):
        self._process.kill()
        self._process.join()
        self._orders.close()

    def _order(self, what):
        self._orders.send(what)
        return self._orders.recv()


def _serve(orders, host, port):
    listener = socket.create_server(("127.0.0.1", 0))
    near = listener.getsockname()
    faults, ends = {name: threading.Event() for name in ("lose", "delay", "drop")}, []

    def accept(listener):
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                ends.append(_Ends(client, socket.create_connection((host, port)), faults))

    def listen(listener):
        threading.Thread(target=accept, args=(listener,), daemon=True).start()

    listen(listener)
    orders.send(near[1])
    while True:
        match orders.recv():
            case "lose" | "delay" | "drop" as order:
                faults[order].set()
            case "cut" | "away" as order:
                if order == "away":
                    listener.shutdown(socket.SHUT_RDWR)  # close() alone would not end accept()
                    listener.close()
                while ends:
                    ends.pop().close()
            case "back":
                listener = socket.create_server(near)
                listen(listener)
        orders.send(any(fault.is_set() for fault in faults.values()))


class _Ends:
    def __init__(self, client, server, faults):
        self._client, self._server, self._faults = client, server, faults
        self._deaf = False
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def close(self):
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source is self._client and self._happens("lose", b"COMMIT", data):
                    self._deaf = True
                if source is self._client and self._happens("delay", b"COMMIT", data):
                    self._client.shutdown(socket.SHUT_RDWR)
                    time.sleep(LATE_S)
                if source is self._client and self._happens("drop", b"ROLLBACK", data):
                    break
                if source is self._server and self._deaf:
                    break
                target.sendall(data)
        self.close()

    def _happens(self, fault, word, data):
        found = word in data.upper() and self._faults[fault].is_set()
        if found:
            self._faults[fault].clear()
        return found
