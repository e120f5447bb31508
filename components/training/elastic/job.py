"""An elastic job: the functions that a user writes, and how their work is cut and put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spanwise.components.training.elastic.arrays import Arrays
from spanwise.orchestrator.errors import ParameterError

if TYPE_CHECKING:
    import pyarrow as pa

    from spanwise.components.training.trainer import TrainerTask
    from spanwise.pipelines.input.dataset import Dataset


class JobKind(StrEnum):
    """What a job is for, which tells the kinds of its tasks."""

    TRAINING_ONLY = "training only"
    TRAINING_WITH_EVALUATION = "training with evaluation"
    EVALUATION_ONLY = "evaluation only"
    PREDICTION_ONLY = "prediction only"


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What one version of the model was found to be worth."""

    version: int
    metrics: Mapping[str, float]  #: means over all rows
    rows: int


@dataclass(frozen=True, kw_only=True)
class ElasticOutcome:
    """What a job has come to."""

    parameters: Arrays
    version: int  #: how often they were changed
    evaluations: Sequence[Evaluated]  #: by version
    predictions: Path  #: a folder of Arrow files, in the order of the rows; empty where nothing was predicted

    def predicted(self) -> pa.Table:
        """All predictions, in the order of the rows."""
        import pyarrow as pa

        files = sorted(self.predictions.glob("*.arrow"))
        return pa.concat_tables(pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in files)


@dataclass(frozen=True, kw_only=True)
class ElasticJob:
    """A training that any number of workers share, who may come and go: `Trainer(run_fn=ElasticJob(…), workers=4)`.

        def init(task: TrainerTask) -> Arrays:
            return {"weights": np.zeros(2)}

        def batches(rows: Dataset) -> Dataset:
            return rows.batch(256).as_numpy()

        def gradient(parameters, batch):
            x = np.column_stack([np.ones(len(batch["hour"])), batch["hour"]])
            return {"weights": x.T @ (x @ parameters["weights"] - batch["rides"]) / len(x)}

        def apply(parameters, gradient):
            return {"weights": parameters["weights"] - 0.1 * gradient["weights"]}

        def save(task: TrainerTask, outcome: ElasticOutcome) -> None:
            np.save(task.model_dir / "weights.npy", outcome.parameters["weights"])

    With `gradient` and `apply` it trains, with `evaluate` beside them it also evaluates; with `evaluate` or `predict`
    alone it does only that, with the parameters that `init` gives. Workers are given arrays that cannot be written to.
    """

    dataset_fn: Callable[[Dataset], Dataset]  #: from the rows of one task to batches, the same ones each time
    init: Callable[[TrainerTask], Arrays]  #: the first parameters
    save: Callable[[TrainerTask, ElasticOutcome], None]  #: writes the model
    gradient: Callable[[Arrays, Any], Arrays] | None = None  #: of the parameters and a batch: the mean over its rows
    apply: Callable[[Arrays, Arrays], Arrays] | None = None  #: of the parameters and a gradient: the next parameters
    evaluate: Callable[[Arrays, Any], Mapping[str, float]] | None = None  #: metrics: means over the rows of a batch
    predict: Callable[[Arrays, Any], Any] | None = None  #: arrays by name, or a RecordBatch, with a row for each
    columns: tuple[str, ...] | None = None  #: that are read; None for all
    split: str = "train"  #: whose rows are trained on, or predicted
    evaluation_split: str = "eval"
    epochs: int = 1
    task_rows: int = 16_384  #: how many rows a task has at most: what is begun anew when a worker is lost
    grads_to_wait: int = 1  #: of how many gradients a step takes the mean
    max_staleness: int | None = None  #: how many versions a gradient may be behind; None for any number
    evaluate_every: int | None = None  #: steps; None evaluates at the end of each epoch
    seed: int = 0  #: of the order of row groups, and of what `dataset_fn` draws
    lease_s: float = 30.0  #: for how long a worker may be silent before its tasks go to others
    max_failures: int = 3  #: how often a task may fail and is tried again
    checkpoint_s: float = 30.0  #: how often the job is saved, so that a second attempt goes on from there
    ahead: int = 2  #: how many batches a worker makes ready while it computes

    def __post_init__(self) -> None:
        if (self.gradient is None) != (self.apply is None):
            raise ParameterError("ElasticJob: gradient and apply belong together; give both, or none.")
        if self.gradient is not None and self.predict is not None:
            raise ParameterError("ElasticJob: a job trains or predicts; make two of it, and load the model in init.")
        if self.gradient is None and (self.evaluate is None) == (self.predict is None):
            raise ParameterError("ElasticJob: wants gradient and apply, or evaluate, or predict.")
        for name in ("epochs", "task_rows", "grads_to_wait", "ahead", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"ElasticJob({name}={value!r}): wants at least 1.")

    def __call__(self, task: TrainerTask) -> None:
        """What Trainer does with it: the job, by as many worker processes as it was given."""
        from spanwise.components.training.elastic.training import trained

        trained(self, task)

    @property
    def kind(self) -> JobKind:
        """What it is for, as its functions tell."""
        if self.gradient is not None:
            return JobKind.TRAINING_ONLY if self.evaluate is None else JobKind.TRAINING_WITH_EVALUATION
        return JobKind.PREDICTION_ONLY if self.predict is not None else JobKind.EVALUATION_ONLY

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Those that the user wrote."""
        given = (self.dataset_fn, self.init, self.save, self.gradient, self.apply, self.evaluate, self.predict)
        return tuple(each for each in given if each is not None)
