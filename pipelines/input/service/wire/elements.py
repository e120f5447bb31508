"""Elements on the wire: packed as in a snapshot, and on one host in memory that both sides map."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.pipelines.input.element import ElementSpec
from spanwise.pipelines.input.rows import bytes_of
from spanwise.pipelines.input.service.wire.connection import Connection, kind_of, received
from spanwise.pipelines.input.service.wire.load import Meter
from spanwise.pipelines.input.service.wire.memory import Borrower, Lender, Loan, NotShared, host
from spanwise.pipelines.input.service.wire.runs import Run, counted, packed
from spanwise.pipelines.input.service.wire.security import is_loopback
from spanwise.pipelines.input.snapshot.encoding import ENCODINGS, Piece, encoding_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import flight

    from spanwise.pipelines.input.service.wire.requests import Fetch

_KEY: Final = b"spanwise"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reply:
    """An answer of a worker to a consumer, who may ask for it once more."""

    number: int  #: of the request
    pieces: Sequence[Piece | Run]
    error: SpanwiseError | None
    ended: bool  #: whether nothing comes behind it


def stream_of(
    reply: Reply, spec: ElementSpec, request: Fetch, lender: Lender, meter: Meter, again_s: float = 0.0
) -> flight.FlightDataStream:
    """The answer as Flight sends it; RecordBatches are not copied, or once if the client maps this host's memory.

    The client is asked to come again after `again_s`.
    """
    import pyarrow as pa
    from pyarrow import flight

    facts: dict[str, Any] = {"ended": reply.ended, "again_s": again_s}
    if reply.error is not None:
        facts["error"] = {"kind": kind_of(reply.error), "text": str(reply.error)}
    schema, blocks = pa.schema([]), list[pa.RecordBatch]()
    if reply.pieces:
        encoding = encoding_of(spec)
        facts["encoding"] = encoding.kind
        schema, blocks, facts["layout"] = packed(encoding, reply.pieces)
        meter.gave(counted(encoding, reply.pieces), sum(map(bytes_of, blocks)))
    if request.host is not None and request.host == host():
        loan = lender.lend(request.client, request.returned, schema, blocks)
        if loan is not None:
            facts["loan"] = loan.model_dump()
            schema, blocks = pa.schema([]), []
    noted = schema.with_metadata({**(schema.metadata or {}), _KEY: json.dumps(facts).encode()})
    reader = pa.RecordBatchReader.from_batches(
        noted, [block.replace_schema_metadata(noted.metadata) for block in blocks]
    )
    return flight.RecordBatchStream(reader, options=pa.ipc.IpcWriteOptions(compression=request.compression))


class Feed:
    """What a worker gives one reader."""

    def __init__(self, worker: Connection, compression: Literal["auto", "lz4", "zstd"] | None) -> None:
        self._worker = worker
        self._compression = compression
        self._host = host()
        if compression == "auto":
            self._compression = None if is_loopback(worker.address.partition("://")[2].rpartition(":")[0]) else "lz4"
        elif compression is not None:
            self._host = None  # it was asked for, so it is sent
        self._borrower = Borrower()
        self._again_s = 0.0

    def ask(
        self, ticket: Mapping[str, Any], limit_bytes: int, timeout_s: float
    ) -> tuple[list[Piece], SpanwiseError | None, bool]:
        """Pieces, an error that stands in the place of an element, and whether that was all.

        Raises:
            Unreachable: there was no answer.
            UnknownTask: the worker does not know what is asked for.
        """
        time.sleep(self._again_s)  # the worker has too many to let each wait there
        returned = self._borrower.returned()
        request = {
            **ticket,
            "limit_bytes": limit_bytes,
            "compression": self._compression,
            "host": self._host,
            "returned": returned,
        }
        schema, blocks = self._worker.fetch(json.dumps(request).encode(), timeout_s)
        self._borrower.told(returned)
        try:
            return self._read(schema, blocks)
        except NotShared as error:
            _log.info("service-memory-not-shared", extra={"worker": self._worker.address, "reason": str(error)})
            self._host = None
            return self.ask(ticket, limit_bytes, timeout_s)  # it is answered as before

    def _read(
        self, schema: pa.Schema, blocks: Sequence[pa.RecordBatch]
    ) -> tuple[list[Piece], SpanwiseError | None, bool]:
        metadata = dict(schema.metadata or {})
        facts = json.loads(metadata.pop(_KEY))
        self._again_s = facts["again_s"]
        error = None
        if "error" in facts:
            error = received(facts["error"]["kind"], facts["error"]["text"])
        if "encoding" not in facts:
            return [], error, facts["ended"]
        if "loan" in facts:
            plain = self._borrower.blocks(Loan.model_validate(facts["loan"]))
        else:
            plain = [block.replace_schema_metadata(metadata or None) for block in blocks]
        return list(ENCODINGS[facts["encoding"]].unpack(plain, facts["layout"], 0)), error, facts["ended"]
