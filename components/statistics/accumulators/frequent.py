"""Frequent values: the texts that occur most, with their counts."""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat
from typing import Any, Self

import datasketches
import pyarrow as pa

from spanwise.components.statistics.accumulators.accumulator import State, raw, text
from spanwise.components.statistics.accumulators.value_counts import count_texts, to_list

LOG_SIZE = 11
LONGEST = 200
"""Longer texts are known by so many of their first characters and a digest of the whole."""

_DIGEST = re.compile("…#[0-9a-f]{32}")
_ROUND = 1537  # one text more than there are counters: texts that all occur once are then forgotten again, all of them
_TOTALS = struct.Struct("<QQ")  # in a sketch's bytes: the total weight, and the most that a count is off
_TOTALS_AT = 16


def cut(text: str) -> str:
    """What a text is known by: itself, unless it is too long. Different texts are known by different ones."""
    if len(text) <= LONGEST:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{text[:LONGEST]}…#{digest}"


def is_cut(text: str) -> bool:
    """Whether this is what a longer text is known by."""
    return len(text) > LONGEST and _DIGEST.fullmatch(text, LONGEST) is not None


def abbreviate(value: str) -> str:
    """A value for people: without the digest of a text that was cut."""
    return f"{value[:LONGEST]}…" if is_cut(value) else value


@dataclass(frozen=True)
class Occurrence:
    """A value and how often it occurs."""

    value: str  #: a long text is cut
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
        deque(map(sketch.update, map(cut, values), counts), maxlen=0)
        return cls(_to_bytes(sketch))

    @classmethod
    def from_distinct(cls, values: Sequence[object]) -> Self:
        """The same of texts or whole numbers that occur once each, such as ids.

        Only the last of them are in the sketch, so most need not be counted.
        """
        rounds, rest = divmod(len(values), _ROUND)
        if not rounds:
            return cls.from_counts(map(str, values), repeat(1))
        if not rest:
            return cls(_free(len(values), rounds))
        found = cls.from_counts(map(str, (*values[:_ROUND], *values[-rest:])), repeat(1))
        raw = bytearray(found.sketch)
        _TOTALS.pack_into(raw, _TOTALS_AT, len(values), rounds)
        return cls(bytes(raw))

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
        mine, theirs = self._open(), other._open()
        if not theirs.num_active_items:  # the library would not look at it
            mine, theirs = theirs, mine
        if not theirs.num_active_items:
            return type(self)(_free(self.total + other.total, self.error + other.error))
        mine.merge(theirs)
        return type(self)(_to_bytes(mine))

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


def _to_bytes(sketch: datasketches.frequent_strings_sketch) -> bytes:
    """The sketch; one whose counters are all free, which the library writes as if there had been no values, as well."""
    if sketch.num_active_items:
        return bytes(sketch.serialize())
    return _free(int(sketch.total_weight), int(sketch.get_upper_bound("")))


def _free(total: int, error: int) -> bytes:
    """A sketch of so many values whose counters are all free."""
    if not total:
        return b""
    content = bytearray(_TOTALS_AT) + _TOTALS.pack(total, error)
    content[:5] = len(content) // 8, *datasketches.frequent_strings_sketch(LOG_SIZE).serialize()[1:5]
    return bytes(content)


def _rank(found: Occurrence) -> tuple[int, str]:
    return -found.count, found.value
