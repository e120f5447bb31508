"""How a member reaches the dispatcher of its service: by an address, or by the URL of the journal, wherever it runs.

Who knows the URL reads the address there, and reads it again when the dispatcher does not answer: another one may have
taken over.
"""

from __future__ import annotations

import threading
import time
from typing import Final, TypeVar
from urllib.parse import urlsplit

from spanwise.orchestrator.errors import ServiceError, StorageError
from spanwise.orchestrator.storage import is_object_url, parse_url
from spanwise.pipelines.input.service.wire.connection import (
    CALL_TIMEOUT_S,
    RETRY_S,
    CallCanceled,
    ServiceConnection,
    Unreachable,
    with_scheme,
)
from spanwise.pipelines.input.service.wire.leader import RECORD, read_leader
from spanwise.pipelines.input.service.wire.requests import GetDataset, Request, ServiceMessage
from spanwise.pipelines.input.service.wire.security import Security, is_loopback

_PROMPT_S: Final = 5.0
"""How long a dispatcher that may have been replaced is waited for, if neither the request nor its answer is large."""

_LOOK_S: Final = 1.0
"""Between two looks at the record."""

_Answer = TypeVar("_Answer", bound=ServiceMessage)


class DispatcherConnection:
    """A client of a service's dispatcher, of whichever there is. Threads may share it."""

    def __init__(self, service: str, security: Security) -> None:
        """Connects when it first asks.

        Raises:
            ServiceError: `service` is neither an address nor a URL of object storage.
        """
        self._journal = parse_url(service) if is_object_url(service) else None
        self._service = service
        self._security = security
        self._finding = threading.Lock()
        self._connection = None if self._journal is not None else ServiceConnection(service, security)
        self._is_doubted = self._journal is not None
        self._looked_at = float("-inf")
        self._has_looked = False

    @property
    def address(self) -> str:
        """Of the dispatcher that was asked last; the URL before that."""
        return self._service if self._connection is None else self._connection.address

    def ask(self, request: Request[_Answer], blob: bytes = b"") -> tuple[_Answer, bytes]:
        """Sends a request to the current dispatcher; returns its answer and the bytes that come with it.

        Raises:
            Unreachable: there is no dispatcher, or no answer.
            SpanwiseError: as the dispatcher raised it.
        """
        connection = self.find()
        is_large = bool(blob) or isinstance(request, GetDataset)
        timeout_s = CALL_TIMEOUT_S if self._journal is None or is_large else _PROMPT_S
        try:
            return connection.ask(request, blob, timeout_s=timeout_s)
        except Unreachable:
            with self._finding:
                if connection is self._connection:
                    self._is_doubted = self._journal is not None
            raise

    def ask_until_answered(self, request: Request[_Answer], stopped: threading.Event) -> tuple[_Answer, bytes]:
        """The same; tries again while nobody answers.

        Raises:
            CallCanceled: `stopped` was set meanwhile.
        """
        while not stopped.is_set():
            try:
                return self.ask(request)
            except Unreachable:
                stopped.wait(RETRY_S)
        raise CallCanceled

    def find(self) -> ServiceConnection:
        """A connection to the current dispatcher, as far as that is known; nothing is sent to it.

        Raises:
            Unreachable: there is none.
            ServiceError: the journal cannot be read from here, or names an address that is not safe.
        """
        with self._finding:
            now = time.monotonic()
            if self._is_doubted and now - self._looked_at >= _LOOK_S:
                self._looked_at = now
                address = self._look()
                if self._connection is None or self._connection.address != address:
                    self._connection = ServiceConnection(address, self._security)  # others may be using the old one
                self._is_doubted = False
            if self._connection is None:
                raise Unreachable(f"{self._service}: no dispatcher has been found there yet.")
            return self._connection

    def _look(self) -> str:
        """The address of who has the journal."""
        assert self._journal is not None
        try:
            found = read_leader(self._journal)
        except StorageError as error:
            if not self._has_looked:  # later it may be the network, and the dispatcher may still be there
                raise ServiceError(f"the dispatcher of {self._service} cannot be found: {error}") from error
            raise Unreachable(f"the dispatcher of {self._service} cannot be found: {error}") from error
        self._has_looked = True
        if found is None:
            raise Unreachable(f"{self._service} has no {RECORD}: no dispatcher has been started with it as --work-dir.")
        record, _ = found
        if not record.address or record.released:
            raise Unreachable(f"{self._service}: {record} {'has ended' if record.released else 'does not listen yet'}.")
        address = with_scheme(record.address, self._security)
        self._check_safe(address)
        return address

    def _check_safe(self, address: str) -> None:
        """Refuses to send a token in the clear to another machine, whatever the record says."""
        if address.startswith("grpc+tls://"):
            return
        wants_tls = self._security.authority is not None or self._security.is_tls
        if wants_tls or not is_loopback(urlsplit(address).hostname or ""):
            raise ServiceError(
                f"{self._service} names {address}, which is not encrypted"
                f"{', but this client has certificates' if wants_tls else ' and on another machine'}. Nothing was sent."
                f" Start the dispatcher with a certificate, or give its address instead of the URL if that is intended."
            )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
