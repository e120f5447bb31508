"""Autotune: which settings make a graph's consumer wait least, within a budget of cores and memory.

`propose` decides, on the model of `latency`; a `Tuner` asks it again and again while a graph runs, and turns the knobs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pipelines.input.latency import Node, Parameter, Settings, cpu_s, held_bytes, latency_s

ENOUGH = 0.02  #: a gain below this share of the latency is none
LEAST_BUFFER_GAIN_S = 1e-9  #: a longer buffer has to shorten the wait by more than that


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a graph may use."""

    cores: float
    memory_bytes: float


class Stop(Enum):
    """Why a climb ended."""

    CORES = "the cores are the limit"
    MEMORY = "the memory is the limit"
    TOP = "everything is at its highest"
    ENOUGH = "no setting gains more"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Settings, and what the model expects of them."""

    settings: dict[str, int]
    latency_s: float
    held_bytes: float
    stop: Stop


def propose(tree: Node, budget: Budget) -> Proposal:
    """Climbs from the lowest settings: each step raises by one the parameter that gains most.

    A step that gains nothing is taken too: of two stages that are equally slow, one has to be raised before raising
    the other gains anything. The climb ends when the latency is below what the cores can do at all, when a step would
    hold more memory than the budget, or when even the highest settings would gain under 2 %. What was raised in vain
    is lowered again. It always starts from the same place, so the settings of the moment do not matter.
    """
    parameters = tree.parameters()
    loads = _loads(tree)
    bound_s = cpu_s(tree) / budget.cores
    best_s = latency_s(tree, {p.key: p.maximum for p in parameters})
    settings = {p.key: p.minimum for p in parameters}
    while True:
        reached_s = latency_s(tree, settings)
        if held_bytes(tree, settings) > budget.memory_bytes:
            stop = Stop.MEMORY
            break
        if reached_s < bound_s:
            stop = Stop.CORES
            break
        higher = [p for p in parameters if settings[p.key] < p.maximum]
        if not higher:
            stop = Stop.TOP
            break
        if reached_s <= best_s * (1 + ENOUGH):
            stop = Stop.ENOUGH
            break
        within = [p for p in higher if held_bytes(tree, _raised(settings, p)) <= budget.memory_bytes]
        gains = {p.key: reached_s - latency_s(tree, _raised(settings, p)) for p in within}
        worth = [p for p in within if p.key in loads or gains[p.key] > LEAST_BUFFER_GAIN_S]
        if not worth:
            stop = Stop.MEMORY if len(within) < len(higher) else Stop.ENOUGH
            break
        # where nothing gains, the stage that is slowest now comes first
        best = max(worth, key=lambda p: (gains[p.key], loads.get(p.key, 0.0) / settings[p.key]))
        settings = _raised(settings, best)
    settings = _lowered(tree, settings, reached_s * (1 + ENOUGH))
    return Proposal(
        settings=settings, latency_s=latency_s(tree, settings), held_bytes=held_bytes(tree, settings), stop=stop
    )


def _raised(settings: Settings, parameter: Parameter, by: int = 1) -> dict[str, int]:
    return {**settings, parameter.key: settings[parameter.key] + by}


def _lowered(tree: Node, settings: dict[str, int], limit_s: float) -> dict[str, int]:
    """The settings without what does not help: each as low as it can be without passing the limit."""
    for parameter in tree.parameters():
        while settings[parameter.key] > parameter.minimum:
            lower = _raised(settings, parameter, -1)
            if latency_s(tree, lower) > limit_s:
                break
            settings = lower
    return settings


def _loads(tree: Node, times: float = 1.0) -> dict[str, float]:
    """The work of each stage that can be done by several at once, for one element that the tree gives."""
    found = {} if isinstance(tree.parallelism, int) else {tree.parallelism.key: times * tree.own_s}
    for node in tree.inputs:
        found |= _loads(node, times * node.taken)
    return found


def machine_budget() -> Budget:
    """The cores this process may run on, and half of the memory that is free."""
    return Budget(cores=cores(), memory_bytes=_free_bytes() / 2)


def cores() -> int:
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
