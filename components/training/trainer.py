"""Trainer: calls the user's training function on the examples of a window and publishes the model it writes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from pydantic import InstanceOf

from spanwise.components.training.elastic.job import ElasticJob
from spanwise.components.training.trainer_task import ExamplesWindow, TrainerTask
from spanwise.orchestrator.artifact import Examples, Model, TransformGraph
from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import NodeFailed, PipelineError
from spanwise.orchestrator.history import History
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.signature import Attempt, Input, Output

log = logging.getLogger("spanwise.training")


class Trainer(Component):
    """Trains one model on all connected examples by calling `run_fn(task)` in a process of its own.

    `parameters` become `task.parameters`; they and the code of `run_fn` are part of the cache key. Connect `base` for a
    warm start: `base=Latest(past("Trainer", "model", Model))["model"]`. The model records the spans it was trained on
    and the name of its base.

    With `workers`, several processes train: the tasks of an `ElasticJob` are shared out among workers that may come and
    go; any other `run_fn` is called in each process, in step, as `torch.distributed` expects, with its own `task.rank`.

    A backfill corrects data that a base may have learned from, so its runs ignore the base and train from scratch.
    `warm_start="always"` uses the base in backfills too, for a base that is known to be good.
    """

    preload: ClassVar = (
        "pyarrow.dataset",
        "spanwise.components.rows",
        "spanwise.components.training.prepared_spans",
        "spanwise.pipelines.input.sources",
    )
    prepared: ClassVar = ("from_base",)

    def check(self) -> None:
        if not isinstance(self.parameters["workers"], int) or self.parameters["workers"] < 1:
            raise PipelineError(f"{self.name} needs at least 1 worker; found workers={self.parameters['workers']!r}.")

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
        run_fn: Callable[[TrainerTask], None] | InstanceOf[ElasticJob],
        parameters: Mapping[str, object] | None = None,
        workers: int = 1,
        warm_start: Literal["except_backfill", "always"] = "except_backfill",  # noqa: ARG002 -- `prepare` reads it
    ) -> None:
        if base is not None and not from_base:
            log.info("base-ignored", extra={"base": base.name, "reason": "the run trains from scratch"})
            base = None
        from spanwise.components.training.prepared_spans import SnapshotTally

        attempt.checkpoints.mkdir(parents=True, exist_ok=True)
        tally = SnapshotTally()
        ordered = tuple(sorted(examples, key=lambda e: e.span))  # stable: one span keeps the order it came in
        task = TrainerTask(
            examples=ExamplesWindow(artifacts=ordered, snapshots=attempt.snapshots, tally=tally),
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
        log.info("training-started", extra={"spans": spans})
        try:
            _call(run_fn, task)
        finally:
            if counts := tally.counts():
                log.info("snapshots-used", extra=counts)
        if not any(path.is_file() for path in model.path.rglob("*")):
            name = getattr(run_fn, "__qualname__", type(run_fn).__qualname__)
            raise NodeFailed(
                f"{self.name}: run_fn {name} returned without writing a model; write its files below task.model_dir, "
                f"for example joblib.dump(fitted, task.model_dir / 'model.joblib')."
            )
        model.spans = list(task.spans)
        model.base = base.name if base is not None else None
        model.snapshots = counts or None


def _call(run_fn: Callable[[TrainerTask], None] | ElasticJob, task: TrainerTask) -> None:
    if isinstance(run_fn, ElasticJob):
        from spanwise.components.training.elastic.training import run_job

        run_job(run_fn, task)
    elif task.workers > 1:
        from spanwise.components.training.elastic.replicas import run_replicas

        run_replicas(run_fn, task)
    else:
        run_fn(task)
