"""Reading ahead: the next item is computed in another thread while the last one is worked on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

Item = TypeVar("Item")


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
