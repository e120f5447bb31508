"""Replicas: one training function in several processes that go in step, as `torch.distributed` has it.

Unlike the workers of an `ElasticJob` they need each other: when one dies, all are ended and begin again, from the
function's own checkpoint.
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

from spanwise.components.shipped_function import Parcel, opened, packed
from spanwise.components.training.elastic.worker_processes import Crew, Gone
from spanwise.orchestrator import process
from spanwise.orchestrator.errors import NodeFailed

if TYPE_CHECKING:
    from spanwise.components.training.trainer import TrainerTask

RESTARTS: Final = 3
"""How often all of them begin again."""

POLL_S: Final = 0.05

log = logging.getLogger("spanwise.elastic")


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a replica is started with."""

    rank: int
    environment: Mapping[str, str]
    failure: Path  #: where it says what was raised
    work: Parcel  #: the function and its task


def replicated(run_fn: Callable[[TrainerTask], None], task: TrainerTask) -> None:
    """Calls the function in `task.workers` processes, which find each other by the variables that `torchrun` sets.

    Raises:
        NodeFailed: it raised, or the processes were killed too often.
        ParameterError: it cannot be sent to another process.
    """
    work = packed((run_fn, task), [run_fn, *task.parameters.values()])
    left = RESTARTS
    while True:
        with TemporaryDirectory(prefix="spanwise-") as folder:
            killed = _once(work, task.workers, Path(folder))
        if killed is None:
            return
        log.warning("%s %s, so all %d are ended", killed.name, killed.how, task.workers)
        if not left:
            raise NodeFailed(
                f"the {task.workers} workers were begun {RESTARTS + 1} times, and each time one of them was killed; "
                f"the last, {killed.name}, {killed.how}. If the memory ran out, take fewer workers or smaller batches."
            )
        left -= 1


def _once(work: Parcel, workers: int, folder: Path) -> Gone | None:
    """One life of all replicas; who was killed, or None if all have come to their end."""
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
        return pickle.dumps(Part(rank=rank, environment=environment, failure=folder / str(rank), work=work))

    with Crew("from spanwise.components.training.elastic.replicas import main; main(parent)", input_of) as crew:
        for rank in range(workers):
            crew.start(rank)
        while crew.members:
            ended = crew.gone(POLL_S)
            if any(gone.status for gone in ended):
                ended += crew.gone()  # one that was killed is why others failed, even if they were seen to end before
                killed = next((gone for gone in ended if gone.status < 0), None)
                if killed is not None:
                    return killed
                _raise(next(gone for gone in ended if gone.status), folder)
    return None


def _raise(gone: Gone, folder: Path) -> None:
    said = folder / str(gone.place)
    raise NodeFailed(said.read_text() if said.exists() else f"{gone.name} {gone.how} before its work was done.")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def main(parent: int) -> None:
    """The program of a replica: calls the function with its rank, and ends with its parent."""
    process.die_with_parent(parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    part: Part = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  from our parent
    os.environ.update(part.environment)
    try:
        run_fn, task = cast("tuple[Callable[[TrainerTask], None], TrainerTask]", opened(part.work))
        run_fn(replace(task, rank=part.rank))
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        part.failure.write_text(f"worker {part.rank + 1}: {type(error).__name__}: {error}\n{told[-8_000:]}".rstrip())
        raise
