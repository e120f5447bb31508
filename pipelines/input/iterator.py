"""One pass over a dataset: its elements, its state, its end."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self

from spanwise.orchestrator.errors import StateMismatch
from spanwise.pipelines.input.commits import PassCommits
from spanwise.pipelines.input.execution.budget import PassBudget
from spanwise.pipelines.input.execution.closing import close_safely
from spanwise.pipelines.input.graph.fingerprint import of_files, of_steps
from spanwise.pipelines.input.graph.rewrite import optimize
from spanwise.pipelines.input.op import (
    Element,
    Op,
    Opening,
    Options,
    PassCount,
    State,
    Stream,
    assign_seeds,
    list_ops,
)
from spanwise.pipelines.input.rows import open_elements
from spanwise.pipelines.input.tuning.timing import Timeline
from spanwise.pipelines.input.tuning.tuner import TunedSettings, Tuner, start_tuning

_KEYS: Final = frozenset({"epoch", "seed", "graph", "steps", "files", "blocks", "stream"})


class DatasetIterator(Iterator[Element]):
    """One pass over a dataset; its `state` can be stored and restored in another one, also in another process.

    Nothing is opened, read or started before the first element is asked for. What it holds is released when it is
    closed or dropped.
    """

    def __init__(
        self,
        op: Op,
        options: Options,
        epoch: int | tuple[int, ...],
        *,
        blocks: bool,
        dataset: Callable[[Op], object],
        found: TunedSettings | None = None,
        trace: Timeline | None = None,
        follow: Callable[[int], None] | None = None,
    ) -> None:
        seed = secrets.randbits(63) if options.seed is None else options.seed
        self._op = op
        self._blocks = blocks
        self._found = found or TunedSettings()
        self._trace = trace
        self._follow = follow  # is given the number of the pass that is restored
        self.reports: list[object] = []  #: reports of the ops on this pass: a `SnapshotUse` of each snapshot
        self._opening = Opening(
            options=options,
            seed=seed,
            epoch=(epoch,) if isinstance(epoch, int) else epoch,
            dataset=dataset,
            budget=PassBudget(options),
            report=self.reports.append,
        )
        self._commits = PassCommits()
        self._opening = replace(self._opening, commits=self._commits)
        self._state: State | None = None  # the last one that was taken
        self._stream: Stream | None = None
        self.used: State | None = None  #: all before this place counts as used, rather than all that was given
        self.tuner: Tuner | None = None  #: what times this pass and sets its knobs; None if there is nothing to set
        self._closed = False
        self._lock = threading.RLock()  # of the stream: no two threads may take elements from it at once
        self._steps: list[list[str]] | None = None
        self._files: str | None = None

    def _open(self) -> Stream:
        if self._stream is None:
            graph = self._graph()
            opening, self.tuner = start_tuning(graph, self._opening, self._found, self._trace)
            consumer = self._opening.options.consumer
            self._count = PassCount() if consumer is None else consumer.begin_pass()
            self._stream = opening.open(graph) if self._blocks else open_elements(opening, graph)
            end = partial(_end, self._stream, self.tuner, self._commits)
            self._end = weakref.finalize(self, close_safely, end)
        return self._stream

    def _graph(self) -> Op:
        return optimize(assign_seeds(self._op, self._opening.seed), self._opening.options).op

    def __next__(self) -> Element:
        if self._closed:
            raise StopIteration
        with self._lock:
            stream = self._stream or self._open()
            self._commits.pass_by(self._used_place)
            try:
                element = next(stream)
            except StopIteration:
                self._commits.pass_by(self._used_place, is_over=True)
                raise
            self._count.elements += 1
            return element

    def place(self) -> State:
        """Where it stands, for `used` and `state`; unlike a state, it leaves it open what counts as used."""
        with self._lock:
            return {"stream": self._open().state(), "begun": self._commits.begun}

    def _used_place(self) -> State:
        return self.used or self.place()

    def state(self, place: State | None = None) -> State:
        """Where it stands, or stood at a `place`, as plain data: dicts, lists, texts, numbers and bytes.

        From now on, elements of a data service that were leased count as used when `commit` says so.
        """
        with self._lock:
            place = place or self.place()
            self._state = {**place, "commits": self._commits.describe(place), **self._facts()}
            return self._state

    def commit(self, state: State | None = None) -> None:
        """Counts the elements before a state as used, by default before the last one that was taken.

        Call it when the state is stored together with what was learned: what is committed is never given again. Only
        elements that a data service leases are committed; for others it does nothing.
        """
        with self._lock:
            state = state or self._state or self.state()
            if self._stream is not None and not self._closed:
                self._commits.commit(state, state["commits"])

    def _facts(self) -> State:
        return {
            "graph": self._names(),
            "steps": self._digests(),
            "files": self._stamps(),
            "blocks": self._blocks,
            "epoch": list(self._opening.epoch),
            "seed": self._opening.seed,
        }

    def _stamps(self) -> str:
        """What changes when source files are written again; as it was when it was asked for first."""
        if self._files is None:
            self._files = of_files(self._op)
        return self._files

    def _digests(self) -> list[list[str]]:
        """What the state belongs to: each op by its name and arguments."""
        if self._steps is None:
            self._steps = [list(step) for step in of_steps(self._op)]
        return self._steps

    def _names(self) -> list[str]:
        return [op.name for op in list_ops(self._graph())]

    def restore(self, state: State, *, check_files: bool = True) -> Self:
        """Continues where the iterator stood that returned the state.

        With `check_files=False` source files may have been written again since then: they count by name and size.

        Raises:
            StateMismatch: this iterator has started, or the state belongs to another graph, or to other files.
        """
        if self._stream is not None:
            raise StateMismatch("restore: this iterator has already started; call restore() on a new one.")
        if not isinstance(state, dict) or not state.keys() >= _KEYS:
            raise StateMismatch(f"restore({state!r:.80}): not the state of an iterator; pass what state() returned.")
        self._commits = PassCommits(state.get("commits"))
        self._opening = replace(self._opening, epoch=tuple(state["epoch"]), seed=state["seed"], commits=self._commits)
        here = {"graph": self._names(), "blocks": self._blocks}
        for what, ours in here.items():
            if state[what] != ours:
                raise StateMismatch(
                    f"restore: the state belongs to another dataset ({what}: {state[what]}); this one has {ours}. "
                    f"Restore it with the same ops and the same options."
                )
        self._check_steps(state["steps"])
        if check_files and state["files"] != self._stamps():
            raise StateMismatch(
                "restore: the source files have been written again since the state was taken. If they hold the same "
                "rows, copied or moved, pass check_files=False; otherwise start a new pass."
            )
        self._open().restore(state["stream"])
        self._count.is_resumed = True
        if self._follow is not None:
            self._follow(self._opening.epoch[0])
        return self

    def _check_steps(self, theirs: Sequence[Sequence[str]]) -> None:
        ours = self._digests()
        changed = [name for (name, digest), (_, other) in zip(ours, theirs, strict=False) if digest != other]
        if changed or len(ours) != len(theirs):
            raise StateMismatch(
                f"restore: the state belongs to another dataset: {', '.join(changed) or 'the ops'} had other "
                f"arguments, functions or data. Restore it with the same ones, or start a new pass."
            )

    def close(self) -> None:
        """Ends the pass and releases what it holds."""
        if self._stream is not None and not self._closed:
            self._commits.pass_by(self._used_place, is_over=True)
        self._release()

    def _release(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # the last element may not have been used
            self._release()


def _end(stream: Stream, tuner: Tuner | None, commits: PassCommits) -> None:
    stream.close()
    commits.close()
    if tuner is not None:
        tuner.close()
