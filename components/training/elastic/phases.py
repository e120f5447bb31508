"""Phases: where the time of a training loop goes, each step of it told by its name. Measures, and decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Self


class Phase(StrEnum):
    """What a worker may be doing, in the order of its loop."""

    GET_BATCH = "get_batch"  #: waiting for the next batch: all that the input takes and nothing hides
    INPUT_FN = "input_fn"  #: making a batch of rows in the loop itself; nothing, where the input is one dataset
    COMPUTE = "compute"  #: gradients, metrics or predictions
    GET_MODEL = "get_model"  #: fetching parameters, or waiting for newer ones
    REPORT = "report"  #: sending gradients and results


class Phases:
    """The seconds spent in each phase, and how many batches went through. One thread adds to it.

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
        """Adds to a phase what the block takes, also if it raises."""
        began = clock()
        try:
            yield
        finally:
            self.seconds[phase] += clock() - began

    @property
    def total_s(self) -> float:
        """All phases together: less than the whole loop took, by what stands between them."""
        return sum(self.seconds.values())

    def shares(self, total_s: float | None = None) -> dict[Phase, float]:
        """The part of each phase in the whole, from 0 to 1; without a whole, in what the phases are together."""
        whole = self.total_s if total_s is None else total_s
        return {phase: spent / whole if whole else 0.0 for phase, spent in self.seconds.items()}

    def overlapped_s(self, total_s: float) -> float:
        """What the loop would take at least if its input were made meanwhile: the longer of its input and the rest."""
        input_s = self.seconds[Phase.GET_BATCH] + self.seconds[Phase.INPUT_FN]
        return max(input_s, total_s - input_s)

    def __add__(self, other: Self) -> Phases:
        both = {phase: self.seconds[phase] + other.seconds[phase] for phase in Phase}
        return Phases(both, self.batches + other.batches)

    def __str__(self) -> str:
        """`get_batch 12 %, compute 80 %, …`, of the phases that took any time."""
        return ", ".join(f"{phase} {share:.0%}" for phase, share in self.shares().items() if share)
