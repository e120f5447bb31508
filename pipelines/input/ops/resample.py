"""Elements left out by chance, so that their classes come in given proportions.

Each element is accepted with a probability that follows from its class: as large as it can be for all classes at once.
The numbers follow from the seed and the element's place. The proportions of the input, where they are not given, are
those of the elements so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.call import element_caller, function_error
from spanwise.pipelines.input.element import Spec, element_spec
from spanwise.pipelines.input.op import (
    Count,
    CountingStream,
    Element,
    Op,
    Opening,
    Stream,
    check_callable,
    check_shares,
    check_whole,
    count_some,
    mix_seed,
)
from spanwise.pipelines.input.rows import open_elements

_NUMBERS = 1024  # computed at a time; part of what a seed means, so never change it


@dataclass(frozen=True, kw_only=True, eq=False)
class Resample(Op):
    input: Op
    class_of: Callable[..., Any]  #: of an element: the number of its class
    target: tuple[float, ...]  #: the share of each class in what is given
    initial: tuple[float, ...] | None = None  #: the same of the input; None to count
    seed: int | None = None

    def __post_init__(self) -> None:
        op = "rejection_resample"
        check_callable(op, "class_of", self.class_of)
        for name, shares in (("target", self.target), ("initial", self.initial or self.target)):
            check_shares(op, name, shares)
        if self.initial is not None and len(self.initial) != len(self.target):
            raise DatasetError(f"{op}: {len(self.target)} classes in target, but {len(self.initial)} in initial.")
        if self.initial is not None and any(
            want and not there for want, there in zip(self.target, self.initial, strict=True)
        ):
            raise DatasetError(f"{op}: target wants a class that initial says never comes.")
        if self.seed is not None:
            check_whole(op, "seed", self.seed, at_least=0)

    @property
    def needs_all(self) -> str:
        return "rejection_resample numbers the elements of its whole input"

    @property
    def spec(self) -> Spec:
        return element_spec(self.input.spec)

    @property
    def cardinality(self) -> Count:
        return count_some(self.input.cardinality)

    def open(self, opening: Opening) -> Stream:
        return ResampleStream(open_elements(opening, self.input), self, mix_seed(self.seed or 0, *opening.epoch))


class ResampleStream(CountingStream):
    state_fields = ("at", "counts")

    def __init__(self, source: Stream, op: Resample, seed: int) -> None:
        super().__init__(source)
        self._op = op
        self._seed = seed
        self._call = element_caller(op.class_of)
        self.counts = [0] * len(op.target)  # of elements, by class
        self._numbers: list[float] = []
        self._chunk = -1  # of numbers

    def __next__(self) -> Element:
        while True:
            number, element = self._read()
            chance = self._chance(self._class_of(element, number))
            if self._number(number) < chance:
                return element

    def _class_of(self, element: Element, number: int) -> int:
        try:
            found = self._call(element)
            if not (int(found) == found and 0 <= found < len(self.counts)):
                raise DatasetError(  # noqa: TRY301
                    f"must return the number of one of the {len(self.counts)} classes of target=, of which the first "
                    f"is 0, not {found!r:.80}."
                )
        except Exception as error:
            raise function_error("rejection_resample", self._op.class_of, f"element {number}", error) from error
        return int(found)

    def _chance(self, found: int) -> float:
        """How likely an element of a class is accepted."""
        if self._op.initial is not None:
            there: list[float] = list(self._op.initial)
        else:
            self.counts[found] += 1
            there = [count + 1.0 for count in self.counts]  # no class that is wanted is taken for impossible
        shares = [want / have if have else 0.0 for want, have in zip(self._op.target, there, strict=True)]
        return shares[found] / max(shares)

    def _number(self, place: int) -> float:
        import numpy as np

        chunk, at = divmod(place, _NUMBERS)
        if chunk != self._chunk:
            generator = np.random.Generator(np.random.PCG64(mix_seed(self._seed, chunk)))
            self._numbers, self._chunk = generator.random(_NUMBERS).tolist(), chunk
        return self._numbers[at]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "counts": list(self.counts)}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.counts = list(state["counts"])
