"""A Flight server of the service: admits clients that know the token, and sends errors in full."""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

import pyarrow as pa
from pyarrow import flight

from spanwise.orchestrator import logs
from spanwise.orchestrator.errors import ServiceError, SpanwiseError
from spanwise.pipelines.input.service.wire import forks
from spanwise.pipelines.input.service.wire.connection import HELLO, packed_answer, parse_request, to_flight_error
from spanwise.pipelines.input.service.wire.gate import PortDoor, SecretDoor, TokenGate
from spanwise.pipelines.input.service.wire.meter import ServerMeter
from spanwise.pipelines.input.service.wire.requests import ServiceMessage
from spanwise.pipelines.input.service.wire.security import Role, Security

if TYPE_CHECKING:
    from pydantic import BaseModel

MAX_WAITING: Final = 64

Answer: TypeAlias = "tuple[ServiceMessage, bytes]"
"""What a request is answered with: a record, and bytes that come with it."""

Action: TypeAlias = "tuple[type[BaseModel], Callable[[Any, bytes], Answer]]"
"""The record that a request must be, and the function that answers it."""

_log = logging.getLogger("spanwise.service.server")
_T = TypeVar("_T")


class _Caller(flight.ServerMiddleware):
    """Who sends a request."""

    def __init__(self, role: Role) -> None:
        self.role = role


class _TokenCheck(flight.ServerMiddlewareFactory):
    def __init__(self, security: Security) -> None:
        self._security = security

    def start_call(self, info: Any, headers: Any) -> _Caller:
        role = self._security.role_of(headers)
        if role is None:
            _log.warning(
                "request-refused", extra={"method": str(info.method), "reason": "its token is missing or wrong"}
            )
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")
        return _Caller(role)


def _refuse_ticket(ticket: bytes) -> flight.FlightDataStream:  # noqa: ARG001  the signature of `get`
    raise ServiceError("a dispatcher has no elements; ask a worker.")


class Serving(ABC):
    """A member of a service in this process, which serves until it is stopped."""

    def __init__(self) -> None:
        logs.show_facts("spanwise.service")
        self._closed = threading.Event()

    @abstractmethod
    def stop(self) -> None:
        """Stops answering."""

    def join(self) -> None:
        """Waits until it is stopped."""
        while not self._closed.wait(0.5):  # between two waits a signal that another thread received is handled
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class WaitingPlaces:
    """A limit on the requests that wait for a change: each of them occupies a thread."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(MAX_WAITING)

    @contextlib.contextmanager
    def place(self) -> Iterator[bool]:
        """Takes a place; False if there is none."""
        is_free = self._places.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._places.release()


class FlightServer(flight.FlightServerBase):
    """Answers each kind of action with its function, and tickets with `get`."""

    def __init__(
        self,
        host: str,
        port: int,
        security: Security,
        *,
        actions: Mapping[str, Action],
        limit_bytes: int,
        meter: ServerMeter | None = None,
        get: Callable[[bytes], flight.FlightDataStream] | None = None,
    ) -> None:
        security.check_bind(host)
        forks.refuse_orphan()
        scheme = "grpc+tls" if security.is_tls else "grpc"
        self._actions = actions
        self._limit_bytes = limit_bytes
        self._get = get or _refuse_ticket
        self._meter = meter or ServerMeter()
        # mutual TLS lets nobody in who could send a request
        self._gate = TokenGate(host, port) if security.wants_token and not security.mutual else None
        place = f"{scheme}://{host}:{port}" if self._gate is None else f"{scheme}://127.0.0.1:0"
        secret, tls, arguments = None, None, security.server_arguments()
        if self._gate is not None and SecretDoor.is_possible:
            tls, arguments = security.tls_context(), {}  # Flight speaks no TLS at the socket, so the gate does
            secret = SecretDoor()
            place = f"grpc+unix://{secret.path}"
        try:
            super().__init__(place, middleware={"guard": _TokenCheck(security)}, **arguments)
        except (pa.ArrowException, OSError) as error:
            if secret is not None:
                secret.close()
            raise ServiceError(
                f"the data service cannot listen at {host}:{port}: {error}. Is the port in use? Port 0 picks one."
            ) from error
        forks.note_user(self)
        self.listens_at: int = self.port
        if self._gate is not None:
            if secret is not None:
                secret.hide()
            self._gate.open(secret or PortDoor(self.port), tls)
            self.listens_at = self._gate.port
        self.target = f"{scheme}://{host}:{self.listens_at}"

    def shutdown(self) -> None:
        super().shutdown()
        if self._gate is not None:
            self._gate.close()

    def _admit(self, context: Any, kind: str, role: Role) -> None:
        """A request is here, so it has a token of the service; it is refused if that is for other requests.

        Raises:
            ServiceError: says for which.
        """
        if self._gate is not None:
            self._gate.trust(context.peer())
        caller: Role = context.get_middleware("guard").role
        if caller not in {"all", role}:
            _log.warning("request-refused", extra={"request": kind, "reason": f"its token is that of a {caller}"})
            whose = "SPANWISE_SERVICE_TOKEN" if role == "all" else f"SPANWISE_SERVICE_{role.upper()}_TOKEN"
            raise to_flight_error(
                ServiceError(f"refused the request {kind!r}: the token of a {caller} does not allow it; {whose} does.")
            )

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        kind = self._actions.get(action.type, (None,))[0]
        self._admit(context, action.type, getattr(kind, "role", None) or context.get_middleware("guard").role)
        if action.type == HELLO:
            return iter([b"{}\n"])
        if action.type not in self._actions:
            raise to_flight_error(ServiceError(f"there is no request {action.type!r:.40}."))
        kind, answer = self._actions[action.type]

        def perform() -> Iterator[bytes]:
            request, blob = parse_request(kind, action.body, self._limit_bytes)
            return iter([packed_answer(*answer(request, blob))])

        return self._metered(action.type, perform)

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        self._admit(context, "get", "consumer")
        return self._metered("get", lambda: self._get(ticket.ticket))

    def _metered(self, kind: str, perform: Callable[[], _T]) -> _T:
        self._meter.count_request(kind)
        try:
            return perform()
        except Exception as error:
            self._meter.count_error(kind)
            if not isinstance(error, SpanwiseError):
                _log.exception("request-failed", extra={"request": kind})
            raise to_flight_error(error) from error
