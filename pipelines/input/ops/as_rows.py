"""Dicts as rows of a table, gathered into blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import Spec, Table
from spanwise.pipelines.input.exact_columns import exact_column, unmasked
from spanwise.pipelines.input.op import Element, Op, Opening, SingleInputStream, State, Stream
from spanwise.pipelines.input.rows import in_rows

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, eq=False)
class AsRows(Op):
    by_element = True

    input: Op
    schema: pa.Schema

    def __post_init__(self) -> None:
        import pyarrow as pa

        if not isinstance(self.schema, pa.Schema):
            raise DatasetError(f"as_rows(schema={self.schema!r}): expected a pyarrow.Schema.")
        if in_rows(self.input):
            raise DatasetError("as_rows: the elements are rows already.")

    @property
    def spec(self) -> Spec:
        return Table(self.schema)

    def open(self, opening: Opening) -> Stream:
        return AsRowsStream(opening.open(self.input), self.schema, opening)


class AsRowsStream(SingleInputStream):
    """The first block has one row and each next one twice as many, so that nobody waits long for a slow source."""

    def __init__(self, source: Stream, schema: pa.Schema, opening: Opening) -> None:
        super().__init__(source)
        self._schema = schema
        self._block = opening.block
        self._size = 1
        self._at = 0
        self._failure: Exception | None = None  # raised after the rows before it
        self._before: State = {}  # the source's, before these rows
        self._given = 0  # how many they are

    def __next__(self) -> Element:
        if self._failure is not None:
            failure, self._failure, self._given = self._failure, None, 0
            raise failure
        before = self._source.state()
        found: list[Element] = []
        size = self._size = min(2 * self._size, self._block.value)
        while len(found) < size:
            try:
                found.append(next(self._source))
            except StopIteration:
                break
            except Exception as error:
                if not found:
                    raise
                self._failure, self._before, self._given = error, before, len(found)
                break
        if not found:
            raise StopIteration
        self._at += len(found)
        return self._rows(found)

    def state(self) -> State:
        # an error that is due comes again only behind the rows before it
        return {"input": self._before if self._given else self._source.state(), "given": self._given}

    def restore(self, state: State) -> None:
        super().restore(state)
        for _ in range(state["given"]):
            next(self._source)

    def _rows(self, found: list[Element]) -> pa.RecordBatch:
        import pyarrow as pa

        names = set(self._schema.names)
        for number, element in enumerate(found):
            if not isinstance(element, dict) or not names.issuperset(element):
                at = self._at - len(found) + number
                raise DatasetError(f"as_rows: element {at} is not a dict with {', '.join(names)}: {element!r:.80}.")
        try:
            rows = [unmasked(element) for element in found]
            columns = [
                exact_column(field.name, [row.get(field.name) for row in rows], field.type) for field in self._schema
            ]
            made = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        except (pa.ArrowException, DatasetError, OverflowError, TypeError, ValueError) as error:
            raise DatasetError(
                f"as_rows: elements {self._at - len(found)} to {self._at - 1} do not fit the schema: "
                f"{str(error).removesuffix('.')}."
            ) from error
        return made
