"""Flows: a graph of ops with its options, and the passes over it. All that a snapshot or a service needs.

It knows no verbs: `Dataset` adds them, and may import every op for that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import Spec, Table
from spanwise.pipelines.input.graph.fingerprint import of_graph, with_options
from spanwise.pipelines.input.iterator import DatasetIterator
from spanwise.pipelines.input.op import Count, Op, Options, check_whole
from spanwise.pipelines.input.tuning.tuner import TunedSettings


class Flow:
    """A description of a flow of elements; nothing happens until it is iterated over."""

    def __init__(self, op: Op, settings: Options | None = None) -> None:
        self.op = op
        self.settings = settings or Options()
        self._passes = 0  # started so far
        self._found = TunedSettings()  # settings that autotune found in earlier passes

    def __fingerprint__(self) -> str:
        """What a function that uses it depends on: the graph, and options that change its elements."""
        return with_options(of_graph(self.op), self.op, self.settings)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.op.name}: {self.spec}>"

    @property
    def spec(self) -> Spec:
        """What an element is, as far as it is known before the first one."""
        return self.op.spec

    @property
    def cardinality(self) -> Count:
        """How many elements one pass gives; `math.inf` if it never ends, None if only reading them could tell.

        As in tf.data, an endless `repeat` is infinite whatever it repeats, but ends if that turns out to be nothing.
        """
        return self.op.cardinality

    def __iter__(self) -> DatasetIterator:
        return self.iterator()

    def iterator(self, *, epoch: int | None = None) -> DatasetIterator:
        """One pass, an element at a time. Passes are numbered, so that shuffles differ; `epoch` names one.

        The pass after one that is restored has the number after that of the state.
        """
        return self._pass(epoch, blocks=False)

    def blocks(self, *, epoch: int | None = None) -> DatasetIterator:
        """One pass over rows, a RecordBatch of many at a time; how many is not promised."""
        if not isinstance(self.spec, Table):
            raise DatasetError("blocks: the elements are not rows, so there are no blocks.")
        return self._pass(epoch, blocks=True)

    def _pass(self, epoch: int | None, *, blocks: bool) -> DatasetIterator:
        follow = None
        if epoch is None:
            epoch, follow = self._passes, self._follow
            follow(epoch)
        else:
            check_whole("blocks" if blocks else "iterator", "epoch", epoch, at_least=0)
        return DatasetIterator(
            self.op, self.settings, epoch, blocks=blocks, dataset=type(self), found=self._found, follow=follow
        )

    def _follow(self, epoch: int) -> None:
        """Numbers the next pass."""
        self._passes = epoch + 1

    def reduce(self, initial: Any, function: Callable[[Any, Any], Any]) -> Any:
        """The final value of `function(value, element)`, called for each element and its own last result."""
        with self.iterator() as elements:
            return functools.reduce(function, elements, initial)


AnyFlow = TypeVar("AnyFlow", bound=Flow)


def extend(flow: AnyFlow, op: Op) -> AnyFlow:
    """A flow that ends with `op`, of the same class and with the same options."""
    return type(flow)(op, flow.settings)
