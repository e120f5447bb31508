"""Commands for the data service: start a dispatcher or a worker, and show its status.

It may import `spanwise.pipelines.input` (docs/decisions/0060-data-service.md); `service_status` formats the status.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import typer

from spanwise.scheduler.cli.app import Json, app, print_document

service = typer.Typer(
    name="service",
    help="Process datasets in other processes or on other machines.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(service)

Host: TypeAlias = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Where to listen. Any but loopback needs a token and TLS.")
]
Port: TypeAlias = Annotated[
    int, typer.Option(min=0, max=65_535, metavar="PORT", help="Where to listen; 0: any free port.")
]
Metrics: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--metrics-port",
        metavar="[ADDRESS:]PORT",
        help="Serve /metrics and /healthz there; without an address, to this machine alone.",
    ),
]
DISPATCHER_PORT = 5050


@service.command()
def dispatcher(
    host: Host = "127.0.0.1",
    port: Port = DISPATCHER_PORT,
    work_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL",
            help="Keep a journal here, and continue from it after a restart. At a URL of object storage, a second "
            "dispatcher stands by on another host.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With a URL: the address by which others find it, if it is another."),
    ] = None,
    takeover_after: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="With a URL: another dispatcher takes over after this silence."),
    ] = 15.0,
    worker: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="A worker of the fixed list for static sharding. May be repeated."),
    ] = None,
    client_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="Drop a consumer, with its leases, after this silence."),
    ] = 20.0,
    metrics: Metrics = None,
) -> None:
    """Start a dispatcher of the data service.

    It assigns work until it is stopped.

    Example: spanwise service dispatcher --work-dir /var/lib/spanwise/service
    """
    from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
    from spanwise.pipelines.input.service.wire.config import DispatcherConfig
    from spanwise.pipelines.input.service.wire.security import Security

    config = DispatcherConfig(
        host=host,
        port=port,
        address=address,
        work_dir=work_dir,
        takeover_after_s=takeover_after,
        fault_tolerant_mode=work_dir is not None,
        worker_addresses=tuple(worker or ()),
        client_timeout_s=client_timeout,
        security=Security.from_environment(),
    )
    server = DispatchServer(config, on_standby=typer.echo)
    typer.echo(f"dispatcher at {server.target}")
    with _metrics(metrics, "dispatcher", server.status):
        _serve_until_stopped(server.join, server.stop)


@service.command()
def worker(
    dispatcher: Annotated[
        str, typer.Argument(metavar="DISPATCHER", help="Its address, grpc://127.0.0.1:5050, or the URL of its journal.")
    ],
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where to listen: 127.0.0.1, or with --on each machine's own address. Any but loopback wants a token "
            "and TLS.",
        ),
    ] = None,
    port: Port = 0,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The address that consumers use, if it is another."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="ENGINE", help="Run several there, and start again what is lost: local, ray, slurm …"
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --on: how many. [default: 1]")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="With --on: the cluster's address, or Slurm's partition."),
    ] = None,
    metrics: Metrics = None,
) -> None:
    """Start a worker of the data service.

    It runs the tasks that the dispatcher assigns until it is stopped.

    Example: spanwise service worker grpc://127.0.0.1:5050
    """
    from spanwise.orchestrator.errors import UsageError
    from spanwise.pipelines.input.service.wire.config import WorkerConfig
    from spanwise.pipelines.input.service.wire.security import Security

    config = WorkerConfig(
        dispatcher_address=dispatcher,
        host=host or "127.0.0.1",
        port=port,
        worker_address=address,
        security=Security.from_environment(),
    )
    if on is None:
        if workers is not None or cluster is not None:
            raise UsageError("--workers and --cluster need --on, the engine of the cluster.")
        from spanwise.pipelines.input.service.worker.worker import WorkerServer

        server = WorkerServer(config)
        typer.echo(f"worker at {server.address}")
        with _metrics(metrics, "worker", server.status):
            _serve_until_stopped(server.join, server.stop)
    else:
        if address is not None:
            raise UsageError("--address is the address of one worker, and --on starts several; leave it out.")
        if metrics is not None:
            raise UsageError("--metrics-port serves one worker, and --on starts several; use the dispatcher's.")
        from spanwise.scheduler.data_service.engine_workers import LOCAL, EngineWorkers, open_executor
        from spanwise.scheduler.formatting import format_count

        if on == LOCAL and cluster is not None:
            raise UsageError("--cluster names the cluster of an engine, and --on local is this machine; leave it out.")
        name = on if cluster is None else f"{on}:{cluster}"
        with open_executor(name) as executor:
            engine_workers = EngineWorkers(executor, config, workers or 1, own_address=host is None and on != LOCAL)
            for variable in [each for each in os.environ if each.startswith("SPANWISE_SERVICE_")]:
                del os.environ[variable]  # the workers get them with their jobs, and an engine may pass this on
            typer.echo(f"{format_count(workers or 1, 'worker')} on {name}")
            _serve_until_stopped(engine_workers.join, executor.close)


@service.command()
def top(
    dispatcher: Annotated[
        str, typer.Argument(metavar="DISPATCHER", help="Its address, grpc://127.0.0.1:5050, or the URL of its journal.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Print the table once, and end.")] = False,
    json: Json = False,
) -> None:
    """Show jobs, workers and waiting consumers.

    Example: spanwise service top grpc://127.0.0.1:5050
    """
    from spanwise.scheduler.data_service import service_status
    from spanwise.scheduler.data_service.observation import ServiceObserver

    observer = ServiceObserver(dispatcher)
    if json or once:
        status = observer.read_status()
        if json:
            print_document(status)
        else:
            typer.echo(service_status.format_status(status))
    else:
        service_status.watch_status(observer.read_status)


@contextlib.contextmanager
def _metrics(
    typed: str | None, member: Literal["dispatcher", "worker"], status: Callable[[], Mapping[str, Any]]
) -> Iterator[None]:
    """Serves the metrics of a server if a port was given."""
    if typed is None:
        yield
        return
    from spanwise.scheduler.daemon import health
    from spanwise.scheduler.daemon.metrics import MetricsPage
    from spanwise.scheduler.data_service import service_metrics

    option = "--metrics-port"
    page = MetricsPage(lambda: service_metrics.families(member, status()))
    with health.serve_metrics(health.parse_address(typed, option), page, option=option) as where:
        typer.echo(f"metrics at http://{where}/metrics")
        yield


def _serve_until_stopped(join: Callable[[], None], stop: Callable[[], None]) -> None:
    """Serves until SIGTERM or Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        join()
    except KeyboardInterrupt:
        stop()
