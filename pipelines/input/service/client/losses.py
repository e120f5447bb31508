"""Losses: workers that have ended while they ran a job, and whether it is the job that ends them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

ATTEMPTS: Final = 3
"""So many workers may end, one after another, at one and the same element."""

AHEAD_BYTES: Final = 96 << 20
"""So far ahead of what was received a worker may have been when it ended: its buffer, and an answer."""


@dataclass
class TaskLosses:
    """The workers that have ended, one life after another, at about one place of their passes.

    Several that end at once, as with their machine, count once: who ends because of an element comes back and ends
    again. A worker that has got beyond the place shows that it is not the element.
    """

    given_bytes: dict[int, int] = field(default_factory=dict)  #: by task: what was received of it
    _place_bytes: int = 0
    _newest: int = -1  # the highest number of a task when the last one ended
    _count: int = 0

    def receive(self, task: int, size_bytes: int) -> None:
        """More of a task has come."""
        self.given_bytes[task] = self.given_bytes.get(task, 0) + size_bytes

    def lose(self, task: int, known: Iterable[int]) -> int:
        """A worker has ended in this task; returns how many have, one after another, at its place."""
        place_bytes = self.given_bytes.pop(task, 0)
        is_beyond = any(other > place_bytes + AHEAD_BYTES for other in self.given_bytes.values())
        if task > self._newest:
            self._count += 1
            if self._count == 1 or is_beyond or abs(place_bytes - self._place_bytes) > AHEAD_BYTES:
                self._count, self._place_bytes = 1, place_bytes
            self._newest = max(task, *known, self._newest)
        return self._count
