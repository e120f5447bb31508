"""The demo on a cluster: the same ten mornings, with nothing on a local disk and no node on the scheduler's host.

The metadata are in PostgreSQL, the data, the root and the pushed models in an S3 server, nodes run on two machines of a
Ray cluster, and data work is that of Flink; all of them are started for it on this machine, and stopped at the end. On
the way the controller of a run is killed, and later a machine under a running node.

python -m spanwise.pipelines.flights_cluster --gateway versitygw --flink job-server.jar [--folder demo-cluster]
    [--days 10]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from spanwise import SpanwiseError
from spanwise.orchestrator import State
from spanwise.orchestrator.errors import ServiceError
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.run_request import RunOutcome
from spanwise.orchestrator.storage import open_bucket, parse_url
from spanwise.orchestrator.store import Store
from spanwise.pipelines import flights, nycflights
from spanwise.pipelines.demo_servers import SOON_S, RayCluster, serve_flink, serve_postgresql, serve_s3
from spanwise.pipelines.flights_demo import HEAD, WINDOW, Morning

CONTROLLER_DIES: Final = 4
MACHINES_DIE: Final = 6
"""The mornings on which something is killed, counted from 1; where there are fewer, it is on the last two."""

SETTINGS = """# Nothing but this file and flights.py is on this disk.
root = "s3://lake/root"
metadata = "{metadata}"

[executor]
name = "ray"
address = "{ray}"

[beam]
runner = "FlinkRunner"
job_endpoint = "{flink}"
environment_type = "LOOPBACK"
parallelism = 2

[params.flights]
data = "s3://lake/flights"
serving = "s3://lake/serving"
window = {window}
"""


def prepare(folder: Path, metadata: str, ray: str, flink: str, days: int) -> None:
    """Puts the data into the bucket, and the pipeline file and the settings into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lake = parse_url("s3://lake/flights")
    with tempfile.TemporaryDirectory() as place:
        for file in nycflights.lay_out(Path(place), days=days):
            open_bucket(lake.home).upload(file, (lake / file.relative_to(place).as_posix()).key)
    shutil.copy(flights.__file__, folder / "flights.py")
    settings = SETTINGS.format(metadata=metadata, ray=ray, flink=flink, window=WINDOW)
    (folder / "spanwise.toml").write_text(settings, encoding="utf-8")


class Host:
    """The host of the scheduler: it starts a run for each day, and has an empty cache."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder = folder
        self._store = store

    def run(self, day: date, meanwhile: Callable[[subprocess.Popen[bytes]], None] | None = None) -> Morning:
        """Runs the pipeline for a day; `meanwhile` is called once its Trainer is at work.

        Raises:
            ServiceError: no run began, or its Trainer was never seen at work.
        """
        start = time.perf_counter()
        before = self._count()
        command = [sys.executable, "-P", "-m", "spanwise", "run", "flights.py", "--span", str(day)]
        with (self._folder / "log").open("ab") as log:
            controller = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        try:
            if meanwhile is not None:
                self._await_trainer(controller, before)
                meanwhile(controller)
            controller.wait()
        finally:
            controller.terminate()
            controller.wait()
        if self._count() == before:
            raise ServiceError(f"The run of {day} did not begin; see {self._folder / 'log'}.")
        newest = next(self._store.runs("flights"))
        executions = {e.node: e for e in self._store.executions(newest)}
        return Morning(day, RunOutcome(run=newest, executions=executions), time.perf_counter() - start)

    def _count(self) -> int:
        return next((run.number for run in self._store.runs("flights")), 0) if self._store.pipelines() else 0

    def _await_trainer(self, controller: subprocess.Popen[bytes], before: int) -> None:
        """Waits until the Trainer of a new run is at work."""
        deadline = time.monotonic() + SOON_S
        while controller.poll() is None and time.monotonic() < deadline:
            if self._count() > before:
                executions = self._store.executions(next(self._store.runs("flights")))
                if any(e.node == "Trainer" and e.state is State.RUNNING for e in executions):
                    return
            time.sleep(0.05)
        raise ServiceError(f"No Trainer was seen at work, so nothing was killed; see {self._folder / 'log'}.")


def mornings(host: Host, cluster: RayCluster, days: int) -> Iterator[Morning]:
    """Runs the pipeline once for each day, as a schedule would, while things die."""
    for number in range(1, days + 1):
        day = nycflights.FIRST + timedelta(days=number - 1)
        if number == min(CONTROLLER_DIES, days - 1):
            host.run(day, _kill_controller)
        if number == min(MACHINES_DIE, days):
            yield host.run(day, lambda _: _replace(cluster))
        else:
            yield host.run(day)


def _kill_controller(controller: subprocess.Popen[bytes]) -> None:
    os.kill(controller.pid, signal.SIGKILL)
    print(f"{'':<12}the controller was killed while its Trainer was at work; the run of that day begins again")


def _replace(cluster: RayCluster) -> None:
    for name in ("one", "two"):  # whichever has the Trainer
        cluster.kill(name)
    print(f"{'':<12}both machines were taken away while the Trainer was at work; another one comes")
    cluster.add("three")


def _files(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return sorted(str(path.relative_to(folder)) for path in found)


def _is_bookkeeping(name: str) -> bool:
    """Whether a copy of something in the root is a log, or what tells one root from another."""
    return "/.runs/" in name or name.endswith("/.spanwise-store")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Ten mornings of the flights pipeline on a cluster.")
    parser.add_argument("--gateway", type=Path, required=True, help="the program of versitygw, the S3 server")
    parser.add_argument("--flink", type=Path, required=True, help="the jar of Beam's job server for Flink")
    parser.add_argument("--folder", type=Path, default=Path("demo-cluster"), help="where (default: demo-cluster)")
    parser.add_argument("--days", type=int, default=10, help="how many mornings (default: 10)")
    options = parser.parse_args(arguments)
    folder: Path = options.folder.absolute()
    failed = 0
    try:
        with contextlib.ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-", dir="/tmp")))
            place.chmod(0o755)  # PostgreSQL may be another user's
            cache = place / "cache"
            cache.mkdir()
            s3 = stack.enter_context(serve_s3(options.gateway, place / "s3", "lake"))
            os.environ.update(s3, XDG_CACHE_HOME=str(cache))
            metadata = stack.enter_context(serve_postgresql(place / "postgresql"))
            (place / "ray").mkdir()
            cluster = stack.enter_context(RayCluster(place / "ray", s3, hidden=cache))
            cluster.add("one", "two")
            flink = stack.enter_context(serve_flink(options.flink, place / "flink"))
            prepare(folder, metadata, cluster.address, flink, options.days)
            print(f"Metadata: {metadata}\nData, root and pushed models: s3://lake at {s3['AWS_ENDPOINT_URL']}")
            apart = "which do not see this machine's copies" if cluster.is_apart else "on this machine's files"
            print(f"Nodes: two machines of Ray at {cluster.address}, {apart}")
            print(f"Data work: Flink, by the job server at {flink}\n\n{HEAD}")
            store = stack.enter_context(contextlib.closing(open_store(metadata)))
            for morning in mornings(Host(folder, store), cluster, options.days):
                print(morning, flush=True)
                failed += not morning.outcome.succeeded
            served = parse_url("s3://lake/serving")
            pointer = open_bucket(served.home).read((served / "serving.json").key)
            print(f"\ns3://lake/serving has {'no model' if pointer is None else 'the champion'}.")
            copies = [name for name in _files(cache / "spanwise" / "roots") if not _is_bookkeeping(name)]
            print(f"On the scheduler's disk: {', '.join(_files(folder))}; of artifacts: {len(copies)} files.")
            print("All servers stop now.")
            failed += pointer is None
    except SpanwiseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
