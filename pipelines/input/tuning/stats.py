"""Stats: what each op of a running graph has taken and given, and the tree that the model of latency makes of it.

A stream is timed by one that is wrapped around it: two readings of the clock for each element or block. An op's own
time is what its wrapper saw, without what the wrappers of its inputs saw.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from spanwise.pipelines.input.element import parts_of
from spanwise.pipelines.input.op import Element, Op, State, Stream
from spanwise.pipelines.input.rows import bytes_of, in_rows
from spanwise.pipelines.input.tuning.latency import Kind, Node, Parameter

_clock = time.perf_counter_ns

KnobKind: TypeAlias = Literal["parallelism", "buffer", "block"]


@dataclass(kw_only=True)
class CallTimes:
    """What calling a function in the background has taken so far."""

    calls: int = 0
    took_s: float = 0.0
    squares: float = 0.0  #: of the seconds, for their variance
    cpu_s: float = 0.0

    def add(self, took_s: float, cpu_s: float = 0.0) -> None:
        self.calls += 1
        self.took_s += took_s
        self.squares += took_s * took_s
        self.cpu_s += cpu_s

    @property
    def variability(self) -> float:
        """The squared coefficient of variation of a call's time."""
        if self.calls < 2 or not self.took_s:  # noqa: PLR2004  one call does not vary
            return 0.0
        mean_s = self.took_s / self.calls
        return max(0.0, self.squares / self.calls / mean_s**2 - 1)


@runtime_checkable
class RunsAhead(Protocol):
    """A stream that works while its consumer does."""

    work: CallTimes | None  #: calls of a function; None if it only takes elements from its input
    watch: Callable[[int, int], None] | None  #: is told from when to when each of them went, in ns

    @property
    def pulled(self) -> CallTimes: ...  # what it took to take them

    @property
    def parallelism(self) -> int: ...

    @property
    def buffer(self) -> int: ...

    @property
    def element_bytes(self) -> float: ...


HANDING_S = 3e-5  #: about what it takes to wake a thread and let it have Python's lock


def weight(element: Element) -> float:
    """About how many bytes an element holds."""
    pa = sys.modules.get("pyarrow")
    if pa is not None and isinstance(element, pa.RecordBatch | pa.Table):
        return float(bytes_of(element))
    taken = parts_of(element)
    if taken is not None:
        return sum(map(weight, taken[1]))
    return float(getattr(element, "nbytes", 0) or sys.getsizeof(element))


class Meter:
    """What went through one stream."""

    __slots__ = ("calls", "element_bytes", "rows", "total_ns")

    def __init__(self) -> None:
        self.calls = self.rows = self.total_ns = 0
        self.element_bytes = 0.0

    def add(self, other: Meter) -> None:
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


class Trace:
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

    def __init__(self, stream: Stream, meter: Meter) -> None:
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
            meter.element_bytes = weight(element)
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
            meter.element_bytes = weight(block)
        meter.calls += 1
        meter.rows += block.num_rows
        return block


class Traced(Stream):
    """A timed stream that also leaves its spans in a trace."""

    def __init__(self, timed: Timed, op: Op, trace: Trace) -> None:
        self._timed, self._op, self._trace = timed, op, trace

    def __next__(self) -> Element:
        started = _clock()
        try:
            return next(self._timed)
        finally:
            self._trace.add(self._op, started, _clock())

    def state(self) -> State:
        return self._timed.state()

    def restore(self, state: State) -> None:
        self._timed.restore(state)

    def close(self) -> None:
        self._timed.close()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one op has done so far, all its streams together."""

    calls: int = 0  #: elements or blocks given
    units: int = 0  #: elements or rows given
    total_s: float = 0.0  #: how long its consumer was in it
    element_bytes: float = 0.0
    ahead: bool = False  #: whether it works in the background
    parallelism: int = 1  #: how many elements are worked on at once there
    work: CallTimes | None = None  #: what was done there by calling a function

    def since(self, before: Reading) -> Reading:
        """What it has done after another reading; all of it, if that is nothing."""
        if self.calls == before.calls:
            return self
        work = self.work
        if work is not None and before.work is not None and work.calls > before.work.calls:
            work = CallTimes(
                calls=work.calls - before.work.calls,
                took_s=work.took_s - before.work.took_s,
                squares=work.squares - before.work.squares,
                cpu_s=work.cpu_s - before.work.cpu_s,
            )
        return Reading(
            calls=self.calls - before.calls,
            units=self.units - before.units,
            total_s=self.total_s - before.total_s,
            element_bytes=self.element_bytes,
            ahead=self.ahead,
            parallelism=self.parallelism,
            work=work,
        )


@dataclass(kw_only=True)
class _Seen:
    """The streams of one op."""

    ended: Meter = field(default_factory=Meter)  #: those that are gone
    living: list[tuple[Meter, weakref.ref[Timed]]] = field(default_factory=list)
    stream: weakref.ref[Stream] | None = None  #: the newest

    def add(self, meter: Meter, timed: Timed, stream: Stream) -> None:
        still = []
        for each in self.living:
            if each[1]() is None:
                self.ended.add(each[0])
            else:
                still.append(each)
        self.living = [*still, (meter, weakref.ref(timed))]
        self.stream = weakref.ref(stream)


class Stats:
    """Times the streams of a graph; `observe` goes into its `Opening`. Keeps no stream alive.

    Ops that only hand elements on are part of their input, unless there is a trace, which is to show everything.
    """

    def __init__(self, root: Op, trace: Trace | None = None) -> None:
        self._trace = trace
        self.ops = tuple(dict.fromkeys(map(self._timed, _walk(root))))  #: each after its consumer
        self._seen = {op: _Seen() for op in self.ops}
        self._lock = threading.Lock()  # threads open the streams of nested datasets

    def _timed(self, op: Op) -> Op:
        while op.hands_on and self._trace is None:
            (op,) = op.inputs
        return op

    def observe(self, op: Op, stream: Stream) -> Stream:
        """The stream with a clock round it; one of a nested dataset, whose op is not of the graph, as it is."""
        seen = self._seen.get(op)
        if seen is None:
            return stream
        meter = Meter()
        timed = (TimedRows if in_rows(op) else Timed)(stream, meter)
        with self._lock:
            seen.add(meter, timed, stream)
        trace = self._trace
        if trace is None:
            return timed
        if isinstance(stream, RunsAhead):
            stream.watch = lambda start_ns, end_ns: trace.add(op, start_ns, end_ns, call=True)
        return Traced(timed, op, trace)

    def readings(self) -> dict[Op, Reading]:
        """What every op has done."""
        return {op: self._reading(op) for op in self.ops}

    def _reading(self, op: Op) -> Reading:
        seen, total = self._seen[op], Meter()
        with self._lock:
            for meter in (seen.ended, *(meter for meter, _ in seen.living)):
                total.add(meter)
        ahead = self.ahead(op)
        return Reading(
            calls=total.calls,
            units=total.rows if in_rows(op) else total.calls,
            total_s=total.total_ns / 1e9,
            element_bytes=total.element_bytes or (ahead.element_bytes if ahead is not None else 0.0),
            ahead=ahead is not None,
            parallelism=1 if ahead is None else ahead.parallelism,
            work=replace(ahead.work) if ahead is not None and ahead.work is not None else None,
        )

    def ahead(self, op: Op) -> RunsAhead | None:
        """The op's newest stream, if it works in the background and is still there."""
        ref = self._seen[op].stream
        stream = None if ref is None else ref()
        return stream if isinstance(stream, RunsAhead) else None

    def tree(self, readings: Mapping[Op, Reading], parameters: Mapping[tuple[Op, KnobKind], Parameter]) -> Node:
        """The model's tree: what was read, and which numbers of which op (`parallelism`, `buffer`) may be chosen."""
        return self._node(self.ops[0], 1.0, readings, parameters)

    def _node(
        self, op: Op, taken: float, readings: Mapping[Op, Reading], parameters: Mapping[tuple[Op, KnobKind], Parameter]
    ) -> Node:
        read, ahead = readings[op], self.ahead(op)
        inputs = [*map(self._timed, op.inputs)]
        units = max(read.units, 1)
        shares = [readings[below].units / units for below in inputs]
        below_s = sum(readings[below].total_s for below in inputs)
        own_s, cpu_s = max(0.0, read.total_s - below_s) / units, None
        kind = Kind.SOURCE if not op.inputs else Kind.KNOWN_RATIO if op.cardinality is not None else Kind.UNKNOWN_RATIO
        parallelism: Parameter | int = 1
        buffer: Parameter | int | None = None
        handing_s = variability = 0.0
        if ahead is not None:
            kind = Kind.ASYNC_KNOWN_RATIO if op.cardinality is not None else Kind.ASYNC_UNKNOWN_RATIO
            own_s = read.work.took_s / max(read.work.calls, 1) * read.calls / units if read.work is not None else 0.0
            cpu_s = read.work.cpu_s / max(read.work.calls, 1) * read.calls / units if read.work is not None else 0.0
            handing_s = HANDING_S * read.calls / units
            variability = (read.work or ahead.pulled).variability
            parallelism = parameters.get((op, "parallelism"), ahead.parallelism)
            buffer = parameters.get((op, "buffer"), None if (op, "parallelism") in parameters else ahead.buffer)
        return Node(
            name=op.name,
            kind=kind,
            own_s=own_s,
            cpu_s=cpu_s,
            variability=variability,
            handing_s=handing_s,
            taken=taken,
            element_bytes=read.element_bytes,
            parallelism=parallelism,
            buffer=buffer,
            inputs=tuple(
                self._node(below, share, readings, parameters) for below, share in zip(inputs, shares, strict=True)
            ),
        )


def _walk(op: Op) -> Iterator[Op]:
    yield op
    for below in op.inputs:
        yield from _walk(below)


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

    return max(0.0, per_element_s(Timed(Same(), Meter())) - per_element_s(Same()))
