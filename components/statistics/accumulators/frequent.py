"""Frequent values: the texts that occur most, with their counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import datasketches
import pyarrow as pa

from spanwise.components.statistics.accumulators.accumulator import State, raw, text
from spanwise.components.statistics.accumulators.value_counts import count_texts, to_list

LOG_SIZE = 11
LONGEST = 200
"""Longer texts are counted by so many of their first characters."""


@dataclass(frozen=True)
class Occurrence:
    """A value and how often it occurs."""

    value: str
    count: int  #: never too low; too high by at most `error`
    error: int = 0

    @property
    def exact(self) -> bool:
        """Whether the count is exact, rather than an estimate."""
        return not self.error


@dataclass(frozen=True)
class Frequent:
    """A frequent-items sketch (Apache DataSketches: Misra-Gries with 1536 counters), as its bytes; empty for none.

    Exact up to 1536 different values. Beyond, a count is too high by at most 0.17 % of all values, so any value with a
    larger share than that is certain to be found.
    """

    sketch: bytes = b""

    @classmethod
    def accumulate(cls, values: pa.Array[Any]) -> Self:
        found, counts = count_texts(values)
        return cls.from_counts(to_list(found), to_list(counts))

    @classmethod
    def from_counts(cls, values: Iterable[str], counts: Iterable[int]) -> Self:
        sketch = datasketches.frequent_strings_sketch(LOG_SIZE)
        update = sketch.update
        for value, count in zip(values, counts, strict=True):
            update(value[:LONGEST], count)
        return cls(b"" if sketch.is_empty() else sketch.serialize())

    @property
    def total(self) -> int:
        """How many values there were."""
        return int(self._open().total_weight)

    @property
    def error(self) -> int:
        """By how much a count may be too high, and how often a value that is not here may occur; 0 if all are exact."""
        return int(self._open().get_upper_bound("x" * (LONGEST + 1)))  # of a text that cannot be here

    @property
    def complete(self) -> bool:
        """Whether every value that ever occurred is here, with its exact count."""
        return sum(lower for _, _, lower, _ in self._items()) == self.total

    def top(self, most: int | None = None) -> tuple[Occurrence, ...]:
        """The values that occur most, the most frequent first, equals by their text; None gives all it knows.

        Beyond 1536 different values, counts and so the order are estimates: see `Occurrence.error`.
        """
        found = sorted((Occurrence(value, upper, upper - lower) for value, _, lower, upper in self._items()), key=_rank)
        return tuple(found[:most])

    def merge(self, other: Self) -> Self:
        if not self.sketch or not other.sketch:
            return self if self.sketch else other
        mine = self._open()
        mine.merge(other._open())
        return type(self)(mine.serialize())

    def state(self) -> State:
        return {"frequent": text(self.sketch), "error": self.error}  # whoever reads the file sees what is an estimate

    @classmethod
    def from_state(cls, state: State) -> Self:
        return cls(raw(state, "frequent"))

    def _open(self) -> datasketches.frequent_strings_sketch:
        if not self.sketch:
            return datasketches.frequent_strings_sketch(LOG_SIZE)
        return datasketches.frequent_strings_sketch.deserialize(self.sketch)

    def _items(self) -> list[tuple[str, int, int, int]]:
        found = self._open().get_frequent_items(datasketches.frequent_items_error_type.NO_FALSE_NEGATIVES)
        return [(str(value), int(estimate), int(lower), int(upper)) for value, estimate, lower, upper in found]


def _rank(found: Occurrence) -> tuple[int, str]:
    return -found.count, found.value
