"""Some of the columns of rows, in the order named."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import Spec, Table
from spanwise.pipelines.input.op import Element, Op, Opening, SingleInputStream, Stream


@dataclass(frozen=True, kw_only=True, eq=False)
class Select(Op):
    by_element = True

    input: Op
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.input.spec, Table):
            raise DatasetError("select: the elements are not rows, so they have no columns.")
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise DatasetError(f"select{self.columns!r}: expected at least one column, each of them once.")
        schema = self.input.spec.schema
        for name in self.columns:
            if schema is not None and name not in schema.names:
                raise DatasetError(f"select({name!r}): no such column. The columns are {', '.join(schema.names)}.")

    @property
    def spec(self) -> Spec:
        assert isinstance(self.input.spec, Table)
        schema = self.input.spec.schema
        if schema is None:
            return Table(None)
        import pyarrow as pa

        return Table(pa.schema([schema.field(name) for name in self.columns]))

    def open(self, opening: Opening) -> Stream:
        return SelectStream(opening.open(self.input), self.columns)


class SelectStream(SingleInputStream):
    def __init__(self, source: Stream, columns: tuple[str, ...]) -> None:
        super().__init__(source)
        self._columns = list(columns)

    def __next__(self) -> Element:
        block = next(self._source)
        try:
            return block.select(self._columns)
        except KeyError as error:
            raise DatasetError(f"select: {error.args[0]}; the columns are {', '.join(block.schema.names)}.") from error
