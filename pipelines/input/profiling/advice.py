"""Advice: what to change first in an input, given what its ops were measured to take. Pure; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spanwise.pipelines.input.op import Op
from spanwise.pipelines.input.ops.map import Map
from spanwise.pipelines.input.rows import in_rows
from spanwise.pipelines.input.tuning.reading import CallTimes, OpReading

KEEP_UP_ADVICE: Final = "The input keeps up: to go faster, make the step faster."
EMPTY_ADVICE: Final = "No elements came out: the dataset is empty, or its first element takes longer than the limit."

QUICK_S: Final = 1e-4
"""A call that takes less is not worth a thread."""

ONE_CORE: Final = (0.7, 1.3)
"""Threads that together keep so many cores busy run one at a time: each waits for Python's lock."""

SENDING: Final = 2.0
"""A worker process whose calls take this many times as long as the function computes mostly sends elements."""


def own_s(op: Op, readings: Mapping[Op, OpReading]) -> float:
    """The op's own work, without that of its inputs; that of its threads and processes together."""
    read = readings[op]
    if read.ahead:
        return read.work.took_s if read.work is not None else 0.0
    return max(0.0, read.total_s - sum(readings[below].total_s for below in op.inputs))


def label(op: Op) -> str:
    """The op, and the function that it calls."""
    function = getattr(op, "function", None)
    return op.name if function is None else f"{op.name} {getattr(function, '__name__', type(function).__name__)}"


def advise(readings: Mapping[Op, OpReading], elapsed_s: float, cores: float) -> str:
    """What to try first: about the op whose own work takes longest.

    Args:
        readings: of each op of the graph.
        elapsed_s: how long the pass took.
        cores: how many this process may use.
    """
    slowest = max(readings, key=lambda op: own_s(op, readings))
    read = readings[slowest]
    spent_s = own_s(slowest, readings)
    most = f"Most of the work is {label(slowest)}'s"
    if not slowest.inputs:
        return f"{most}: read several files at once (interleave with num_parallel), or store the rows: cache, snapshot."
    if read.ahead:
        return f"{most}, {_advise_parallel(slowest, read, elapsed_s, cores)}."
    if not hasattr(slowest, "function"):
        return f"{most}: give it less to do: filter and select before it, and work on rows rather than on elements."
    if not in_rows(slowest) and spent_s < QUICK_S * max(read.calls, 1):
        call_us = spent_s / max(read.calls, 1) * 1e6
        return f"{most}, {call_us:.0f} us a call: work on many elements at once, vectorized or after batch."
    return (
        f"{most}: run several calls at once, with num_parallel=AUTOTUNE, and workers='processes' if it is Python code "
        f"(on {cores:g} cores at best {spent_s / cores:.2f} s instead of {spent_s:.2f} s); "
        f"or work on blocks: vectorized=True."
    )


def _advise_parallel(op: Op, read: OpReading, elapsed_s: float, cores: float) -> str:
    """What the other kind of workers would gain, if the times of the calls show it."""
    least, most = ONE_CORE
    if isinstance(op, Map) and read.work is not None and elapsed_s > 0:
        work, usable, busy = read.work, min(read.parallelism, cores), read.work.cpu_s / elapsed_s
        if op.workers == "threads" and usable > most and least <= busy <= most:
            return (
                f"and its {read.parallelism} threads keep only {busy:.1f} of {usable:g} cores busy, since they wait "
                f"for Python's lock: workers='processes' would be up to {usable / busy:.1f} times as fast"
            )
        if op.workers == "processes" and _mostly_sends(work):
            call_ms, function_ms = (1000 * spent / work.calls for spent in (work.took_s, work.cpu_s))
            return (
                f"and of the {call_ms:.2g} ms of a call in a worker process the function computes for "
                f"{function_ms:.2g} ms: try workers='threads', or do more in each call (vectorized, after batch)"
            )
    return "and it is parallel already: store its results (cache, snapshot), or make it do less"


def _mostly_sends(work: CallTimes) -> bool:
    return work.calls > 0 and work.took_s > SENDING * work.cpu_s
