"""Elements on the wire: rows and batches as the RecordBatches that they are, other elements in the snapshot's form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from orchestrator.errors import DatasetError, SpanwiseError
from pipelines.input.element import ElementSpec
from pipelines.input.service.connection import kind_of, received
from pipelines.input.snapshot.encoding import ENCODINGS, Piece, encoding_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import flight

_KEY: Final = b"spanwise"


@dataclass(frozen=True)
class Reply:
    """An answer of a worker to a consumer, who may ask for it once more."""

    number: int  #: of the request
    pieces: Sequence[Piece]
    error: SpanwiseError | None
    ended: bool  #: whether nothing comes behind it


def stream_of(reply: Reply, spec: ElementSpec, compression: Literal["lz4", "zstd"] | None) -> flight.FlightDataStream:
    """The answer as Flight sends it; RecordBatches are not copied."""
    import pyarrow as pa
    from pyarrow import flight

    facts: dict[str, Any] = {"ended": reply.ended}
    if reply.error is not None:
        facts["error"] = {"kind": kind_of(reply.error), "text": str(reply.error)}
    schema, blocks = pa.schema([]), list[pa.RecordBatch]()
    if reply.pieces:
        encoding = encoding_of(spec)
        facts["encoding"] = encoding.kind
        if encoding.kind == "elements":
            schema, blocks, facts["layout"] = encoding.pack(reply.pieces)
        else:
            schema, blocks = reply.pieces[0].schema, list(reply.pieces)
            if any(block.schema != schema for block in blocks):
                raise DatasetError(
                    f"distribute: blocks of different columns cannot travel together: {schema} and others."
                )
    noted = schema.with_metadata({**(schema.metadata or {}), _KEY: json.dumps(facts).encode()})
    reader = pa.RecordBatchReader.from_batches(
        noted, [block.replace_schema_metadata(noted.metadata) for block in blocks]
    )
    return flight.RecordBatchStream(reader, options=pa.ipc.IpcWriteOptions(compression=compression))


def read(schema: pa.Schema, blocks: Sequence[pa.RecordBatch]) -> tuple[list[Piece], SpanwiseError | None, bool]:
    """What came: pieces, an error that stands in the place of an element, and whether that was all."""
    metadata = dict(schema.metadata or {})
    facts = json.loads(metadata.pop(_KEY))
    error = None
    if "error" in facts:
        error = received(facts["error"]["kind"], facts["error"]["text"])
    if "encoding" not in facts:
        return [], error, facts["ended"]
    plain = [block.replace_schema_metadata(metadata or None) for block in blocks]
    if facts["encoding"] == "elements":
        plain = list(ENCODINGS["elements"].unpack(plain, facts["layout"], 0))
    return plain, error, facts["ended"]
