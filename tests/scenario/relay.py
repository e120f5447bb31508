"""A relay to a server, which delays, holds or resets what single hosts send to it, as a bad network does."""

import contextlib
import socket
import struct
import threading
import time
from urllib.parse import urlsplit


class Relay:
    """Listens on `address`, and passes on what comes to the server at `host:port`."""

    def __init__(self, address, server):
        self._server = server
        self._listener = socket.create_server((address, 0), backlog=100)
        self.address = f"{address}:{self._listener.getsockname()[1]}"
        self.delays = {}  #: host -> seconds that each chunk waits
        self.silent = set()  #: hosts whose chunks wait until they are not in it
        self._connections = {}  # socket -> host
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.silent.clear()
        self.reset()

    def reset(self, *hosts):
        """Resets the connections of these hosts, or of all."""
        for connection, host in list(self._connections.items()):
            if not hosts or host in hosts:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.shutdown(socket.SHUT_RD)
                    connection.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, (host, _) = self._listener.accept()
                threading.Thread(target=self._serve, args=(client, host), daemon=True).start()

    def _serve(self, client, host):
        with contextlib.suppress(OSError), client, socket.create_connection(self._server) as server:
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[client] = host
            answers = threading.Thread(target=self._pass_on, args=(server, client, host), daemon=True)
            answers.start()
            self._pass_on(client, server, host)
            answers.join()
        self._connections.pop(client, None)

    def _pass_on(self, source, sink, host):
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                time.sleep(self.delays.get(host, 0))
                while host in self.silent:
                    time.sleep(0.05)
                sink.sendall(chunk)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def relayed(url, address):
    """A relay on `address` to the server of a URL, and the URL by which it is reached."""
    parts = urlsplit(url)
    relay = Relay(address, (parts.hostname, parts.port))
    return relay, url.replace(f"{parts.hostname}:{parts.port}", relay.address)
