"""The elements before the first one for which a condition is not true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.call import block_error, element_caller, function_error, row_range
from spanwise.pipelines.input.op import CountingStream, Element, Op, Opening, Stream
from spanwise.pipelines.input.ops.filter import check_condition
from spanwise.pipelines.input.rows import in_rows, row_dicts
from spanwise.pipelines.input.selection import evaluate

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


@dataclass(frozen=True, kw_only=True, eq=False)
class TakeWhile(Op):
    input: Op
    predicate: Callable[..., Any] | pc.Expression

    def __post_init__(self) -> None:
        condition = self.expression
        if condition is None and not callable(self.predicate):
            raise DatasetError(f"take_while({self.predicate!r}): expected a function, or a condition on columns.")
        if condition is not None and not in_rows(self.input):
            raise DatasetError("take_while: a condition names columns, but the elements are not rows.")
        schema = getattr(self.input.spec, "schema", None)
        if condition is not None and schema is not None:
            check_condition(condition, schema, op="take_while")

    @property
    def expression(self) -> pc.Expression | None:
        import pyarrow.compute as pc

        return self.predicate if isinstance(self.predicate, pc.Expression) else None

    @property
    def cardinality(self) -> None:
        return None

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        return RowTakeWhileStream(source, self) if in_rows(self.input) else TakeWhileStream(source, self)


class TakeWhileStream(CountingStream):
    state_fields = ("at", "over")

    def __init__(self, source: Stream, op: TakeWhile) -> None:
        super().__init__(source)
        self._op = op
        self._holds = element_caller(op.predicate) if callable(op.predicate) else None
        self.over = False  # whether the condition was not true

    def __next__(self) -> Element:
        if self.over:
            raise StopIteration
        at, element = self._read()
        try:
            assert self._holds is not None
            self.over = not self._holds(element)
        except Exception as error:
            raise function_error("take_while", self._op.predicate, f"element {at}", error) from error
        if self.over:
            raise StopIteration
        return element


class RowTakeWhileStream(TakeWhileStream):
    """Cuts the block with the first row for which the condition is not true; null is not true."""

    def __next__(self) -> Element:
        if self.over:
            raise StopIteration
        block = next(self._source)
        at, self.at = self.at, self.at + block.num_rows
        try:
            count = self._count(block)
        except Exception as error:
            raise block_error("take_while", self._op.predicate, row_range(at, block), error) from error
        self.over = count < block.num_rows
        if not count:
            raise StopIteration
        return block.slice(0, count) if self.over else block

    def _count(self, block: pa.RecordBatch) -> int:
        """How many rows come before the first for which it is not true."""
        import numpy as np

        if self._holds is not None:
            rows = row_dicts(block)
            return next((at for at, row in enumerate(rows) if not self._holds(row)), len(rows))
        mask = evaluate(block, self._op.expression).fill_null(False)  # type: ignore[arg-type]  # one of the two
        missed = np.flatnonzero(~mask.to_numpy(zero_copy_only=False))
        return int(missed[0]) if len(missed) else block.num_rows
