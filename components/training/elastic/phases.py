"""The phases of a training loop, and the time spent in each. Measures, and decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Self


class Phase(StrEnum):
    """A step of a worker's loop, in order."""

    GET_BATCH = "get_batch"  #: waiting for the next batch: the input time that prefetching does not hide
    INPUT_FN = "input_fn"  #: making a batch in the loop itself; 0 where the input is one dataset
    COMPUTE = "compute"  #: gradients, metrics or predictions
    GET_MODEL = "get_model"  #: fetching parameters, or waiting for newer ones
    REPORT = "report"  #: sending gradients and results


class Phases:
    """The seconds spent in each phase and the number of batches. One thread adds to it.

    with phases.during(Phase.COMPUTE):
        gradient = job.gradient(parameters, batch)
    """

    def __init__(self, seconds: Mapping[Phase, float] | Mapping[str, float] | None = None, batches: int = 0) -> None:
        self.seconds = dict.fromkeys(Phase, 0.0)
        for name, spent in (seconds or {}).items():
            self.seconds[Phase(name)] = float(spent)
        self.batches = batches

    @contextmanager
    def during(self, phase: Phase, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
        """Adds the block's time to a phase, also if the block raises."""
        start = clock()
        try:
            yield
        finally:
            self.seconds[phase] += clock() - start

    def shares(self) -> dict[Phase, float]:
        """The part of each phase in all of them, from 0 to 1; 0 where no time was measured."""
        total_s = sum(self.seconds.values())
        return {phase: spent / total_s if total_s else 0.0 for phase, spent in self.seconds.items()}

    def __add__(self, other: Self) -> Phases:
        both = {phase: self.seconds[phase] + other.seconds[phase] for phase in Phase}
        return Phases(both, self.batches + other.batches)

    def __str__(self) -> str:
        """`get_batch 12 %, compute 80 %, …`; phases that took no time are left out."""
        return ", ".join(f"{phase} {share:.0%}" for phase, share in self.shares().items() if share)
