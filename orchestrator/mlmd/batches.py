"""Batches: questions about many records at once, by their names. They know names and rows, not the store.

Each takes `find`, which returns what exists among many names. A question about n records then costs a few queries of
many names, not n of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from spanwise.orchestrator.mlmd.rows import ArtifactRow, ContextRow, ExecutionRow
from spanwise.orchestrator.run import Run

T = TypeVar("T")
K = TypeVar("K", int, str)
N = TypeVar("N", ContextRow, ArtifactRow, ExecutionRow)

_MOST_IDS = 2000
"""The ids in one query; each is a part of one SQL statement."""

Find = Callable[[Sequence[str]], Mapping[str, T]]
"""What exists among these names, by name."""


def read_named(read: Callable[[Sequence[str]], list[N]], names: Sequence[str]) -> dict[str, N]:
    """The rows that exist among many names, by name, a limited number per query."""
    return {row.name: row for group in split(names) for row in read(group)}


def read_each(read: Callable[[Sequence[int]], list[T]], ids: Collection[int]) -> Iterator[T]:
    """Yields the rows that exist among many ids, a limited number per query."""
    for group in split(possible_ids(ids)):
        yield from read(group)


def possible_ids(ids: Collection[int]) -> list[int]:
    """Those ids that a row may have, ascending; neither a database nor ml-metadata can be asked for longer ones."""
    return [id for id in sorted(set(ids)) if id < 1 << 63]  # noqa: A001


def split(keys: Sequence[K]) -> list[Sequence[K]]:
    """The keys in groups, one for each query."""
    return [keys[first : first + _MOST_IDS] for first in range(0, len(keys), _MOST_IDS)]


def find_numbered(places: Iterable[str], find: Find[T]) -> dict[str, list[T]]:
    """Everything at each place that has anything: `place/1`, `place/2`, … up to the first that does not exist."""
    found: dict[str, list[T]] = {}
    left, number = list(dict.fromkeys(places)), 1
    while left:
        there = find([f"{place}/{number}" for place in left])
        left = [place for place in left if f"{place}/{number}" in there]
        for place in left:
            found.setdefault(place, []).append(there[f"{place}/{number}"])
        number += 1
    return found


def find_last_numbers(known: Mapping[str, int], find: Find[T]) -> dict[str, int]:
    """The last number at each place, searched from a known one, or 0. Gallops, then bisects, for all at once."""
    low, high = dict(known), dict.fromkeys(known, 0)  # `high` does not exist; 0 while that is not known
    step = 1
    while left := [place for place in known if not high[place]]:
        there = find([f"{place}/{known[place] + step}" for place in left])
        for place in left:
            side = low if f"{place}/{known[place] + step}" in there else high
            side[place] = known[place] + step
        step *= 2
    while left := [place for place in known if high[place] - low[place] > 1]:
        middle = {place: (low[place] + high[place]) // 2 for place in left}
        there = find([f"{place}/{middle[place]}" for place in left])
        for place in left:
            (low if f"{place}/{middle[place]}" in there else high)[place] = middle[place]
    return low


def list_latest(last: Mapping[str, int], limit: int) -> list[str]:
    """The names of the last records at each place, newest first."""
    return [f"{place}/{n}" for place, newest in last.items() for n in range(newest, max(newest - limit, 0), -1)]


def list_nodes(runs: Iterable[Run]) -> list[str]:
    """The places of the attempts at the nodes of runs: `pipeline/run/node`."""
    return [f"{run.name}/{node}" for run in runs for node in run.nodes]


def grow_ranges(start: int) -> Iterator[range]:
    """Yields ever longer ranges of numbers, up to 64, so that a reader who stops early costs little."""
    size = 4
    while True:
        yield range(start, start + size)
        start, size = start + size, min(2 * size, 64)
