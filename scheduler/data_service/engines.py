"""Workers of the data service on an existing cluster: each is a task of Ray or Dask that does not end by itself.

The engine places the task, and restarts it when its process or machine is lost. The worker's configuration, including
the token and keys, is the task's argument: it goes through the engine's own connections, not through command lines or
environments, which others can read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:  # imported when needed, so that `spanwise --help` is fast
    from spanwise.orchestrator.errors import ServiceError, SettingsError
    from spanwise.pipelines.input.service.wire.config import WorkerConfig

_POLL_S: Final = 0.5
"""How often a worker checks whether it should still run."""

_TIMEOUT_S: Final = 10.0
"""How long to wait for an answer of the cluster."""


class Engine(StrEnum):
    RAY = "ray"
    DASK = "dask"


class Workers(Protocol):
    """Workers that a cluster is starting or running."""

    def join(self) -> None:
        """Keeps them running; does not return.

        Raises:
            ServiceError: a worker failed, or the cluster is gone.
        """

    def stop(self) -> None:
        """Ends them."""


def start(engine: Engine, cluster: str | None, config: WorkerConfig, count: int, *, own_address: bool) -> Workers:
    """Starts workers on a cluster, spread over its machines.

    Args:
        engine: the engine of the cluster.
        cluster: its address; None for the engine's default.
        config: the configuration of each worker.
        count: how many workers.
        own_address: whether each listens at the address of its machine instead of the host in `config`.

    Raises:
        SettingsError: the engine is not installed, or no cluster is named.
        ServiceError: the cluster does not answer.
    """
    inlined = replace(config, security=config.security.inlined())
    kind = OnRay if engine is Engine.RAY else OnDask
    return kind(cluster, inlined, count, own_address=own_address)


class OnRay:
    def __init__(self, cluster: str | None, config: WorkerConfig, count: int, *, own_address: bool) -> None:
        try:
            import ray
        except ImportError as error:
            raise _not_installed(Engine.RAY) from error
        try:
            ray.init(address=cluster or "auto", logging_level="WARNING")
        except (OSError, RuntimeError, ValueError) as error:
            raise _unreachable(Engine.RAY, cluster, error) from error
        task = ray.remote(_on_ray).options(num_cpus=1, max_retries=-1, scheduling_strategy="SPREAD")
        self._tasks = [task.remote(config, own_address=own_address) for _ in range(count)]

    def join(self) -> None:
        import ray

        ended, _ = ray.wait(self._tasks, num_returns=1)
        try:
            ray.get(ended)
        except ray.exceptions.RayError as error:
            raise _failed(Engine.RAY, getattr(error, "cause", None) or error) from error

    def stop(self) -> None:
        import ray

        for task in self._tasks:
            ray.cancel(task)
        ray.wait(self._tasks, num_returns=len(self._tasks), timeout=_TIMEOUT_S)
        ray.shutdown()


def _on_ray(config: WorkerConfig, *, own_address: bool) -> None:
    """Runs a worker until KeyboardInterrupt, with which Ray cancels a task."""
    import ray

    host = ray.util.get_node_ip_address() if own_address else config.host
    _work(replace(config, host=host), lambda: True)


class OnDask:
    def __init__(self, cluster: str | None, config: WorkerConfig, count: int, *, own_address: bool) -> None:
        try:
            import dask.config
            from distributed import Client
            from distributed.comm import get_address_host
        except ImportError as error:
            raise _not_installed(Engine.DASK) from error
        address = cluster or dask.config.get("scheduler-address", None)
        if address is None:
            from spanwise.orchestrator.errors import SettingsError

            raise SettingsError(
                "no Dask cluster is named for the workers. Give the address of its scheduler: "
                "--cluster tcp://HOST:8786, or set DASK_SCHEDULER_ADDRESS."
            )
        try:
            self._client = Client(address, timeout=_TIMEOUT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise _unreachable(Engine.DASK, address, error) from error
        self._config = config
        self._own_address = own_address
        threads: dict[str, int] = {}
        for worker, count_there in self._client.nthreads().items():
            host = get_address_host(worker)
            threads[host] = threads.get(host, 0) + count_there
        self._tasks = {self._submit(host): host for host in spread(threads, count)}

    def _submit(self, host: str | None) -> Any:
        """Submits a task; to this host as long as it exists."""
        import secrets  # here, since it takes 5 ms and every command imports this module

        return self._client.submit(
            _on_dask,
            self._config,
            own_address=self._own_address,
            key=f"spanwise-service-worker-{secrets.token_hex(8)}",
            workers=None if host is None else [host],
            allow_other_workers=host is not None,
        )

    def join(self) -> None:
        from distributed import as_completed
        from distributed.scheduler import KilledWorker

        ended = as_completed(self._tasks, loop=self._client.loop)
        for task in ended:
            error = None if task.cancelled() else task.exception()
            if not isinstance(error, KilledWorker):
                raise _failed(Engine.DASK, error)
            again = self._submit(host := self._tasks.pop(task))  # Dask abandons a task after a few deaths
            self._tasks[again] = host
            ended.add(again)

    def stop(self) -> None:
        self._client.cancel(list(self._tasks))
        self._client.close()


def _on_dask(config: WorkerConfig, *, own_address: bool) -> None:
    """Runs a worker until the task is cancelled, which Dask does not announce to the task."""
    from distributed import Reschedule, get_worker
    from distributed.comm import get_address_host
    from distributed.core import Status

    there = get_worker()
    key = there.get_current_task()

    def is_closing() -> bool:
        return there.status not in {Status.running, Status.paused}

    def is_wanted() -> bool:
        task = there.state.tasks.get(key)
        return task is not None and task.state == "executing" and not is_closing()

    host = get_address_host(there.address) if own_address else config.host
    _work(replace(config, host=host), is_wanted)
    if is_closing():
        raise Reschedule


def spread(threads: Mapping[str, int], count: int) -> list[str | None]:
    """A host for each worker, in turns as long as they have free threads; None for a worker that has to wait."""

    def turns() -> Iterator[str]:
        for turn in range(max(threads.values(), default=0)):
            yield from (host for host in sorted(threads) if threads[host] > turn)

    hosts = list(turns())[:count]
    return [*hosts, *[None] * (count - len(hosts))]


def _work(config: WorkerConfig, is_wanted: Callable[[], bool]) -> None:
    from spanwise.pipelines.input.service.worker.worker import WorkerServer

    with WorkerServer(config):
        while is_wanted():
            time.sleep(_POLL_S)


def _not_installed(engine: Engine) -> SettingsError:
    from spanwise.orchestrator.errors import SettingsError

    return SettingsError(
        f"Workers on {engine.title()} need its library, which is not installed: pip install 'spanwise[{engine}]'"
    )


def _unreachable(engine: Engine, cluster: str | None, error: Exception) -> ServiceError:
    from spanwise.orchestrator.errors import ServiceError

    where = f"no cluster answers at {cluster}: {str(error).strip()[:300]}" if cluster else "no cluster was found"
    return ServiceError(
        f"Could not start workers on {engine.title()}: {where.rstrip('.')}. Start one, or name one with --cluster."
    )


def _failed(engine: Engine, error: BaseException | None) -> ServiceError:
    from spanwise.orchestrator.errors import ServiceError, SettingsError

    if isinstance(error, ServiceError | SettingsError):
        return ServiceError(f"A worker on {engine.title()} failed: {error}")
    reason = "the cluster has cancelled it" if error is None else f"{type(error).__name__}: {str(error).strip()[-500:]}"
    return ServiceError(
        f"A worker on {engine.title()} ended: {reason}. The machines of the cluster need the same version of spanwise."
    )
