"""Figures: what a benchmark measured, what it should be, and how both are printed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value with its goal."""

    name: str
    value: float
    unit: str
    goal: str = ""  #: as text, such as "<= 30"; empty for a figure without one
    ok: bool = True
    judged: bool = True  #: if not, the goal is neither met nor missed
    quiet: bool = True  #: whether the machine did nothing else; if it did, nothing is judged

    @property
    def verdict(self) -> str:
        """In one word, for a figure with a goal."""
        if not self.goal:
            return ""
        return ("met" if self.ok else "MISSED") if self.judged else "not judged"


def at_most(name: str, value: float, unit: str, limit: float) -> Figure:
    """A figure that should not be above a limit."""
    return Figure(name=name, value=value, unit=unit, goal=f"<= {limit:g}", ok=value <= limit)


def at_least(name: str, value: float, unit: str, limit: float) -> Figure:
    """A figure that should not be below a limit."""
    return Figure(name=name, value=value, unit=unit, goal=f">= {limit:g}", ok=value >= limit)


def median_s(work: Callable[[], object], *, times: int = 5, warm_up: int = 1) -> float:
    """The median of how long it takes, in seconds, after unmeasured first turns."""
    for _ in range(warm_up):
        work()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What one turn of some work took."""

    wall_s: float
    cpu_s: float  #: of this process and of its children that have ended, which other programs do not lengthen

    @classmethod
    def of(cls, work: Callable[[], object]) -> Timed:
        before, began = os.times(), time.perf_counter()
        work()
        wall_s, after = time.perf_counter() - began, os.times()
        return cls(wall_s=wall_s, cpu_s=sum(after[:4]) - sum(before[:4]))


LINEAR = 1.1
"""The highest exponent of growth that is called linear."""


def growth(name: str, sizes: Sequence[int], values: Sequence[float]) -> Figure:
    """The exponent by which values grow with sizes: 1 where twice the size takes twice as much."""
    logs = [math.log(size) for size in sizes], [math.log(value) for value in values]
    exponent = statistics.linear_regression(*logs).slope
    return dataclasses.replace(at_most(name, exponent, "exponent", LINEAR), name=f"growth: {name}")


def most_held_bytes() -> int:
    """The most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would tell the peak of the process that started this one, where that was higher
        held = re.search(r"VmHWM:\s*(\d+) kB", status.read_text())
        assert held is not None
        return int(held[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


QUIET = 0.25
"""What else a machine may do, as a share of all its cores, while goals are judged."""


def busy_share(over_s: float = 5.0) -> float:
    """The share of all cores that was busy while this process slept; 0 where that is not known."""

    def read() -> tuple[int, int]:
        numbers = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(numbers), numbers[3] + numbers[4]

    if not Path("/proc/stat").exists():
        return 0.0
    before = read()
    time.sleep(over_s)
    total, idle = (after - earlier for after, earlier in zip(read(), before, strict=True))
    return 1 - idle / max(1, total)


def show(figures: Iterable[Figure], arguments: Sequence[str] | None = None) -> int:
    """Prints each figure as it comes, as a line for people or, with `--json`, as an object; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a goal is missed")
    options = parser.parse_args(arguments)
    missed = 0
    is_quiet = busy_share() <= QUIET
    for each in figures:
        figure = dataclasses.replace(each, judged=each.judged and is_quiet, quiet=is_quiet)
        missed += figure.judged and not figure.ok
        if options.json:
            line = json.dumps({**dataclasses.asdict(figure), "value": float(f"{figure.value:.4g}")})
        else:
            line = f"{figure.name:<58}{figure.value:>12.4g} {figure.unit:<8}{figure.goal:<12}{figure.verdict}"
        print(line, flush=True)
    return 1 if missed and options.strict else 0
