"""Trainer: calls the user's training function on the examples of a window and publishes the model it writes."""

from __future__ import annotations

import logging
import shutil
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

from spanwise.components.training.elastic.job import ElasticJob
from spanwise.components.training.trainer_task import ExamplesWindow, TrainerTask
from spanwise.orchestrator.artifact import Examples, Model, TransformGraph
from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.component import Channel, Component, published_channel
from spanwise.orchestrator.errors import NodeFailed, PipelineError, UnreadableInput
from spanwise.orchestrator.replica import Gang
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.signature import Attempt, Input, Output, check_call

log = logging.getLogger("spanwise.training")


class Trainer(Component):
    """Trains one model on all connected examples by calling `run_fn(task)` in a process of its own.

    `parameters` become `task.parameters`; they and the code of `run_fn` are part of the cache key. Connect `base` for a
    warm start: `base=LatestBlessed(past("Trainer", "model", Model))["model"]`. The model records the spans it was
    trained on and the name of its base.

    With `graph`, the model gets a copy of the transform graph as its folder `graph`, and carries its digest: it is
    judged and served through the graph that it was trained with. A base with another graph is refused, unless
    `base_graph="any"` says that `run_fn` maps its features.

    With `weight`, the name of a column of finite numbers that are not negative, each row counts by its weight: what
    `run_fn` reads has that column, whichever others it asks for, as `task.weight`. How it counts is up to `run_fn`.

    With `replicas`, that many processes call `run_fn` at once, wherever the executor places them, with the variables
    of `torchrun` and a `task.rank` each. `task.share(split)` is the part of the rows that one of them reads. Rank 0
    writes the model: what the others write below `task.model_dir` is dropped. When one fails, all are ended.

    With `workers`, the tasks of an `ElasticJob` are shared out among that many workers, which may come and go. They are
    processes beside the Trainer; with `place_workers=True` the executor places each, with the node's resources.

    A backfill corrects data that a base may have learned from, so its runs ignore the base and train from scratch.
    `warm_start="always"` uses the base in backfills too, for a base that is known to be good.
    """

    hints: ClassVar = ("place_workers",)  # where they are changes nothing of what they learn

    preload: ClassVar = (
        "pyarrow.dataset",
        "xxhash",
        "spanwise.input",
        "spanwise.components.rows",
        "spanwise.components.training.prepared_spans",
        "spanwise.components.transform.graph_digest",
        "spanwise.pipelines.input.sources",
    )

    def check(self) -> None:
        check_call(f"{self.name}.run_fn", self.parameters["run_fn"], "task")
        if not self.inputs["graph"]:
            _refuse_without_graph(self.name, self.inputs["examples"])
        elastic = isinstance(self.parameters["run_fn"], ElasticJob)
        for name, thing in (("workers", "worker"), ("replicas", "replica")):
            if not isinstance(number := self.parameters[name], int) or number < 1:
                raise PipelineError(f"{self.name} needs at least 1 {thing}; found {name}={number!r}.")
        if elastic and (replicas := self.parameters["replicas"]) != 1:
            raise PipelineError(f"{self.name} has an ElasticJob, which has workers: workers={replicas}.")
        if not elastic and self.parameters["place_workers"]:
            raise PipelineError(f"{self.name} has place_workers, and only an ElasticJob has workers. Leave it out.")
        if not elastic and (workers := self.parameters["workers"]) != 1:
            raise PipelineError(
                f"{self.name} has workers={workers}, and only an ElasticJob has workers. To call a function in several "
                f"processes at once: replicas={workers}."
            )

    @property
    def gang(self) -> Gang:
        if self.parameters["place_workers"]:
            return Gang(size=1 + typing.cast("int", self.parameters["workers"]), elastic=True)
        return Gang(size=typing.cast("int", self.parameters["replicas"]))

    def unread(self, run: Run) -> Sequence[str]:
        return ("base",) if run.from_scratch and self.parameters["warm_start"] == "except_backfill" else ()

    def run(
        self,
        *,
        examples: Input[list[Examples]],
        graph: Input[TransformGraph | None],
        base: Input[Model | None],
        model: Output[Model],
        attempt: Attempt,
        run_fn: Callable[[TrainerTask], None] | ElasticJob,
        parameters: Mapping[str, object] | None = None,
        weight: str | None = None,
        workers: int = 1,
        place_workers: bool = False,  # noqa: ARG002 -- `gang` reads it
        replicas: int = 1,  # noqa: ARG002 -- `gang` reads it
        warm_start: Literal["except_backfill", "always"] = "except_backfill",  # noqa: ARG002 -- `unread` reads it
        base_graph: Literal["same", "any"] = "same",
    ) -> None:
        if self.inputs["base"] and self.unread(attempt.run):
            log.info("base-ignored", extra={"reason": "the run trains from scratch"})
        from spanwise.components.training.prepared_spans import SnapshotTally
        from spanwise.components.training.training_input import TrainingInput
        from spanwise.components.transform.graph_digest import shared_digest

        attempt.checkpoints.mkdir(parents=True, exist_ok=True)
        tally = SnapshotTally()
        reads = TrainingInput(f"{attempt.run.pipeline}/{attempt.run.number} {self.name} attempt {attempt.number}")
        ordered = tuple(sorted(examples, key=lambda e: e.span))  # stable: one span keeps the order it came in
        digest = shared_digest(self.name, ordered, graph)
        if base is not None and base_graph == "same":
            _refuse_other_base(self.name, base, digest)
        if weight is not None and attempt.replica.rank == 0:
            from spanwise.components.training.row_weights import check_weights

            check_weights(self.name, ordered, weight)
        task = TrainerTask(
            examples=ExamplesWindow(
                artifacts=ordered, snapshots=attempt.snapshots, tally=tally, input=reads, weight=weight
            ),
            model_dir=model.path,
            checkpoints=attempt.checkpoints,
            graph=graph,
            base=base,
            parameters=dict(parameters or {}),
            workers=workers,
            rank=attempt.replica.rank,
            replicas=attempt.replica.count,
            coordinator=attempt.replica.coordinator if attempt.replica.port else "",
            attempt=attempt.number,
            commit_checkpoints=attempt.commit_checkpoints,
            place=attempt.replica,
            gather=attempt.replica.gather,
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
        name = getattr(run_fn, "__qualname__", type(run_fn).__qualname__)
        if reads.empty_passes:
            raise NodeFailed(
                f"{self.name}: run_fn {name} got no rows: each of its {reads.empty_passes} passes over its examples "
                f"was empty. Look at the filters of its datasets, and at the job_name of a data service."
            )
        if task.rank:
            return
        if not any(path.is_file() for path in model.path.rglob("*")):
            raise NodeFailed(
                f"{self.name}: run_fn {name} returned without writing a model; write its files below task.model_dir, "
                f"for example joblib.dump(fitted, task.model_dir / 'model.joblib')."
            )
        if graph is not None:
            _add_graph(self.name, name, graph, model)
        model.graph_digest = digest
        model.spans = list(task.spans)
        calendars = {e.calendar for e in ordered}
        model.calendar = calendars.pop() if len(calendars) == 1 else None
        model.base = base.name if base is not None else None
        model.snapshots = counts or None


def _refuse_without_graph(node: str, channels: Sequence[Channel]) -> None:
    """Refuses the features of a Transform without its graph: the model could not be served."""
    for channel in channels:
        source = published_channel(channel)
        outputs = source.producer.outputs.items() if source.producer is not None else ()
        key = next((key for key, output in outputs if issubclass(output.kind, TransformGraph)), None)
        if key is not None:
            raise PipelineError(
                f"{node} is trained on the features of {source.node}, and its model needs the graph that makes them: "
                f"graph={source.node.lower()}[{key!r}]."
            )


def _refuse_other_base(node: str, base: Model, digest: str | None) -> None:
    if base.graph_digest != digest:
        raise UnreadableInput(
            f"{node}: the base {base.name} was trained with another transform graph, so its weights are of other "
            "features. If run_fn maps the features of task.base (its graph is in task.base.path / 'graph'), pass "
            "base_graph='any'; otherwise train without a base."
        )


def _add_graph(node: str, run_fn: str, graph: TransformGraph, model: Model) -> None:
    """Copies the graph into the model, so that it is served raw examples."""
    from spanwise.components.transform.graph_digest import GRAPH, digest_of

    copy = model.path / GRAPH
    if not copy.exists():
        shutil.copytree(graph.path, copy)
    elif not copy.is_dir() or digest_of(copy) != digest_of(graph.path):
        raise NodeFailed(f"{node}: {run_fn} wrote `{GRAPH}` into the model, where the transform graph goes; rename it.")


def _call(run_fn: Callable[[TrainerTask], None] | ElasticJob, task: TrainerTask) -> None:
    if isinstance(run_fn, ElasticJob):
        from spanwise.components.training.elastic.training import join_job, run_job

        if task.rank:
            join_job(run_fn, task)
        else:
            run_job(run_fn, task)
    else:
        run_fn(task)
