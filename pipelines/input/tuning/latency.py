"""Latency: how long the consumer of a graph waits for an element, from what each op takes. Pure; measures nothing.

An op's latency follows from its own time, its kind and the latencies of its inputs. Times are seconds for one
element; where rows travel in blocks, seconds for one row, whatever the size of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto


class LatencyKind(Enum):
    """How an op's latency comes from those of its inputs."""

    SOURCE = auto()  #: no input: its own time
    KNOWN_RATIO = auto()  #: takes a fixed number of elements for each one: map, batch, zip, take
    UNKNOWN_RATIO = auto()  #: the number is measured: filter, flat_map, bucket by length
    INTERLEAVE = auto()  #: the first input names the others, which take turns
    ASYNC_KNOWN_RATIO = auto()  #: computed ahead, in the background: parallel map, prefetch
    ASYNC_UNKNOWN_RATIO = auto()
    ASYNC_INTERLEAVE = auto()

    @property
    def runs_ahead(self) -> bool:
        """Whether it works while its consumer does."""
        return self in {LatencyKind.ASYNC_KNOWN_RATIO, LatencyKind.ASYNC_UNKNOWN_RATIO, LatencyKind.ASYNC_INTERLEAVE}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A number in the model that may be chosen."""

    key: str  #: unique in its tree
    minimum: int = 1
    maximum: int


@dataclass(frozen=True, kw_only=True)
class LatencyNode:
    """One op, as measured."""

    name: str
    kind: LatencyKind = LatencyKind.KNOWN_RATIO
    own_s: float  #: its own work for one element that it gives, inputs not counted
    cpu_s: float | None = None  #: how much of it keeps a core busy; None: all
    variability: float = 0.0  #: squared coefficient of variation of its time: 0 steady, 1 random as M/M/1 has it
    taken: float = 1.0  #: elements that the op above takes from this one for each that it gives
    element_bytes: float = 0.0  #: what one waiting element holds: a whole block where rows travel in blocks
    handing_s: float = 0.0  #: what it costs to pass an element from its thread to the consumer's
    parallelism: Parameter | int = 1  #: how many elements are worked on at once; 0: the consumer does the work itself
    buffer: Parameter | int | None = None  #: how many may be on their way or wait; None: twice as many as are worked on
    inputs: tuple[LatencyNode, ...] = ()

    def walk(self) -> Iterator[LatencyNode]:
        """This op and all below it, each after its consumer."""
        yield self
        for node in self.inputs:
            yield from node.walk()

    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of the whole tree, those near the source first."""
        found = [p for node in self.walk() for p in (node.parallelism, node.buffer) if isinstance(p, Parameter)]
        return tuple(reversed(found))


Settings = Mapping[str, int]  # the value of each parameter, by its key


def wait_s(producer_s: float, consumer_s: float, buffer: int) -> float:
    """How long a consumer waits at a buffer of some places on average, when both take random times (M/M/1/K).

    The probability that the buffer is empty, times the time of the producer. With equal rates that is
    `producer_s / (buffer + 1)`.
    """
    if producer_s <= 0:
        return 0.0
    load = consumer_s / producer_s  # the rate of the producer to that of the consumer
    if load <= 1:
        return producer_s / sum(load**i for i in range(buffer + 1))
    # the same sum, of falling powers, lest a large load overflow
    falling = sum(load**-i for i in range(buffer + 1))
    return producer_s * load ** -float(buffer) / falling if load < _NEVER_EMPTY else 0.0


_NEVER_EMPTY = 1e6


def _mixed_wait_s(producer_s: float, consumer_s: float, buffer: int, variability: float) -> float:
    """Between what a steady producer costs, which is only what it is slower, and a random one."""
    steady = max(0.0, producer_s - consumer_s)
    share = min(1.0, variability)
    return steady + share * (wait_s(producer_s, consumer_s, buffer) - steady) if share else steady


def latency_s(node: LatencyNode, settings: Settings, busy_s: float = 0.0) -> float:
    """How long the consumer of an op waits for each element, when it is busy for `busy_s` between two of them."""
    parallelism, buffer = value(node.parallelism, settings), places(node, settings)
    if not buffer:
        return node.own_s + _inputs_s(node, settings, busy_s + node.own_s)
    work_s = node.own_s / parallelism + node.handing_s
    if node.kind is LatencyKind.ASYNC_INTERLEAVE:
        supply_s, inner_s = _interleaved_s(node, settings)
        work_s += inner_s / parallelism
    else:
        supply_s = _inputs_s(node, settings, 0.0)
    # one thread takes elements from the input while others work on those before
    produced_s = work_s + _mixed_wait_s(supply_s, work_s, parallelism, node.variability)
    return _mixed_wait_s(produced_s, busy_s, buffer, node.variability)


def places(node: LatencyNode, settings: Settings) -> int:
    """How many elements of an op may be on their way or wait for the consumer; 0 if the consumer makes them."""
    parallelism = value(node.parallelism, settings)
    if not node.kind.runs_ahead or not parallelism:
        return 0
    return 2 * parallelism if node.buffer is None else value(node.buffer, settings)


def _inputs_s(node: LatencyNode, settings: Settings, busy_s: float) -> float:
    if node.kind in {LatencyKind.INTERLEAVE, LatencyKind.ASYNC_INTERLEAVE}:
        return sum(_interleaved_s(node, settings))
    return sum(i.taken * latency_s(i, settings, busy_s / i.taken) for i in node.inputs if i.taken > 0)


def _interleaved_s(node: LatencyNode, settings: Settings) -> tuple[float, float]:
    """The cost per element of naming the inputs, and the average cost of an element of them."""
    if not node.inputs:
        return 0.0, 0.0
    outer, *inner = node.inputs
    inner_s = sum(latency_s(i, settings) for i in inner) / len(inner) if inner else 0.0
    return outer.taken * latency_s(outer, settings), inner_s


def work_s(node: LatencyNode) -> float:
    """All the work for one element, done sequentially: what the first element takes."""
    return node.own_s + _below(node, work_s)


def cpu_s(node: LatencyNode) -> float:
    """The CPU time for one element: divided by the cores, a lower bound for any settings."""
    return (node.own_s if node.cpu_s is None else node.cpu_s) + _below(node, cpu_s)


def _below(node: LatencyNode, cost: Callable[[LatencyNode], float]) -> float:
    if node.kind in {LatencyKind.INTERLEAVE, LatencyKind.ASYNC_INTERLEAVE} and node.inputs:
        outer, *inner = node.inputs
        return outer.taken * cost(outer) + (sum(map(cost, inner)) / len(inner) if inner else 0.0)
    return sum(i.taken * cost(i) for i in node.inputs)


def held_bytes(node: LatencyNode, settings: Settings) -> float:
    """The memory of a tree when every place is taken, with the element that each consumer holds."""
    return sum(n.element_bytes * (places(n, settings) + 1) for n in node.walk() if n.kind.runs_ahead)


def value(number: Parameter | int, settings: Settings) -> int:
    """The value of a parameter: its minimum if the settings do not name it."""
    return settings.get(number.key, number.minimum) if isinstance(number, Parameter) else number
