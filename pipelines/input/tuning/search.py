"""The search for settings: which of them make a graph's consumer wait least, within a budget. Pure.

It climbs on the model of `latency`; the `tuner` asks again and again while a graph runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spanwise.pipelines.input.op import Knob
from spanwise.pipelines.input.tuning.latency import LatencyNode, Parameter, Settings, cpu_s, held_bytes, latency_s
from spanwise.pipelines.input.tuning.machine import Budget

ENOUGH: Final = 0.02
"""A gain below this share of the latency is none."""

ENOUGH_FOR_BLOCKS: Final = 0.05
"""The same for the cost of a row, which is measured rather than computed."""

LEAST_BUFFER_GAIN_S: Final = 1e-9
"""A longer buffer has to shorten the wait by more than that."""


class Stop(Enum):
    """Why a climb ended."""

    CORES = "the cores are the limit"
    MEMORY = "the memory is the limit"
    TOP = "the highest settings are the limit"
    ENOUGH = "no setting gains more"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Settings, and what the model expects of them."""

    settings: dict[str, int]
    latency_s: float
    held_bytes: float
    stop: Stop


def propose(tree: LatencyNode, budget: Budget, busy_s: float = 0.0) -> Proposal:
    """The settings at the end of a climb, without raises that gained nothing.

    A climb always starts from the same place, so the settings of the moment do not matter.

    Args:
        tree: the graph as measured.
        budget: of cores and memory.
        busy_s: how long the consumer works on an element before it asks for the next one.
    """
    *_, (settings, stop) = climb(tree, budget, busy_s)
    assert stop is not None
    limit_s = _period_s(tree, settings, busy_s) * (1 + ENOUGH)
    parameters = tree.parameters()
    for parameter in parameters:
        while settings[parameter.key] > parameter.minimum:
            lower = _raise(settings, parameter, -1)
            if _period_s(tree, lower, busy_s) > limit_s:
                break
            settings = lower
    if stop is Stop.ENOUGH and any(settings[p.key] == p.maximum for p in parameters):
        stop = Stop.TOP
    return Proposal(
        settings=settings, latency_s=latency_s(tree, settings, busy_s), held_bytes=held_bytes(tree, settings), stop=stop
    )


def climb(tree: LatencyNode, budget: Budget, busy_s: float = 0.0) -> Iterator[tuple[dict[str, int], Stop | None]]:
    """From the lowest settings up: each step raises by one the parameter that gains most. The last comes with a reason.

    A step that gains nothing is taken too: of two stages that are equally slow, one has to be raised before raising
    the other gains anything. The climb ends when elements come faster than the cores can make them at all, when a step
    would hold more memory than the budget, or when even the highest settings would gain under 2 %.
    """
    parameters, loads = tree.parameters(), _stage_loads(tree)
    bound_s = cpu_s(tree) / budget.cores
    best_s = _period_s(tree, {p.key: p.maximum for p in parameters}, busy_s)
    settings = {p.key: p.minimum for p in parameters}
    while True:
        reached_s = _period_s(tree, settings, busy_s)
        if reached_s < bound_s:
            yield settings, Stop.CORES
            return
        if reached_s <= best_s * (1 + ENOUGH):
            yield settings, Stop.ENOUGH
            return
        higher = [p for p in parameters if settings[p.key] < p.maximum]
        within = [p for p in higher if held_bytes(tree, _raise(settings, p)) <= budget.memory_bytes]
        gains = {p.key: reached_s - _period_s(tree, _raise(settings, p), busy_s) for p in within}
        worth = [p for p in within if p.key in loads or gains[p.key] > LEAST_BUFFER_GAIN_S]
        if not worth:
            yield settings, Stop.MEMORY if len(within) < len(higher) else Stop.ENOUGH
            return
        yield settings, None
        # where nothing gains, the stage that is slowest now comes first
        best = max(worth, key=lambda p: (gains[p.key], loads.get(p.key, 0.0) / max(settings[p.key], 1)))
        settings = _raise(settings, best)


def _period_s(tree: LatencyNode, settings: Settings, busy_s: float) -> float:
    """From one element to the next, as the consumer sees it."""
    return busy_s + latency_s(tree, settings, busy_s)


def _raise(settings: Settings, parameter: Parameter, by: int = 1) -> dict[str, int]:
    return {**settings, parameter.key: settings[parameter.key] + by}


def _stage_loads(tree: LatencyNode, times: float = 1.0) -> dict[str, float]:
    """The work of each stage that can be done by several at once, for one element that the tree gives."""
    found = {} if isinstance(tree.parallelism, int) else {tree.parallelism.key: times * tree.own_s}
    for node in tree.inputs:
        found |= _stage_loads(node, times * node.taken)
    return found


def next_block_rows(costs: Mapping[int, float], block: Knob) -> int:
    """How many rows should travel together next, given what a row has cost in blocks of each size tried so far.

    The best size so far, if twice and half of it have been tried; else one of these. Two sizes whose costs are within
    5 % are as good as each other: the smaller one holds less.
    """
    best = min(costs.values())
    size = min(rows for rows, cost in costs.items() if cost <= best * (1 + ENOUGH_FOR_BLOCKS))
    for other in (size * 2, size // 2):
        if other not in costs and block.minimum <= other <= block.maximum:
            return other
    return size
