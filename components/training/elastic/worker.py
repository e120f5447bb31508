"""The worker of an elastic job: takes batches from one dataset over all its tasks, computes, and reports.

for batch in dataset:                       # requests the next task before it yields the last batch of one
get_model()
report_gradient(gradient(model, batch))     or adds to the metrics, or to the predictions
after the last batch of a task: report_task()
"""

from __future__ import annotations

import io
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spanwise.components.training.elastic import requests
from spanwise.components.training.elastic.arrays import Arrays, pack, unpack
from spanwise.components.training.elastic.job import ElasticJob, refuse_other_metrics
from spanwise.components.training.elastic.phases import Phase, Phases
from spanwise.components.training.elastic.tasks import TaskKind, TaskLease
from spanwise.components.training.elastic.worker_input import TaskBatch, build_task_graph, rows_in, task_batches
from spanwise.orchestrator import process
from spanwise.orchestrator.code_meaning import CheckedShipment, unpack_checked
from spanwise.orchestrator.errors import ParameterError
from spanwise.orchestrator.logs import log_to_stderr
from spanwise.pipelines.input.ops.parquet import Parquet
from spanwise.pipelines.input.service.wire.connection import ServiceConnection, Unreachable
from spanwise.pipelines.input.service.wire.requests import Request, ServiceMessage
from spanwise.pipelines.input.service.wire.security import Security

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_S: Final = 1.0
"""How long the master may hold a request before it answers."""

PATIENCE: Final = 5
"""How often a request is sent before the master counts as gone."""

_Answer = TypeVar("_Answer", bound=ServiceMessage)


@dataclass(frozen=True, kw_only=True)
class MasterConnection:
    """Who a worker is, and how it reaches its master."""

    worker: str
    target: str  #: the master's address
    security: Security


@dataclass(frozen=True, kw_only=True)
class Assignment(MasterConnection):
    """The input of a worker process."""

    readings: Mapping[TaskKind, Parquet]  #: the rows of the splits
    job: CheckedShipment


class MasterClient:
    """A connection of one worker to the master."""

    def __init__(self, worker: str, target: str, security: Security) -> None:
        self.worker = worker
        self._connection = ServiceConnection(target, security)

    def ask(self, request: Request[_Answer], content: bytes = b"") -> tuple[_Answer, bytes]:
        """Sends a request, again if there is no answer: the master recognises repeated reports.

        Raises:
            Unreachable: there was no answer.
        """
        for left in reversed(range(PATIENCE)):
            try:
                return self._connection.ask(request, content)
            except Unreachable:
                if not left:
                    raise
        raise AssertionError("the last attempt raises")

    def next_lease(self) -> TaskLease | None:
        """Waits for the next task; None when the job is over."""
        while True:
            found, _ = self.ask(requests.GetTask(worker=self.worker, wait_s=WAIT_S))
            if found.lease is not None and found.task is not None:
                return TaskLease(
                    task=found.task, number=found.lease, worker=self.worker, until_s=0.0, counted=found.counted
                )
            if found.is_over:
                return None

    def close(self) -> None:
        self._connection.close()


class PredictionFile:
    """Predictions as an Arrow file in memory. It holds copies: a function may return each batch in one buffer."""

    def __init__(self) -> None:
        self._sink = io.BytesIO()
        self._writer: pa.RecordBatchFileWriter | None = None

    def add(self, predictions: pa.RecordBatch) -> None:
        import pyarrow as pa

        self._writer = self._writer or pa.ipc.new_file(self._sink, predictions.schema)
        self._writer.write_batch(predictions)

    def close(self) -> bytes:
        """The bytes of the file; none if nothing was predicted."""
        if self._writer is not None:
            self._writer.close()
        return self._sink.getvalue()


@dataclass
class TaskProgress:
    """The results of the current task so far."""

    rows: int = 0
    batches: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    predictions: PredictionFile = field(default_factory=PredictionFile)


class TrainingWorker:
    """The loop of one worker, in this process."""

    def __init__(self, job: ElasticJob, readings: Mapping[TaskKind, Parquet], client: MasterClient) -> None:
        self.phases = Phases()  #: of the whole run
        self._job = job
        self._readings = readings
        self._client = client
        self._reported = Phases()  # the part that the master has received
        self._progress = TaskProgress()
        self._dropped = 0  # the lease whose remaining batches are ignored
        self._contributed = -1  # the newest version with a gradient of this worker
        self._current: tuple[int, Arrays] = (-1, {})
        self._evaluated: tuple[int, Arrays] = (-1, {})
        self._is_over = False

    def run(self) -> Phases:
        """Runs until the job is over."""
        graphs = {
            kind: build_task_graph(each, self._job.dataset_fn, self._job.seed, in_order=self._job.predict is not None)
            for kind, each in self._readings.items()
        }
        with task_batches(graphs, self._client.next_lease, self._job.ahead).iterator() as batches:
            while not self._is_over:
                with self.phases.during(Phase.GET_BATCH):
                    batch: TaskBatch | None = next(batches, None)
                if batch is None:
                    break
                if batch.lease.number != self._dropped:
                    self._take(batch)
        return self.phases

    def _take(self, batch: TaskBatch) -> None:
        try:
            if batch.error is not None:
                raise batch.error  # noqa: TRY301  handled as an error of the computation
            if batch.is_end:
                self._finish(batch)
            else:
                self._step(batch)
        except Unreachable:
            raise
        except Exception as error:  # noqa: BLE001  the user's functions may raise anything
            self._fail(batch.lease, error)

    def _step(self, batch: TaskBatch) -> None:
        match batch.lease.task.kind:
            case TaskKind.TRAINING:
                self._train(batch)
            case TaskKind.EVALUATION:
                self._evaluate(batch)
            case TaskKind.PREDICTION:
                self._predict(batch)
        self._progress.batches += 1
        self.phases.batches += 1

    def _train(self, batch: TaskBatch) -> None:
        lease, rows = batch.lease, rows_in(batch.batch)
        assert self._job.gradient is not None, "a job with training tasks has gradient"
        while not self._is_over:
            with self.phases.during(Phase.GET_MODEL):
                version, parameters = self._newest()
            with self.phases.during(Phase.COMPUTE):
                gradient = self._job.gradient(parameters, batch.batch)
            with self.phases.during(Phase.REPORT):
                layout, content = pack(gradient)
                report = requests.ReportGradient(
                    worker=self._client.worker,
                    task=lease.task.number,
                    lease=lease.number,
                    batch=batch.number,
                    version=version,
                    rows=rows,
                    layout=layout,
                )
                receipt, _ = self._client.ask(report, content)
            if receipt.answer == "taken":
                self._contributed = version
                self._progress.rows += rows
                return
            if receipt.answer == "lost":
                self._drop(lease)
                return

    def _newest(self) -> tuple[int, Arrays]:
        """The current parameters; waits for the next version if this worker has contributed to the current one."""
        while not self._is_over:
            have = self._current[0]
            newer = have <= self._contributed
            request = requests.GetModel(worker=self._client.worker, have=have, newer=newer, wait_s=WAIT_S)
            model, content = self._client.ask(request)
            if model.version is not None and model.layout is not None:
                self._current = (model.version, unpack(model.layout, content))
            else:
                self._is_over = model.is_over
            if self._current[0] > self._contributed:
                break
        return self._current

    def _evaluate(self, batch: TaskBatch) -> None:
        assert self._job.evaluate is not None, "a job with evaluation tasks has evaluate"
        version = batch.lease.task.version
        with self.phases.during(Phase.GET_MODEL):
            if self._evaluated[0] != version:
                model, content = self._client.ask(requests.GetModel(worker=self._client.worker, version=version))
                if model.layout is None:  # other workers have finished it
                    self._drop(batch.lease)
                    return
                self._evaluated = (version, unpack(model.layout, content))
        with self.phases.during(Phase.COMPUTE):
            metrics = self._job.evaluate(self._evaluated[1], batch.batch)
        rows, sums = rows_in(batch.batch), self._progress.sums
        if not rows:
            return
        if self._progress.rows:
            refuse_other_metrics(sums, metrics)
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + float(value) * rows
        self._progress.rows += rows

    def _predict(self, batch: TaskBatch) -> None:
        assert self._job.predict is not None, "a job with prediction tasks has predict"
        with self.phases.during(Phase.GET_MODEL):
            _, parameters = self._newest() if self._current[0] < 0 else self._current
        with self.phases.during(Phase.COMPUTE):
            predictions = _as_batch(self._job.predict(parameters, batch.batch), batch.batch)
        rows = rows_in(batch.batch)
        if predictions.num_rows != rows:
            raise ParameterError(
                f"predict returned {predictions.num_rows} rows for a batch of {rows}: return one for each, in the same "
                "order. To leave rows out, filter them in dataset_fn."
            )
        self._progress.predictions.add(predictions)
        self._progress.rows += rows

    def _finish(self, batch: TaskBatch) -> None:
        """Reports the task, whose last batch has been computed."""
        if batch.number < batch.lease.counted:
            raise ValueError(
                f"dataset_fn made {batch.number} batches of the task, but at least {batch.lease.counted} in another "
                "worker before; it must make the same batches every time."
            )
        progress, self._progress = self._progress, TaskProgress()
        with self.phases.during(Phase.REPORT):
            report = requests.ReportTask(
                worker=self._client.worker,
                task=batch.lease.task.number,
                lease=batch.lease.number,
                batches=progress.batches,
                rows=progress.rows,
                metrics=progress.sums,
                seconds={phase: spent - self._reported.seconds[phase] for phase, spent in self.phases.seconds.items()},
            )
            self._client.ask(report, progress.predictions.close())
        self._reported = Phases(self.phases.seconds)

    def _fail(self, lease: TaskLease, error: Exception) -> None:
        self._drop(lease)
        failure = requests.ReportFailure(
            worker=self._client.worker,
            task=lease.task.number,
            lease=lease.number,
            message=f"{type(error).__name__}: {error}"[:2_000],
            trace="".join(traceback.format_exception(error))[-8_000:],
        )
        self._client.ask(failure)

    def _drop(self, lease: TaskLease) -> None:
        """Ignores the remaining batches of a lease."""
        self._dropped = lease.number
        self._progress = TaskProgress()


def _as_batch(predictions: Any, given: object) -> pa.RecordBatch:
    import pyarrow as pa

    from spanwise.components.predictions import refuse_other_order

    refuse_other_order("predict", predictions, given)
    if isinstance(predictions, pa.RecordBatch):
        return predictions
    named = dict(predictions)
    for values in named.values():
        refuse_other_order("predict", values, given)
    return pa.RecordBatch.from_pydict(named)


class WorkerPulse:
    """Sends heartbeats while the worker computes."""

    def __init__(self, client: MasterClient, every_s: float) -> None:
        self._client = client
        self._every_s = every_s
        self._over = threading.Event()
        threading.Thread(target=self._beat, name="elastic-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self._client.ask(requests.JobHeartbeat(worker=self._client.worker))
            except Unreachable:
                return  # the loop fails by itself

    def close(self) -> None:
        self._over.set()


def run_worker(assignment: Assignment) -> None:
    """Runs one worker until the job is over.

    Raises:
        Unreachable: the master is gone.
        LoadError: the code of the job means something else here.
    """
    job = unpack_checked(assignment.job)
    assert isinstance(job, ElasticJob), "sent by the master"
    work(job, assignment, assignment.readings)


def work(job: ElasticJob, to: MasterConnection, readings: Mapping[TaskKind, Parquet]) -> None:
    """Does the tasks of a job in this process until the job is over.

    Raises:
        Unreachable: the master is gone.
    """

    def client() -> MasterClient:
        return MasterClient(to.worker, to.target, to.security)

    with closing(client()) as own, closing(client()) as pulse, closing(WorkerPulse(pulse, job.lease_s / 3)):
        TrainingWorker(job, readings, own).run()


def main(parent: int) -> None:
    """The program of a worker process: reads its assignment from standard input; dies with its parent."""
    import pickle

    process.die_with_parent(parent)
    log_to_stderr()
    assignment = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  from our parent
    run_worker(assignment)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without joining threads that wait for the next task
