"""How a reply with elements says what it holds: a JSON record in the metadata of its Arrow schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spanwise.pipelines.input.service.wire.memory import Loan
from spanwise.pipelines.input.service.wire.requests import ServiceMessage

if TYPE_CHECKING:
    import pyarrow as pa

_KEY: Final = b"spanwise"


class WireError(ServiceMessage):
    kind: str
    text: str


class ReplyFacts(ServiceMessage):
    """What a reply says beside its elements."""

    ended: bool  #: whether nothing follows
    again_s: float  #: when to ask again
    error: WireError | None = None  #: in the place of an element
    encoding: str | None = None  #: of the elements; None if there are none
    layout: str = ""  #: what the encoding needs to know to unpack them
    loan: Loan | None = None  #: where in shared memory they are; None if they come with the reply


def attach(schema: pa.Schema, facts: ReplyFacts) -> pa.Schema:
    return schema.with_metadata({**(schema.metadata or {}), _KEY: facts.model_dump_json().encode()})


def detach(schema: pa.Schema) -> tuple[ReplyFacts, dict[bytes, bytes]]:
    """The facts, and the metadata that the schema had before."""
    metadata = dict(schema.metadata or {})
    return ReplyFacts.model_validate_json(metadata.pop(_KEY)), metadata
