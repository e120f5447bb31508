"""Stats: what each op of a running graph has done, and the tree of it for the model of latency.

An op's own time is what the clock around its stream saw, without what the clocks around its inputs saw.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from spanwise.pipelines.input.op import Op, Stream
from spanwise.pipelines.input.rows import in_rows
from spanwise.pipelines.input.tuning.latency import LatencyKind, LatencyNode, Parameter
from spanwise.pipelines.input.tuning.reading import OpReading, RunsAhead
from spanwise.pipelines.input.tuning.timing import StreamMeter, Timed, TimedRows, Timeline, Traced

KnobKind: TypeAlias = Literal["parallelism", "buffer", "block"]

HANDING_S: Final = 3e-5
"""About what it takes to wake a thread and give it Python's lock."""


@dataclass(kw_only=True)
class _OpStreams:
    """The streams of one op."""

    ended: StreamMeter = field(default_factory=StreamMeter)  #: those that are gone
    living: list[tuple[StreamMeter, weakref.ref[Timed]]] = field(default_factory=list)
    stream: weakref.ref[Stream] | None = None  #: the newest

    def add(self, meter: StreamMeter, timed: Timed, stream: Stream) -> None:
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

    def __init__(self, root: Op, timeline: Timeline | None = None) -> None:
        self._timeline = timeline
        self.ops = tuple(dict.fromkeys(map(self._timed, _walk(root))))  #: each after its consumer
        self._streams = {op: _OpStreams() for op in self.ops}
        self._lock = threading.Lock()  # threads open the streams of nested datasets

    def _timed(self, op: Op) -> Op:
        while op.passes_through and self._timeline is None:
            (op,) = op.inputs
        return op

    def observe(self, op: Op, stream: Stream) -> Stream:
        """The stream with a clock around it; unchanged if its op is not in the graph, as in a nested dataset."""
        streams = self._streams.get(op)
        if streams is None:
            return stream
        meter = StreamMeter()
        timed = (TimedRows if in_rows(op) else Timed)(stream, meter)
        with self._lock:
            streams.add(meter, timed, stream)
        timeline = self._timeline
        if timeline is None:
            return timed
        if isinstance(stream, RunsAhead):
            stream.watch = lambda start_ns, end_ns: timeline.add(op, start_ns, end_ns, call=True)
        return Traced(timed, op, timeline)

    def readings(self) -> dict[Op, OpReading]:
        """What every op has done."""
        return {op: self._reading(op) for op in self.ops}

    def _reading(self, op: Op) -> OpReading:
        seen, total = self._streams[op], StreamMeter()
        with self._lock:
            for meter in (seen.ended, *(meter for meter, _ in seen.living)):
                total.add(meter)
        ahead = self.ahead(op)
        return OpReading(
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
        ref = self._streams[op].stream
        stream = None if ref is None else ref()
        return stream if isinstance(stream, RunsAhead) else None

    def tree(
        self, readings: Mapping[Op, OpReading], parameters: Mapping[tuple[Op, KnobKind], Parameter]
    ) -> LatencyNode:
        """The model's tree: what was read, and which numbers of which op (`parallelism`, `buffer`) may be chosen."""
        return self._node(self.ops[0], 1.0, readings, parameters)

    def _node(
        self,
        op: Op,
        taken: float,
        readings: Mapping[Op, OpReading],
        parameters: Mapping[tuple[Op, KnobKind], Parameter],
    ) -> LatencyNode:
        read, ahead = readings[op], self.ahead(op)
        inputs = [*map(self._timed, op.inputs)]
        units = max(read.units, 1)
        shares = [readings[below].units / units for below in inputs]
        below_s = sum(readings[below].total_s for below in inputs)
        own_s, cpu_s = max(0.0, read.total_s - below_s) / units, None
        kind = (
            LatencyKind.SOURCE
            if not op.inputs
            else LatencyKind.KNOWN_RATIO
            if op.cardinality is not None
            else LatencyKind.UNKNOWN_RATIO
        )
        parallelism: Parameter | int = 1
        buffer: Parameter | int | None = None
        handing_s = variability = 0.0
        if ahead is not None:
            kind = LatencyKind.ASYNC_KNOWN_RATIO if op.cardinality is not None else LatencyKind.ASYNC_UNKNOWN_RATIO
            own_s = read.work.took_s / max(read.work.calls, 1) * read.calls / units if read.work is not None else 0.0
            cpu_s = read.work.cpu_s / max(read.work.calls, 1) * read.calls / units if read.work is not None else 0.0
            handing_s = HANDING_S * read.calls / units
            variability = (read.work or ahead.pulled).variability
            parallelism = parameters.get((op, "parallelism"), ahead.parallelism)
            buffer = parameters.get((op, "buffer"), None if (op, "parallelism") in parameters else ahead.buffer)
        return LatencyNode(
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
