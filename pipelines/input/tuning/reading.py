"""Readings: what an op of a running graph, or its calls in the background, has done so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(kw_only=True)
class CallTimes:
    """What calls of a function in the background have taken so far."""

    calls: int = 0
    took_s: float = 0.0
    squares: float = 0.0  #: of the seconds, for their variance
    cpu_s: float = 0.0

    def add(self, took_s: float, cpu_s: float = 0.0) -> None:
        self.calls += 1
        self.took_s += took_s
        self.squares += took_s * took_s
        self.cpu_s += cpu_s

    @property
    def variability(self) -> float:
        """The squared coefficient of variation of a call's time."""
        if self.calls < 2 or not self.took_s:  # noqa: PLR2004  one call does not vary
            return 0.0
        mean_s = self.took_s / self.calls
        return max(0.0, self.squares / self.calls / mean_s**2 - 1)


@runtime_checkable
class RunsAhead(Protocol):
    """A stream that works while its consumer does."""

    work: CallTimes | None  #: calls of a function; None if it only takes elements from its input
    watch: Callable[[int, int], None] | None  #: receives the start and the end of each of them, in ns

    @property
    def pulled(self) -> CallTimes: ...  # what it took to take them

    @property
    def parallelism(self) -> int: ...

    @property
    def buffer(self) -> int: ...

    @property
    def element_bytes(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class OpReading:
    """What one op has done so far, all its streams together."""

    calls: int = 0  #: elements or blocks given
    units: int = 0  #: elements or rows given
    total_s: float = 0.0  #: how long its consumer was in it
    element_bytes: float = 0.0
    ahead: bool = False  #: whether it works in the background
    parallelism: int = 1  #: how many elements are worked on at once there
    work: CallTimes | None = None  #: what was done there by calling a function

    def since(self, before: OpReading) -> OpReading:
        """What it has done since another reading; everything, if it has done nothing since."""
        if self.calls == before.calls:
            return self
        work = self.work
        if work is not None and before.work is not None and work.calls > before.work.calls:
            work = CallTimes(
                calls=work.calls - before.work.calls,
                took_s=work.took_s - before.work.took_s,
                squares=work.squares - before.work.squares,
                cpu_s=work.cpu_s - before.work.cpu_s,
            )
        return OpReading(
            calls=self.calls - before.calls,
            units=self.units - before.units,
            total_s=self.total_s - before.total_s,
            element_bytes=self.element_bytes,
            ahead=self.ahead,
            parallelism=self.parallelism,
            work=work,
        )
