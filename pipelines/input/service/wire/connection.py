"""Requests between the members of a service: Flight actions with a JSON header; errors arrive as they left."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Mapping
from os import getpid
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from spanwise.orchestrator import errors
from spanwise.orchestrator.errors import ServiceError, SpanwiseError
from spanwise.orchestrator.fingerprint import versions
from spanwise.pipelines.input.service.wire.security import Security

if TYPE_CHECKING:
    from pyarrow import flight
    from pydantic import BaseModel

CALL_TIMEOUT_S: Final = 20.0
_LIBRARIES: Final = ("spanwise", "pyarrow", "numpy", "cloudpickle")
_HEADER_BYTES: Final = 1 << 20


class Unreachable(ServiceError):
    """Nobody answers at the address: now, or not in time. Who can wait tries again."""


class UnknownTask(ServiceError):
    """A worker does not know the task: it was started again, or has heard that the task is over."""


_KINDS: Final[Mapping[str, type[SpanwiseError]]] = {
    **{name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, SpanwiseError)},
    "UnknownTask": UnknownTask,
    "Unreachable": Unreachable,
}


def this_process() -> str:
    """What two members have in common only if they are in one process."""
    return f"{socket.gethostname()}:{getpid()}"


def environment() -> dict[str, str]:
    """What must be the same where a graph is written and where it is run."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), **versions(_LIBRARIES)}


def check_environment(theirs: Mapping[str, str], who: str) -> None:
    """Refuses a graph from another environment.

    Raises:
        ServiceError: says which versions differ.
    """
    ours = environment()
    differ = [
        f"{name} {theirs.get(name) or 'none'} there, {ours[name]} here"
        for name in ours
        if theirs.get(name) != ours[name]
    ]
    if differ:
        raise ServiceError(
            f"{who} comes from another environment, so its functions cannot be trusted to do the same here: "
            f"{'; '.join(differ)}. Give both sides the same versions."
        )


def located(address: str, security: Security) -> str:
    """The address with its scheme.

    Raises:
        ServiceError: it is none.
    """
    scheme, found, place = address.rpartition("://")
    if (found and scheme not in {"grpc", "grpc+tls"}) or ":" not in place:
        raise ServiceError(f"{address!r} is no address of a data service; one is grpc://127.0.0.1:5050.")
    if found:
        return address
    return f"{'grpc+tls' if security.authority is not None or security.is_tls else 'grpc'}://{place}"


class Connection:
    """A client of one server."""

    def __init__(self, address: str, security: Security) -> None:
        from pyarrow import flight

        self.address = located(address, security)
        self._security = security
        self._client = flight.connect(
            self.address, generic_options=[("grpc.max_reconnect_backoff_ms", 500)], **security.of_client(self.address)
        )

    def _options(self, timeout_s: float) -> flight.FlightCallOptions:
        from pyarrow import flight

        return flight.FlightCallOptions(timeout=timeout_s, headers=self._security.headers())  # type: ignore[arg-type]  # stubs: texts

    def call(self, kind: str, header: Mapping[str, Any], blob: bytes = b"") -> tuple[Any, bytes]:
        """The answer to a request: its header, and what comes with it.

        Raises:
            Unreachable: there was none.
            SpanwiseError: as the other side raised it.
        """
        import pyarrow as pa
        from pyarrow import flight

        action = flight.Action(kind, packed(header, blob))
        try:
            (result,) = self._client.do_action(action, self._options(CALL_TIMEOUT_S))
        except (pa.ArrowException, OSError) as error:
            _translate(error, self.address)
        return unpacked(result.body)

    def fetch(self, ticket: bytes, timeout_s: float) -> tuple[Any, list[Any]]:
        """The schema and the batches of an answer."""
        import pyarrow as pa
        from pyarrow import flight

        try:
            reader = self._client.do_get(flight.Ticket(ticket), self._options(timeout_s))
            return reader.schema, [chunk.data for chunk in reader]
        except (pa.ArrowException, OSError) as error:
            _translate(error, self.address)

    def close(self) -> None:
        self._client.close()


def packed(header: Mapping[str, Any], blob: bytes = b"") -> bytes:
    return json.dumps(header).encode() + b"\n" + blob


def unpacked(body: Any) -> tuple[Any, bytes]:
    header, _, blob = body.to_pybytes().partition(b"\n")
    return json.loads(header), blob


_Model = TypeVar("_Model", bound="BaseModel")


def request_of(kind: type[_Model], body: Any, limit_bytes: int) -> tuple[_Model, bytes]:
    """A request from outside, checked.

    Raises:
        ServiceError: it is too large, or not what it should be.
    """
    from pydantic import ValidationError

    if body is None or body.size > limit_bytes:
        size = 0 if body is None else body.size
        raise ServiceError(f"a request of {size} bytes was refused: at most {limit_bytes} are taken.")
    header, _, blob = body.to_pybytes().partition(b"\n")
    if len(header) > _HEADER_BYTES:
        raise ServiceError(
            f"a request with a header of {len(header)} bytes was refused: at most {_HEADER_BYTES} are taken."
        )
    try:
        return kind.model_validate_json(header), blob
    except ValidationError as error:
        raise ServiceError(f"a request was refused, since it is malformed: {error.errors()[0]['msg']}.") from error


def sent(error: Exception) -> Exception:
    """An error in the form in which a server sends it."""
    from pyarrow import flight

    kind = kind_of(error)
    text = str(error) if isinstance(error, SpanwiseError) else f"{type(error).__name__}: {error}"
    return flight.FlightServerError(text[:200], json.dumps({"kind": kind, "text": text}).encode())


def kind_of(error: Exception) -> str:
    """The name under which an error travels."""
    return type(error).__name__ if type(error).__name__ in _KINDS else "ServiceError"


def received(kind: str, text: str) -> SpanwiseError:
    """An error that came from another process."""
    return _KINDS.get(kind, ServiceError)(text)


def _translate(error: Exception, address: str) -> NoReturn:
    from pyarrow import flight

    extra = getattr(error, "extra_info", b"")
    if extra.startswith(b"{"):
        sent_ = json.loads(extra)
        raise received(sent_["kind"], sent_["text"]) from error
    if isinstance(error, flight.FlightUnauthenticatedError):
        raise ServiceError(
            f"{address} refused a request without its token. Set SPANWISE_SERVICE_TOKEN, or give "
            f"security=Security(token=…)."
        ) from error
    if "handshake" in str(error).lower() or "certificate" in str(error).lower():
        raise ServiceError(
            f"{address} and this client do not trust each other's certificates: {str(error)[:200]}. See whether they "
            f"have expired, and whether both sides name the same authority."
        ) from error
    raise Unreachable(f"{address} does not answer: {str(error)[:200]}") from error
