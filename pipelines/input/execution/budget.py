"""The budget of a pass: how much memory the elements on their way may hold together, and how many calls run at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

from spanwise.pipelines.input.op import Options
from spanwise.pipelines.input.tuning.machine import available_cores, machine_budget


class ElementHolder(Protocol):
    """What holds elements that are on their way to the consumer."""

    @property
    def held_bytes(self) -> float: ...


class PassBudget:
    """Shared by the windows of a pass. Each of them may always hold one element, so none waits for another for ever."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._memory_bytes: float | None = options.memory_budget_bytes
        self._holders: dict[int, ElementHolder] = {}
        self._lock = threading.Lock()
        #: held while a function is called, if the user has said how many cores may be busy
        self.calls: contextlib.AbstractContextManager[object] = (
            contextlib.nullcontext() if options.cpu_budget is None else threading.BoundedSemaphore(options.cpu_budget)
        )

    def join(self, holder: ElementHolder) -> Callable[[], None]:
        """Counts what a window holds, until the result is called."""
        with self._lock:
            self._holders[id(holder)] = holder

        def leave() -> None:
            with self._lock:
                self._holders.pop(id(holder), None)

        return leave

    def has_room(self, holder: ElementHolder, wanted_bytes: float) -> bool:
        """Whether a window may hold that much."""
        with self._lock:
            others = [each for each in self._holders.values() if each is not holder]
            if self._memory_bytes is None:
                self._memory_bytes = machine_budget().memory_bytes
        return wanted_bytes + sum(each.held_bytes for each in others) <= self._memory_bytes

    @property
    def untried(self) -> int:
        """How many elements a window may hold before it knows how large they are."""
        return self._options.cpu_budget or available_cores()
