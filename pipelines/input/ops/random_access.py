"""Elements of anything with a length and `[]`, in its order or in that of a global shuffle, which holds no element.

The shuffle is a permutation of the numbers below the length that is computed number by number (a Feistel network that
is applied until the result is in range), so it takes no memory, and any part is computed without the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines.input.element import UNKNOWN, Spec
from spanwise.pipelines.input.op import Element, Op, Opening, State, Stream, check_whole, mix_seed

_CHUNK: Final = 1024
_ROUNDS: Final = 6  # part of what a seed means, as are the constants below: never change them


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomAccess(Op):
    source: Any
    length: int  #: of the source, when the dataset was made
    shuffle: bool = False
    seed: int | None = None
    result: Spec = UNKNOWN
    positions: range = field(default=range(0), repr=False)  #: which places of the order are given

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return self.result

    @property
    def cardinality(self) -> int:
        return len(self.positions)

    def open(self, opening: Opening) -> Stream:
        return RandomAccessStream(self, mix_seed(self.seed or 0, *opening.epoch) if self.shuffle else None)


def random_access(source: Any, *, shuffle: bool, seed: int | None, result: Spec) -> RandomAccess:
    """The op.

    Raises:
        DatasetError: the source has no length, or its elements have no numbers.
    """
    op = "from_random_access"
    try:
        length = len(source)
    except TypeError as error:
        raise DatasetError(
            f"{op}({type(source).__name__}): it has no length: {error}. Use from_generator for what can only be "
            f"iterated over."
        ) from error
    if isinstance(source, dict) or not hasattr(source, "__getitem__"):
        raise DatasetError(f"{op}({type(source).__name__}): source[0] is not an element of it.")
    if seed is not None:
        check_whole(op, "seed", seed, at_least=0)
    return RandomAccess(
        source=source,
        length=length,
        shuffle=shuffle,
        seed=seed if shuffle else 0,
        result=result,
        positions=range(length),
    )


class RandomAccessStream(Stream):
    def __init__(self, op: RandomAccess, seed: int | None) -> None:
        self._op = op
        self._seed = seed
        self._at = 0
        self._chunk: list[int] = []  # places in the source, from position `_first` on
        self._first = 0

    def __next__(self) -> Element:
        if self._at == len(self._op.positions):
            raise StopIteration
        place = self._place(self._at)
        self._at += 1
        try:
            return self._op.source[place]
        except Exception as error:
            raise FunctionFailed(
                f"from_random_access: {type(self._op.source).__qualname__} raised {type(error).__name__} for element "
                f"{place} (the first is 0): {str(error).rstrip('.')}. Its own traceback is above; ignore_errors() "
                f"leaves out elements that fail."
            ) from error

    def _place(self, at: int) -> int:
        if self._seed is None:
            return self._op.positions[at]
        if not self._first <= at < self._first + len(self._chunk):
            chosen = self._op.positions[at : at + _CHUNK]
            self._first, self._chunk = at, permuted(chosen, self._op.length, self._seed)
        return self._chunk[at - self._first]

    def state(self) -> State:
        return {"at": self._at}

    def restore(self, state: State) -> None:
        self._at = state["at"]


def permuted(places: range, length: int, seed: int) -> list[int]:
    """Where a permutation of the numbers below `length` sends these places."""
    import numpy as np

    half = max(1, (max(length - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    keys = [np.uint64(mix_seed(seed, number)) for number in range(_ROUNDS)]
    found = np.arange(places.start, places.stop, places.step, dtype=np.uint64)
    outside = np.ones(len(found), bool)
    while outside.any():
        some = found[outside]
        left, right = some >> np.uint64(half), some & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        found[outside] = (left << np.uint64(half)) | right
        outside = found >= length
    numbers: list[int] = found.tolist()
    return numbers


def _mixed(values: Any) -> Any:
    """The finalizer of MurmurHash 3 on 64-bit numbers."""
    import numpy as np

    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))
