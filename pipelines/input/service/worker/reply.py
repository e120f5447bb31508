"""A reply: what a worker sends a consumer, packed as in a snapshot; to a consumer on its host it lends memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.pipelines.input.element import ElementSpec
from spanwise.pipelines.input.rows import block_bytes
from spanwise.pipelines.input.service.wire.connection import kind_of
from spanwise.pipelines.input.service.wire.elements import ReplyFacts, WireError, attach
from spanwise.pipelines.input.service.wire.memory import Lender, Loan, memory_host
from spanwise.pipelines.input.service.wire.meter import ServerMeter
from spanwise.pipelines.input.service.wire.requests import Fetch
from spanwise.pipelines.input.service.worker.runs import BatchRun, count_elements, pack
from spanwise.pipelines.input.snapshot.encoding import Piece, encoding_of

if TYPE_CHECKING:
    from pyarrow import flight


@dataclass(frozen=True)
class WorkerReply:
    """An answer to a consumer, which is repeated if the consumer asks for it again."""

    number: int  #: of the request
    pieces: Sequence[Piece | BatchRun]
    error: SpanwiseError | None
    ended: bool  #: whether nothing follows


def stream_of(
    reply: WorkerReply, spec: ElementSpec, request: Fetch, lender: Lender, meter: ServerMeter, again_s: float = 0.0
) -> flight.FlightDataStream:
    """The answer as Flight sends it; RecordBatches are not copied, or once if the client maps this host's memory.

    The client is asked to come again after `again_s`.
    """
    import pyarrow as pa
    from pyarrow import flight

    encoding = encoding_of(spec)
    schema, blocks, layout = pa.schema([]), list[pa.RecordBatch](), ""
    if reply.pieces:
        schema, blocks, layout = pack(encoding, reply.pieces)
        meter.add_elements(count_elements(encoding, reply.pieces), sum(map(block_bytes, blocks)))
    loan: Loan | None = None
    if request.host is not None and request.host == memory_host():
        loan = lender.lend(request.client, request.returned, schema, blocks)
        if loan is not None:
            schema, blocks = pa.schema([]), []
    facts = ReplyFacts(
        ended=reply.ended,
        again_s=again_s,
        error=None if reply.error is None else WireError(kind=kind_of(reply.error), text=str(reply.error)),
        encoding=encoding.kind if reply.pieces else None,
        layout=layout,
        loan=loan,
    )
    schema = attach(schema, facts)
    reader = pa.RecordBatchReader.from_batches(
        schema, [block.replace_schema_metadata(schema.metadata) for block in blocks]
    )
    return flight.RecordBatchStream(reader, options=pa.ipc.IpcWriteOptions(compression=request.compression))
