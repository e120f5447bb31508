"""Autotune: which settings make a graph's consumer wait least, within a budget of cores and memory.

`propose` decides, on the model of `latency`; a `Tuner` asks it again and again while a graph runs, and turns the knobs.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final

from spanwise.pipelines.input.op import AUTOTUNE, Knob, Op, Opening, Options, Stream
from spanwise.pipelines.input.rows import in_rows
from spanwise.pipelines.input.tuning.latency import Node, Parameter, Settings, cpu_s, held_bytes, latency_s, work_s
from spanwise.pipelines.input.tuning.stats import Reading, Stats, Trace

logger = logging.getLogger(__name__)

ENOUGH = 0.02  #: a gain below this share of the latency is none
ENOUGH_FOR_BLOCKS = 0.05  #: the same for the cost of a row, which is measured rather than computed
LEAST_BUFFER_GAIN_S = 1e-9  #: a longer buffer has to shorten the wait by more than that
SPARE = 1.1  #: how much more than what the model finds just enough is set
PERIOD_S: Final = (0.01, 60.0)  #: from one proposal to the next: the first, which doubles up to the second
BLOCKS_TRIED: Final = 16  #: before a size of block is judged, so many go through,
WORK_TRIED_S: Final = 0.05  #: and so much work is done
BLOCK_BYTES: Final = 1 << 24  #: a block above this does not fit the caches of a processor any more


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a graph may use."""

    cores: float
    memory_bytes: float


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


def propose(tree: Node, budget: Budget, busy_s: float = 0.0) -> Proposal:
    """The settings at the end of a climb, without what was raised in vain.

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
            lower = _raised(settings, parameter, -1)
            if _period_s(tree, lower, busy_s) > limit_s:
                break
            settings = lower
    if stop is Stop.ENOUGH and any(settings[p.key] == p.maximum for p in parameters):
        stop = Stop.TOP
    return Proposal(
        settings=settings, latency_s=latency_s(tree, settings, busy_s), held_bytes=held_bytes(tree, settings), stop=stop
    )


def climb(tree: Node, budget: Budget, busy_s: float = 0.0) -> Iterator[tuple[dict[str, int], Stop | None]]:
    """From the lowest settings up: each step raises by one the parameter that gains most. The last comes with a reason.

    A step that gains nothing is taken too: of two stages that are equally slow, one has to be raised before raising
    the other gains anything. The climb ends when elements come faster than the cores can make them at all, when a step
    would hold more memory than the budget, or when even the highest settings would gain under 2 %.
    """
    parameters, loads = tree.parameters(), _loads(tree)
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
        within = [p for p in higher if held_bytes(tree, _raised(settings, p)) <= budget.memory_bytes]
        gains = {p.key: reached_s - _period_s(tree, _raised(settings, p), busy_s) for p in within}
        worth = [p for p in within if p.key in loads or gains[p.key] > LEAST_BUFFER_GAIN_S]
        if not worth:
            yield settings, Stop.MEMORY if len(within) < len(higher) else Stop.ENOUGH
            return
        yield settings, None
        # where nothing gains, the stage that is slowest now comes first
        best = max(worth, key=lambda p: (gains[p.key], loads.get(p.key, 0.0) / max(settings[p.key], 1)))
        settings = _raised(settings, best)


def _period_s(tree: Node, settings: Settings, busy_s: float) -> float:
    """From one element to the next, as the consumer sees it."""
    return busy_s + latency_s(tree, settings, busy_s)


def _raised(settings: Settings, parameter: Parameter, by: int = 1) -> dict[str, int]:
    return {**settings, parameter.key: settings[parameter.key] + by}


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


@dataclass(kw_only=True)
class Spent:
    """What rows have cost in blocks of one size."""

    work_s: float = 0.0
    rows: int = 0


@dataclass(kw_only=True)
class Found:
    """What was found in the passes over a dataset so far: the next one begins with it."""

    settings: dict[str, int] = field(default_factory=dict)
    spent: dict[int, Spent] = field(default_factory=dict)  #: with blocks of so many rows


class Tuner:
    """Times a graph while it runs, and sets its knobs. Its thread knows no stream, so these can be dropped."""

    def __init__(
        self, graph: Op, options: Options, block: Knob, found: Found | None = None, trace: Trace | None = None
    ) -> None:
        machine = machine_budget()
        memory = options.memory_budget_bytes
        self.budget = Budget(
            cores=options.cpu_budget or machine.cores, memory_bytes=machine.memory_bytes if memory is None else memory
        )
        self.stats = Stats(graph, trace)
        self.proposal: Proposal | None = None  #: the newest
        self._block = block if options.block_rows == AUTOTUNE and any(map(in_rows, self.stats.ops)) else None
        self._found = found or Found()
        self._places = {op: f"{place}.{op.name}" for place, op in enumerate(self.stats.ops)}
        self._opened: dict[int, Knob] = {}  # by their streams' ids, until `observe` tells the op
        self._knobs: dict[Op, Knob] = {}
        self._before: dict[Op, Reading] = {}
        self._least_wait_s: dict[Op, float] = {}
        self._busy_s = math.inf
        self._tuned_at = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of what threads that open streams change

    @property
    def wanted(self) -> bool:
        """Whether there is anything to set."""
        settings = (getattr(op, name, None) for op in self.stats.ops for name in ("num_parallel", "buffer"))
        return self._block is not None or AUTOTUNE in settings

    def register(self, knob: Knob, stream: Stream) -> None:
        """Takes a knob over; `observe` follows, when the stream is open."""
        with self._lock:
            self._opened[id(stream)] = knob

    def observe(self, op: Op, stream: Stream) -> Stream:
        """The stream with a clock round it."""
        with self._lock:
            knob = self._opened.pop(id(stream), None)
            if knob is not None and op in self._places:
                # another round of a repeat, or another pass
                knob.value = self._found.settings.get(self._places[op], knob.value)
                self._knobs[op] = knob
        return self.stats.observe(op, stream)

    def start(self) -> None:
        """Starts to tune in the background, until `close`."""
        self._thread = threading.Thread(target=self._run, name="autotune", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the tuning."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        period_s, most_s = PERIOD_S
        while not self._stop.wait(period_s):
            try:
                if self.tune():
                    period_s = min(2 * period_s, most_s)
            except Exception:
                logger.exception("input.autotune.failed")  # the graph runs on as it is set
                return

    def tune(self) -> bool:
        """Sets the knobs by what was seen since the last time; False if that was nothing."""
        with self._lock:
            knobs = dict(self._knobs)
        readings = self.stats.readings()
        root = self.stats.ops[0]
        if not readings[root].calls:
            return False
        if not self._before:  # what came before the first element (imports, files to open) will not come again
            self._before, self._tuned_at = readings, time.monotonic()
        if readings[root].calls == self._before[root].calls:
            return False
        recent = {op: self._quiet(op, read.since(self._before[op])) for op, read in readings.items()}
        keys = {op: key for op, key in self._places.items() if op in knobs and recent[op].calls}
        parameters = {
            (op, knobs[op].kind): Parameter(key=key, minimum=knobs[op].minimum, maximum=knobs[op].maximum)
            for op, key in keys.items()
        }
        tree = self.stats.tree(recent, parameters)
        proposal = propose(tree, self.budget, self._consumer_s(recent[root]))
        for op, key in keys.items():
            if key not in proposal.settings:  # its stream has ended since: the next part of a concatenate runs
                continue
            knobs[op].value = self._with_spare(proposal, proposal.settings[key], knobs[op])
            self._found.settings[key] = knobs[op].value
        if self._block is not None:
            self._tune_block(self._block, tree, recent, proposal)
        self._before = readings
        self.proposal = proposal
        logger.debug("input.autotune", extra={"settings": proposal.settings, "reason": proposal.stop.value})
        return True

    def _with_spare(self, proposal: Proposal, wanted: int, knob: Knob) -> int:
        """A little more than what is just enough, where that costs nothing: measured times are never quite right."""
        if proposal.stop is not Stop.ENOUGH or 2 * proposal.held_bytes > self.budget.memory_bytes:
            return wanted
        return min(knob.maximum, math.ceil(wanted * SPARE)) if wanted > 1 else wanted

    def _consumer_s(self, read: Reading) -> float:
        """How long the consumer works on an element: the least so far, since it may stop to do something else."""
        now = time.monotonic()
        busy_s = max(0.0, now - self._tuned_at - read.total_s) / read.units
        self._tuned_at, self._busy_s = now, min(self._busy_s, busy_s)
        return self._busy_s

    def _tune_block(self, block: Knob, tree: Node, recent: Mapping[Op, Reading], proposal: Proposal) -> None:
        """Tries another size of block, once what this one costs is known well: some ops do the work of many at once."""
        sources = [recent[op].units for op in self.stats.ops if in_rows(op) and not any(map(in_rows, op.inputs))]
        spent = self._found.spent.setdefault(block.value, Spent())
        spent.work_s += work_s(tree) * recent[self.stats.ops[0]].units
        spent.rows += sum(sources)
        if spent.rows < BLOCKS_TRIED * block.value or spent.work_s < WORK_TRIED_S:
            return
        costs = {size: each.work_s / each.rows for size, each in self._found.spent.items() if each.rows}
        rows = next_block_rows(costs, block)
        growth = rows / block.value
        heaviest = max(node.element_bytes for node in tree.walk())
        if growth <= 1 or (
            heaviest * growth <= BLOCK_BYTES and proposal.held_bytes * growth <= self.budget.memory_bytes
        ):
            block.value = self._found.settings[block.name] = rows

    def _quiet(self, op: Op, reading: Reading) -> Reading:
        """The reading without the time in which calls waited for each other.

        The more threads call a function that needs a core, or Python's lock, the longer each call takes. What a call
        waits is taken from when it waited least; else each thread more would seem to call for another one.
        """
        work = reading.work
        if work is None or not work.calls or not reading.units:
            return reading
        wait_s = max(0.0, work.took_s - work.cpu_s) / reading.units
        least_s = self._least_wait_s[op] = min(wait_s, self._least_wait_s.get(op, wait_s))
        return replace(reading, work=replace(work, took_s=work.cpu_s + least_s * reading.units))


def tuned(graph: Op, opening: Opening, found: Found, trace: Trace | None = None) -> tuple[Opening, Tuner | None]:
    """The opening with its size of blocks, and with a tuner that has been started if there is anything to tune."""
    block = replace(opening.block)
    if opening.options.block_rows != AUTOTUNE:
        block.value = opening.options.block_rows
    elif opening.options.autotune:
        block.value = found.settings.get(block.name, block.value)
    opening = replace(opening, block=block)
    tuner = Tuner(graph, opening.options, block, found, trace)
    wanted = opening.options.autotune and tuner.wanted
    if wanted:
        tuner.start()
    if not wanted and trace is None:
        return opening, None
    return replace(opening, tuner=tuner if wanted else None, observe=tuner.observe), tuner
