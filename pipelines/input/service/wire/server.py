"""A Flight server of the service: lets in who knows the token, and sends errors as what they are."""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa
from pyarrow import flight

from spanwise.orchestrator.errors import ServiceError, SpanwiseError
from spanwise.pipelines.input.service.wire.connection import packed, request_of, sent
from spanwise.pipelines.input.service.wire.load import Meter
from spanwise.pipelines.input.service.wire.security import Security

if TYPE_CHECKING:
    from pydantic import BaseModel

MOST_WAITING: Final = 128
_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class _Guard(flight.ServerMiddlewareFactory):
    def __init__(self, security: Security) -> None:
        self._security = security

    def start_call(self, info: Any, headers: Any) -> None:
        if not self._security.allows(headers):
            _log.warning("service-refused", extra={"method": str(info.method)})
            raise flight.FlightUnauthenticatedError("the token is missing, or another one")


def _nothing(ticket: bytes) -> flight.FlightDataStream:  # noqa: ARG001  as those take it who have something
    raise ServiceError("a dispatcher has no elements; workers have.")


class Serving(ABC):
    """Something that serves, in this process, until it is stopped."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    @abstractmethod
    def stop(self) -> None:
        """Answers nobody any more."""

    def join(self) -> None:
        """Waits until it is stopped."""
        while not self._closed.wait(0.5):  # a signal that the kernel gave to another thread is seen between two waits
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Waiting:
    """Those whose requests wait for something new: each takes a thread, so there may not be many."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(MOST_WAITING)

    @contextlib.contextmanager
    def place(self) -> Iterator[bool]:
        """Whether there is one."""
        taken = self._places.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken:
                self._places.release()


class Server(flight.FlightServerBase):
    """Answers actions by the functions that it was given, and tickets by another."""

    def __init__(
        self,
        host: str,
        port: int,
        security: Security,
        *,
        actions: dict[str, tuple[type[BaseModel], Callable[[Any, bytes], tuple[dict[str, Any], bytes]]]],
        limit_bytes: int,
        meter: Meter | None = None,
        get: Callable[[bytes], flight.FlightDataStream] | None = None,
    ) -> None:
        security.check_bind(host)
        scheme = "grpc+tls" if security.is_tls else "grpc"
        self._actions = actions
        self._limit_bytes = limit_bytes
        self._get = get or _nothing
        self._meter = meter or Meter()
        try:
            super().__init__(
                f"{scheme}://{host}:{port}", middleware={"guard": _Guard(security)}, **security.of_server()
            )
        except (pa.ArrowException, OSError) as error:
            raise ServiceError(
                f"the data service cannot listen at {host}:{port}: {error}. Is another one there? "
                f"Port 0 takes a free one."
            ) from error
        self.target = f"{scheme}://{host}:{self.port}"

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:  # noqa: ARG002  as Flight calls it
        kind, answer = self._known(action.type)

        def answered() -> Iterator[bytes]:
            request, blob = request_of(kind, action.body, self._limit_bytes)
            return iter([packed(*answer(request, blob))])

        return self._counted(action.type, answered)

    def _counted(self, kind: str, answer: Callable[[], _Answer]) -> _Answer:
        self._meter.asked(kind)
        try:
            return answer()
        except SpanwiseError as error:
            self._meter.failed(kind)
            raise sent(error) from error
        except Exception as error:
            self._meter.failed(kind)
            _log.exception("service-failed", extra={"request": kind})
            raise sent(error) from error

    def _known(self, kind: str) -> tuple[type[BaseModel], Callable[[Any, bytes], tuple[dict[str, Any], bytes]]]:
        if kind not in self._actions:
            raise sent(ServiceError(f"there is no request {kind!r:.40}."))
        return self._actions[kind]

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:  # noqa: ARG002  as Flight calls it
        return self._counted("get", lambda: self._get(ticket.ticket))
