"""The tuner: times a graph while it runs, and turns its knobs to the settings that the search finds."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from spanwise.pipelines.input.op import AUTOTUNE, Knob, Op, Opening, Options, Stream
from spanwise.pipelines.input.rows import in_rows
from spanwise.pipelines.input.tuning.latency import LatencyNode, Parameter, work_s
from spanwise.pipelines.input.tuning.machine import Budget, machine_budget
from spanwise.pipelines.input.tuning.reading import OpReading
from spanwise.pipelines.input.tuning.search import Proposal, Stop, next_block_rows, propose
from spanwise.pipelines.input.tuning.stats import Stats
from spanwise.pipelines.input.tuning.timing import Timeline

logger = logging.getLogger("spanwise.input.tuning")

SPARE: Final = 1.1
"""How much more than what the model finds just enough is set."""

PERIOD_S: Final = (0.01, 60.0)
"""From one proposal to the next: the first period, which doubles up to the second."""

BLOCKS_TRIED: Final = 16
"""How many blocks go through before a size of block is judged."""

WORK_TRIED_S: Final = 0.05
"""How much work is done before a size of block is judged."""

BLOCK_BYTES: Final = 1 << 24
"""A block above this does not fit the caches of a processor any more."""


@dataclass(kw_only=True)
class BlockCost:
    """What rows have cost in blocks of one size."""

    work_s: float = 0.0
    rows: int = 0


@dataclass(kw_only=True)
class TunedSettings:
    """The settings found in earlier passes over a dataset: the next one begins with them."""

    settings: dict[str, int] = field(default_factory=dict)
    spent: dict[int, BlockCost] = field(default_factory=dict)  #: with blocks of so many rows


class Tuner:
    """Times a graph while it runs, and sets its knobs. Its thread knows no stream, so these can be dropped."""

    def __init__(
        self,
        graph: Op,
        options: Options,
        block: Knob,
        tuned: TunedSettings | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        machine = machine_budget()
        memory = options.memory_budget_bytes
        self.budget = Budget(
            cores=options.cpu_budget or machine.cores, memory_bytes=machine.memory_bytes if memory is None else memory
        )
        self.stats = Stats(graph, timeline)
        self.proposal: Proposal | None = None  #: the newest
        self._block = block if options.block_rows == AUTOTUNE and any(map(in_rows, self.stats.ops)) else None
        self._tuned = tuned or TunedSettings()
        self._places = {op: f"{place}.{op.name}" for place, op in enumerate(self.stats.ops)}
        self._opened: dict[int, Knob] = {}  # by their streams' ids, until `observe` names the op
        self._knobs: dict[Op, Knob] = {}
        self._before: dict[Op, OpReading] = {}
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
        """The stream with a clock around it."""
        with self._lock:
            knob = self._opened.pop(id(stream), None)
            if knob is not None and op in self._places:
                # another round of a repeat, or another pass
                knob.value = self._tuned.settings.get(self._places[op], knob.value)
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
                logger.exception("tuning-failed")  # the graph runs on as it is set
                return

    def tune(self) -> bool:
        """Sets the knobs by what was measured since the last time; False if that is nothing."""
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
            self._tuned.settings[key] = knobs[op].value
        if self._block is not None:
            self._tune_block(self._block, tree, recent, proposal)
        self._before = readings
        self.proposal = proposal
        logger.debug("settings-tuned", extra={"settings": proposal.settings, "reason": proposal.stop.value})
        return True

    def _with_spare(self, proposal: Proposal, wanted: int, knob: Knob) -> int:
        """A little more than what is just enough, where that costs nothing: measured times are never quite right."""
        if proposal.stop is not Stop.ENOUGH or 2 * proposal.held_bytes > self.budget.memory_bytes:
            return wanted
        return min(knob.maximum, math.ceil(wanted * SPARE)) if wanted > 1 else wanted

    def _consumer_s(self, read: OpReading) -> float:
        """How long the consumer works on an element: the least so far, since it may stop to do something else."""
        now = time.monotonic()
        busy_s = max(0.0, now - self._tuned_at - read.total_s) / read.units
        self._tuned_at, self._busy_s = now, min(self._busy_s, busy_s)
        return self._busy_s

    def _tune_block(self, block: Knob, tree: LatencyNode, recent: Mapping[Op, OpReading], proposal: Proposal) -> None:
        """Tries another block size once the cost of this one is known well."""
        sources = [recent[op].units for op in self.stats.ops if in_rows(op) and not any(map(in_rows, op.inputs))]
        spent = self._tuned.spent.setdefault(block.value, BlockCost())
        spent.work_s += work_s(tree) * recent[self.stats.ops[0]].units
        spent.rows += sum(sources)
        if spent.rows < BLOCKS_TRIED * block.value or spent.work_s < WORK_TRIED_S:
            return
        costs = {size: each.work_s / each.rows for size, each in self._tuned.spent.items() if each.rows}
        rows = next_block_rows(costs, block)
        growth = rows / block.value
        heaviest = max(node.element_bytes for node in tree.walk())
        if growth <= 1 or (
            heaviest * growth <= BLOCK_BYTES and proposal.held_bytes * growth <= self.budget.memory_bytes
        ):
            block.value = self._tuned.settings[block.name] = rows

    def _quiet(self, op: Op, reading: OpReading) -> OpReading:
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


def start_tuning(
    graph: Op, opening: Opening, tuned: TunedSettings, timeline: Timeline | None = None
) -> tuple[Opening, Tuner | None]:
    """The opening with its size of blocks, and with a tuner that has been started if there is anything to tune."""
    block = replace(opening.block)
    if opening.options.block_rows != AUTOTUNE:
        block.value = opening.options.block_rows
    elif opening.options.autotune:
        block.value = tuned.settings.get(block.name, block.value)
    opening = replace(opening, block=block)
    if not opening.options.autotune and timeline is None:
        return opening, None
    tuner = Tuner(graph, opening.options, block, tuned, timeline)
    wanted = opening.options.autotune and tuner.wanted
    if wanted:
        tuner.start()
    if not wanted and timeline is None:
        return opening, None
    return replace(opening, tuner=tuner if wanted else None, observe=tuner.observe), tuner
