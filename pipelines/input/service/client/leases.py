"""The splits that a consumer holds: who reads which, how far they were read, which are done."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence


class Leases:
    """The splits that a consumer holds: who reads which, how far they were read, which are done."""

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._read: set[int] = set()  # being read, or read and not done
        self._elements: dict[int, int] = {}
        self._complete: set[int] = set()
        self._done: set[int] = set()

    def wanted(self, want: int) -> tuple[list[int], int]:
        """What is done, and how many splits to hold."""
        with self._changed:
            return sorted(self._done), want

    def take(self, held: Sequence[int], told: Sequence[int]) -> None:
        """Notes what the dispatcher says is held."""
        with self._changed:
            self._done -= set(told)
            for split in held:
                if split not in self._read and split not in self._waiting and split not in self._done:
                    self._waiting.append(split)
            self._changed.notify_all()

    def begin(self, timeout_s: float) -> int | None:
        """A split to read."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, timeout_s)
            if not self._waiting:
                return None
            split = self._waiting.popleft()
            self._read.add(split)
            self._elements.setdefault(split, 0)
            return split

    def given(self, split: int) -> int:
        """How many of its elements to leave out, since they were given before."""
        return self._elements[split] if self._exact else 0

    def note(self, split: int, count: int) -> None:
        self._elements[split] += count

    def end(self, split: int) -> None:
        """It was read to its end."""
        with self._changed:
            self._complete.add(split)

    def leave(self, split: int) -> None:
        """Its reader is done with it: if it did not come to the end, another one begins."""
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
