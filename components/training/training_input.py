"""The input of one training: the name of its jobs in a data service, and how many rows its passes have read."""

from __future__ import annotations

import threading

from spanwise.pipelines.input.op import PassCount


class TrainingInput:
    """Counts the rows that this process reads for a training. Sent to another process, it counts from 0 there."""

    def __init__(self, name: str = "training") -> None:
        self.name = name  #: of the jobs whose elements it reads, as a data service lists them
        self._lock = threading.Lock()
        self._passes: list[PassCount] = []

    def __reduce__(self) -> tuple[type[TrainingInput], tuple[str]]:
        return TrainingInput, (self.name,)

    def begin_pass(self) -> PassCount:
        """Counts one more pass over a dataset; whoever runs it counts its elements there."""
        count = PassCount()
        with self._lock:
            self._passes.append(count)
        return count

    @property
    def empty_passes(self) -> int:
        """How many passes there were if not one of them had an element, or was resumed behind some; otherwise 0."""
        with self._lock:
            given = any(count.elements or count.is_resumed for count in self._passes)
            return 0 if given else len(self._passes)
