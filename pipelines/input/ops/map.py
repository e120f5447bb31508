"""A function of each element, or of whole blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, get_args

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.arrays import as_arrays, as_batch
from spanwise.pipelines.input.call import (
    Format,
    block_error,
    check_format,
    element_caller,
    function_error,
    resolve_format,
    row_range,
)
from spanwise.pipelines.input.element import UNKNOWN, Spec, Table
from spanwise.pipelines.input.execution.ahead import AheadStream, parallelism_knob
from spanwise.pipelines.input.execution.callers import Workers
from spanwise.pipelines.input.op import (
    AUTOTUNE,
    Element,
    Op,
    Opening,
    SingleInputStream,
    Stream,
    check_callable,
    check_whole,
)
from spanwise.pipelines.input.row_order import refuse_mixed_orders
from spanwise.pipelines.input.rows import BlockTypes, in_rows, open_elements
from spanwise.pipelines.input.tuning.machine import available_cores

if TYPE_CHECKING:
    import pyarrow as pa

Apply: TypeAlias = Callable[[Element, int], Element]

MOST_THREADS: Final = 64
"""That autotune lets call one function: those that wait for a disk or a network need no core."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Map(Op):
    by_element = True

    input: Op
    function: Callable[..., Any]
    vectorized: bool = False  #: whether the function takes blocks of rows and returns as many rows
    result: Spec = UNKNOWN  #: what the function returns
    reads: tuple[str, ...] | None = None  #: the columns that the function receives; None for all of them
    writes: tuple[str, ...] | None = None  #: the columns that it returns, added to the others; None for all of them
    format: Format | None = None
    num_parallel: int | None = None  #: how many calls may run at once; None runs them in the consumer's thread
    deterministic: bool | None = None  #: None as the dataset's options say
    workers: Workers = "threads"  #: what makes calls that run at once
    stateless: bool = False  #: whether the user says that calls do not depend on each other and may run side by side

    def __post_init__(self) -> None:
        check_callable("map", "function", self.function)
        check_format(self.format)
        check_calls("map", self.num_parallel, self.workers)
        if self.vectorized and not in_rows(self.input):
            raise DatasetError("map(vectorized=True): the elements are not rows, so there are no blocks of them.")
        if not self.vectorized and isinstance(self.result, Table):
            raise DatasetError(
                "map: a function of one element cannot return a table; as_rows(schema) turns its dicts into rows."
            )
        if not self.vectorized and (self.reads is not None or self.writes is not None):
            raise DatasetError("map(reads=, writes=): only a vectorized map works on columns.")
        schema = self.input.spec.schema if isinstance(self.input.spec, Table) else None
        for name in self.reads or ():
            if schema is not None and name not in schema.names:
                raise DatasetError(f"map(reads={name!r}): no such column. The columns are {', '.join(schema.names)}.")

    @property
    def name(self) -> str:
        return "Map" if self.num_parallel is None else "ParallelMap"

    @property
    def spec(self) -> Spec:
        if self.vectorized and not isinstance(self.result, Table):
            return Table(None)
        return self.result

    def open(self, opening: Opening) -> Stream:
        source = opening.open(self.input) if self.vectorized else open_elements(opening, self.input)
        return open_calls(self, self.call(), source, opening, rows=self.vectorized)

    def call(self) -> Apply:
        """What to call for an element (or block) and its position, which errors name. Can be sent to processes."""
        if isinstance(self.function, Chain):
            return self.function
        if not self.vectorized:
            return ElementCall(function=self.function, format=self.format)
        schema = self.result.schema if isinstance(self.result, Table) else None
        return BlockCall(
            function=self.function, format=self.format, reads=self.reads, writes=self.writes, schema=schema
        )


@dataclass(frozen=True, kw_only=True)
class ElementCall:
    function: Callable[..., Any]
    format: Format | None

    @cached_property
    def _call(self) -> Callable[[Element], Any]:
        return element_caller(self.function, self.format)

    def __call__(self, element: Element, position: int) -> Element:
        try:
            made = self._call(element)
            refuse_mixed_orders(made)
            return made  # noqa: TRY300
        except Exception as error:
            raise function_error("map", self.function, f"element {position}", error) from error

    def __getstate__(self) -> dict[str, object]:
        return {"function": self.function, "format": self.format}  # cached properties are computed again


@dataclass(frozen=True, kw_only=True)
class BlockCall:
    function: Callable[..., Any]
    format: Format | None
    reads: tuple[str, ...] | None
    writes: tuple[str, ...] | None
    schema: pa.Schema | None
    _types: BlockTypes = field(default_factory=BlockTypes, repr=False, compare=False)

    @cached_property
    def _arrow(self) -> bool:
        return resolve_format(self.function, self.format) == "arrow"

    def __call__(self, block: pa.RecordBatch, position: int) -> pa.RecordBatch:
        try:
            seen = block if self.reads is None else block.select(list(self.reads))
            given = {} if self._arrow else as_arrays(seen)
            made = self.function(seen if self._arrow else dict(given))
            made = as_batch(made, given, seen, self.schema if self.writes is None else None)
            if made.num_rows != block.num_rows:
                raise DatasetError(  # noqa: TRY301
                    f"must return as many rows as it was given, {block.num_rows}, not {made.num_rows}; "
                    f"to leave rows out use filter, to add rows use flat_map."
                )
            made = made if self.writes is None else self._written(block, made, self.writes)
            self._types.check(made)
            return made  # noqa: TRY300
        except Exception as error:
            raise block_error("map", self.function, row_range(position, block), error) from error

    def check(self, made: pa.RecordBatch, position: int) -> None:
        """Refuses the result of a call in another process, which knows the types of its own results alone."""
        try:
            self._types.check(made)
        except DatasetError as error:
            raise block_error("map", self.function, row_range(position, made), error) from error

    def _written(self, block: pa.RecordBatch, made: pa.RecordBatch, writes: tuple[str, ...]) -> pa.RecordBatch:
        if set(made.schema.names) != set(writes):
            raise DatasetError(f"must return the columns of writes=, {', '.join(writes)}, not {made.schema.names}.")
        for name in writes:
            column, place = made.column(name), block.schema.get_field_index(name)
            block = block.append_column(name, column) if place < 0 else block.set_column(place, name, column)
        return block if self.schema is None else as_batch(block, {}, block, self.schema)


@dataclass(frozen=True)
class Chain:
    """Several maps as one."""

    calls: tuple[ElementCall | BlockCall, ...]

    def __call__(self, element: Element, position: int) -> Element:
        for call in self.calls:
            element = call(element, position)
        return element

    def check(self, made: Element, position: int) -> None:
        last = self.calls[-1]
        if isinstance(last, BlockCall):
            last.check(made, position)


class Calling(Protocol):
    """An op that calls a function."""

    @property
    def name(self) -> str: ...
    @property
    def num_parallel(self) -> int | None: ...
    @property
    def deterministic(self) -> bool | None: ...
    @property
    def workers(self) -> Workers: ...


def check_calls(op: str, num_parallel: int | None, workers: str) -> None:
    """Refuses arguments that do not say how calls are made.

    Raises:
        DatasetError: says which argument of which op, and what it was.
    """
    if num_parallel is not None:
        check_whole(op, "num_parallel", num_parallel, autotune=True)
    if workers not in get_args(Workers):
        raise DatasetError(f"{op}(workers={workers!r}): expected 'threads' or 'processes'.")


def open_calls(op: Calling, call: Apply, source: Stream, opening: Opening, *, rows: bool) -> Stream:
    """The stream of what `call` returns for elements, or blocks of rows, made by the consumer or by several callers."""
    if op.num_parallel is None:
        return MapStream(source, call, rows=rows)
    processes = op.workers == "processes"
    cores = opening.options.cpu_budget
    knob = parallelism_knob(
        op.name,
        op.num_parallel,
        opening,
        minimum=int(processes),
        maximum=cores or available_cores() if processes else MOST_THREADS,
    )
    stream = AheadStream(
        source,
        name=op.name,
        rows=rows,
        window=lambda: 2 * knob.value,
        function=call,
        num_parallel=knob,
        workers=op.workers,
        ordered=opening.is_ordered(op.deterministic),
        budget=opening.budget,
    )
    if op.num_parallel == AUTOTUNE and opening.tuner is not None:
        opening.tuner.register(knob, stream)
    return stream


class MapStream(SingleInputStream):
    state_fields = ("at",)

    def __init__(self, source: Stream, call: Apply, *, rows: bool) -> None:
        super().__init__(source)
        self._call = call
        self._in_blocks = rows
        self.at = 0  # elements or rows taken

    def __next__(self) -> Element:
        try:
            element = next(self._source)
        except StopIteration:
            raise
        except Exception:
            self.at += not self._in_blocks  # it has used up an element
            raise
        at = self.at
        self.at += element.num_rows if self._in_blocks else 1
        return self._call(element, at)
