"""A function of each element and of a value carried over from the elements before."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spanwise.orchestrator.errors import DatasetError, NotPortable
from spanwise.pipelines.input.call import function_error
from spanwise.pipelines.input.element import UNKNOWN, Spec, read_only
from spanwise.pipelines.input.op import CountingStream, Element, Op, Opening, State, Stream, check_callable
from spanwise.pipelines.input.row_order import refuse_mixed_orders
from spanwise.pipelines.input.rows import open_elements


@dataclass(frozen=True, kw_only=True, eq=False)
class Scan(Op):
    input: Op
    initial: Any  #: what is carried to the first element
    function: Callable[[Any, Any], tuple[Any, Any]]  #: of what is carried and an element: what to carry, and the result

    def __post_init__(self) -> None:
        check_callable("scan", "function", self.function)

    @property
    def spec(self) -> Spec:
        return UNKNOWN

    def open(self, opening: Opening) -> Stream:
        return ScanStream(open_elements(opening, self.input), self)


class ScanStream(CountingStream):
    """The carried value may be any object of the user's, so it is pickled into the state."""

    def __init__(self, source: Stream, op: Scan) -> None:
        super().__init__(source)
        self._op = op
        self._carried = pickle.loads(_pickled(op.initial))  # noqa: S301  a copy: functions may change it

    def __next__(self) -> Element:
        at, element = self._read()
        try:
            made = self._op.function(self._carried, read_only(element))
            if not isinstance(made, tuple) or len(made) != 2:  # noqa: PLR2004
                raise DatasetError(f"must return (what to carry, the result), not {made!r:.80}.")  # noqa: TRY301
            refuse_mixed_orders(made[1])
        except Exception as error:
            raise function_error("scan", self._op.function, f"element {at}", error) from error
        self._carried, result = made
        return result

    def state(self) -> State:
        return {**super().state(), "carried": _pickled(self._carried)}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._carried = pickle.loads(state["carried"])  # noqa: S301  the user's own state


def _pickled(carried: object) -> bytes:
    """What is carried, as a state holds it.

    Raises:
        NotPortable: it cannot be pickled.
    """
    try:
        return pickle.dumps(carried)
    except Exception as error:
        raise NotPortable(
            f"scan: what is carried from element to element is part of a state, and cannot be pickled: "
            f"{type(error).__name__}: {error}. Carry what it is made from, such as numbers, arrays or a path."
        ) from error
