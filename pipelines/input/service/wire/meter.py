"""What a server has done since it started, added up by its threads."""

from __future__ import annotations

import threading
from collections import Counter

from spanwise.pipelines.input.service.wire.requests import WorkerLoad


class ServerMeter:
    """Counters that the threads of a server share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy_s = 0.0
        self._elements = self._bytes = 0
        self._requests: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def add_work(self, seconds: float) -> None:
        with self._lock:
            self._busy_s += seconds

    def add_elements(self, elements: int, size_bytes: int) -> None:
        with self._lock:
            self._elements += elements
            self._bytes += size_bytes

    def count_request(self, kind: str) -> None:
        with self._lock:
            self._requests[kind] += 1

    def count_error(self, kind: str) -> None:
        with self._lock:
            self._errors[kind] += 1

    def load(self, *, buffered_bytes: int, lent_bytes: int) -> WorkerLoad:
        with self._lock:
            return WorkerLoad(
                busy_s=self._busy_s,
                given=self._elements,
                given_bytes=self._bytes,
                buffered_bytes=buffered_bytes,
                lent_bytes=lent_bytes,
            )

    def counts(self) -> dict[str, dict[str, int]]:
        """Requests, and how many of them failed, by kind."""
        with self._lock:
            return {"requests": dict(self._requests), "errors": dict(self._errors)}
