"""Whole numbers, counted up or down."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import ArraySpec, Spec
from spanwise.pipelines.input.op import Op, Opening, State, Stream


@dataclass(frozen=True, kw_only=True, eq=False)
class Range(Op):
    start: int
    stop: int
    step: int = 1

    def __post_init__(self) -> None:
        for argument in ("start", "stop", "step"):
            value = getattr(self, argument)
            if isinstance(value, bool) or not isinstance(value, int):
                raise DatasetError(f"range({argument}={value!r}): expected a whole number.")
        if self.step == 0:
            raise DatasetError("range(step=0): the step must not be 0; use 1 to count up, -1 to count down.")

    @property
    def spec(self) -> Spec:
        return ArraySpec("int64")

    @property
    def cardinality(self) -> int:
        return max(0, -((self.start - self.stop) // self.step))  # `len` ends where a machine word does

    def open(self, opening: Opening) -> Stream:
        return RangeStream(range(self.start, self.stop, self.step))


class RangeStream(Stream):
    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self._iterator = iter(numbers)
        self._at = 0

    def __next__(self) -> int:
        number = next(self._iterator)
        self._at += 1
        return number

    def state(self) -> State:
        return {"at": self._at}

    def restore(self, state: State) -> None:
        self._at = state["at"]
        self._iterator = iter(self._numbers[self._at :])
