"""The elements of datasets that a function returns for elements: several of these datasets at a time, in turns.

`flat_map` is the interleave of one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.call import Format, check_format, element_caller, function_error
from spanwise.pipelines.input.element import UNKNOWN, Spec, Table
from spanwise.pipelines.input.execution.ahead import parallelism_knob
from spanwise.pipelines.input.execution.lanes import LanesStream
from spanwise.pipelines.input.execution.turns import InterleaveStream, Turns
from spanwise.pipelines.input.op import (
    AUTOTUNE,
    Element,
    InputSeries,
    Op,
    Opening,
    Options,
    Stream,
    assign_seeds,
    check_callable,
    check_whole,
    mix_seed,
)
from spanwise.pipelines.input.rows import in_rows, open_elements


@runtime_checkable
class NestedDataset(Protocol):
    """What a function returns that makes datasets."""

    @property
    def op(self) -> Op: ...
    @property
    def settings(self) -> Options: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Interleave(Op):
    proves_place = False  # its function may yield other elements, or in another order, each time

    input: Op
    function: Callable[..., Any]  #: of an element: a dataset
    cycle: int = 1  #: how many datasets are open at a time
    block: int = 1  #: how many elements of one before the turn of the next
    result: Spec = UNKNOWN  #: what the elements of these datasets are; a `Table` lets them travel in blocks
    num_parallel: int | None = None
    deterministic: bool | None = None
    format: Format | None = None
    place: int | None = None  #: among the ops of the graph that open datasets

    def __post_init__(self) -> None:
        check_callable(self.word, "function", self.function)
        check_format(self.format)
        check_whole(self.word, "cycle_length", self.cycle)
        check_whole(self.word, "block_length", self.block)
        if self.num_parallel is not None:
            check_whole(self.word, "num_parallel", self.num_parallel, autotune=True)

    @property
    def needs_all(self) -> str:
        return ""

    @property
    def word(self) -> str:
        return "flat_map" if self.cycle == 1 else "interleave"

    @property
    def name(self) -> str:
        return "FlatMap" if self.cycle == 1 else "Interleave" if self.num_parallel is None else "ParallelInterleave"

    @property
    def spec(self) -> Spec:
        return self.result

    @property
    def cardinality(self) -> None:
        return None

    def open(self, opening: Opening) -> Stream:
        series = InputSeries(opening)
        turns = Turns(
            name=self.name,
            cycle=self.cycle,
            block=self.block,
            rows=in_rows(self),
            source=open_elements(opening, self.input),
            series=series,
            open_dataset=lambda element, number, at: self._open_dataset(element, number, at, series.opening(number)),
            budget=opening.budget,
        )
        if self.num_parallel is None:
            return InterleaveStream(turns)
        knob = parallelism_knob(self.name, self.num_parallel, opening, minimum=1, maximum=self.cycle)
        stream = LanesStream(turns, knob, ordered=opening.is_ordered(self.deterministic))
        if self.num_parallel == AUTOTUNE and opening.tuner is not None:
            opening.tuner.register(knob, stream)
        return stream

    def call(self, element: Element, at: int) -> NestedDataset:
        """The dataset that the function returns for an element; `at` is its place, which errors name.

        Raises:
            FunctionFailed: the function raised, or did not return a dataset as declared.
        """
        try:
            dataset = element_caller(self.function, self.format)(element)
            if not isinstance(dataset, NestedDataset):
                raise DatasetError(f"must return a dataset, not {type(dataset).__name__}.")  # noqa: TRY301
            if isinstance(self.result, Table) and not in_rows(dataset.op):
                raise DatasetError("must return a dataset of rows, as spec= says.")  # noqa: TRY301
        except Exception as error:
            raise function_error(self.word, self.function, f"element {at}", error) from error
        return dataset

    def _open_dataset(self, element: Element, number: int, at: int, opening: Opening) -> Stream:
        """The stream of that dataset: one element at a time, or blocks if rows are promised."""
        dataset = self.call(element, at)
        seed = mix_seed(opening.seed, *[self.place] if self.place else [], number)
        opening = opening.with_options(dataset.settings, seed)
        op = assign_seeds(dataset.op, opening.seed)
        return opening.open(op) if in_rows(self) else open_elements(opening, op)
