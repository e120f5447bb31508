"""A feed: the elements that one worker sends one reader, over the network or through memory that both map."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.pipelines.input.service.wire.connection import ServiceConnection, error_of
from spanwise.pipelines.input.service.wire.elements import detach
from spanwise.pipelines.input.service.wire.memory import Borrower, NotShared, memory_host
from spanwise.pipelines.input.service.wire.requests import Fetch
from spanwise.pipelines.input.service.wire.security import is_loopback
from spanwise.pipelines.input.snapshot.encoding import ENCODINGS, Piece

if TYPE_CHECKING:
    import pyarrow as pa

Compression: TypeAlias = Literal["auto", "lz4", "zstd"]
"""`auto` compresses what goes to another machine."""

_log = logging.getLogger("spanwise.service.consumer")


@dataclass(frozen=True)
class Delivery:
    """What a worker sent: pieces, and then an error that takes the place of an element."""

    pieces: Sequence[Piece]
    error: SpanwiseError | None
    ended: bool  #: whether nothing follows

    @property
    def items(self) -> list[Piece | SpanwiseError]:
        return [*self.pieces, *([] if self.error is None else [self.error])]


class WorkerFeed:
    """Fetches elements from one worker."""

    def __init__(self, worker: ServiceConnection, compression: Compression | None) -> None:
        self._worker = worker
        self._host = memory_host()
        if compression == "auto":
            compression = None if is_loopback(worker.address.partition("://")[2].rpartition(":")[0]) else "lz4"
        elif compression is not None:
            self._host = None  # who asks for compression wants the elements sent
        self._compression = compression
        self._borrower = Borrower()
        self._again_s = 0.0

    def fetch(self, ticket: Fetch, timeout_s: float) -> Delivery:
        """The next elements.

        Raises:
            Unreachable: there was no answer.
            UnknownTask: the worker does not know the task or split.
        """
        time.sleep(self._again_s)  # the worker has too many consumers to let each of them wait there
        returned = self._borrower.unused()
        ticket = ticket.model_copy(update={"compression": self._compression, "host": self._host, "returned": returned})
        schema, blocks = self._worker.fetch(ticket.model_dump_json().encode(), timeout_s)
        self._borrower.forget(returned)
        try:
            return self._unpack(schema, blocks)
        except NotShared as error:
            _log.info("memory-sharing-failed", extra={"worker": self._worker.address, "reason": str(error)})
            self._host = None
            return self.fetch(ticket, timeout_s)  # the worker repeats its answer

    def _unpack(self, schema: pa.Schema, blocks: Sequence[pa.RecordBatch]) -> Delivery:
        facts, metadata = detach(schema)
        self._again_s = facts.again_s
        error = None if facts.error is None else error_of(facts.error.kind, facts.error.text)
        if facts.encoding is None:
            return Delivery([], error, facts.ended)
        if facts.loan is not None:
            plain = self._borrower.blocks(facts.loan)
        else:
            plain = [block.replace_schema_metadata(metadata or None) for block in blocks]
        return Delivery(list(ENCODINGS[facts.encoding].unpack(plain, facts.layout, 0)), error, facts.ended)
