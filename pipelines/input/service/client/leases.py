"""Leases: the splits that a consumer holds, how far each was read, and which are done."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence


class HeldLeases:
    """The splits that one consumer holds, shared by its threads."""

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._read: set[int] = set()  # being read, or read and not acknowledged
        self._elements: dict[int, int] = {}
        self._complete: set[int] = set()
        self._done: set[int] = set()

    def done(self) -> tuple[int, ...]:
        """Splits to acknowledge."""
        with self._changed:
            return tuple(sorted(self._done))

    def update(self, held: Sequence[int], acknowledged: Sequence[int]) -> None:
        """Applies the dispatcher's answer."""
        with self._changed:
            self._done -= set(acknowledged)
            for split in held:
                if split not in self._read and split not in self._waiting and split not in self._done:
                    self._waiting.append(split)
            self._changed.notify_all()

    def take(self, timeout_s: float) -> int | None:
        """A split to read, if there is one in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, timeout_s)
            if not self._waiting:
                return None
            split = self._waiting.popleft()
            self._read.add(split)
            self._elements.setdefault(split, 0)
            return split

    def skip(self, split: int) -> int:
        """How many of its elements to leave out, since they were yielded before."""
        return self._elements[split] if self._exact else 0

    def count(self, split: int, count: int) -> None:
        self._elements[split] += count

    def complete(self, split: int) -> None:
        """It was read to its end."""
        with self._changed:
            self._complete.add(split)

    def leave(self, split: int) -> None:
        """Its reader leaves it; if it was not read to its end, another one starts again."""
        with self._changed:
            if split in self._read and split not in self._complete:  # it may be acknowledged by now
                self._read.discard(split)
                self._waiting.append(split)
                self._changed.notify_all()

    def acknowledge(self, split: int) -> None:
        """All its elements were used."""
        with self._changed:
            self._read.discard(split)
            self._complete.discard(split)
            self._elements.pop(split, None)
            self._done.add(split)
