"""A client of PostgreSQL that only reads, without encryption, as that of ml-metadata. It knows the protocol, no tables.

It speaks version 3 of the protocol: https://www.postgresql.org/docs/current/protocol-message-formats.html. Libraries
that do take longer to import than a command that reads takes altogether.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Sequence
from typing import Any

from spanwise.orchestrator.mlmd import silence
from spanwise.orchestrator.mlmd.location import DatabaseServer

_PROTOCOL = 3 << 16
_LENGTH = struct.Struct("!I")
_HEAD = struct.Struct("!cI")
_ONE_COLUMN = struct.Struct("!HI")
_OK, _CLEAR, _MD5, _SASL, _SASL_CONTINUE, _SASL_FINAL = 0, 3, 5, 10, 11, 12
_MECHANISM = b"SCRAM-SHA-256"
_OPTIONS = "-c default_transaction_read_only=on -c jit=off"  # it compiles longer than a question takes


class QueryRefused(Exception):
    """The server refuses the connection or the statement, or wants what this client does not speak."""


class ReadSession:
    """One connection, in which every transaction is one statement that reads.

    Raises:
        QueryRefused: the server does not let it in.
        OSError: it cannot be reached.
    """

    def __init__(self, where: DatabaseServer) -> None:
        self._prepared: dict[str, int] = {}  # the numbers of the statements that the server knows
        self._socket = socket.create_connection((where.host, where.port), silence.CONNECT_S)
        try:
            silence.limit(self._socket)
            self._stream = self._socket.makefile("rb", 1 << 16)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._begin(where)
            self._socket.settimeout(None)  # from here on the kernel watches it
        except BaseException:
            self.close()
            raise

    def rows(self, statement: str, parameter: object) -> list[Any]:
        """The rows of a statement whose only column is JSON, and whose only parameter, `$1`, is JSON text.

        Raises:
            QueryRefused: the server has answered with an error; the next statement may do better.
            OSError: the connection is lost.
        """
        argument = json.dumps(parameter).encode()
        name = f"s{self._prepared.get(statement, len(self._prepared))}".encode()
        bind = b"\0" + name + b"\0" + struct.pack("!HHI", 0, 1, len(argument)) + argument + b"\0\0"
        messages = [(b"B", bind), (b"E", b"\0\0\0\0\0"), (b"S", b"")]
        if statement not in self._prepared:  # planning takes longer than finding a few rows
            messages.insert(0, (b"P", name + b"\0" + statement.encode() + b"\0\0\0"))
        try:
            self._send(*messages)
            found = self._read_rows()
            self._prepared.setdefault(statement, len(self._prepared))
        except QueryRefused:
            raise
        except BaseException:
            self.close()  # what is left of the answer would be taken for that to the next question
            raise
        return json.loads(b"[%b]" % b",".join(found)) if found else []

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _read_rows(self) -> list[bytes]:
        found: list[bytes] = []
        refusal = ""
        while True:
            kind, body = self._receive()
            if kind == b"D":
                found.append(body[_ONE_COLUMN.size :])
            elif kind == b"E":
                refusal = _error_text(body)
            elif kind == b"Z":
                break
        if refusal:
            raise QueryRefused(refusal)
        return found

    # --- the beginning

    def _begin(self, where: DatabaseServer) -> None:
        options = {
            "user": where.user, "database": where.database, "client_encoding": "UTF8",
            "application_name": "spanwise", "options": _OPTIONS,
        }  # fmt: skip
        words = b"".join(f"{name}\0{value}\0".encode() for name, value in options.items()) + b"\0"
        self._socket.sendall(struct.pack("!II", 8 + len(words), _PROTOCOL) + words)
        exchange = _ScramExchange(where.password)
        while True:
            kind, body = self._receive()
            if kind == b"R":
                self._authenticate(where, exchange, body)
            elif kind == b"E":
                raise QueryRefused(_error_text(body))
            elif kind == b"Z":
                return

    def _authenticate(self, where: DatabaseServer, exchange: _ScramExchange, body: bytes) -> None:
        (how,) = _LENGTH.unpack_from(body)
        rest = body[_LENGTH.size :]
        if how == _OK:
            return
        if not where.password:
            raise QueryRefused("The server asks for a password.")
        if how == _CLEAR:
            self._send((b"p", where.password.encode() + b"\0"))
        elif how == _MD5:
            self._send((b"p", _md5_answer(where.user, where.password, rest) + b"\0"))
        elif how == _SASL and _MECHANISM in rest.split(b"\0"):
            first = exchange.first()
            self._send((b"p", _MECHANISM + b"\0" + _LENGTH.pack(len(first)) + first))
        elif how == _SASL_CONTINUE:
            self._send((b"p", exchange.proof(rest)))
        elif how == _SASL_FINAL:
            exchange.check(rest)
        else:
            raise QueryRefused(f"The server asks for authentication {how}.")

    # --- messages

    def _send(self, *messages: tuple[bytes, bytes]) -> None:
        self._socket.sendall(b"".join(_HEAD.pack(kind, 4 + len(body)) + body for kind, body in messages))

    def _receive(self) -> tuple[bytes, bytes]:
        kind, length = _HEAD.unpack(self._read(_HEAD.size))
        return kind, self._read(length - 4)

    def _read(self, count: int) -> bytes:
        found: bytes = self._stream.read(count)
        if len(found) < count:
            raise ConnectionResetError("The server has closed the connection.")
        return found


class _ScramExchange:
    """What both sides say when a password is proved by SCRAM-SHA-256 (RFC 5802, RFC 7677)."""

    def __init__(self, password: str) -> None:
        self._password = password
        self._mine = b"n=,r=" + base64.b64encode(secrets.token_bytes(18))
        self._expected = b""

    def first(self) -> bytes:
        if not self._password.isascii():
            raise QueryRefused("The password has letters that SCRAM prepares in a way of its own.")
        return b"n,," + self._mine

    def proof(self, theirs: bytes) -> bytes:
        facts = dict(part.split(b"=", 1) for part in theirs.split(b","))
        if not facts[b"r"].startswith(self._mine.removeprefix(b"n=,r=")):
            raise QueryRefused("The server has answered somebody else.")
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), base64.b64decode(facts[b"s"]), int(facts[b"i"]))
        mine = b"c=biws,r=" + facts[b"r"]
        said = b",".join((self._mine, theirs, mine))
        key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
        self._expected = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), said, "sha256")
        proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
        return mine + b",p=" + base64.b64encode(proof)

    def check(self, theirs: bytes) -> None:
        if not hmac.compare_digest(theirs, b"v=" + base64.b64encode(self._expected)):
            raise QueryRefused("The server does not know the password that it asked for.")


def _md5_answer(user: str, password: str, salt: bytes) -> bytes:
    inner = hashlib.md5(f"{password}{user}".encode()).hexdigest().encode()  # noqa: S324  the server's choice
    return b"md5" + hashlib.md5(inner + salt).hexdigest().encode()  # noqa: S324


def _error_text(body: bytes) -> str:
    fields: Sequence[bytes] = body.split(b"\0")
    return next((field[1:].decode(errors="replace") for field in fields if field[:1] == b"M"), "unknown error")
