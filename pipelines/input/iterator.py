"""One pass over a dataset: its elements, its state, its end."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from spanwise.orchestrator.errors import StateMismatch
from spanwise.pipelines.input.graph.rewrite import optimize
from spanwise.pipelines.input.op import (
    Element,
    Op,
    Opening,
    Options,
    State,
    Stream,
    assign_seeds,
    list_ops,
)
from spanwise.pipelines.input.rows import open_elements
from spanwise.pipelines.input.tuning.timing import Timeline
from spanwise.pipelines.input.tuning.tuner import TunedSettings, Tuner, start_tuning


class DatasetIterator(Iterator[Element]):
    """One pass over a dataset; its `state` can be stored and restored in another one, also in another process.

    Nothing is opened, read or started before the first element is asked for. What it holds is released when it is
    closed or dropped.
    """

    def __init__(
        self,
        op: Op,
        options: Options,
        epoch: int,
        *,
        blocks: bool,
        dataset: Callable[[Op], object],
        found: TunedSettings | None = None,
        trace: Timeline | None = None,
    ) -> None:
        seed = secrets.randbits(63) if options.seed is None else options.seed
        self._op = op
        self._blocks = blocks
        self._found = found or TunedSettings()
        self._trace = trace
        self.reports: list[object] = []  #: reports of the ops on this pass: a `SnapshotUse` of each snapshot
        self._opening = Opening(options=options, seed=seed, epoch=(epoch,), dataset=dataset, report=self.reports.append)
        self._stream: Stream | None = None
        self.tuner: Tuner | None = None  #: what times this pass and sets its knobs; None if there is nothing to set
        self._closed = False

    def _open(self) -> Stream:
        if self._stream is None:
            graph = self._graph()
            opening, self.tuner = start_tuning(graph, self._opening, self._found, self._trace)
            self._stream = opening.open(graph) if self._blocks else open_elements(opening, graph)
            self._end = weakref.finalize(self, _end, self._stream, self.tuner)
        return self._stream

    def _graph(self) -> Op:
        return optimize(assign_seeds(self._op, self._opening.seed), self._opening.options).op

    def __next__(self) -> Element:
        if self._closed:
            raise StopIteration
        return next(self._stream or self._open())

    def state(self) -> State:
        """Where it stands, as plain data: dicts, lists, texts, numbers and bytes."""
        return {
            "graph": self._names(),
            "blocks": self._blocks,
            "epoch": list(self._opening.epoch),
            "seed": self._opening.seed,
            "stream": self._open().state(),
        }

    def _names(self) -> list[str]:
        return [op.name for op in list_ops(self._graph())]

    def restore(self, state: State) -> Self:
        """Continues where the iterator stood that returned the state.

        Raises:
            StateMismatch: this iterator has started, or the state belongs to another graph.
        """
        if self._stream is not None:
            raise StateMismatch("restore: this iterator has already started; call restore() on a new one.")
        if not isinstance(state, dict) or not {"epoch", "seed", "graph", "blocks", "stream"} <= state.keys():
            raise StateMismatch(f"restore({state!r:.80}): not the state of an iterator; pass what state() returned.")
        self._opening = replace(self._opening, epoch=tuple(state["epoch"]), seed=state["seed"])
        here = {"graph": self._names(), "blocks": self._blocks}
        for what, ours in here.items():
            if state[what] != ours:
                raise StateMismatch(
                    f"restore: the state belongs to another dataset ({what}: {state[what]}); this one has {ours}. "
                    f"Restore it with the same ops and the same options."
                )
        self._open().restore(state["stream"])
        return self

    def close(self) -> None:
        """Ends the pass and releases what it holds."""
        self._closed = True
        if self._stream is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(stream: Stream, tuner: Tuner | None) -> None:
    stream.close()
    if tuner is not None:
        tuner.close()
