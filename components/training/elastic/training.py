"""A training by several workers: the job cut into tasks, a master, and a crew that does them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from spanwise.components import rows
from spanwise.components.shipped_function import packed
from spanwise.components.training.elastic.job import ElasticJob, ElasticOutcome, JobKind
from spanwise.components.training.elastic.master import Master
from spanwise.components.training.elastic.tasks import Kind, Plan, Task
from spanwise.components.training.elastic.worker import Assignment
from spanwise.components.training.elastic.worker_input import body
from spanwise.components.training.elastic.worker_processes import GRACE_S, Crew
from spanwise.orchestrator.errors import NodeFailed, ParameterError
from spanwise.pipelines.input.ops.parquet import Parquet

if TYPE_CHECKING:
    from spanwise.components.training.trainer import TrainerTask

POLL_S: Final = 0.05
"""How often it is looked whether a worker has died."""

RESTARTS: Final = 3
"""How many successors each worker may have."""

log = logging.getLogger("spanwise.elastic")


def trained(job: ElasticJob, task: TrainerTask) -> ElasticOutcome:
    """Does the job with `task.workers` processes, goes on where an earlier attempt was, and saves the model.

    Raises:
        NodeFailed: a task failed too often, or the workers died too often.
        ParameterError: the splits or columns are not there, or a function cannot be sent to another process.
    """
    readings = readings_of(job, task)
    for reading in readings.values():
        body(reading, job.dataset_fn, job.seed)  # what is wrong with it is said before anything is started
    parcel = packed(job, job.functions)
    with Master(
        job, plan_of(job, readings), lambda: job.init(task), task.checkpoints / "elastic", _describing(readings)
    ) as master:

        def input_of(name: str, place: int) -> bytes:  # noqa: ARG001  all do the same
            return pickle.dumps(
                Assignment(worker=name, target=master.target, security=master.security, readings=readings, job=parcel)
            )

        if master.is_resumed:
            log.info("going on at version %d, with %d tasks done", master.parameters.version, master.table.done.total())
        program = "from spanwise.components.training.elastic.worker import main; main(parent)"
        with Crew(program, input_of) as crew:
            _work(master, crew, task.workers)
            crew.end(GRACE_S)
        outcome = master.outcome()
        master.save()
        log.info("%s", _report(master, job, task.workers))
    for found in outcome.evaluations:
        log.info("version %d: %s", found.version, ", ".join(f"{k} {v:.6g}" for k, v in found.metrics.items()))
    job.save(task, outcome)
    return outcome


def readings_of(job: ElasticJob, task: TrainerTask) -> dict[Kind, Parquet]:
    """What reads the rows of each kind of task."""
    kinds = {
        JobKind.TRAINING_ONLY: {Kind.TRAINING: job.split},
        JobKind.TRAINING_WITH_EVALUATION: {Kind.TRAINING: job.split, Kind.EVALUATION: job.evaluation_split},
        JobKind.EVALUATION_ONLY: {Kind.EVALUATION: job.evaluation_split},
        JobKind.PREDICTION_ONLY: {Kind.PREDICTION: job.split},
    }
    found = {}
    for kind, split in kinds[job.kind].items():
        reading = rows.dataset(task.examples, split, job.columns).op
        assert isinstance(reading, Parquet), "examples are Parquet"
        if not reading.groups:
            raise ParameterError(f"the split {split!r} has no rows, so there is nothing for {kind} tasks to do.")
        found[kind] = reading
    return found


def plan_of(job: ElasticJob, readings: Mapping[Kind, Parquet]) -> Plan:
    """The tasks of a job over these rows."""
    return Plan(
        **{str(kind): tuple(group.rows for group in reading.groups) for kind, reading in readings.items()},
        task_rows=job.task_rows,
        epochs=job.epochs,
        evaluate_every=job.evaluate_every,
        seed=job.seed,
        lease_s=job.lease_s,
        max_failures=job.max_failures,
    )


def _work(master: Master, crew: Crew, workers: int) -> None:
    """Until the job is over; who dies is followed by another, until too many have died."""
    for place in range(workers):
        crew.start(place)
    left = RESTARTS * workers
    while not master.wait(POLL_S):
        master.tick()
        for gone in crew.gone():
            tasks = master.lose(gone.name)
            numbers = ", ".join(str(task.number) for task in tasks) or "none"
            log.warning("%s %s; its tasks go to others: %s", gone.name, gone.how, numbers)
            if left and not master.is_over:
                left -= 1
                crew.start(gone.place)
            elif not crew.members and not master.is_over:
                raise NodeFailed(
                    f"{len(master.lost)} workers died, and no more are started; the last, {gone.name}, {gone.how} with "
                    f"the tasks {numbers}. If the memory ran out, take fewer workers or smaller batches. Their last "
                    f"words are in the log of this node."
                )


def _describing(readings: Mapping[Kind, Parquet]) -> Callable[[Task], str]:
    def describe(task: Task) -> str:
        group = readings[task.kind].groups[task.shard]
        return f"rows {task.start} to {task.stop - 1} of row group {group.number} of {group.path}"

    return describe


def _report(master: Master, job: ElasticJob, workers: int) -> str:
    """What was done and by whom, in one line."""
    table = master.table
    tasks = ", ".join(f"{count} {kind}" for kind, count in table.done.items())
    return (
        f"{job.kind} with {workers} workers ({len(master.lost)} lost): {tasks} tasks, "
        f"{table.epoch} epochs, {master.parameters.version} steps, {master.stale} gradients too old, "
        f"{master.refused} reports refused; {master.phases}"
    )
