"""The machine: how many cores and how much memory a graph may use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a graph may use."""

    cores: float
    memory_bytes: float


def machine_budget() -> Budget:
    """The cores this process may run on, and half of the memory that is free."""
    return Budget(cores=available_cores(), memory_bytes=_free_bytes() / 2)


def available_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_bytes() -> float:
    free = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        limit, used = (Path(f"/sys/fs/cgroup/memory.{n}").read_text(encoding="ascii") for n in ("max", "current"))
        return min(free, float(limit) - float(used))  # of a container, which may have less than the machine
    except (OSError, ValueError):  # another system, or no limit: `max` is no number
        return free
