"""The master: hands out tasks to workers, holds the parameters, and saves both together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spanwise.components.training.elastic import checkpoint
from spanwise.components.training.elastic import requests as ask
from spanwise.components.training.elastic.arrays import Arrays, pack, unpack
from spanwise.components.training.elastic.job import ElasticJob, ElasticOutcome, VersionMetrics, refuse_other_metrics
from spanwise.components.training.elastic.master_security import clients_of, secure
from spanwise.components.training.elastic.parameters import Contribution, Parameters
from spanwise.components.training.elastic.phases import Phases
from spanwise.components.training.elastic.tasks import JobPlan, ShardTask, TaskKind, TaskTable
from spanwise.orchestrator.errors import NodeFailed, ParameterError, ServiceError
from spanwise.orchestrator.signature import stay_here
from spanwise.pipelines.input.service.wire.server import Answer, FlightServer, Serving

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_BYTES: Final = 1 << 30
"""The limit of a request: the gradient of one batch, or the predictions of one task."""

_log = logging.getLogger("spanwise.training.elastic")


class Master(Serving):
    """The server of one job, in this process. Workers connect with `target` and `security`; one lock guards it."""

    def __init__(
        self,
        job: ElasticJob,
        plan: JobPlan,
        init: Callable[[], Arrays],
        folder: Path,
        describe: Callable[[ShardTask], str] = str,
        clock: Callable[[], float] = time.monotonic,
        *,
        host: str = "127.0.0.1",
        commit: Callable[[], None] = stay_here,
    ) -> None:
        """Starts the job, or resumes it from the checkpoint in `folder`.

        `init` returns the first parameters; `describe` names the rows of a task in messages;
        `clock` times leases and checkpoints. At another host than the loopback it speaks TLS; `commit` is called when
        there is another checkpoint.
        """
        super().__init__()
        self.predictions = folder / "predictions"
        self.predictions.mkdir(parents=True, exist_ok=True)
        self.phases = Phases()  #: the sum over all workers
        self.workers: set[str] = set()  #: all that have requested a task
        self._informed: set[str] = set()  # those that know that the job is over
        self._commit = commit
        self.lost: list[str] = []  #: workers that died before the end
        self.refused = 0  #: reports under a lease that had expired
        self.stale = 0  #: gradients that were too old
        self._describe = describe
        self._clock = clock
        self._path = folder / "job"
        self._checkpoint_s = job.checkpoint_s
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        saved = checkpoint.read(self._path)
        table = None if saved is None else TaskTable.restored(plan, saved[0]["table"])
        self.is_resumed = table is not None  #: whether it continues from a checkpoint
        self.table = table or TaskTable(plan)
        if not self.is_resumed:
            for file in self.predictions.iterdir():
                file.unlink()
        facts, arrays = saved if saved is not None and table is not None else ({}, _add_prefix("p", init()))
        self.parameters = Parameters(
            _with_prefix(arrays, "p"),
            job.apply,
            grads_to_wait=job.grads_to_wait,
            max_staleness=job.max_staleness,
            version=facts.get("version", 0),
            waiting=[
                Contribution(worker=worker, rows=rows, gradient=_with_prefix(arrays, f"g{at}"))
                for at, (worker, rows) in enumerate(facts.get("waiting", ()))
            ],
        )
        #: by evaluated version: the sums of metrics, and their rows
        self._metrics: dict[int, tuple[dict[str, float], int]] = {
            version: (sums, rows) for version, sums, rows in facts.get("metrics", ())
        }
        self._models = {  # by version that is being evaluated
            version: _with_prefix(arrays, f"m{version}") if facts else self.parameters.values
            for version in self.table.versions()
        }
        self._saved_at = self._clock()
        security = secure(host)
        self.security = clients_of(security)  #: what workers present, and whom they trust
        self._server = FlightServer(
            host,
            0,
            security,
            actions={
                ask.GetTask.kind: (ask.GetTask, self._get_task),
                ask.JobHeartbeat.kind: (ask.JobHeartbeat, self._heartbeat),
                ask.GetModel.kind: (ask.GetModel, self._get_model),
                ask.ReportGradient.kind: (ask.ReportGradient, self._report_gradient),
                ask.ReportTask.kind: (ask.ReportTask, self._report_task),
                ask.ReportFailure.kind: (ask.ReportFailure, self._report_failure),
            },
            limit_bytes=MOST_BYTES,
        )
        self.target = self._server.target

    def stop(self) -> None:
        """Stops serving. The checkpoint stays."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
        self._server.shutdown()

    # For the Trainer

    @property
    def is_over(self) -> bool:
        """Whether the job has finished, failed or been stopped."""
        return self._closed.is_set() or self._failure is not None or self.table.is_finished

    def wait(self, timeout_s: float) -> bool:
        """Waits until the job is over, at most `timeout_s`; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, timeout_s)

    def wait_informed(self, timeout_s: float) -> None:
        """Waits until each worker that is left knows that the job is over, at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self.workers - set(self.lost) <= self._informed, timeout_s)

    def lose(self, worker: str) -> tuple[ShardTask, ...]:
        """Puts back the tasks of a worker that died, and returns them."""
        with self._changed:
            self.lost.append(worker)
            tasks = self.table.lose(worker)
            self._advance()
        return tasks

    def tick(self) -> None:
        """Does what is due by the clock: puts back the tasks of silent workers, and saves the job."""
        now = self._clock()
        with self._changed:
            tasks = self.table.expire(now)
            if tasks:
                _log.warning("lease-expired", extra={"tasks": [task.number for task in tasks]})
                self._advance()
        if now >= self._saved_at + self._checkpoint_s:
            self.save()

    def save(self) -> None:
        """Writes a checkpoint, from which a master on the same folder resumes."""
        with self._changed:
            self._saved_at = self._clock()
            model = self.parameters
            facts = {
                "table": self.table.state(),
                "version": model.version,
                "waiting": [(each.worker, each.rows) for each in model.waiting],
                "metrics": [(version, *metrics) for version, metrics in self._metrics.items()],
            }
            arrays = _add_prefix("p", model.values)
            for at, each in enumerate(model.waiting):
                arrays |= _add_prefix(f"g{at}", each.gradient)
            for version, values in self._models.items():
                arrays |= _add_prefix(f"m{version}", values)
        checkpoint.write(self._path, facts, arrays)
        self._commit()

    def outcome(self) -> ElasticOutcome:
        """The result of the job.

        Raises:
            NodeFailed: a task failed too often.
            Exception: raised by `apply`.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            evaluations = [
                VersionMetrics(version=version, rows=rows, metrics={name: sum_ / rows for name, sum_ in sums.items()})
                for version, (sums, rows) in sorted(self._metrics.items())
                if rows
            ]
            return ElasticOutcome(
                parameters=self.parameters.values,
                version=self.parameters.version,
                evaluations=evaluations,
                predictions=self.predictions,
            )

    def _advance(self) -> None:
        """Applies the gradients and adds the evaluations that are due, and wakes waiting requests."""
        table, model = self.table, self.parameters
        try:
            is_new = True
            while is_new:
                is_new = model.advance(table.trainers())
                if table.evaluate_if_due(model.version):
                    self._models[model.version] = model.values
        except Exception as error:  # noqa: BLE001  an error of `apply` ends the job and is raised by `outcome`
            self._failure = self._failure or error
        for version in self._models.keys() - table.versions():
            del self._models[version]
        self._changed.notify_all()

    # Requests of workers

    def _get_task(self, request: ask.GetTask, _: bytes) -> Answer:
        deadline = time.monotonic() + request.wait_s
        with self._changed:
            self.workers.add(request.worker)
            self.table.renew(request.worker, self._clock())
            while not self.is_over:
                lease = self.table.take(request.worker, self._clock())
                if lease is not None:
                    return ask.LeasedTask(lease=lease.number, counted=lease.counted, task=lease.task), b""
                if not self._changed.wait(deadline - time.monotonic()):
                    break
            if self.is_over:
                self._informed.add(request.worker)
                self._changed.notify_all()
            return ask.LeasedTask(is_over=self.is_over), b""

    def _heartbeat(self, request: ask.JobHeartbeat, _: bytes) -> Answer:
        with self._changed:
            self.table.renew(request.worker, self._clock())
            return ask.ElasticJobState(is_over=self.is_over), b""

    def _get_model(self, request: ask.GetModel, _: bytes) -> Answer:
        with self._changed:
            model = self.parameters
            if request.newer:
                self._changed.wait_for(lambda: model.version > request.have or self.is_over, request.wait_s)
            version = model.version if request.version is None else request.version
            values = model.values if version == model.version else self._models.get(version)
        if values is None:  # its evaluation has ended
            return ask.SharedModel(), b""
        if version == request.have:
            return ask.SharedModel(version=version, is_over=self.is_over), b""
        layout, content = pack(values)
        return ask.SharedModel(version=version, layout=layout), content

    def _report_gradient(self, request: ask.ReportGradient, content: bytes) -> Answer:
        gradient = unpack(request.layout, content)
        with self._changed:
            if self.table.held(request.task, request.lease) is None:
                self.refused += 1
                return ask.Receipt(answer="lost"), b""
            self.table.renew(request.worker, self._clock())
            expected = self.table.next_batch(request.task)
            if request.batch > expected:
                raise ServiceError(f"received batch {request.batch} of task {request.task} before batch {expected}.")
            if request.batch == expected:  # else it is repeated: its sender got no answer
                contribution = Contribution(worker=request.worker, rows=max(1, request.rows), gradient=gradient)
                if not self.parameters.offer(contribution, request.version):
                    self.stale += 1
                    return ask.Receipt(answer="stale"), b""
                self.table.count(request.task, request.lease)
                self._advance()
            return ask.Receipt(answer="taken"), b""

    def _report_task(self, request: ask.ReportTask, content: bytes) -> Answer:
        with self._changed:
            self.phases += Phases(request.seconds, request.batches)
            held = self.table.held(request.task, request.lease)
            try:
                if held is not None:  # else it is late, or repeated
                    self._add_results(held.task, request, content)
            except ParameterError as error:  # it ends the job and is raised by `outcome`
                self._failure = self._failure or error
            if not self.table.finish(request.task, request.lease):
                self.refused += 1
                return ask.Receipt(answer="lost"), b""
            self._advance()
            return ask.Receipt(answer="taken"), b""

    def _add_results(self, task: ShardTask, request: ask.ReportTask, content: bytes) -> None:
        if task.kind is TaskKind.EVALUATION:
            sums, rows = self._metrics.get(task.version, ({}, 0))
            if rows and request.rows:
                refuse_other_metrics(sums, request.metrics)
            more = {name: sums.get(name, 0.0) + sum_ for name, sum_ in request.metrics.items()}
            self._metrics[task.version] = ({**sums, **more}, rows + request.rows)
        if task.kind is TaskKind.PREDICTION and content:
            draft = self.predictions / f"{task.number:08}.draft"
            draft.write_bytes(content)
            draft.replace(draft.with_suffix(".arrow"))

    def _report_failure(self, request: ask.ReportFailure, _: bytes) -> Answer:
        with self._changed:
            if not self.table.fail(request.task, request.lease):
                self.refused += 1
                return ask.Receipt(answer="lost"), b""
            _log.warning(
                "task-failed",
                extra={"task": request.task, "worker": request.worker, "reason": request.message},
            )
            task = self.table.given_up
            if task is not None and self._failure is None:
                self._failure = NodeFailed(
                    f"task {task.number}, {task.kind} on {self._describe(task)}, failed "
                    f"{self.table.plan.max_failures + 1} times and was given up; the last failure was in worker "
                    f"{request.worker}: {request.message}\n{request.trace}".rstrip()
                )
            self._advance()
            return ask.Receipt(answer="taken"), b""


def _add_prefix(prefix: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    return {f"{prefix}/{name}": value for name, value in arrays.items()}


def _with_prefix(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays whose names have the prefix, without it."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in arrays.items() if name.startswith(f"{prefix}/")}
