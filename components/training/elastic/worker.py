"""The worker: takes batches from one dataset over all its tasks, computes, and reports what the master asked for.

for batch in dataset:                       # asks for the next task before it has given the last batch of one
get_model()
report_gradient(gradient(model, batch))     or adds to the metrics, or to the predictions
if the task ends with it: report_task()
"""

from __future__ import annotations

import io
import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from spanwise.components.shipped_function import Parcel, opened
from spanwise.components.training.elastic.arrays import Arrays, packed, unpacked
from spanwise.components.training.elastic.job import ElasticJob
from spanwise.components.training.elastic.phases import Phase, Phases
from spanwise.components.training.elastic.tasks import Kind, Lease, Task
from spanwise.components.training.elastic.worker_input import Piece, body, rows_in, shared
from spanwise.orchestrator import process
from spanwise.pipelines.input.ops.parquet import Parquet
from spanwise.pipelines.input.service.wire.connection import Connection, Unreachable
from spanwise.pipelines.input.service.wire.security import Security

WAIT_S: Final = 1.0
"""How long an answer of the master may wait for what was asked."""

PATIENCE: Final = 5
"""How often a request that nobody answers is made again."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a worker is started with."""

    worker: str
    target: str  #: the master's address
    security: Security
    readings: Mapping[Kind, Parquet]  #: the rows of the splits
    job: Parcel


class Client:
    """The master, as a worker sees it."""

    def __init__(self, worker: str, target: str, security: Security) -> None:
        self.worker = worker
        self._connection = Connection(target, security)

    def call(self, kind: str, content: bytes = b"", **header: object) -> tuple[Any, bytes]:
        """Asks, and asks again if there is no answer: the master knows a report that comes twice.

        Raises:
            Unreachable: there was none.
        """
        for left in reversed(range(PATIENCE)):
            try:
                return self._connection.call(kind, {"worker": self.worker, **header}, content)
            except Unreachable:
                if not left:
                    raise
        raise AssertionError("the last time it raises")

    def next_lease(self) -> Lease | None:
        """Waits for a task; None when the job is over."""
        while True:
            found, _ = self.call("get_task", wait_s=WAIT_S)
            if found["lease"] is not None:
                number, kind, shard, start, stop, epoch, version = found["task"]
                task = Task(
                    number=number, kind=Kind(kind), shard=shard, start=start, stop=stop, epoch=epoch, version=version
                )
                return Lease(
                    task=task, number=found["lease"], worker=self.worker, until_s=0.0, counted=found["counted"]
                )
            if found["is_over"]:
                return None

    def close(self) -> None:
        self._connection.close()


@dataclass
class _Doing:
    """What has come of the task at hand."""

    rows: int = 0
    batches: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    predictions: list[Any] = field(default_factory=list)


class Worker:
    """The loop of one worker, in this process."""

    def __init__(self, job: ElasticJob, readings: Mapping[Kind, Parquet], client: Client) -> None:
        self.phases = Phases()  #: all that it did
        self._job = job
        self._readings = readings
        self._client = client
        self._reported = Phases()  # how much of that the master knows
        self._doing = _Doing()
        self._dropped = 0  # the lease whose batches nobody wants any more
        self._contributed = -1  # the newest version that this worker has given a gradient for
        self._current: tuple[int, Arrays] = (-1, {})
        self._evaluated: tuple[int, Arrays] = (-1, {})
        self._is_over = False

    def run(self) -> Phases:
        """Works until the job is over."""
        bodies = {kind: body(each, self._job.dataset_fn, self._job.seed) for kind, each in self._readings.items()}
        with shared(bodies, self._client.next_lease, self._job.ahead).iterator() as pieces:
            while not self._is_over:
                with self.phases.during(Phase.GET_BATCH):
                    piece: Piece | None = next(pieces, None)
                if piece is None:
                    break
                if piece.lease.number != self._dropped:
                    self._take(piece)
        return self.phases

    def _take(self, piece: Piece) -> None:
        try:
            if piece.error is not None:
                raise piece.error  # noqa: TRY301  as if it had been raised by the computing
            if piece.is_end:
                self._finish(piece)
            else:
                self._step(piece)
        except Unreachable:
            raise
        except Exception as error:  # noqa: BLE001  the user's functions may raise anything
            self._fail(piece.lease, error)

    def _step(self, piece: Piece) -> None:
        match piece.lease.task.kind:
            case Kind.TRAINING:
                self._train(piece)
            case Kind.EVALUATION:
                self._evaluate(piece)
            case Kind.PREDICTION:
                self._predict(piece)
        self._doing.batches += 1
        self.phases.batches += 1

    def _train(self, piece: Piece) -> None:
        lease, rows = piece.lease, rows_in(piece.batch)
        assert self._job.gradient is not None, "a job with training tasks trains"
        while not self._is_over:
            with self.phases.during(Phase.GET_MODEL):
                version, parameters = self._newest()
            with self.phases.during(Phase.COMPUTE):
                gradient = self._job.gradient(parameters, piece.batch)
            with self.phases.during(Phase.REPORT):
                layout, content = packed(gradient)
                answer, _ = self._client.call(
                    "report_gradient",
                    content,
                    task=lease.task.number,
                    lease=lease.number,
                    batch=piece.number,
                    version=version,
                    rows=rows,
                    layout=layout,
                )
            if answer["answer"] == "taken":
                self._contributed = version
                self._doing.rows += rows
                return
            if answer["answer"] == "lost":
                self._drop(lease)
                return

    def _newest(self) -> tuple[int, Arrays]:
        """The current parameters; if this worker has given its gradient for them, those that come of it."""
        while not self._is_over:
            have = self._current[0]
            found, content = self._client.call("get_model", have=have, newer=have <= self._contributed, wait_s=WAIT_S)
            if found["layout"] is not None:
                self._current = (found["version"], unpacked(found["layout"], content))
            else:
                self._is_over = found["is_over"]
            if self._current[0] > self._contributed:
                break
        return self._current

    def _evaluate(self, piece: Piece) -> None:
        assert self._job.evaluate is not None, "a job with evaluation tasks evaluates"
        version = piece.lease.task.version
        with self.phases.during(Phase.GET_MODEL):
            if self._evaluated[0] != version:
                found, content = self._client.call("get_model", version=version)
                if found["layout"] is None:  # others have done it meanwhile
                    self._drop(piece.lease)
                    return
                self._evaluated = (version, unpacked(found["layout"], content))
        with self.phases.during(Phase.COMPUTE):
            metrics = self._job.evaluate(self._evaluated[1], piece.batch)
        rows, sums = rows_in(piece.batch), self._doing.sums
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + float(value) * rows
        self._doing.rows += rows

    def _predict(self, piece: Piece) -> None:
        assert self._job.predict is not None, "a job with prediction tasks predicts"
        with self.phases.during(Phase.GET_MODEL):
            _, parameters = self._newest() if self._current[0] < 0 else self._current
        with self.phases.during(Phase.COMPUTE):
            made = self._job.predict(parameters, piece.batch)
        self._doing.predictions.append(made)
        self._doing.rows += rows_in(piece.batch)

    def _finish(self, piece: Piece) -> None:
        """The last batch was computed: only now is the task done."""
        if piece.number < piece.lease.counted:
            raise ValueError(
                f"dataset_fn gave {piece.number} batches of the task, and before, in another worker, at least "
                f"{piece.lease.counted}; it has to give the same ones each time."
            )
        doing, self._doing = self._doing, _Doing()
        with self.phases.during(Phase.REPORT):
            self._client.call(
                "report_task",
                _arrow_file(doing.predictions),
                task=piece.lease.task.number,
                lease=piece.lease.number,
                batches=doing.batches,
                rows=doing.rows,
                metrics=doing.sums,
                seconds={phase: spent - self._reported.seconds[phase] for phase, spent in self.phases.seconds.items()},
            )
        self._reported = Phases(self.phases.seconds)

    def _fail(self, lease: Lease, error: Exception) -> None:
        self._drop(lease)
        self._client.call(
            "report_failure",
            task=lease.task.number,
            lease=lease.number,
            message=f"{type(error).__name__}: {error}"[:2_000],
            trace="".join(traceback.format_exception(error))[-8_000:],
        )

    def _drop(self, lease: Lease) -> None:
        """What comes of this lease's batches is wanted no more."""
        self._dropped = lease.number
        self._doing = _Doing()


def _arrow_file(predictions: Sequence[Any]) -> bytes:
    import pyarrow as pa

    if not predictions:
        return b""
    batches = [
        each if isinstance(each, pa.RecordBatch) else pa.RecordBatch.from_pydict(dict(each)) for each in predictions
    ]
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


class _Pulse:
    """Tells the master that this worker lives, while it computes."""

    def __init__(self, client: Client, every_s: float) -> None:
        self._client = client
        self._every_s = every_s
        self._over = threading.Event()
        threading.Thread(target=self._beat, name="elastic-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self._client.call("heartbeat")
            except Unreachable:
                return  # the loop will find out

    def close(self) -> None:
        self._over.set()


def work(assignment: Assignment) -> None:
    """One worker's life.

    Raises:
        Unreachable: the master is gone.
    """
    job = opened(assignment.job)
    assert isinstance(job, ElasticJob), "the master sends one"

    def client() -> Client:
        return Client(assignment.worker, assignment.target, assignment.security)

    with closing(client()) as ours, closing(client()) as beating, closing(_Pulse(beating, job.lease_s / 3)):
        Worker(job, assignment.readings, ours).run()


def main(parent: int) -> None:
    """The program of a worker process: reads its assignment from its input, and ends with its parent."""
    import logging
    import pickle

    process.die_with_parent(parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    assignment = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  from our parent
    work(assignment)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that wait for the next task are not waited for
