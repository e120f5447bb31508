"""The task of a training function: the examples of its window, the folders it writes to, and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, overload

from spanwise.orchestrator.artifact import Examples, Model, TransformGraph

if TYPE_CHECKING:
    import pyarrow as pa

    from spanwise.components.training.prepared_spans import SnapshotTally
    from spanwise.pipelines.input.dataset import Dataset


@dataclass(frozen=True, kw_only=True, eq=False)
class ExamplesWindow(Sequence[Examples]):
    """The examples of a window, oldest span first."""

    artifacts: tuple[Examples, ...]
    snapshots: Path  #: the folder of the snapshots of prepared spans
    tally: SnapshotTally  #: counts the snapshots that were read and written

    @overload
    def __getitem__(self, at: int) -> Examples: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Examples]: ...
    def __getitem__(self, at: int | slice) -> Examples | Sequence[Examples]:
        return self.artifacts[at]

    def __len__(self) -> int:
        return len(self.artifacts)

    def dataset(
        self,
        split: str,
        columns: Sequence[str] | None = None,
        *,
        prepare: Callable[[Dataset], Dataset] | None = None,
        service: str | None = None,
    ) -> Dataset:
        """The rows of a split over all spans, oldest first; a column that a span lacks is null there.

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

        if prepare is None:
            return rows.open_dataset(self, split, columns)
        return prepare_spans(rows.open_by_artifact(self, split, columns), prepare, self.snapshots, self.tally, service)


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
    """

    examples: ExamplesWindow  #: oldest span first; `task.examples.dataset("train")` is a dataset of their rows
    model_dir: Path  #: an empty folder; the files written here are the model; afterwards the graph is added as `graph`
    checkpoints: Path  #: a folder that all attempts of this run share
    graph: TransformGraph | None = None  #: the transform graph that made `examples`; the model gets a copy
    base: Model | None = None  #: the model to start from; its files are below `base.path`
    parameters: Mapping[str, object] = field(default_factory=dict)  #: the `parameters` of the Trainer
    workers: int = 1  #: the number of processes that call the function, each with a rank of its own
    rank: int = 0  #: counts from 0; rank 0 writes the model
    attempt: int = 1  #: counts the attempts of this run; above 1, `checkpoints` may hold files

    @property
    def spans(self) -> tuple[int, ...]:
        """The spans of the window, oldest first."""
        return tuple(sorted({e.span for e in self.examples}))

    def table(self, split: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a split over all spans, oldest span first; a column that a span lacks is null there.

        Raises:
            ParameterError: there is no such split or column.
            ColumnsChanged: two spans have different types for one column.
        """
        from spanwise.components import rows

        return rows.read_table(self.examples, split, columns)
