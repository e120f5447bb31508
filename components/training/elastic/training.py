"""The run of an elastic job: its tasks, its master and its worker processes."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spanwise.components import rows
from spanwise.components.training.elastic.job import ElasticJob, ElasticOutcome, JobKind
from spanwise.components.training.elastic.master import Master
from spanwise.components.training.elastic.tasks import JobPlan, ShardTask, TaskKind
from spanwise.components.training.elastic.worker import Assignment, MasterConnection, work
from spanwise.components.training.elastic.worker_input import build_task_graph
from spanwise.components.training.elastic.worker_processes import GRACE_S, WorkerProcesses
from spanwise.orchestrator.code_meaning import ship_checked
from spanwise.orchestrator.errors import NodeFailed, ParameterError
from spanwise.orchestrator.replica import Gather
from spanwise.pipelines.input.ops.parquet import Parquet
from spanwise.pipelines.input.service.wire.security import Security

if TYPE_CHECKING:
    from spanwise.components.training.trainer_task import TrainerTask


@dataclass(frozen=True, kw_only=True)
class MasterAddress:
    """What a worker needs to connect to its master."""

    target: str
    security: Security = field(repr=False)


POLL_S: Final = 0.05
"""How often the workers are checked."""

RESTARTS: Final = 3
"""The number of restarts for each worker."""

log = logging.getLogger("spanwise.training.elastic")


def run_job(job: ElasticJob, task: TrainerTask) -> ElasticOutcome:
    """Runs the job in `task.workers` processes, from its last checkpoint if there is one, and saves the model.

    Raises:
        NodeFailed: a task failed too often, or the workers died too often.
        ParameterError: a split or column is missing, or a function cannot be sent to another process.
    """
    readings = readings_of(job, task)
    for reading in readings.values():
        # raises before anything is started
        build_task_graph(reading, job.dataset_fn, job.seed, in_order=job.predict is not None)
    with Master(
        job, plan_of(job, readings), lambda: job.init(task), task.checkpoints / "elastic", _describer(readings),
        host=task.place.host, commit=task.commit_checkpoints,
    ) as master:  # fmt: skip
        if master.is_resumed:
            facts = {"version": master.parameters.version, "tasks_done": master.table.done.total()}
            log.info("job-resumed", extra=facts)
        if task.place.count > 1:
            _serve_placed(master, task.place.gather)
        else:
            _run_beside(master, job, readings, task.workers)
        outcome = master.outcome()
        master.save()
        log.info("job-finished", extra=_facts_of(master, job, task.workers))
    for each in outcome.evaluations:
        log.info("version-evaluated", extra={"version": each.version, "metrics": each.metrics})
    job.save(task, outcome)
    return outcome


def join_job(job: ElasticJob, task: TrainerTask) -> None:
    """Works for the master of this job, wherever that is, until the job is over.

    Raises:
        Unreachable: the master is gone.
    """
    (master,) = task.place.gather(None)
    if master is None:
        return  # it was over before this worker had begun
    assert isinstance(master, MasterAddress), "said by the master"
    name = worker_name(task.place.rank, task.place.start)
    log.info("worker-joined", extra={"worker": name, "master": master.target})
    work(job, MasterConnection(worker=name, target=master.target, security=master.security), readings_of(job, task))


def _serve_placed(master: Master, announce: Gather) -> None:
    """Serves workers that the executor places and replaces; the successor of a worker says that it has died."""
    announce(MasterAddress(target=master.target, security=master.security))
    newest: dict[str, str] = {}
    while not master.wait(POLL_S):
        master.tick()
        for name in sorted(master.workers):
            place = name.partition(" (")[0]
            before = newest.get(place)
            if before is None or _start_of(name) > _start_of(before):
                newest[place] = name
                if before is not None:
                    master.lose(before)
    announce(None)
    master.wait_informed(GRACE_S)


def worker_name(rank: int, start: int) -> str:
    """As `WorkerProcesses` names them: `worker 1`, and its successors `worker 1 (2)`."""
    return f"worker {rank}" + (f" ({start})" if start > 1 else "")


def _start_of(name: str) -> int:
    return int(name.partition(" (")[2].rstrip(")") or 1)


def _run_beside(master: Master, job: ElasticJob, readings: Mapping[TaskKind, Parquet], workers: int) -> None:
    """Runs workers in processes of this machine, below this one."""
    shipment = ship_checked(job)

    def input_of(name: str, place: int) -> bytes:  # noqa: ARG001  the same for all
        return pickle.dumps(
            Assignment(worker=name, target=master.target, security=master.security, readings=readings, job=shipment)
        )

    program = "from spanwise.components.training.elastic.worker import main; main(parent)"
    with WorkerProcesses(program, input_of) as processes:
        _supervise(master, processes, workers)
        processes.stop(GRACE_S)


def readings_of(job: ElasticJob, task: TrainerTask) -> dict[TaskKind, Parquet]:
    """The reader of the rows for each kind of task."""
    kinds = {
        JobKind.TRAINING_ONLY: {TaskKind.TRAINING: job.split},
        JobKind.TRAINING_WITH_EVALUATION: {TaskKind.TRAINING: job.split, TaskKind.EVALUATION: job.evaluation_split},
        JobKind.EVALUATION_ONLY: {TaskKind.EVALUATION: job.evaluation_split},
        JobKind.PREDICTION_ONLY: {TaskKind.PREDICTION: job.split},
    }
    readings = {}
    for kind, split in kinds[job.kind].items():
        reading = rows.open_dataset(task.examples, split, task.examples.with_weight(job.columns)).op
        assert isinstance(reading, Parquet), "examples are Parquet"
        if not reading.groups:
            raise ParameterError(f"the split {split!r} has no rows for {kind} tasks.")
        readings[kind] = reading
    return readings


def plan_of(job: ElasticJob, readings: Mapping[TaskKind, Parquet]) -> JobPlan:
    """The plan of a job over these rows."""
    return JobPlan(
        **{str(kind): tuple(group.rows for group in reading.groups) for kind, reading in readings.items()},
        task_rows=job.task_rows,
        epochs=job.epochs,
        evaluate_every=job.evaluate_every,
        seed=job.seed,
        lease_s=job.lease_s,
        max_failures=job.max_failures,
    )


def _supervise(master: Master, processes: WorkerProcesses, workers: int) -> None:
    """Runs workers until the job is over; replaces those that die, until too many have died."""
    for place in range(workers):
        processes.start(place)
    restarts = RESTARTS * workers
    while not master.wait(POLL_S):
        master.tick()
        for exited in processes.poll():
            tasks = master.lose(exited.name)
            numbers = ", ".join(str(task.number) for task in tasks) or "none"
            log.warning("worker-died", extra={"worker": exited.name, "reason": exited.reason, "tasks": numbers})
            if restarts and not master.is_over:
                restarts -= 1
                processes.start(exited.place)
            elif not processes.running and not master.is_over:
                raise NodeFailed(
                    f"{len(master.lost)} workers died, and no more are started; the last, {exited.name}, "
                    f"{exited.reason} with the tasks {numbers}. Their output is in the log of this node. If memory ran "
                    "out, use fewer workers or smaller batches."
                )


def _describer(readings: Mapping[TaskKind, Parquet]) -> Callable[[ShardTask], str]:
    def describe(task: ShardTask) -> str:
        group = readings[task.kind].groups[task.shard]
        return f"rows {task.start} to {task.stop - 1} of row group {group.number} of {group.path}"

    return describe


def _facts_of(master: Master, job: ElasticJob, workers: int) -> dict[str, object]:
    """The work done."""
    return {
        "job": job.kind,
        "workers": workers,
        "lost": len(master.lost),
        "tasks": dict(master.table.done),
        "epochs": master.table.epoch,
        "steps": master.parameters.version,
        "stale_gradients": master.stale,
        "refused_reports": master.refused,
        "phases": master.phases,
    }
