"""The gate before a server with a token: it counts what a connection sends until the server trusts it, and cuts it off.

gRPC reads a request as a whole before anybody can look at its token, and Flight sets no limit. So connections come in
here, and their bytes are passed on to the server, which listens for this process alone, at a socket that nobody else
can name. A connection that has not shown the token yet may send little; there are few such connections at a time, and
none of them has long. Flight speaks no TLS at such a socket, so it is the gate that does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import ssl
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Protocol

from spanwise.orchestrator.errors import ServiceError

UNTRUSTED_BYTES: Final = 32 << 10
"""What a connection may send before it has shown the token: a handshake and a small request."""

UNTRUSTED: Final = 64
"""How many such connections there are at once; further ones wait until the system accepts them."""

UNTRUSTED_S: Final = 10.0
"""How long each of them may take."""

_CHUNK_BYTES: Final = 256 << 10
_SOCKET_PATH: Final = 100  #: bytes of a socket's path, about as many as systems allow

_log = logging.getLogger("spanwise.service.server")


@dataclass(eq=False)
class _Connection:
    peer: str
    sent: int = 0  #: bytes, while it is not trusted
    trusted: asyncio.Event = field(default_factory=asyncio.Event)


class Door(Protocol):
    """How the gate reaches the server."""

    def connect(self) -> tuple[socket.socket, str]:
        """A connection, and the last part of the name under which the server sees it."""

    def close(self) -> None: ...


class PortDoor:
    """A port of 127.0.0.1, which any local user may find: where there is no `SecretDoor`. TLS goes through unopened."""

    def __init__(self, port: int) -> None:
        self._port = port

    def connect(self) -> tuple[socket.socket, str]:
        found = socket.create_connection(("127.0.0.1", self._port))
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found, str(found.getsockname()[1])

    def close(self) -> None:
        pass


class SecretDoor:
    """A socket in a folder of this user, whose name is removed once the server listens: only this process has it."""

    is_possible: ClassVar = sys.platform == "linux"

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="spanwise-"), "gate")
        if len(str(self.path)) > _SOCKET_PATH:
            self.path.parent.rmdir()
            self.path = Path(tempfile.mkdtemp(prefix="spanwise-", dir="/tmp"), "gate")
        self._handle = -1

    def hide(self) -> None:
        """The server listens: from now on nobody can name the socket."""
        self._handle = os.open(self.path, os.O_PATH)
        self._remove()

    def _remove(self) -> None:
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.path.parent.rmdir()

    def connect(self) -> tuple[socket.socket, str]:
        found = socket.socket(socket.AF_UNIX)
        name = f"spanwise-{secrets.token_hex(8)}"
        found.bind("\0" + name)  # so that the server can tell it from others
        found.connect(f"/proc/self/fd/{self._handle}")
        return found, name

    def close(self) -> None:
        self._remove()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class TokenGate:
    """Listens at an address, and passes connections on to a server of this process."""

    def __init__(self, host: str, port: int) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=1_024)
        except (OSError, OverflowError) as error:
            raise ServiceError(
                f"the data service cannot listen at {host}:{port}: {error}. Is the port in use? Port 0 picks one."
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._connections: dict[str, _Connection] = {}  # by the port or name from which the server sees them
        self._loop = asyncio.new_event_loop()
        self._door: Door | None = None
        self._tls: ssl.SSLContext | None = None
        self._untrusted = asyncio.Semaphore(UNTRUSTED)
        self._thread = threading.Thread(target=self._run, name="service-gate", daemon=True)

    def open(self, door: Door, tls: ssl.SSLContext | None = None) -> None:
        """Lets connections through, to the server behind that door; with a context, they have to speak TLS."""
        self._door, self._tls = door, tls
        self._thread.start()

    def trust(self, peer: str) -> None:
        """A request with the token came from there, as the server sees it."""
        connection = self._connections.get(peer.rpartition(":")[2])
        if connection is not None and not connection.trusted.is_set():
            self._loop.call_soon_threadsafe(connection.trusted.set)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._socket.close()
        if self._door is not None:
            self._door.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        accepting = self._loop.create_task(self._accept())
        try:
            self._loop.run_forever()
        finally:
            accepting.cancel()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    async def _accept(self) -> None:
        self._socket.setblocking(False)
        serving = set[asyncio.Task[None]]()
        while True:
            await self._untrusted.acquire()
            try:
                client, address = await self._loop.sock_accept(self._socket)
            except OSError as error:  # no file descriptors are left, for example
                _log.warning("connection-refused", extra={"reason": str(error)})
                self._untrusted.release()
                await asyncio.sleep(0.1)
                continue
            task = self._loop.create_task(self._serve(client, f"{address[0]}:{address[1]}"))
            serving.add(task)
            task.add_done_callback(serving.discard)

    async def _serve(self, client: socket.socket, peer: str) -> None:
        connection = _Connection(peer)
        watching = self._loop.create_task(self._watch(connection))
        writers: list[asyncio.StreamWriter] = []
        name = ""
        assert self._door is not None, "it accepts nobody before it is open"
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader, writer = await self._greet(client)
            writers.append(writer)
            server, name = self._door.connect()
            self._connections[name] = connection
            from_server, to_server = await asyncio.open_connection(sock=server, limit=_CHUNK_BYTES)
            writers.append(to_server)
            ways = [
                self._loop.create_task(self._pass_in(reader, to_server, connection)),
                self._loop.create_task(self._pass_on(from_server, writer)),
                watching,
            ]
            done, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if done == {watching} and connection.trusted.is_set():
                _, rest = await asyncio.wait(ways[:2], return_when=asyncio.FIRST_COMPLETED)
            for way in rest:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)  # a connection may end in any way
        except OSError as error:
            _log.info("connection-lost", extra={"peer": peer, "reason": str(error)})
        finally:
            watching.cancel()
            self._connections.pop(name, None)
            for each in writers:
                each.close()
            client.close()

    async def _greet(self, client: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The two ways of a connection, after the handshake of TLS if that is spoken."""
        reader = asyncio.StreamReader(_CHUNK_BYTES, self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        within_s = None if self._tls is None else UNTRUSTED_S
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol, client, ssl=self._tls, ssl_handshake_timeout=within_s
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _watch(self, connection: _Connection) -> None:
        """Frees the connection's place among the untrusted when it is trusted, or its time is over."""
        try:
            async with asyncio.timeout(UNTRUSTED_S):
                await connection.trusted.wait()
        except TimeoutError:
            _log.warning(
                "untrusted-cut-off", extra={"peer": connection.peer, "reason": f"no token in {UNTRUSTED_S:g} s"}
            )
        finally:
            self._untrusted.release()

    async def _pass_in(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection
    ) -> None:
        while not connection.trusted.is_set():
            room = UNTRUSTED_BYTES - connection.sent
            if not room:  # the server may be about to look at its token
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await connection.trusted.wait()
                        break
                _log.warning(
                    "untrusted-cut-off",
                    extra={"peer": connection.peer, "reason": f"{UNTRUSTED_BYTES} bytes without a token"},
                )
                return
            chunk = await reader.read(room)
            if not chunk:
                return
            connection.sent += len(chunk)
            writer.write(chunk)
            await writer.drain()
        await self._pass_on(reader, writer)

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
