"""Elements prepared in the background, while the consumer works on those before."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.execution.ahead import AheadStream
from spanwise.pipelines.input.op import AUTOTUNE, Knob, Op, Opening, Stream, check_whole
from spanwise.pipelines.input.rows import in_rows

MOST = 64  #: elements, or blocks of rows, that autotune keeps ready


@dataclass(frozen=True, kw_only=True, eq=False)
class Prefetch(Op):
    by_element = True

    input: Op
    buffer: int = AUTOTUNE  #: elements (rows) kept ready; rows are rounded up to whole blocks; 0 for none
    limit_bytes: int | None = None  #: what those that are ready may hold together; one is always let through

    def __post_init__(self) -> None:
        check_whole("prefetch", "buffer", self.buffer, at_least=0, autotune=True)
        if self.limit_bytes is not None and self.limit_bytes <= 0:
            raise DatasetError(f"prefetch(limit_bytes={self.limit_bytes!r}): expected a positive number of bytes.")

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        if self.buffer == 0:
            return source
        rows = in_rows(self.input)
        # until a thread is known to pay, the consumer takes the elements itself
        knob = Knob(name="Prefetch.buffer", kind="buffer", value=0 if opening.tuner else 2, minimum=0, maximum=MOST)

        def window() -> int:
            if self.buffer == AUTOTUNE:
                return knob.value
            return math.ceil(self.buffer / opening.block.value) if rows else self.buffer

        limit_bytes = math.inf if self.limit_bytes is None else self.limit_bytes
        stream = AheadStream(
            source, name=self.name, rows=rows, window=window, limit_bytes=limit_bytes, budget=opening.budget
        )
        if self.buffer == AUTOTUNE and opening.tuner is not None:
            opening.tuner.register(knob, stream)
        return stream
