"""Leaves out elements. Of rows, by an Arrow expression, by a mask for a whole block, or one at a time."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.arrays import as_column, as_mask
from spanwise.pipelines.input.call import Format, block_error, check_format, element_caller, function_error, row_range
from spanwise.pipelines.input.element import Table
from spanwise.pipelines.input.op import Count, CountingStream, Element, Op, Opening, Stream, count_some
from spanwise.pipelines.input.rows import empty_batch, in_rows, row_dicts
from spanwise.pipelines.input.selection import (
    Condition,
    Conditions,
    check_selectable,
    evaluate,
    filter_rows,
    parts_of_condition,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


@dataclass(frozen=True, kw_only=True, eq=False)
class Filter(Op):
    by_element = True

    input: Op
    predicate: Callable[..., Any] | Condition
    vectorized: bool = False  #: whether the predicate takes blocks of rows and gives a mask
    format: Format | None = None

    def __post_init__(self) -> None:
        check_selectable("filter", self.input.spec)
        if self.expression is not None:
            if not in_rows(self.input):
                raise DatasetError("filter: an expression names columns, but the elements are not rows.")
            if isinstance(self.input.spec, Table) and self.input.spec.schema is not None:
                check_condition(self.expression, self.input.spec.schema)
            return
        if not callable(self.predicate):
            raise DatasetError(
                f"filter({self.predicate!r}): expected a function, or an expression such as col('fare') > 3."
            )
        check_format(self.format)
        if self.vectorized and not in_rows(self.input):
            raise DatasetError("filter(vectorized=True): the elements are not rows, so there are no blocks of them.")

    @property
    def expression(self) -> Condition | None:
        import pyarrow.compute as pc

        return self.predicate if isinstance(self.predicate, pc.Expression | Conditions) else None

    @property
    def cardinality(self) -> Count:
        return count_some(self.input.cardinality)

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input)
        return BlockFilterStream(source, self) if in_rows(self.input) else FilterStream(source, self)


def check_condition(condition: Condition, schema: pa.Schema, *, op: str = "filter") -> None:
    """Refuses an expression that does not name its columns, names others, or is not a condition on them.

    Raises:
        DatasetError: says what does not match.
    """
    for expression in parts_of_condition(condition):
        _check_expression(expression, schema, op)
        _refuse_positions(expression, op)


def _refuse_positions(expression: pc.Expression, op: str) -> None:
    """Refuses `pc.field(0)`, which is another column where other columns are read."""
    import pyarrow as pa

    try:
        pickle.dumps(expression)
    except pa.ArrowNotImplementedError as error:  # Arrow stores names only
        if "FieldPath(" in str(expression):
            raise DatasetError(
                f'{op}({expression}): expected columns by their names, as in col("fare") > 3, not by their positions.'
            ) from error


def _check_expression(expression: pc.Expression, schema: pa.Schema, op: str) -> None:
    import pyarrow as pa

    try:
        found = evaluate(empty_batch(schema), expression).type
    except pa.ArrowException as error:
        raise DatasetError(f"{op}({expression}): {error}. The columns are {', '.join(schema.names)}.") from error
    if not pa.types.is_boolean(found):
        raise DatasetError(f"{op}({expression}): expected a condition, which is true or false, not {found}.")


def columns_of(expression: Condition, schema: pa.Schema) -> frozenset[str]:
    """The columns that a condition names: those without which it cannot be bound."""

    def needs(name: str) -> bool:
        try:
            for part in parts_of_condition(expression):
                _check_expression(part, schema.remove(schema.get_field_index(name)), "filter")
        except DatasetError:
            return True
        return False

    return frozenset(name for name in schema.names if needs(name))


class FilterStream(CountingStream):
    def __init__(self, source: Stream, op: Filter) -> None:
        super().__init__(source)
        self._op = op
        self._holds = self._predicate(op)

    def _predicate(self, op: Filter) -> Callable[[Element], Any]:
        assert callable(op.predicate)
        return element_caller(op.predicate, op.format)

    def __next__(self) -> Element:
        while True:
            at, element = self._read()
            try:
                if self._holds(element):
                    return element
            except Exception as error:
                raise function_error("filter", self._op.predicate, f"element {at}", error) from error


class BlockFilterStream(FilterStream):
    """Keeps the rows of each block for which an expression or a mask is true; null counts as false."""

    def _predicate(self, op: Filter) -> Callable[[Element], Any]:
        if op.expression is not None:
            return lambda _: op.expression
        call = super()._predicate(op)
        if op.vectorized:
            return lambda block: as_mask(call(block), block)
        return lambda block: as_column([bool(call(row)) for row in row_dicts(block)])

    def __next__(self) -> Element:
        for block in self._source:
            at = self.at
            self.at += block.num_rows
            try:
                kept = filter_rows(block, self._holds(block))
            except Exception as error:
                raise block_error("filter", self._op.predicate, row_range(at, block), error) from error
            if kept.num_rows:
                return kept
        raise StopIteration
