"""Processes whose runs have ended, while they exit. What becomes of them changes no outcome."""

from __future__ import annotations

import logging
import subprocess
from dataclasses import dataclass, field

log = logging.getLogger("spanwise.scheduler")

EXIT_S = 60.0
"""How long a process may live after the end of its run."""


@dataclass
class ExitingChildren:
    """Those of one pipeline."""

    _children: dict[subprocess.Popen[bytes], float] = field(default_factory=dict)  # monotonic: when each is killed

    def __bool__(self) -> bool:
        return bool(self._children)

    def add(self, child: subprocess.Popen[bytes], monotonic: float) -> None:
        self._children[child] = monotonic + EXIT_S

    def terminate(self) -> None:
        for child in self._children:
            child.terminate()

    def kill(self) -> None:
        for child in self._children:
            child.kill()

    def has_news(self) -> bool:
        """Whether one has exited."""
        return any(child.poll() is not None for child in self._children)

    def deadlines(self) -> list[float]:
        """When each is killed."""
        return list(self._children.values())

    def reap(self, pipeline: str, monotonic: float) -> None:
        """Forgets those that have exited, and kills those that take too long."""
        for child, until_s in self._children.items():
            if child.poll() is None and monotonic >= until_s:
                log.warning("exit-forced", extra={"pipeline": pipeline, "pid": child.pid})
                child.kill()
        self._children = {child: until_s for child, until_s in self._children.items() if child.poll() is None}
