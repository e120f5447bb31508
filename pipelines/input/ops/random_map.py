"""A function of each element and of a generator of random numbers, which is the element's own.

The generator follows from the seed, the pass and the element: from its number in the input or, with a key, from what
the user says it is known by. So the same element gets the same numbers however the dataset runs: in threads or
processes, after a restore, and by its key also where parts of the input are computed apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.call import element_caller, function_error
from spanwise.pipelines.input.element import UNKNOWN, Spec, read_only
from spanwise.pipelines.input.execution.callers import Workers
from spanwise.pipelines.input.op import Element, Op, Opening, Stream, check_callable, check_whole, mix_seed
from spanwise.pipelines.input.ops.map import check_calls, open_calls
from spanwise.pipelines.input.row_order import refuse_mixed_orders
from spanwise.pipelines.input.rows import open_elements

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomMap(Op):
    input: Op
    function: Callable[..., Any]
    key: Callable[..., Any] | None = None  #: of an element: what it is known by; None for its number
    seed: int | None = None
    result: Spec = UNKNOWN
    num_parallel: int | None = None
    deterministic: bool | None = None
    workers: Workers = "threads"

    def __post_init__(self) -> None:
        check_callable("random_map", "function", self.function)
        if self.key is not None:
            check_callable("random_map", "key", self.key)
        if self.seed is not None:
            check_whole("random_map", "seed", self.seed, at_least=0)
        check_calls("random_map", self.num_parallel, self.workers)

    @property
    def needs_all(self) -> str:
        if self.key is not None:
            return ""
        return "random_map numbers the elements of its whole input, unless it has a key="

    @property
    def spec(self) -> Spec:
        return self.result

    def open(self, opening: Opening) -> Stream:
        seed = mix_seed(self.seed or 0, *opening.epoch)
        call = RandomCall(function=self.function, key=self.key, seed=seed)
        return open_calls(self, call, open_elements(opening, self.input), opening, rows=False)


@dataclass(frozen=True, kw_only=True)
class RandomCall:
    function: Callable[..., Any]
    key: Callable[..., Any] | None
    seed: int

    @cached_property
    def _key_of(self) -> Callable[[Element], Any]:
        assert self.key is not None
        return element_caller(self.key)

    def __call__(self, element: Element, position: int) -> Element:
        try:
            numbers = self._generator(element, position)
            if type(element) is tuple:
                made = self.function(*map(read_only, element), numbers)
            else:
                made = self.function(read_only(element), numbers)
            refuse_mixed_orders(made)
            return made  # noqa: TRY300
        except Exception as error:
            raise function_error("random_map", self.function, f"element {position}", error) from error

    def _generator(self, element: Element, position: int) -> np.random.Generator:
        import numpy as np

        number = position if self.key is None else _number_of(self._key_of(element))
        return np.random.Generator(np.random.PCG64(mix_seed(self.seed, number)))

    def __getstate__(self) -> dict[str, object]:
        return {"function": self.function, "key": self.key, "seed": self.seed}  # cached properties are computed again


def _number_of(key: Any) -> int:
    """A number for what an element is known by."""
    import numpy as np

    key = key.item() if isinstance(key, np.generic) else key
    if isinstance(key, bool) or not isinstance(key, int | str | bytes):
        raise DatasetError(f"key= must return a whole number, a text or bytes, not {key!r:.80}.")
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
