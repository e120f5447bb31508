"""Load: how much the members of a service have to do, and how many workers that wants."""

from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import asdict, dataclass

MOST_AT_ONCE = 4
"""By what factor more workers are asked for at most: what consumers take then is seen only when they are there."""

FED = 0.05
"""Who waits for no more of its time than this is not slowed down by it."""

_STEP_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a worker has done since it began, and what it holds."""

    busy_s: float = 0.0  #: making elements, over all tasks; not: waiting until consumers have taken some
    given: int = 0  #: elements
    given_bytes: int = 0
    buffered_bytes: int = 0  #: ready, and not taken yet
    lent_bytes: int = 0  #: of shared memory


class Meter:
    """Adds up what the threads of a server do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy_s = 0.0
        self._given = self._given_bytes = 0
        self._requests: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def worked(self, seconds: float) -> None:
        with self._lock:
            self._busy_s += seconds

    def gave(self, elements: int, size_bytes: int) -> None:
        with self._lock:
            self._given += elements
            self._given_bytes += size_bytes

    def asked(self, kind: str) -> None:
        with self._lock:
            self._requests[kind] += 1

    def failed(self, kind: str) -> None:
        with self._lock:
            self._errors[kind] += 1

    def load(self, *, buffered_bytes: int, lent_bytes: int) -> Load:
        with self._lock:
            return Load(
                busy_s=self._busy_s,
                given=self._given,
                given_bytes=self._given_bytes,
                buffered_bytes=buffered_bytes,
                lent_bytes=lent_bytes,
            )

    def counts(self) -> dict[str, dict[str, int]]:
        """Requests that were answered or refused, and those of them that failed, by their kind."""
        with self._lock:
            return {"requests": dict(self._requests), "errors": dict(self._errors)}


class Lately:
    """What a worker has done lately, from what it tells now and then of all that it has done."""

    def __init__(self, load: Load, now: float) -> None:
        self.load = load
        self._at = now
        self.busy = 0.0  #: the share of its time that it made elements; 1 if several tasks did
        self.given_per_s = self.bytes_per_s = 0.0

    def note(self, load: Load, now: float) -> None:
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
        return {**asdict(self.load), **rates}


def wanted(workers: int, busy: float, starved: float) -> int:
    """How many workers would be right for consumers that wait for the share `starved` of their time.

    If they did not wait, they would take 1 / (1 - starved) times as much; and workers that are busy for a share of
    their time could give 1 / busy times as much. Where workers are idle while consumers wait, more would not help.
    """
    if workers == 0:
        return 1
    faster = 1.0 if starved <= FED else 1.0 / max(1.0 - starved, 1.0 / MOST_AT_ONCE)
    return max(1, min(MOST_AT_ONCE * workers, math.ceil(round(workers * busy * faster, 3))))
