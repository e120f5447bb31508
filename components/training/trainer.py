"""Trainer: gives the examples of a window to the user's training function and publishes what it writes."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, overload

from spanwise.components.training.elastic.job import ElasticJob
from spanwise.orchestrator.artifact import Examples, Model, TransformGraph
from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.component import Attempt, Component, Input, Output
from spanwise.orchestrator.errors import NodeFailed, ParameterError, PipelineError
from spanwise.orchestrator.history import History
from spanwise.orchestrator.run import Run

if TYPE_CHECKING:
    import pyarrow as pa

    from spanwise.components.training.feed import Tally
    from spanwise.pipelines.input.dataset import Dataset

log = logging.getLogger("spanwise.trainer")


@dataclass(frozen=True, kw_only=True, eq=False)
class Window(Sequence[Examples]):
    """The examples of a window, oldest span first."""

    artifacts: tuple[Examples, ...]
    snapshots: Path  #: the folder that keeps what was prepared
    tally: Tally  #: what was read from there, and written

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

        `prepare` is given the rows of one span after the other, all with the same columns. What it makes of a span is
        kept as a snapshot, which every run reads that has a span of the same content and prepares it alike: it should
        do what takes long and is the same in each epoch. Shuffle, repeat and batch behind it. At the address of a
        data service, its workers prepare the spans that are missing, all at a time, before this returns.

        Raises:
            ParameterError: there is no such split or column.
            ColumnsChanged: two spans have different types for one column.
            Unfingerprintable: `prepare` uses something whose content cannot be known.
        """
        from spanwise.components import rows
        from spanwise.components.training import feed

        if prepare is None:
            return rows.dataset(self, split, columns)
        return feed.prepared(rows.by_artifact(self, split, columns), prepare, self.snapshots, self.tally, service)


@dataclass(frozen=True, kw_only=True)
class TrainerTask:
    """What a training function gets.

        def train(task: TrainerTask) -> None:
            rows = task.table("train", columns=["distance", "late"])
            ...
            joblib.dump(fitted, task.model_dir / "model.joblib")

    A warm start reads `base`, the model that was connected as such; the first run of a pipeline may have none, and a
    backfill has none.

    A function that takes long keeps the place in its input with what it has learned, and a second attempt goes on in
    the middle of the epoch:

        batches = task.examples.dataset("train").shuffle(100_000, seed=7).batch(1024)
        iterator = batches.iterator(epoch=epoch)
        if place is not None:
            iterator.restore(place)
        for batch in iterator:
            ...
            keep(task.checkpoints, (weights, epoch, iterator.state()))  # in one file, put in its place at once
    """

    examples: Window  #: oldest span first; `task.examples.dataset("train")` is a dataset of their rows
    model_dir: Path  #: an empty folder; what is written here is the model, in whatever files
    checkpoints: Path  #: a folder that is kept from one attempt of this run to the next
    graph: TransformGraph | None = None  #: how `examples` were made of the raw ones; a model is served with it
    base: Model | None = None  #: the model to start from; its files are below `base.path`
    parameters: Mapping[str, object] = field(default_factory=dict)  #: as given to Trainer
    workers: int = 1  #: how many processes call the function, each with a rank of its own
    rank: int = 0  #: from 0 on; who has 0 writes the model
    attempt: int = 1  #: counts the tries of this run; above 1, `checkpoints` may hold something

    def keep_graph(self) -> Path:
        """Copies the transform graph into the model, as the folder `graph`, so that it is served raw examples.

        There, `Preprocessor.load(model_dir / "graph").apply(table)` gives what the training saw.

        Raises:
            ParameterError: no graph is connected to the Trainer.
        """
        if self.graph is None:
            raise ParameterError("the model cannot keep a transform graph: connect one: graph=transform['graph'].")
        kept = self.model_dir / "graph"
        shutil.copytree(self.graph.path, kept)
        return kept

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

        return rows.table(self.examples, split, columns)


class Trainer(Component):
    """Trains one model on all the examples it is given, by calling `run_fn(task)` in a process of its own.

    `parameters` are passed on as `task.parameters`; they and the code of `run_fn` are part of the cache key. Connect
    `base` for a warm start: `base=Latest(past("Trainer", "model", Model))["model"]`. The model records the spans it
    learned from and the name of its base.

    `workers` processes train: they share the tasks of an `ElasticJob`, and may come and go; any other `run_fn` is
    called in each of them, in step, as `torch.distributed` wants it, and `task.rank` tells which one it is.

    A backfill corrects data that a base may have learned from, so its runs train from scratch unless they are told to
    warm-start; `warm_start="always"` has them start from the base always, for when `base` names a model known to be
    good.
    """

    preload: ClassVar = (
        "pyarrow.dataset",
        "spanwise.components.rows",
        "spanwise.components.training.feed",
        "spanwise.pipelines.input.sources",
    )
    prepared: ClassVar = ("from_base",)

    def check(self) -> None:
        if not isinstance(self.parameters["workers"], int) or self.parameters["workers"] < 1:
            raise PipelineError(f"{self.name} takes at least 1 worker, not {self.parameters['workers']!r}.")

    def prepare(self, run: Run, history: Callable[[str], History]) -> Mapping[str, object]:  # noqa: ARG002
        always = self.parameters["warm_start"] == "always"
        return {"from_base": bool(self.inputs["base"]) and (always or not run.from_scratch)}

    def run(
        self,
        *,
        examples: Input[list[Examples]],
        graph: Input[TransformGraph | None],
        base: Input[Model | None],
        model: Output[Model],
        attempt: Attempt,
        from_base: bool,
        run_fn: Callable[[TrainerTask], None],
        parameters: Mapping[str, object] | None = None,
        workers: int = 1,
        warm_start: Literal["except_backfill", "always"] = "except_backfill",  # noqa: ARG002 -- `prepare` reads it
    ) -> None:
        if base is not None and not from_base:
            log.info("training from scratch, not from %s: the run was asked to", base.name)
            base = None
        from spanwise.components.training.feed import Tally

        attempt.checkpoints.mkdir(parents=True, exist_ok=True)
        tally = Tally()
        ordered = tuple(sorted(examples, key=lambda e: e.span))  # stable: one span keeps the order it came in
        task = TrainerTask(
            examples=Window(artifacts=ordered, snapshots=attempt.snapshots, tally=tally),
            model_dir=model.path,
            checkpoints=attempt.checkpoints,
            graph=graph,
            base=base,
            parameters=dict(parameters or {}),
            workers=workers,
            attempt=attempt.number,
        )
        spans = format_versions(
            ((e.span, e.version) for e in task.examples), Calendar.from_name(task.examples[0].calendar)
        )
        log.info("training on %s", spans)
        try:
            _call(run_fn, task)
        finally:
            if used := tally.counts():
                log.info("snapshots: %s", ", ".join(f"{what} {count}" for what, count in used.items()))
        if not any(path.is_file() for path in model.path.rglob("*")):
            name = getattr(run_fn, "__qualname__", type(run_fn).__qualname__)
            raise NodeFailed(
                f"{self.name}: run_fn {name} returned without writing a model; write its files below task.model_dir, "
                f"for example joblib.dump(fitted, task.model_dir / 'model.joblib')."
            )
        model.spans = list(task.spans)
        model.base = base.name if base is not None else None
        model.snapshots = used or None


def _call(run_fn: Callable[[TrainerTask], None], task: TrainerTask) -> None:
    if task.workers == 1 or isinstance(run_fn, ElasticJob):
        run_fn(task)
    else:
        from spanwise.components.training.elastic.replicas import replicated

        replicated(run_fn, task)
