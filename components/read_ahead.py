"""Reading ahead: items are computed in other threads while those before them are worked on, and come in their order."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_THREADS = 4
"""More would wait for each other's turn with Python."""

MOST_COLUMNS = 256
"""All threads together hold so many columns of a block at most, 128 MB of numbers, or one thread all of its columns."""


def count_threads(columns: int = 1) -> int:
    """How many threads of this process should work on rows at once, which have so many columns.

    No more than Arrow may use, which a node's `cpus` limits.
    """
    import pyarrow as pa

    return max(1, min(pa.cpu_count(), MOST_THREADS, MOST_COLUMNS // max(1, columns)))


@contextmanager
def read_ahead(items: Generator[Item, None, None]) -> Iterator[Iterator[Item]]:
    """The items, of which one is ready at most; what they raise is raised in its turn.

    All of the generator runs in one thread, also its end when the last items are not wanted.
    """

    def taken(upcoming: Future[Item | None]) -> Iterator[Item]:
        while (item := upcoming.result()) is not None:
            upcoming = pool.submit(next, items, None)
            yield item

    with ThreadPoolExecutor(1, "read-ahead") as pool:
        try:
            yield taken(pool.submit(next, items, None))
        finally:
            pool.submit(items.close).result()


def map_ahead(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Generator[Result, None, None]:
    """The result of the work on each item, in the order of the items; what one raises is raised in its turn.

    So many threads work at once, and one result more than that is held at most. With one thread, the work is done here.
    """
    if threads < 2:  # noqa: PLR2004  one
        yield from map(work, items)
        return
    held: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, "map-ahead") as pool:
        try:
            for item in items:
                held.append(pool.submit(work, item))
                if len(held) > threads:
                    yield held.popleft().result()
            while held:
                yield held.popleft().result()
        finally:
            for each in held:
                each.cancel()
