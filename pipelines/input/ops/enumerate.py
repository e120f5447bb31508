"""Elements with their number: as `(number, element)`, or as a first column of rows."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import ArraySpec, Spec, Structure, Table
from spanwise.pipelines.input.op import Element, Op, Opening, SingleInputStream, Stream, check_whole
from spanwise.pipelines.input.rows import in_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Enumerate(Op):
    input: Op
    start: int = 0
    column: str = "index"  #: of the number, in rows

    def __post_init__(self) -> None:
        check_whole("enumerate", "start", self.start, at_least=-(2**63))
        if isinstance(self.input.spec, Table) and self.input.spec.schema is not None:
            names = self.input.spec.schema.names
            if self.column in names:
                raise DatasetError(
                    f"enumerate(column={self.column!r}): the rows already have this column; choose another name."
                )

    @property
    def spec(self) -> Spec:
        below = self.input.spec
        if not isinstance(below, Table):
            return Structure(tuple, (), (ArraySpec("int64"), below))
        import pyarrow as pa

        return Table(None if below.schema is None else below.schema.insert(0, pa.field(self.column, pa.int64())))

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        return RowEnumerateStream(source, self) if in_rows(self.input) else EnumerateStream(source, self)


class EnumerateStream(SingleInputStream):
    state_fields = ("next",)

    def __init__(self, source: Stream, op: Enumerate) -> None:
        super().__init__(source)
        self.next = op.start
        self._column = op.column

    def __next__(self) -> Element:
        element = next(self._source)
        self.next += 1
        return self.next - 1, element


class RowEnumerateStream(EnumerateStream):
    def __next__(self) -> Element:
        import numpy as np

        block = next(self._source)
        first = self.next
        self.next += block.num_rows
        return block.add_column(0, self._column, np.arange(first, self.next))
