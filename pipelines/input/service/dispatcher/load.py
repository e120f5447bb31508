"""Load: how busy workers have recently been, and how many workers the consumers could use. Pure."""

from __future__ import annotations

import math

from spanwise.pipelines.input.service.wire.requests import WorkerLoad

MAX_GROWTH = 4
"""At most this many times as many workers are asked for: what consumers then take is known only when they are there."""

FED = 0.05
"""A consumer that waits for no more than this share of its time counts as not waiting."""

_STEP_S = 0.25


class RecentLoad:
    """What a worker has recently done, computed from reports of all that it has done."""

    def __init__(self, load: WorkerLoad, now: float) -> None:
        self.load = load
        self._at = now
        self.busy = 0.0  #: the share of its time that it spent on producing elements; 1 if several tasks did
        self.given_per_s = self.bytes_per_s = 0.0

    def update(self, load: WorkerLoad, now: float) -> None:
        span_s = now - self._at
        if span_s < _STEP_S:
            return
        before, self.load, self._at = self.load, load, now
        self.busy = min(1.0, max(0.0, (load.busy_s - before.busy_s) / span_s))
        self.given_per_s = max(0.0, (load.given - before.given) / span_s)
        self.bytes_per_s = max(0.0, (load.given_bytes - before.given_bytes) / span_s)

    def facts(self) -> dict[str, float]:
        """All of it as plain numbers."""
        rates = {"busy": self.busy, "given_per_s": self.given_per_s, "bytes_per_s": self.bytes_per_s}
        return {**self.load.model_dump(), **rates}


def wanted_workers(workers: int, busy: float, starved: float) -> int:
    """How many workers match the demand of consumers that wait for the share `starved` of their time.

    Without waiting the consumers would take 1 / (1 - starved) times as much, and workers that are busy for a share of
    their time could produce 1 / busy times as much. If workers idle while consumers wait, more would not help.
    """
    if workers == 0:
        return 1
    faster = 1.0 if starved <= FED else 1.0 / max(1.0 - starved, 1.0 / MAX_GROWTH)
    return max(1, min(MAX_GROWTH * workers, math.ceil(round(workers * busy * faster, 3))))
