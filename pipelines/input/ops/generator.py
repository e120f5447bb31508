"""Elements from a Python iterable that a function creates for each pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from spanwise.orchestrator.errors import DatasetError, SourceFailed
from spanwise.pipelines.input.call import function_error, source_error
from spanwise.pipelines.input.element import UNKNOWN, Spec
from spanwise.pipelines.input.op import Count, Element, Op, Opening, State, Stream, check_callable
from spanwise.pipelines.input.row_order import refuse_mixed_orders


@dataclass(frozen=True, kw_only=True, eq=False)
class Generator(Op):
    proves_place = False  # its function may yield other elements, or in another order, each time

    function: Callable[..., Iterable[Any]]
    arguments: tuple[Any, ...] = ()
    result: Spec = UNKNOWN

    def __post_init__(self) -> None:
        check_callable("from_generator", "function", self.function)

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return self.result

    @property
    def cardinality(self) -> Count:
        return None

    def open(self, opening: Opening) -> Stream:
        return GeneratorStream(self)


class GeneratorStream(Stream):
    """A generator has no state to save, so a restored stream generates the elements again and drops them."""

    def __init__(self, op: Generator) -> None:
        self._op = op
        self._elements: Iterator[Element] | None = None
        self._failure: SourceFailed | None = None  # raised again for each element that is wanted
        self._at = 0

    def __next__(self) -> Element:
        element = self._take()
        try:
            refuse_mixed_orders(element)
        except DatasetError as error:
            raise function_error("from_generator", self._op.function, f"element {self._at - 1}", error) from error
        return element

    def _take(self) -> Element:
        if self._failure is not None:
            raise self._failure
        try:
            if self._elements is None:
                made = self._op.function(*self._op.arguments)
                if not isinstance(made, Iterable):
                    raise DatasetError(f"must return an iterable, not {type(made).__name__}.")  # noqa: TRY301
                self._elements = iter(made)
            element = next(self._elements)
        except StopIteration:
            raise
        except Exception as error:
            self._failure = source_error("from_generator", self._op.function, f"element {self._at}", error)
            raise self._failure from error
        self._at += 1
        return element

    def state(self) -> State:
        return {"at": self._at}

    def restore(self, state: State) -> None:
        for _ in itertools.repeat(None, state["at"]):
            self._take()

    def close(self) -> None:
        stop = getattr(self._elements, "close", None)
        if callable(stop):
            stop()
