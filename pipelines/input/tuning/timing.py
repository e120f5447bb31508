"""Timing: streams wrapped around streams, which read the clock twice for each element or block."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

from spanwise.pipelines.input.op import Element, Op, State, Stream
from spanwise.pipelines.input.rows import weigh

_clock = time.perf_counter_ns


class StreamMeter:
    """What went through one stream."""

    __slots__ = ("calls", "element_bytes", "rows", "total_ns")

    def __init__(self) -> None:
        self.calls = self.rows = self.total_ns = 0
        self.element_bytes = 0.0

    def add(self, other: StreamMeter) -> None:
        self.calls += other.calls
        self.rows += other.rows
        self.total_ns += other.total_ns
        self.element_bytes = other.element_bytes or self.element_bytes


@dataclass(frozen=True)
class TimelineSpan:
    """A stretch of time that a thread spent in an op, or in a call of its function."""

    op: Op
    thread: str
    call: bool  #: of the function, in the background
    start_s: float
    end_s: float


class Timeline:
    """The first spans of a pass, for its timeline."""

    def __init__(self, limit: int = 20_000) -> None:
        self.spans: list[TimelineSpan] = []
        self._limit = limit
        self._begun = _clock()

    def add(self, op: Op, start_ns: int, end_ns: int, *, call: bool = False) -> None:
        if len(self.spans) < self._limit:
            thread = threading.current_thread().name
            self.spans.append(
                TimelineSpan(op, thread, call, (start_ns - self._begun) / 1e9, (end_ns - self._begun) / 1e9)
            )


class Timed(Stream):
    """A stream, and how long its consumer waits in it."""

    WEIGH_EVERY = 64  #: elements, since to weigh one takes longer than to pass it on

    def __init__(self, stream: Stream, meter: StreamMeter) -> None:
        self._stream = stream
        self._take = stream.__next__
        self._meter = meter

    def __next__(self) -> Element:
        meter = self._meter
        started = _clock()
        try:
            element = self._take()
        finally:
            meter.total_ns += _clock() - started
        if meter.calls % self.WEIGH_EVERY == 0:
            meter.element_bytes = weigh(element)
        meter.calls += 1
        return element

    def state(self) -> State:
        return self._stream.state()

    def restore(self, state: State) -> None:
        self._stream.restore(state)

    def close(self) -> None:
        self._stream.close()


class TimedRows(Timed):
    """The same for a stream of blocks."""

    def __next__(self) -> Element:
        meter = self._meter
        started = _clock()
        try:
            block = self._take()
        finally:
            meter.total_ns += _clock() - started
        if meter.calls % self.WEIGH_EVERY == 0:
            meter.element_bytes = weigh(block)
        meter.calls += 1
        meter.rows += block.num_rows
        return block


class Traced(Stream):
    """A timed stream that also leaves its spans in a trace."""

    def __init__(self, timed: Timed, op: Op, timeline: Timeline) -> None:
        self._timed, self._op, self._timeline = timed, op, timeline

    def __next__(self) -> Element:
        started = _clock()
        try:
            return next(self._timed)
        finally:
            self._timeline.add(self._op, started, _clock())

    def state(self) -> State:
        return self._timed.state()

    def restore(self, state: State) -> None:
        self._timed.restore(state)

    def close(self) -> None:
        self._timed.close()


def overhead_s(*, elements: int = 500, times: int = 40) -> float:
    """What timing costs for each element or block of each op, measured on a stream that does nothing else."""

    class Same(Stream):
        def __next__(self) -> Element:
            return 0

        def state(self) -> State:
            return {}

        def restore(self, state: State) -> None: ...

    def per_element_s(stream: Stream) -> float:
        best = math.inf
        for _ in range(times):  # the least: what else the machine does comes on top
            take = stream.__next__
            started = _clock()
            for _ in range(elements):
                take()
            best = min(best, (_clock() - started) / 1e9 / elements)
        return best

    return max(0.0, per_element_s(Timed(Same(), StreamMeter())) - per_element_s(Same()))
