"""How a request reaches another member: a Flight action with a JSON header. Errors arrive as they were raised."""

from __future__ import annotations

import contextlib
import functools
import json
import platform
import socket
from collections.abc import Iterator, Mapping
from os import getpid
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from pydantic import BaseModel, ValidationError

from spanwise.orchestrator import errors
from spanwise.orchestrator.errors import ServiceError, SpanwiseError
from spanwise.orchestrator.fingerprint import versions
from spanwise.pipelines.input.service.wire import forks
from spanwise.pipelines.input.service.wire.diagnosis import diagnose
from spanwise.pipelines.input.service.wire.requests import Request, ServiceMessage
from spanwise.pipelines.input.service.wire.security import Security

if TYPE_CHECKING:
    from pyarrow import flight

CALL_TIMEOUT_S: Final = 20.0
RETRY_S: Final = 0.1
_ENDED: Final = ("socket closed", "connection reset", "broken pipe", "stream removed", "connection closed")
_LIBRARIES: Final = ("spanwise", "pyarrow", "numpy", "cloudpickle")
_HEADER_BYTES: Final = 2 << 20
_ERROR_BYTES: Final = 1 << 10

HELLO: Final = "hello"
"""A request that says nothing: it shows the token, so that the server lets a large one in."""

_LARGE_BYTES: Final = 8 << 10

_Answer = TypeVar("_Answer", bound=ServiceMessage)


class Unreachable(ServiceError):
    """The address did not answer in time. A caller that can wait tries again."""


class Disconnected(Unreachable):
    """The other side ended while it was answering."""


class UnknownTask(ServiceError):
    """A worker does not know the task: the worker was restarted, or the task has ended."""


class JobGone(ServiceError):
    """The dispatcher does not have the job that a restored consumer was reading."""


class CallCanceled(Exception):
    """The caller was stopped before there was an answer."""


_KINDS: Final[Mapping[str, type[SpanwiseError]]] = {
    **{name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, SpanwiseError)},
    "UnknownTask": UnknownTask,
    "JobGone": JobGone,
    "Unreachable": Unreachable,
}


def this_process() -> str:
    """A name that two members share only if they run in one process."""
    return f"{socket.gethostname()}:{getpid()}"


@functools.cache
def environment() -> Mapping[str, str]:
    """The versions that must be equal where a graph is pickled and where it runs: of what this process has loaded."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), **versions(_LIBRARIES)}


def check_environment(theirs: Mapping[str, str], who: str) -> None:
    """Refuses a graph that was pickled in another environment.

    Raises:
        ServiceError: names the versions that differ.
    """
    ours = environment()
    differ = [
        f"{name} {theirs.get(name) or 'none'} there, {ours[name]} here"
        for name in ours
        if theirs.get(name) != ours[name]
    ]
    if differ:
        raise ServiceError(
            f"{who} was pickled in another environment, so its functions may behave differently here: "
            f"{'; '.join(differ)}. Install the same versions on both sides."
        )


def with_scheme(address: str, security: Security) -> str:
    """The address with its scheme.

    Raises:
        ServiceError: it is not an address.
    """
    scheme, separator, place = address.rpartition("://")
    if (separator and scheme not in {"grpc", "grpc+tls"}) or ":" not in place:
        raise ServiceError(f"{address!r} is not the address of a data service, such as grpc://127.0.0.1:5050.")
    if separator:
        return address
    return f"{'grpc+tls' if security.authority is not None or security.is_tls else 'grpc'}://{place}"


class ServiceConnection:
    """A client of one server."""

    def __init__(self, address: str, security: Security) -> None:
        """Connects when it first asks.

        Raises:
            ServiceError: it is not an address, or this process was forked from one that uses Flight.
        """
        from pyarrow import flight

        self.address = with_scheme(address, security)
        self._security = security
        self._is_diagnosed = False
        forks.refuse_orphan()
        self._client = flight.connect(
            self.address,
            generic_options=[("grpc.max_reconnect_backoff_ms", 500)],
            **security.client_arguments(self.address),
        )
        forks.note_user(self._client)

    def _options(self, timeout_s: float) -> flight.FlightCallOptions:
        from pyarrow import flight

        return flight.FlightCallOptions(timeout=timeout_s, headers=self._security.headers())  # type: ignore[arg-type]  # stubs: texts

    def ask(
        self, request: Request[_Answer], blob: bytes = b"", *, timeout_s: float = CALL_TIMEOUT_S
    ) -> tuple[_Answer, bytes]:
        """Sends a request; returns its answer and the bytes that come with it.

        Raises:
            Unreachable: there was no answer.
            SpanwiseError: as the other side raised it.
        """
        header, content = self.exchange(request.kind, request.model_dump_json().encode(), blob, timeout_s)
        return cast("_Answer", request.answer.model_validate_json(header)), content

    def exchange(
        self, kind: str, header: bytes, blob: bytes = b"", timeout_s: float = CALL_TIMEOUT_S
    ) -> tuple[bytes, bytes]:
        """The answer to a request as JSON, and the bytes that come with it; both sides unchecked."""
        import pyarrow as pa
        from pyarrow import flight

        self._check_reachable()
        try:
            if self._security.presents is not None and len(header) + len(blob) > _LARGE_BYTES:
                list(self._client.do_action(flight.Action(HELLO, b""), self._options(timeout_s)))
            action = flight.Action(kind, b"%s\n%s" % (header, blob))
            (result,) = self._client.do_action(action, self._options(timeout_s))
        except (pa.ArrowException, OSError) as error:
            _translate(error, self.address)
        answer, _, content = result.body.to_pybytes().partition(b"\n")
        return answer, content

    def fetch(self, ticket: bytes, timeout_s: float) -> tuple[Any, list[Any]]:
        """The schema and the blocks that a ticket is answered with."""
        import pyarrow as pa
        from pyarrow import flight

        self._check_reachable()
        try:
            reader = self._client.do_get(flight.Ticket(ticket), self._options(timeout_s))
            return reader.schema, [chunk.data for chunk in reader]
        except (pa.ArrowException, OSError) as error:
            _translate(error, self.address)

    def _check_reachable(self) -> None:
        """Before its first call: gRPC alone would not say why nobody answers, and not soon.

        Raises:
            ServiceError: the server speaks another protocol, or requires a certificate that this client lacks.
        """
        if not self._is_diagnosed:
            self._is_diagnosed = True
            if why := diagnose(self.address, self._security):
                raise ServiceError(why)

    def close(self) -> None:
        self._client.close()


def packed_answer(header: BaseModel, blob: bytes = b"") -> bytes:
    return header.model_dump_json().encode() + b"\n" + blob


_Model = TypeVar("_Model", bound=BaseModel)


def parse_request(kind: type[_Model], body: Any, limit_bytes: int) -> tuple[_Model, bytes]:
    """A request as it arrived, checked; and the bytes that came with it.

    Raises:
        ServiceError: it is too large or malformed.
    """
    if body is None or body.size > limit_bytes:
        size = 0 if body is None else body.size
        raise ServiceError(f"refused a request of {size} bytes: at most {limit_bytes} are allowed.")
    header, _, blob = body.to_pybytes().partition(b"\n")
    if len(header) > _HEADER_BYTES:
        raise ServiceError(
            f"refused a request with a header of {len(header)} bytes: at most {_HEADER_BYTES} are allowed."
        )
    with refusing_malformed("request"):
        return kind.model_validate_json(header), blob


@contextlib.contextmanager
def refusing_malformed(what: str) -> Iterator[None]:
    """Turns pydantic's errors into ours."""
    try:
        yield
    except ValidationError as error:
        raise ServiceError(f"refused a malformed {what}: {error.errors()[0]['msg']}.") from error


def to_flight_error(error: Exception) -> Exception:
    """An error in the form in which a server sends it."""
    from pyarrow import flight

    kind = kind_of(error)
    text = str(error) if isinstance(error, SpanwiseError) else f"{type(error).__name__}: {error}"
    return flight.FlightServerError(text[:200], json.dumps({"kind": kind, "text": text}).encode())


def kind_of(error: Exception) -> str:
    """The name under which an error travels."""
    return type(error).__name__ if type(error).__name__ in _KINDS else "ServiceError"


def error_of(kind: str, text: str) -> SpanwiseError:
    """An error that another process sent."""
    return _KINDS.get(kind, ServiceError)(text)


def error_bytes(error: Exception) -> int:
    """Roughly how much memory an error takes that waits to be sent or raised."""
    return _ERROR_BYTES + len(str(error))


def _translate(error: Exception, address: str) -> NoReturn:
    from pyarrow import flight

    extra = getattr(error, "extra_info", b"")
    if extra.startswith(b"{"):
        raise error_of(**json.loads(extra)) from error
    if isinstance(error, flight.FlightUnauthenticatedError):
        raise ServiceError(
            f"{address} refused a request without its token. Set SPANWISE_SERVICE_TOKEN, or pass "
            f"security=Security(token=…)."
        ) from error
    if "handshake" in str(error).lower() or "certificate" in str(error).lower():
        raise ServiceError(
            f"{address} and this client do not trust each other's certificates: {str(error)[:200]}. Check whether "
            f"they have expired, and whether both sides name the same authority."
        ) from error
    kind = Disconnected if any(each in str(error).lower() for each in _ENDED) else Unreachable
    raise kind(f"{address} does not answer: {str(error)[:200]}") from error
