"""How long the command takes to answer: heavy libraries are imported where they are used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.figures import Figure, at_most, median_s, show


def measured() -> Iterator[Figure]:
    yield at_most("spanwise --help", _answer_s("--help") * 1000, "ms", 150)
    yield Figure(name="spanwise --version", value=_answer_s("--version") * 1000, unit="ms")


def _answer_s(*words: str) -> float:
    command = [sys.executable, "-m", "spanwise", *words]
    return median_s(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), times=10)


if __name__ == "__main__":
    sys.exit(show(measured()))
