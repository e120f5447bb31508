"""What every accumulator can do, and the one form in which they are kept: JSON, with sketches in base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar

from spanwise.orchestrator.artifact import Value

if TYPE_CHECKING:
    import pyarrow as pa

State: TypeAlias = Mapping[str, Value]
"""What an accumulator holds, as JSON can say it."""


class Accumulator(Protocol):
    """Figures of some of the values; merging two gives the figures of all their values."""

    @classmethod
    def accumulate(cls, values: pa.Array[Any]) -> Self: ...

    def merge(self, other: Self) -> Self: ...

    def state(self) -> State: ...

    @classmethod
    def from_state(cls, state: State) -> Self: ...


A = TypeVar("A", bound=Accumulator)


def to_bytes(accumulator: Accumulator) -> bytes:
    """Its state; the same bytes for the same state."""
    state = accumulator.state()
    return json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def from_bytes(kind: type[A], kept: bytes) -> A:
    """What `to_bytes` kept."""
    return kind.from_state(json.loads(kept))


def text(raw: bytes) -> str:
    """Bytes as JSON can hold them."""
    return base64.b64encode(raw).decode("ascii")


def raw(state: State, name: str) -> bytes:
    """The bytes that a state holds under a name."""
    return base64.b64decode(str(state[name]))


def whole(state: State, name: str) -> int:
    """The whole number that a state holds under a name."""
    value = state[name]
    assert isinstance(value, int)
    return value


def number(state: State, name: str) -> float:
    """The number that a state holds under a name."""
    value = state[name]
    assert isinstance(value, int | float)
    return float(value)
