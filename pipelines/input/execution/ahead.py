"""Ahead streams: elements, or results of a function, computed ahead of their consumer by threads or processes."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from spanwise.pipelines.input.execution.callers import CallerTeam, Workers
from spanwise.pipelines.input.execution.closing import close_safely
from spanwise.pipelines.input.execution.process import Function
from spanwise.pipelines.input.execution.window import Permits, SlotWindow
from spanwise.pipelines.input.op import AUTOTUNE, Element, Knob, Opening, PassLimits, State, Stream
from spanwise.pipelines.input.tuning.machine import available_cores
from spanwise.pipelines.input.tuning.reading import CallTimes


def parallelism_knob(op: str, num_parallel: int, opening: Opening, *, minimum: int, maximum: int) -> Knob:
    """The knob for how many of an op's calls or inputs run at once.

    A number to be found begins at the minimum: where that is 0 the consumer does the work, since a thread would cost
    more than a quick function.
    """
    name = f"{op}.num_parallel"
    if (most := opening.options.cpu_budget) is not None:
        minimum, maximum, num_parallel = min(minimum, most), min(maximum, most), min(num_parallel, most)
    if num_parallel != AUTOTUNE:
        return Knob(name=name, kind="parallelism", value=num_parallel, minimum=num_parallel, maximum=num_parallel)
    value = minimum if opening.tuner is not None else min(maximum, available_cores())
    return Knob(name=name, kind="parallelism", value=value, minimum=minimum, maximum=maximum)


class AheadStream(Stream):
    """The input's elements, or a function of each, computed before they are asked for.

    In the input's order, or with `ordered=False` in the order in which they are ready. What is on its way when the
    state is taken is taken from the input again.
    """

    def __init__(
        self,
        source: Stream,
        *,
        name: str,
        rows: bool,
        window: Callable[[], int],
        limit_bytes: float = float("inf"),
        function: Function | None = None,
        num_parallel: Knob | None = None,
        workers: Workers = "threads",
        ordered: bool = True,
        permits: Permits | None = None,
        work: CallTimes | None = None,
        on_ready: Callable[[], None] | None = None,
        budget: PassLimits | None = None,
    ) -> None:
        """Nothing is started before the first element.

        Args:
            source: closed by us.
            name: the op's, for messages and the names of threads.
            rows: whether the input gives blocks of rows.
            window: how many elements may be on their way or wait for the consumer.
            limit_bytes: what they may hold together; one is always let through.
            function: called with each element and its position.
            num_parallel: how many calls at once.
            workers: what makes the calls.
            ordered: whether results keep the order of the input.
            permits: held while an element is taken from the input.
            work: where the time of calls is summed up, or with permits that of taking elements.
            budget: what the pass may hold, and how many calls it may make at once.
            on_ready: called when an element or the end can be taken without waiting.
        """
        self.work = CallTimes() if work is None and function is not None else work
        self._num_parallel = num_parallel
        self._size = window
        self._window = SlotWindow(
            source, rows=rows, size=window, limit_bytes=limit_bytes, ordered=ordered, budget=budget
        )
        self._window.name, self._window.permits, self._window.on_ready = name, permits, on_ready
        if function is not None and num_parallel is not None:
            calls = None if budget is None else budget.calls
            self._window.team = CallerTeam(function, num_parallel, workers, name, self._window.finish, calls)
        self._closer = weakref.finalize(self, close_safely, self._window.close)

    @property
    def watch(self) -> Callable[[int, int], None] | None:
        """Receives the start and the end of each call, in ns."""
        return None if self._window.team is None else self._window.team.watch

    @watch.setter
    def watch(self, watch: Callable[[int, int], None] | None) -> None:
        if self._window.team is not None:
            self._window.team.watch = watch

    def __next__(self) -> Element:
        slot = self._window.take()
        if self.work is not None:
            self.work.add(slot.took_s, slot.cpu_s)
        if slot.error is not None:
            try:
                raise slot.error
            finally:
                slot.error = None  # or its traceback would hold this frame, and this frame the error
        element, slot.element = slot.element, None  # the thread that made it may be on its way to drop the slot
        return element

    def start(self) -> None:
        """Begins to take elements, before the first is asked for."""
        self._window.start()

    def state(self) -> State:
        return self._window.state()

    def restore(self, state: State) -> None:
        self._window.restore(state)

    def close(self) -> None:
        self._closer()

    @property
    def parallelism(self) -> int:
        """How many elements are worked on at once."""
        return 1 if self._num_parallel is None else self._num_parallel.value

    @property
    def buffer(self) -> int:
        """How many elements may be on their way or wait."""
        return self._size()

    @property
    def element_bytes(self) -> float:
        """What an element on its way holds."""
        return self._window.element_bytes

    @property
    def pulled(self) -> CallTimes:
        """What it took to take elements from the input."""
        return self._window.pulled
