"""Requests side by side: they wait for the network, not for a processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Wanted = TypeVar("Wanted")
Result = TypeVar("Result")

_AT_ONCE = 8


def call_side_by_side(call: Callable[[Wanted], Result], each: Sequence[Wanted]) -> list[Result]:
    """The results of calls, in order; no threads for one."""
    if len(each) < 2:  # noqa: PLR2004
        return list(map(call, each))
    with ThreadPoolExecutor(min(len(each), _AT_ONCE), "storage") as pool:
        return list(pool.map(call, each))
