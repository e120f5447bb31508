"""An elastic job: the functions that a user writes, its settings, and its outcome."""

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

    from spanwise.components.training.trainer_task import TrainerTask
    from spanwise.pipelines.input.dataset import Dataset


class JobKind(StrEnum):
    """The purpose of a job, which follows from its functions."""

    TRAINING_ONLY = "training only"
    TRAINING_WITH_EVALUATION = "training with evaluation"
    EVALUATION_ONLY = "evaluation only"
    PREDICTION_ONLY = "prediction only"


@dataclass(frozen=True, kw_only=True)
class VersionMetrics:
    """The metrics of one version of the parameters."""

    version: int
    metrics: Mapping[str, float]  #: means over all rows
    rows: int


@dataclass(frozen=True, kw_only=True)
class ElasticOutcome:
    """The result of a job."""

    parameters: Arrays
    version: int  #: the number of steps that led to them
    evaluations: Sequence[VersionMetrics]  #: by version
    predictions: Path  #: a folder of Arrow files in row order; empty unless the job predicts

    def read_predictions(self) -> pa.Table:
        """Reads all predictions, in row order."""
        import pyarrow as pa

        files = sorted(self.predictions.glob("*.arrow"))
        return pa.concat_tables(pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in files)


def refuse_other_metrics(some: Mapping[str, float], others: Mapping[str, float]) -> None:
    """Refuses metrics of other names: the mean over all rows would be of a metric that some of them do not have.

    Raises:
        ParameterError: the names differ.
    """
    if set(some) != set(others):
        one, other = (", ".join(map(repr, sorted(names))) or "none" for names in (some, others))
        raise ParameterError(
            f"evaluate returned the metrics {one} for one batch and {other} for another: return the same each time. "
            "A metric that has no mean over batches, such as an AUC, is computed in save."
        )


@dataclass(frozen=True, kw_only=True)
class ElasticJob:
    """A training shared by workers that may come and go: `Trainer(run_fn=ElasticJob(…), workers=4)`.

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

    With `gradient` and `apply` it trains; with `evaluate` as well, it also evaluates. With `evaluate` or `predict`
    alone it does only that, on the parameters that `init` returns. The arrays passed to these functions are read-only.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Mapping[str, Any]:
        """As a parameter it is an instance; its fields, of types that few processes import, are not read."""
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(cls)

    dataset_fn: Callable[[Dataset], Dataset]  #: from the rows of one task to batches, the same every time
    init: Callable[[TrainerTask], Arrays]  #: the first parameters
    save: Callable[[TrainerTask, ElasticOutcome], None]  #: writes the model
    gradient: Callable[[Arrays, Any], Arrays] | None = None  #: mean over the rows of a batch
    apply: Callable[[Arrays, Arrays], Arrays] | None = None  #: the next parameters
    evaluate: Callable[[Arrays, Any], Mapping[str, float]] | None = None  #: metrics, as means over the rows of a batch
    predict: Callable[[Arrays, Any], Any] | None = None  #: arrays by name, or a RecordBatch; one row per row
    columns: tuple[str, ...] | None = None  #: columns to read; None reads all
    split: str = "train"  #: to train on, or to predict
    evaluation_split: str = "eval"
    epochs: int = 1
    task_rows: int = 16_384  #: at most, in a task: the work that is repeated when a worker is lost
    grads_to_wait: int = 1  #: the number of gradients averaged in a step
    max_staleness: int | None = None  #: versions that a gradient may be behind; None for any number
    evaluate_every: int | None = None  #: steps; None evaluates at the end of each epoch
    seed: int = 0  #: of the order of row groups and of random ops in `dataset_fn`
    lease_s: float = 30.0  #: how long a worker may be silent before others get its tasks
    max_failures: int = 3  #: of one task, each followed by a retry; one more ends the job
    checkpoint_s: float = 30.0  #: seconds between checkpoints, from which a second attempt resumes
    ahead: int = 2  #: batches that a worker prefetches while it computes

    def __post_init__(self) -> None:
        if (self.gradient is None) != (self.apply is None):
            raise ParameterError("ElasticJob: gradient and apply belong together; pass both or neither.")
        if self.gradient is not None and self.predict is not None:
            raise ParameterError(
                "ElasticJob: a job either trains or predicts; write two, and load the model in init of the second."
            )
        if self.gradient is None and (self.evaluate is None) == (self.predict is None):
            raise ParameterError("ElasticJob: pass gradient and apply, or evaluate, or predict.")
        for name in ("epochs", "task_rows", "grads_to_wait", "ahead", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"ElasticJob({name}={value!r}): must be at least 1.")
        for name in ("max_staleness", "max_failures", "checkpoint_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ParameterError(f"ElasticJob({name}={value!r}): must not be negative.")
        if not self.lease_s > 0:
            raise ParameterError(f"ElasticJob(lease_s={self.lease_s!r}): must be above 0.")

    @property
    def kind(self) -> JobKind:
        """The purpose that follows from the functions."""
        if self.gradient is not None:
            return JobKind.TRAINING_ONLY if self.evaluate is None else JobKind.TRAINING_WITH_EVALUATION
        return JobKind.PREDICTION_ONLY if self.predict is not None else JobKind.EVALUATION_ONLY
