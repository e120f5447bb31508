"""The input of a worker: one dataset over all the tasks that it will be given, so that it never drains between them.

What the user's `dataset_fn` makes of rows is put together once, as a graph over all rows of a split; for each task the
same graph is opened over the task's rows. So batches end with their task: a batch belongs to one task, a task is known
by its batches whoever does it, and what shuffles, drops or joins rows does so within a task and alike each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from spanwise.components.training.elastic.tasks import Kind, Lease, Task
from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.element import UNKNOWN, Spec, Table, parts_of
from spanwise.pipelines.input.graph.rewrite import optimize
from spanwise.pipelines.input.op import (
    Count,
    Element,
    Op,
    Opening,
    Options,
    State,
    Stream,
    assign_seeds,
    list_ops,
    rebuild,
)
from spanwise.pipelines.input.ops.cache import Cache
from spanwise.pipelines.input.ops.parquet import Parquet, ParquetReader
from spanwise.pipelines.input.snapshot.op import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Body:
    """What `dataset_fn` makes of the rows of a split: a graph, and the op in it that stands for the rows."""

    op: Op
    rows: Parquet
    options: Options
    seed: int
    place: Place

    def of(self, task: Task) -> Op:
        """The graph over the rows of one task."""
        some = TaskRows(reading=self.rows, task=task, place=self.place)
        return rebuild(self.op, lambda each: some if each is self.rows else each)


def body(reading: Parquet, dataset_fn: Callable[[Dataset], Dataset], seed: int) -> Body:
    """The graph of a split, rewritten as any dataset is: only the columns are read that it needs.

    Raises:
        ParameterError: it gives no batches, never ends, or keeps what belongs to a whole pass.
        DatasetError: it is put together wrongly.
    """
    made = Dataset(reading).apply(dataset_fn)
    if isinstance(made.spec, Table):
        raise ParameterError("dataset_fn gives rows, and workers take batches: end it with .batch(256).")
    options = replace(made.settings, deterministic=True)
    op = optimize(assign_seeds(made.op, seed), options).op
    for each in list_ops(op):
        if isinstance(each, Cache | Snapshot):
            raise ParameterError(
                f"dataset_fn: {each.name} keeps a whole pass, and it is given one task after the other. Leave it out."
            )
    found = [each for each in list_ops(op) if isinstance(each, Parquet) and each.groups is reading.groups]
    if len(found) != 1:
        raise ParameterError("dataset_fn has to give what it makes of the rows that it is given, each read once.")
    if made.cardinality == float("inf"):
        raise ParameterError("dataset_fn repeats the rows without end. Leave repeat out, and say epochs=….")
    return Body(op, found[0], options, seed, Place())


class Forward:
    """Reads a row group from its beginning on, as far as it is asked to."""

    def __init__(self, reading: Parquet, shard: int, opening: Opening) -> None:
        self.shard = shard
        self.at = 0  #: rows of the group that were read
        self._reader = ParquetReader(reading, opening.block)
        self._batches = self._reader.read(shard)
        self._rest: pa.RecordBatch | None = None  # of the last batch that was decoded

    def up_to(self, row: int) -> pa.RecordBatch:
        """Some of the rows before this one, as the file has them."""
        batch = next(self._batches) if self._rest is None else self._rest
        count = min(batch.num_rows, row - self.at)
        self._rest = batch.slice(count) if count < batch.num_rows else None
        self.at += count
        return batch.slice(0, count)

    def finished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of them that are wanted, with all columns."""
        return self._reader.finished(batch)


class Place:
    """Where the last task has ended: one that begins behind it in the same row group need not decode that again."""

    def __init__(self) -> None:
        self._left: Forward | None = None

    def take(self, task: Task) -> Forward | None:
        left, self._left = self._left, None
        return left if left is not None and left.shard == task.shard and left.at <= task.start else None

    def leave(self, forward: Forward) -> None:
        self._left = forward


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskRows(Op):
    """The rows of one task."""

    reading: Parquet = field(repr=False)
    task: Task
    place: Place = field(repr=False)

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return self.reading.spec

    @property
    def cardinality(self) -> Count:
        return None if self.reading.filter is not None else self.task.stop - self.task.start

    def open(self, opening: Opening) -> Stream:
        return TaskRowsStream(self, opening)


class TaskRowsStream(Stream):
    def __init__(self, op: TaskRows, opening: Opening) -> None:
        self._op = op
        self._opening = opening
        self._forward: Forward | None = None

    def __next__(self) -> pa.RecordBatch:
        import pyarrow as pa

        task = self._op.task
        try:
            if self._forward is None:
                self._forward = self._op.place.take(task) or Forward(self._op.reading, task.shard, self._opening)
            forward = self._forward
            while forward.at < task.start:
                forward.up_to(task.start)
            while forward.at < task.stop:
                block = forward.finished(forward.up_to(task.stop))
                if block.num_rows:
                    return block
        except (pa.ArrowException, OSError) as error:
            raise UnreadableInput(f"{self._op.reading.groups[task.shard].path}: cannot be read ({error}).") from error
        self._op.place.leave(forward)
        raise StopIteration

    def state(self) -> State:
        return {}  # taken by what prefetches, and never used: a task is begun anew

    def restore(self, state: State) -> None:
        raise NotImplementedError("a task is begun anew")


@dataclass(frozen=True, slots=True)
class Piece:
    """One batch of a task, or the end of its batches, or what was raised in their place."""

    lease: Lease
    number: int  #: of the batch in its task; at the end, how many there were
    batch: Element = None
    is_end: bool = False
    error: Exception | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared(Op):
    """The batches of one task behind those of another: of whichever `next_lease` gives, until it gives none."""

    bodies: Mapping[Kind, Body] = field(repr=False)
    next_lease: Callable[[], Lease | None] = field(repr=False)

    @property
    def inputs(self) -> tuple[Op, ...]:
        return ()

    @property
    def spec(self) -> Spec:
        return UNKNOWN

    @property
    def cardinality(self) -> Count:
        return None

    def open(self, opening: Opening) -> Stream:
        return SharedStream(self, opening)


class SharedStream(Stream):
    """Asks for a task when the last batch of the one before was taken from it, which is before that is computed on."""

    def __init__(self, op: Shared, opening: Opening) -> None:
        self._op = op
        self._opening = opening
        self._lease: Lease | None = None
        self._task: Stream | None = None
        self._number = 0

    def __next__(self) -> Piece:
        if self._lease is None:
            self._lease = self._op.next_lease()
            if self._lease is None:
                raise StopIteration
            self._number = 0
        lease = self._lease
        try:
            if self._task is None:
                self._task = self._opened(lease.task)
            while True:
                batch = next(self._task)
                self._number += 1
                if self._number > lease.counted:
                    return Piece(lease, self._number - 1, batch)
        except StopIteration:
            self._close_task()
            return Piece(lease, self._number, is_end=True)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the task's, and others go on
            self._close_task()
            return Piece(lease, self._number, error=error)

    def _opened(self, task: Task) -> Stream:
        body = self._op.bodies[task.kind]
        opening = Opening(
            options=body.options,
            seed=body.seed,
            epoch=(task.epoch, task.number),
            block=self._opening.block,
            dataset=self._opening.dataset,
        )
        return opening.open(body.of(task))

    def _close_task(self) -> None:
        self._lease = None
        if self._task is not None:
            self._task.close()
            self._task = None

    def state(self) -> State:
        return {}  # taken by what prefetches, and never used: the master knows what is done

    def restore(self, state: State) -> None:
        raise NotImplementedError("a pass goes on with whatever the master gives")

    def close(self) -> None:
        self._close_task()


def shared(bodies: Mapping[Kind, Body], next_lease: Callable[[], Lease | None], ahead: int) -> Dataset:
    """The dataset of all tasks, `ahead` pieces of which are made in the background."""
    options = Options(optimize=False, autotune=False)
    return Dataset(Shared(bodies=bodies, next_lease=next_lease), options).prefetch(ahead)


def rows_in(batch: Any) -> int:
    """How many rows a batch has: along the first axis of its first array."""
    while (taken := parts_of(batch)) is not None:
        _, parts = taken
        if not parts:
            return 1
        batch = parts[0]
    try:
        return len(batch)
    except TypeError:
        return 1
