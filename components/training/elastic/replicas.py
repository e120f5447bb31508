"""Replicas: one training function in several processes that run in step, as with `torch.distributed`.

Unlike the workers of an `ElasticJob` they need each other: when one dies, all are stopped and started again, and the
function resumes from its own checkpoint.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, cast

from spanwise.components.training.elastic.worker_processes import WorkerExit, WorkerProcesses
from spanwise.orchestrator import process
from spanwise.orchestrator.errors import NodeFailed
from spanwise.orchestrator.logs import log_to_stderr
from spanwise.orchestrator.user_code import Shipment, ship, unpack

if TYPE_CHECKING:
    from spanwise.components.training.trainer_task import TrainerTask

RESTARTS: Final = 3
"""How often all replicas are started again."""

POLL_S: Final = 0.05

log = logging.getLogger("spanwise.training.elastic")


@dataclass(frozen=True, kw_only=True)
class ReplicaAssignment:
    """The input of a replica."""

    rank: int
    environment: Mapping[str, str]
    failure: Path  #: where it writes its exception
    work: Shipment  #: the function and its task


def run_replicas(run_fn: Callable[[TrainerTask], None], task: TrainerTask) -> None:
    """Calls the function in `task.workers` processes, which find each other by the variables of `torchrun`.

    Raises:
        NodeFailed: the function raised, or the processes were killed too often.
        ParameterError: the function cannot be sent to another process.
    """
    work = ship((run_fn, task))
    for restarts in reversed(range(RESTARTS + 1)):
        with TemporaryDirectory(prefix="spanwise-") as folder:
            killed = _run_once(work, task.workers, Path(folder))
        if killed is None:
            return
        log.warning("replicas-stopped", extra={"count": task.workers, "reason": f"{killed.name} {killed.reason}"})
        if not restarts:
            raise NodeFailed(
                f"the {task.workers} workers were started {RESTARTS + 1} times, and each time one of them was killed; "
                f"the last, {killed.name}, {killed.reason}. If memory ran out, use fewer workers or smaller batches."
            )


def _run_once(work: Shipment, workers: int, folder: Path) -> WorkerExit | None:
    """Runs all replicas until they end; returns the one that was killed, or None if all succeeded."""
    port = _free_port()

    def input_of(_: str, rank: int) -> bytes:
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(workers),
            "LOCAL_WORLD_SIZE": str(workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        return pickle.dumps(
            ReplicaAssignment(rank=rank, environment=environment, failure=folder / str(rank), work=work)
        )

    program = "from spanwise.components.training.elastic.replicas import main; main(parent)"
    with WorkerProcesses(program, input_of) as replicas:
        for rank in range(workers):
            replicas.start(rank)
        while replicas.running:
            exits = replicas.poll(POLL_S)
            if any(each.status for each in exits):
                exits += replicas.poll()  # a killed replica makes others fail, whose exits may be seen first
                killed = next((each for each in exits if each.status < 0), None)
                if killed is not None:
                    return killed
                _raise_failure(next(each for each in exits if each.status), folder)
    return None


def _raise_failure(failed: WorkerExit, folder: Path) -> None:
    failure = folder / str(failed.place)
    raise NodeFailed(failure.read_text() if failure.exists() else f"{failed.name} {failed.reason} before it was done.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main(parent: int) -> None:
    """The program of a replica: calls the function with its rank; dies with its parent."""
    process.die_with_parent(parent)
    log_to_stderr()
    assignment: ReplicaAssignment = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  from our parent
    os.environ.update(assignment.environment)
    try:
        run_fn, task = cast("tuple[Callable[[TrainerTask], None], TrainerTask]", unpack(assignment.work))
        run_fn(replace(task, rank=assignment.rank))
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        assignment.failure.write_text(
            f"worker {assignment.rank + 1}: {type(error).__name__}: {error}\n{trace[-8_000:]}".rstrip()
        )
        raise
