"""Workers of the data service on an engine: each is the job of a node that does not end by itself.

They go through the port of executors, like all nodes: the engine places them, and their agents end them when this
process ends, however it ends. One that is lost is started again. A worker's configuration, with the token and keys, is
part of its job: it goes through the engine's own connections, not through command lines or environments, which others
can read.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from spanwise.orchestrator.agents.engines import open_engine
from spanwise.orchestrator.agents.placed_executor import PlacedExecutor
from spanwise.orchestrator.component import Component
from spanwise.orchestrator.errors import ServiceError
from spanwise.orchestrator.executor import Executor, ExecutorEvent
from spanwise.orchestrator.job import FenceQuery, JobEnded, JobPlaced, NodeJob
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run import Run
from spanwise.pipelines.input.service.wire.config import WorkerConfig
from spanwise.scheduler.project import settings

LOCAL: Final = "local"
"""The engine of this machine."""

_WAIT_S: Final = 60.0
_RETRY_S: Final = 5.0
_PIPELINE: Final = "data-service"
_DISCARD_PORT: Final = 9
_READ_BYTES: Final = 1 << 16

log = logging.getLogger("spanwise.service.engine")


class ServiceWorker(Component):
    """Serves a dispatcher until it is ended."""

    preload = ("spanwise.pipelines.input.service.worker.worker",)
    prepared = ("config", "own_address")

    def run(self, config: WorkerConfig, own_address: bool) -> None:
        """With `own_address` it listens at the address by which its machine reaches the dispatcher."""
        from spanwise.pipelines.input.service.worker.worker import WorkerServer

        host = _address_towards(_await_dispatcher(config)) if own_address else config.host
        with WorkerServer(replace(config, host=host)) as server:
            server.join()


def open_executor(engine: str) -> Executor:
    """The executor of workers on an engine, `kind:address`, or `local:`. Forks, so call it early.

    Raises:
        SettingsError: there is no such engine, or it is not installed.
    """
    pipeline = Pipeline(_PIPELINE, [ServiceWorker()])
    if engine.partition(":")[0] == LOCAL:
        return LocalExecutor(pipeline)
    pods = settings.read().executor.pods  # of the project; other engines need nothing of it
    return PlacedExecutor(pipeline, open_engine(engine, pods), root=None, away=pipeline.order)


class EngineWorkers:
    """Workers that an executor runs."""

    def __init__(self, executor: Executor, config: WorkerConfig, count: int, *, own_address: bool) -> None:
        """Starts nothing yet.

        Args:
            executor: where they run.
            config: the configuration of each worker.
            count: how many workers.
            own_address: whether each listens at the address of its machine instead of the host in `config`.
        """
        self._executor = executor
        self._given = {"config": replace(config, security=config.security.inlined()), "own_address": own_address}
        self._count = count
        self._numbers = itertools.count(1)

    def join(self) -> None:
        """Keeps the workers running; does not return. What they print comes out at standard error.

        Raises:
            ServiceError: a worker failed, or the engine cannot start one.
        """
        with tempfile.TemporaryDirectory(prefix="spanwise-workers-") as folder, _show(f"{folder}/log"):
            for _ in range(self._count):
                self._start(folder)
            while True:
                for event in self._executor.wait(_WAIT_S):
                    self._take(event, folder)

    def _take(self, event: ExecutorEvent, folder: str) -> None:
        if isinstance(event, FenceQuery):
            self._executor.answer(event.id, None)  # workers publish nothing, so no lease guards them
            return
        if isinstance(event, JobPlaced):
            log.info("worker-placed", extra={"worker": event.id, "place": event.placement.place})
            return
        assert isinstance(event, JobEnded), "a worker has no replicas that it would ask"
        message, cause = ("it ended", "died") if event.failure is None else (event.failure.message, event.failure.cause)
        if not cause:
            raise ServiceError(f"A worker on {self._executor.engine or 'this machine'} failed: {message}")
        log.warning("worker-lost", extra={"worker": event.id, "reason": message})
        self._start(folder)

    def _start(self, folder: str) -> None:
        number = next(self._numbers)
        self._executor.start(
            NodeJob(
                id=number,
                node=ServiceWorker.__name__,
                inputs={},
                verify=(),
                prepared=self._given,
                outputs={},
                run=Run(pipeline=_PIPELINE),
                attempt=1,
                log=f"{folder}/log",
                scratch=f"{folder}/{number}",
                checkpoints=f"{folder}/{number}.checkpoints",
                snapshots=f"{folder}/{number}.snapshots",
            )
        )


@contextlib.contextmanager
def _show(log: str) -> Iterator[None]:
    """Makes a file of which all that is written to it comes out at standard error, and takes no place on the disk."""
    os.mkfifo(log)
    outgoing = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    incoming = os.open(log, os.O_WRONLY)  # as long as one end is open, the other can be opened without waiting
    os.set_blocking(outgoing, True)
    threading.Thread(target=_copy_to_stderr, args=(outgoing,), name="log", daemon=True).start()
    try:
        yield
    finally:
        os.close(incoming)


def _copy_to_stderr(source: int) -> None:
    with os.fdopen(source, "rb", buffering=0) as stream:
        while printed := stream.read(_READ_BYTES):
            sys.stderr.buffer.write(printed)
            sys.stderr.flush()


def _await_dispatcher(config: WorkerConfig) -> str:
    """The address of the dispatcher; waits for one where only its journal is known."""
    from spanwise.pipelines.input.service.wire.connection import Unreachable
    from spanwise.pipelines.input.service.wire.dispatcher_connection import DispatcherConnection

    connection = DispatcherConnection(config.dispatcher_address, config.security)
    while True:
        try:
            return connection.find().address
        except Unreachable as error:
            log.warning("dispatcher-awaited", extra={"reason": str(error)})
            time.sleep(_RETRY_S)


def _address_towards(dispatcher: str) -> str:
    """The address of this machine on the way to a dispatcher; nothing is sent."""
    host = urlsplit(dispatcher).hostname or dispatcher.rpartition(":")[0]
    with contextlib.closing(_datagrams_to(host)) as connected:
        return str(connected.getsockname()[0])


def _datagrams_to(host: str) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
        connected = socket.socket(family, kind, protocol)
        connected.connect(place)
    except OSError as error:
        raise ServiceError(
            f"The machine {socket.gethostname()} knows no way to the dispatcher's host {host}: {error}."
        ) from error
    return connected
