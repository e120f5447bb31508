"""The elements of several datasets, one dataset after another."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import UNKNOWN, Spec, Table, merge_specs
from spanwise.pipelines.input.op import Count, Element, InputSeries, Op, Opening, State, Stream
from spanwise.pipelines.input.rows import BlockTypes, checked, in_rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Concatenate(Op):
    by_element = True

    parts: tuple[Op, ...]

    def __post_init__(self) -> None:
        check_same_kind("concatenate", self.parts)

    @property
    def spec(self) -> Spec:
        spec = merge_specs(part.spec for part in self.parts)
        return Table(None) if spec == UNKNOWN and in_rows(self.parts[0]) else spec

    @property
    def cardinality(self) -> Count:
        counts = [part.cardinality for part in self.parts]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def open(self, opening: Opening) -> Stream:
        return ConcatenateStream(self, opening)


def check_same_kind(op: str, inputs: tuple[Op, ...]) -> None:
    """Refuses to mix rows with other elements, or rows with other columns.

    Raises:
        DatasetError: there is no dataset, or they do not match.
    """
    if not inputs:
        raise DatasetError(f"{op}: expected at least one dataset.")
    if len({in_rows(each) for each in inputs}) > 1:
        raise DatasetError(f"{op}: some datasets have rows and others do not.")
    schemas = [each.spec.schema for each in inputs if isinstance(each.spec, Table) and each.spec.schema is not None]
    for schema in schemas[1:]:
        if not schema.equals(schemas[0]):
            raise DatasetError(f"{op}: the datasets have different columns:\n{schemas[0]}\nand\n{schema}")


class ConcatenateStream(Stream):
    def __init__(self, op: Concatenate, opening: Opening) -> None:
        self._parts = op.parts
        self._series = InputSeries(opening)
        self._number = 0
        self._source: Stream | None = None
        self._types = BlockTypes.of_parts("concatenate", [part.spec for part in op.parts])

    def __next__(self) -> Element:
        while self._number < len(self._parts):
            if self._source is None:
                self._source = self._open_part()
            try:
                return next(self._source)
            except StopIteration:
                self._source.close()
                self._source = None
                self._number += 1
        raise StopIteration

    def _open_part(self) -> Stream:
        return checked(self._series.opening(self._number).open(self._parts[self._number]), self._types)

    def state(self) -> State:
        inside = None if self._source is None else self._source.state()
        unopened = self._series.unopened(self._number + (inside is not None))
        return {"number": self._number, "input": inside, **unopened}

    def restore(self, state: State) -> None:
        self._number = state["number"]
        if state["input"] is not None:
            self._source = self._open_part()
            self._source.restore(state["input"])

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
