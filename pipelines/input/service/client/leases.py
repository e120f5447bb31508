"""The course of one consumer through the splits it leases: their order, how far it has come, what is committed. Pure.

A consumer yields its splits one after another, in the order in which it leased them. So a place in that course is the
number of a split in it and a number of elements of the split, and whoever knows the order can come to the same place
again. What lies before a committed place is never read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

_Item = TypeVar("_Item")


LEASES: Final = 4
"""How many splits a consumer holds for each worker; when half of them are left it leases more."""

_SMALL_LEASES: Final = 16
"""How many of splits that are small: when half of them lasted less than `_SHORT_S`, it leases twice as many."""

_FEW_LEASES: Final = 2
"""How many if half of them lasted longer than `_LONG_S`, and it hardly waited: others may wait for it at the end."""

_SHORT_S: Final = 0.1
_LONG_S: Final = 1.0
_HARDLY: Final = 0.01  # of the time


def size_leases(before: int, lasted_s: float, waited_s: float) -> int:
    """How many splits a consumer leases next for each worker.

    Half of those before lasted so long, and so much of that it waited for elements.
    """
    if lasted_s < _SHORT_S:
        return min(2 * before, _SMALL_LEASES)
    return _FEW_LEASES if lasted_s > _LONG_S and waited_s < _HARDLY * lasted_s else LEASES


class Place(NamedTuple):
    """A place in the course."""

    at: int  #: how many splits are before it
    given: int  #: and how many elements of its own split


BEGINNING: Final = Place(0, 0)


@dataclass(slots=True)
class LeasedSplit(Generic[_Item]):
    """A split that the consumer holds."""

    number: int
    given: int  #: elements that were yielded, here or before it was leased
    fetched: int  #: and that were read
    committed: int
    items: deque[tuple[_Item, int, int]] = field(default_factory=deque)  #: with size and count: read, and not yielded
    size_bytes: int = 0  #: of these
    is_read: bool = False  #: a thread reads it
    is_complete: bool = False  #: it was read to its end
    failures: int = 0  #: workers that were lost while they produced its next element


class LeaseCourse(Generic[_Item]):
    """The splits that a consumer holds, in order. The holder serialises access."""

    def __init__(self, start: Place = BEGINNING, held: Iterable[tuple[int, int]] = ()) -> None:
        self._base = start.at  # how many splits are committed
        self._at = start.at  # and yielded
        self._splits: deque[LeasedSplit[_Item]] = deque(LeasedSplit(n, count, count, count) for n, count in held)
        self._done: dict[int, int] = {}  # committed, and not acknowledged yet; each with what was committed before

    @property
    def current(self) -> LeasedSplit[_Item] | None:
        """The split that is being yielded."""
        here = self._at - self._base
        return self._splits[here] if here < len(self._splits) else None

    @property
    def place(self) -> Place:
        """Behind the last element that was yielded."""
        split = self.current
        return Place(self._at, 0 if split is None else split.given)

    @property
    def ahead(self) -> int:
        """How many splits it has not yielded to their end."""
        self._advance()
        return len(self._splits) - self.uncommitted

    @property
    def uncommitted(self) -> int:
        """How many splits it has yielded and not committed."""
        return self._at - self._base

    @property
    def is_spent(self) -> bool:
        """Whether all that it holds was yielded."""
        self._advance()
        return self.current is None

    def update(self, held: Sequence[tuple[int, int]], acknowledged: Iterable[int]) -> None:
        """Applies the dispatcher's answer: the splits it holds, and those that it has committed."""
        for number in acknowledged:
            self._done.pop(number, None)
        known = {split.number for split in self._splits} | self._done.keys()
        self._splits.extend(LeasedSplit(n, count, count, count) for n, count in held if n not in known)

    def begin_read(self) -> LeasedSplit[_Item] | None:
        """The first split that nobody reads."""
        split = next((each for each in self._splits if not each.is_read and not each.is_complete), None)
        if split is not None:
            split.is_read = True
        return split

    def add(self, split: LeasedSplit[_Item], items: Iterable[tuple[_Item, int, int]]) -> None:
        """Adds what was read of a split: items with sizes and counts."""
        for item in items:
            split.items.append(item)
            split.size_bytes += item[1]
            split.fetched += item[2]
            split.failures = 0

    @property
    def is_ready(self) -> bool:
        """Whether the next item is there."""
        self._advance()
        return self.current is not None and bool(self.current.items)

    def pop(self) -> _Item | None:
        """The next item, which may be None, if it `is_ready`; None if not."""
        split = self.current if self.is_ready else None
        if split is None:
            return None
        item, size_bytes, count = split.items.popleft()
        split.size_bytes -= size_bytes
        split.given += count
        return item

    def _advance(self) -> None:
        while (split := self.current) is not None and split.is_complete and not split.items:
            self._at += 1

    def held_bytes(self) -> int:
        return sum(split.size_bytes for split in self._splits)

    def order(self) -> list[tuple[int, int]]:
        """The splits from the committed place on of which elements were yielded, each with those that were before."""
        here = self._at - self._base
        begun = [split for at, split in enumerate(self._splits) if at < here or (at == here and split.given)]
        return [(split.number, split.committed) for split in begun]

    def unacknowledged(self) -> list[tuple[int, int]]:
        """The splits before the committed place of which the dispatcher may not know that they are."""
        return sorted(self._done.items())

    @property
    def base(self) -> int:
        """The number of the first split in `order`."""
        return self._base

    def commit(self, place: Place) -> None:
        """All before a place was used."""
        while self._base < place.at and self._splits:
            split = self._splits.popleft()
            self._done[split.number] = split.committed
            self._base += 1
        if self._base == place.at and self._splits:
            self._splits[0].committed = max(self._splits[0].committed, place.given)

    def committed(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """What the dispatcher is to learn: splits that are done, and how many elements of another one are."""
        first = self._splits[0] if self._splits else None
        progress = ((first.number, first.committed),) if first is not None and first.committed else ()
        return tuple(sorted(self._done)), progress
