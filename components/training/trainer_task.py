"""The task of a training function: the examples of its window, the folders it writes to, and its parameters."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

from spanwise.components.training.training_input import TrainingInput
from spanwise.orchestrator.artifact import Examples, Model, TransformGraph
from spanwise.orchestrator.errors import StateMismatch
from spanwise.orchestrator.replica import NO_GANG, Gather, ReplicaPlace
from spanwise.orchestrator.signature import stay_here

if TYPE_CHECKING:
    import pyarrow as pa

    from spanwise.components.training.prepared_spans import SnapshotTally
    from spanwise.pipelines.input.dataset import Dataset
    from spanwise.pipelines.input.iterator import DatasetIterator
    from spanwise.pipelines.input.op import Op
    from spanwise.pipelines.input.ops.parquet import Parquet

CHECKPOINT: Final = "checkpoint.pickle"
"""The file of `TrainerTask.save_checkpoint`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExamplesWindow(Sequence[Examples]):
    """The examples of a window, oldest span first."""

    artifacts: tuple[Examples, ...]
    snapshots: str | Path  #: where the snapshots of prepared spans are
    tally: SnapshotTally  #: counts the snapshots that were read and written
    input: TrainingInput = field(default_factory=TrainingInput)  #: counts the rows that were read
    weight: str | None = None  #: the column of the rows' weights, read with whichever columns are named

    @overload
    def __getitem__(self, at: int) -> Examples: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Examples]: ...
    def __getitem__(self, at: int | slice) -> Examples | Sequence[Examples]:
        return self.artifacts[at]

    def __len__(self) -> int:
        return len(self.artifacts)

    def with_weight(self, columns: Sequence[str] | None) -> Sequence[str] | None:
        """These columns and that of the weights; None are all of them."""
        if not columns or self.weight is None or self.weight in columns:
            return columns
        return [*columns, self.weight]

    def dataset(
        self,
        split: str,
        columns: Sequence[str] | None = None,
        *,
        prepare: Callable[[Dataset], Dataset] | None = None,
        service: str | None = None,
    ) -> Dataset:
        """The rows of a split over all spans, oldest first; a column that a span lacks is null there.

        With a weight, its column is among `columns`, whether they name it or not.

        `prepare` is called with the rows of one span after the other, all with the same columns. Its result is stored
        as a snapshot for each span. Every run that prepares a span of the same content in the same way reads that
        snapshot, so put expensive steps here that are the same in every epoch; shuffle, repeat and batch afterwards.
        With the address of a data service, its workers prepare all missing spans at once, before this returns.

        Raises:
            ParameterError: there is no such split or column.
            ColumnsChanged: two spans have different types for one column.
            Unfingerprintable: `prepare` uses something whose content cannot be fingerprinted.
        """
        from spanwise.components import rows
        from spanwise.components.training.prepared_spans import prepare_spans
        from spanwise.pipelines.input.dataset import Dataset

        columns = self.with_weight(columns)
        if prepare is None:
            found = rows.open_dataset(self, split, columns)
        else:
            parts = rows.open_by_artifact(self, split, columns)
            found = prepare_spans(parts, prepare, self.snapshots, self.tally, service)
        return Dataset(found.op, replace(found.settings, consumer=self.input))


@dataclass(frozen=True, kw_only=True)
class TrainerTask:
    """The argument of a training function.

        def train(task: TrainerTask) -> None:
            rows = task.table("train", columns=["distance", "late"])
            ...
            joblib.dump(fitted, task.model_dir / "model.joblib")

    A warm start reads `base`, the model connected as such; it is None in the first run of a pipeline and in backfills.

    A long training stores its position in the input together with what it has learned, and a second attempt continues
    in the middle of the epoch:

        batches = task.examples.dataset("train").shuffle(100_000, seed=7).batch(1024)
        iterator = batches.iterator(epoch=epoch)
        if position is not None:
            iterator.restore(position)
        for batch in iterator:
            ...
            save(task.checkpoints, (weights, epoch, iterator.state()))  # one file, renamed into place

    `save_checkpoint` and `load_checkpoint` do this with one file.
    """

    examples: ExamplesWindow  #: oldest span first; `task.examples.dataset("train")` is a dataset of their rows
    model_dir: Path  #: an empty folder; the files written here are the model; afterwards the graph is added as `graph`
    checkpoints: Path  #: a folder that all attempts of this run share
    graph: TransformGraph | None = None  #: the transform graph that made `examples`; the model gets a copy
    base: Model | None = None  #: the model to start from; its files are below `base.path`
    parameters: Mapping[str, object] = field(default_factory=dict)  #: the `parameters` of the Trainer
    workers: int = 1  #: the number of workers of an elastic job
    rank: int = 0  #: which replica this is, counted from 0; rank 0 writes the model
    replicas: int = 1  #: the number of processes that call the function at once
    coordinator: str = ""  #: `host:port` where rank 0 can listen for the others; empty without replicas
    attempt: int = 1  #: counts the attempts of this run; above 1, `checkpoints` may hold files
    commit_checkpoints: Callable[[], None] = stay_here
    """Returns when the next attempt finds `checkpoints` as they are now, also on another machine.

    Under a root in object storage, call it before `iterator.commit`. `save_checkpoint` does both; other files go there
    by themselves within seconds.
    """
    place: ReplicaPlace = field(default=NO_GANG, repr=False)  #: where an elastic job's master is, and its workers
    gather: Gather = field(default=NO_GANG.gather, repr=False)
    """Says something small to all replicas, and returns what each said, by rank. All have to call it equally often."""

    @property
    def weight(self) -> str | None:
        """The column of the rows' weights, if the Trainer has one: `rows[task.weight]`, finite and not negative."""
        return self.examples.weight

    @property
    def spans(self) -> tuple[int, ...]:
        """The spans of the window, oldest first."""
        return tuple(sorted({e.span for e in self.examples}))

    def save_checkpoint(self, learned: object, *iterators: DatasetIterator) -> None:
        """Stores what was learned together with the places of iterators, in one file that all attempts share.

        Then it commits the elements before these places, which a data service may have leased. `learned` is pickled.

        All replicas have to call it equally often: they wait for each other. The file has what rank 0 has learned, and
        the places of the iterators of each.
        """
        from spanwise.orchestrator import durable

        states = [iterator.state() for iterator in iterators]
        places = self.gather(states)
        if self.rank == 0:
            durable.put(self.checkpoints / CHECKPOINT, [pickle.dumps((learned, places))])
            self.commit_checkpoints()
        self.gather(None)  # it is stored
        for iterator, state in zip(iterators, states, strict=True):
            iterator.commit(state)

    def load_checkpoint(self, *iterators: DatasetIterator) -> Any:
        """What `save_checkpoint` stored last, with the iterators restored to their places; None if there is nothing.

        The iterators are new ones, of the same datasets in the same order; the epoch of each is restored too.

        Raises:
            StateMismatch: it was stored by another number of replicas, or with other iterators.
        """
        path = self.checkpoints / CHECKPOINT
        if not path.exists():
            return None
        learned, places = pickle.loads(path.read_bytes())  # noqa: S301  this run has written it
        if len(places) != self.replicas:
            raise StateMismatch(
                f"load_checkpoint: {path} was stored by {len(places)} replicas; now there are {self.replicas}."
            )
        if len(iterators) != len(places[self.rank]):
            raise StateMismatch(
                f"load_checkpoint: {path} has the places of {len(places[self.rank])} iterators, and {len(iterators)} "
                f"were passed. Pass as many as save_checkpoint got, of the same datasets in the same order."
            )
        for iterator, state in zip(iterators, places[self.rank], strict=True):
            iterator.restore(state)
        return learned

    def share(self, split: str, columns: Sequence[str] | None = None, *, even: bool = False) -> Dataset:
        """The rows of a split that this replica reads: each row of the window is in the share of exactly one.

        Shares are ranges of the rows of `examples.dataset(split)`, and differ by one row at most. With `even` they have
        the same number of rows, so that all replicas take as many steps: up to `replicas - 1` rows are left out.

        Raises:
            ParameterError: there is no such split or column.
            ColumnsChanged: two spans have different types for one column.
        """
        from spanwise.components import rows
        from spanwise.components.training.shares import share
        from spanwise.pipelines.input.dataset import Dataset

        def choose(whole: Parquet) -> Op:
            return share(whole, self.rank, self.replicas, even=even)

        found = rows.open_part(self.examples, split, self.examples.with_weight(columns), choose)
        return Dataset(found.op, replace(found.settings, consumer=self.examples.input))

    def table(self, split: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a split over all spans, oldest span first; a column that a span lacks is null there.

        With a weight, its column is among `columns`, whether they name it or not.

        Raises:
            ParameterError: there is no such split or column.
            ColumnsChanged: two spans have different types for one column.
        """
        from spanwise.components import rows

        table = rows.read_table(self.examples, split, self.examples.with_weight(columns))
        self.examples.input.begin_pass().elements = table.num_rows
        return table
