"""The input of a worker: one dataset over all its tasks, so that prefetching never drains between them.

The user's `dataset_fn` is called once and builds a graph over all rows of a split; for each task that graph is opened
over the rows of the task. So batches end with their task: a batch belongs to one task, every worker makes the same
batches of a task, and ops that shuffle, drop or join rows do so within a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from spanwise.components.training.elastic.tasks import ShardTask, TaskKind, TaskLease
from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.element import UNKNOWN, Spec, Table, each_leaf
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
from spanwise.pipelines.input.ops.bucket import Bucket
from spanwise.pipelines.input.ops.cache import Cache
from spanwise.pipelines.input.ops.groups import Groups
from spanwise.pipelines.input.ops.interleave import Interleave
from spanwise.pipelines.input.ops.parquet import Parquet, ParquetReader
from spanwise.pipelines.input.ops.resample import Resample
from spanwise.pipelines.input.ops.sample import Sample
from spanwise.pipelines.input.ops.shuffle import Shuffle
from spanwise.pipelines.input.ops.shuffle_and_repeat import ShuffleAndRepeat
from spanwise.pipelines.input.snapshot.op import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TaskGraph:
    """The graph that `dataset_fn` builds over the rows of a split, and its source op."""

    op: Op
    rows: Parquet
    options: Options
    seed: int
    slot: ReaderSlot

    def of(self, task: ShardTask) -> Op:
        """The graph over the rows of one task."""
        source = TaskRows(reading=self.rows, task=task, slot=self.slot)
        return rebuild(self.op, lambda each: source if each is self.rows else each)


def build_task_graph(
    reading: Parquet, dataset_fn: Callable[[Dataset], Dataset], seed: int, *, in_order: bool = False
) -> TaskGraph:
    """Builds and optimizes the graph of a split; it reads only the columns it needs.

    `in_order` refuses ops that give the rows in another order, as predictions would then be of other rows.

    Raises:
        ParameterError: it does not end in batches, never ends, or stores a whole pass.
        DatasetError: `dataset_fn` does not return a dataset.
    """
    dataset = Dataset(reading).apply(dataset_fn)
    if isinstance(dataset.spec, Table):
        raise ParameterError("dataset_fn returns rows, and workers need batches: end it with .batch(256).")
    options = replace(dataset.settings, in_order=True)
    op = optimize(assign_seeds(dataset.op, seed), options).op
    for each in list_ops(op):
        if isinstance(each, Cache | Snapshot):
            raise ParameterError(
                f"dataset_fn: {each.name} stores a whole pass, but runs on one task at a time. Remove it."
            )
        if in_order and isinstance(each, _REORDERING):
            raise ParameterError(
                f"dataset_fn: {each.name} gives the rows in another order, and predictions are in that of the rows. "
                f"Remove it from the dataset_fn of a job that predicts."
            )
    sources = [each for each in list_ops(op) if isinstance(each, Parquet) and each.groups is reading.groups]
    if len(sources) != 1:
        raise ParameterError("dataset_fn must return a dataset over the rows that it receives, and read each row once.")
    if dataset.cardinality == float("inf"):
        raise ParameterError("dataset_fn repeats the rows without end. Remove repeat, and set epochs=….")
    return TaskGraph(op, sources[0], options, seed, ReaderSlot())


_REORDERING = (Bucket, Groups, Interleave, Resample, Sample, Shuffle, ShuffleAndRepeat)


class GroupReader:
    """Reads one row group forward, on demand."""

    def __init__(self, reading: Parquet, shard: int, opening: Opening) -> None:
        self.shard = shard
        self.at = 0  #: the number of rows read so far
        self._reader = ParquetReader(reading, opening.block)
        self._batches = self._reader.read(shard)
        self._rest: pa.RecordBatch | None = None  # of the last decoded batch

    def up_to(self, row: int) -> pa.RecordBatch:
        """Reads at most up to this row; returns rows as stored in the file."""
        batch = next(self._batches) if self._rest is None else self._rest
        count = min(batch.num_rows, row - self.at)
        self._rest = batch.slice(count) if count < batch.num_rows else None
        self.at += count
        return batch.slice(0, count)

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass the filter, with all columns."""
        return self._reader.finish(batch)


class ReaderSlot:
    """The reader of the last task, reused by a later task of the same row group, which need not decode it again."""

    def __init__(self) -> None:
        self._reader: GroupReader | None = None

    def take(self, task: ShardTask) -> GroupReader | None:
        reader, self._reader = self._reader, None
        return reader if reader is not None and reader.shard == task.shard and reader.at <= task.start else None

    def put(self, reader: GroupReader) -> None:
        self._reader = reader


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskRows(Op):
    """The rows of one task."""

    reading: Parquet = field(repr=False)
    task: ShardTask
    slot: ReaderSlot = field(repr=False)

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
        self._reader: GroupReader | None = None

    def __next__(self) -> pa.RecordBatch:
        import pyarrow as pa

        task = self._op.task
        try:
            if self._reader is None:
                self._reader = self._op.slot.take(task) or GroupReader(self._op.reading, task.shard, self._opening)
            reader = self._reader
            while reader.at < task.start:
                reader.up_to(task.start)
            while reader.at < task.stop:
                block = reader.select(reader.up_to(task.stop))
                if block.num_rows:
                    return block
        except (pa.ArrowException, OSError) as error:
            raise UnreadableInput(f"{self._op.reading.groups[task.shard].path}: cannot be read ({error}).") from error
        self._op.slot.put(reader)
        raise StopIteration

    def state(self) -> State:
        return {}  # prefetch takes it and nothing restores it: tasks start over

    def restore(self, state: State) -> None:
        raise NotImplementedError("a task starts over")


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """One batch of a task, or the end of the task, or the exception raised instead."""

    lease: TaskLease
    number: int  #: the index of the batch; at the end of a task, the number of batches
    batch: Element = None
    is_end: bool = False
    error: Exception | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskBatches(Op):
    """The batches of one task after the other, of the tasks that `next_lease` returns until it returns None."""

    graphs: Mapping[TaskKind, TaskGraph] = field(repr=False)
    next_lease: Callable[[], TaskLease | None] = field(repr=False)

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
        return TaskBatchStream(self, opening)


class TaskBatchStream(Stream):
    """Requests a task when the last batch of the previous one has been taken, before that batch is computed."""

    def __init__(self, op: TaskBatches, opening: Opening) -> None:
        self._op = op
        self._opening = opening
        self._lease: TaskLease | None = None
        self._task: Stream | None = None
        self._number = 0

    def __next__(self) -> TaskBatch:
        if self._lease is None:
            self._lease = self._op.next_lease()
            if self._lease is None:
                raise StopIteration
            self._number = 0
        lease = self._lease
        try:
            if self._task is None:
                self._task = self._open(lease.task)
            while True:
                batch = next(self._task)
                self._number += 1
                if self._number > lease.counted:
                    return TaskBatch(lease, self._number - 1, batch)
        except StopIteration:
            self._close_task()
            return TaskBatch(lease, self._number, is_end=True)
        except Exception as error:  # noqa: BLE001  it belongs to the task, and others continue
            self._close_task()
            return TaskBatch(lease, self._number, error=error)

    def _open(self, task: ShardTask) -> Stream:
        graph = self._op.graphs[task.kind]
        opening = Opening(
            options=graph.options,
            seed=graph.seed,
            epoch=(task.epoch, task.number),
            block=self._opening.block,
            dataset=self._opening.dataset,
        )
        return opening.open(graph.of(task))

    def _close_task(self) -> None:
        self._lease = None
        if self._task is not None:
            self._task.close()
            self._task = None

    def state(self) -> State:
        return {}  # prefetch takes it and nothing restores it: the master knows the progress

    def restore(self, state: State) -> None:
        raise NotImplementedError("the master decides the next task")

    def close(self) -> None:
        self._close_task()


def task_batches(
    graphs: Mapping[TaskKind, TaskGraph], next_lease: Callable[[], TaskLease | None], ahead: int
) -> Dataset:
    """The dataset over all tasks, with `ahead` batches prefetched."""
    options = Options(optimize=False, autotune=False)
    return Dataset(TaskBatches(graphs=graphs, next_lease=next_lease), options).prefetch(ahead)


def rows_in(batch: Any) -> int:
    """The number of rows of a batch: the length of the first of its parts that has one; 1 if none has."""
    lengths: list[int] = []

    def measure(leaf: Any) -> None:
        if hasattr(leaf, "__len__") and not isinstance(leaf, str | bytes) and getattr(leaf, "shape", None) != ():
            lengths.append(len(leaf))

    each_leaf(measure, batch)
    return lengths[0] if lengths else 1
