"""Engines of Beam for tests: real ones on this machine, each started alone, with little memory, and gone afterwards.

SPANWISE_TEST_BEAM_ENGINES names the folder in which `tests/contract/beam_engines.sh` has put them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from tests.servers import free_ports

Options: TypeAlias = Mapping[str, str | int | list[str]]

_HEAP = "-Xmx512m"
_OPEN = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
        "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
        "sun.util.calendar",
    )
]  # fmt: skip
_START_S = 300


@contextlib.contextmanager
def start(engine: str, folder: Path, *, task_managers: int = 2, core_each: bool = False) -> Iterator[Options]:
    """Starts an engine; yields what `[beam]` in the settings has to say to use it, except where its workers are.

    A job server does the work of `flink` and `spark` in its own process; `flink-cluster`, of so many task managers, and
    `spark-cluster` do it in others. With `core_each` a task manager and its workers have one core, as on a machine of
    that size.
    """
    tools = _tools()
    if engine == "prism":  # Beam starts and stops one for each job
        yield {"runner": "PrismRunner", "prism_location": str(tools / "prism")}
        return
    family, _, is_cluster = engine.partition("-")
    jar = tools / f"{family}-job-server.jar"  # which holds the whole engine
    with contextlib.ExitStack() as stack:
        if family == "flink":
            master = stack.enter_context(_flink(jar, folder, task_managers, core_each)) if is_cluster else "[local]"
            words = ("--flink-master", master)
        else:
            master = stack.enter_context(_spark(jar, folder)) if is_cluster else "local[2]"
            words = ("--spark-master-url", master)
        port = stack.enter_context(_job_server(jar, folder, *words))
        yield {
            "runner": f"{family.title()}Runner",
            "job_endpoint": f"localhost:{port}",
            **({"parallelism": task_managers} if family == "flink" else {}),
        }


@contextlib.contextmanager
def start_workers(environment: str, folder: Path) -> Iterator[Options]:
    """Has workers where the environment says; yields what `[beam]` in the settings has to say about them.

    EXTERNAL and LOOPBACK are not for engines of several processes: each of these numbers its workers from 1, and Beam's
    pool of workers, which knows them by their numbers, stops the wrong one.

    In the file `workers` of the folder is a line with "Starting worker" for each one outside the process of a node.
    """
    chosen = {"environment_type": environment}
    started = folder / "workers"
    python = Path(sys.executable).parent
    if environment == "PROCESS":
        boot = folder / "boot"
        container = _tools() / "container"
        boot.write_text(
            "#!/bin/sh\n"
            f"export PATH={shlex.quote(str(python))}:$PATH RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1\n"
            f'echo "Starting worker $*" >>{shlex.quote(str(started))}\n'
            f'cd "$(mktemp -d -p {shlex.quote(str(folder))})" && '  # where it writes the options of the job
            f'exec {shlex.quote(str(container))} --semi_persist_dir="$PWD" "$@"\n'
        )
        boot.chmod(0o755)
        # a worker takes seconds to start, and the next step of a job would start another
        yield {**chosen, "environment_options": [f"process_command={boot}"], "environment_cache_millis": 20_000}
    elif environment == "EXTERNAL":
        pool = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", "--service_port=0"]
        with _started(started, *pool, PATH=f"{python}:{os.environ['PATH']}") as log:
            yield {
                **chosen,
                "environment_config": _wait_for(log, r"Started worker pool servicer at port: (localhost:\d+)"),
            }
    else:
        yield chosen


def _tools() -> Path:
    return Path(os.environ["SPANWISE_TEST_BEAM_ENGINES"]).resolve()  # nodes work in the folder of the project


@contextlib.contextmanager
def _job_server(jar: Path, folder: Path, *master: str) -> Iterator[int]:
    ports = [word for name in ("job", "artifact", "expansion") for word in (f"--{name}-port", "0")]
    spark = ["-Dspark.executor.memory=512m", "-Dspark.driver.host=127.0.0.1", "-Dspark.ui.enabled=false"]
    options = [f"-Djava.io.tmpdir={folder}", "-jar", str(jar), "--artifacts-dir", str(folder / "staged")]
    with _java(folder / "job-server.log", *spark, *options, *ports, *master) as log:
        yield int(_wait_for(log, r"JobService started on localhost:(\d+)"))


@contextlib.contextmanager
def _flink(jar: Path, folder: Path, task_managers: int, core_each: bool) -> Iterator[str]:
    """A cluster of a job manager and task managers, each with a slot."""
    rpc, rest = free_ports(2)
    memory = {  # of a task manager; only Flink's own scripts find what is not given
        "framework.heap.size": "128m",
        "framework.off-heap.size": "64m",
        "task.heap.size": "256m",
        "task.off-heap.size": "64m",
        "managed.size": "64m",
        "network.min": "64m",
        "network.max": "64m",
        "jvm-metaspace.size": "256m",
        "jvm-overhead.min": "192m",
        "jvm-overhead.max": "192m",
    }
    settings = {
        "jobmanager.rpc.address": "localhost",
        "jobmanager.rpc.port": rpc,
        "jobmanager.memory.process.size": "1g",
        "rest.address": "localhost",
        "rest.port": rest,
        "taskmanager.host": "localhost",
        "taskmanager.numberOfTaskSlots": 1,
        "taskmanager.cpu.cores": "1.0",
        **{f"taskmanager.memory.{name}": size for name, size in memory.items()},
        "blob.storage.directory": folder / "blobs",
        "io.tmp.dirs": folder / "tmp",
        "classloader.resolve-order": "parent-first",  # the engine comes from the jar of the job server here
    }
    (folder / "conf").mkdir()
    (folder / "conf" / "flink-conf.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    (folder / "tmp").mkdir()

    def begin(log: str, main: str, core: int | None = None) -> Path:
        options = ("-cp", str(jar), f"org.apache.flink.runtime.{main}", "--configDir", str(folder / "conf"))
        return stack.enter_context(_java(folder / log, *options, core=core))

    with contextlib.ExitStack() as stack:
        begin("jobmanager.log", "entrypoint.StandaloneSessionClusterEntrypoint")
        cores = sorted(os.sched_getaffinity(0))[:task_managers] if core_each else [None] * task_managers
        logs = [
            begin(f"taskmanager-{number}.log", "taskexecutor.TaskManagerRunner", core)
            for number, core in enumerate(cores, start=1)
        ]
        for log in logs:
            _wait_for(log, "(Successful registration at resource manager)")
        yield f"localhost:{rest}"


@contextlib.contextmanager
def _spark(jar: Path, folder: Path) -> Iterator[str]:
    """A cluster of a master and a worker with two cores."""
    home, (port,) = folder / "home", free_ports(1)
    (home / "jars").mkdir(parents=True)
    (home / "jars" / jar.name).symlink_to(jar.resolve())
    place = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.12",  # which Spark's own scripts find
        "SPARK_WORKER_DIR": str(folder / "work"),
    }

    def begin(log: str, main: str, *words: str) -> Path:
        options = ("-cp", str(jar), f"org.apache.spark.deploy.{main}", "--host", "127.0.0.1", "--webui-port", "0")
        return stack.enter_context(_java(folder / log, *options, *words, **place))

    with contextlib.ExitStack() as stack:
        log = begin("master.log", "master.Master", "--port", str(port))
        begin("worker.log", "worker.Worker", "--cores", "2", "--memory", "1g", f"spark://127.0.0.1:{port}")
        _wait_for(log, "(Registering worker)")
        yield f"spark://127.0.0.1:{port}"


def _java(
    log: Path, *words: str, core: int | None = None, **environment: str
) -> contextlib.AbstractContextManager[Path]:
    place = () if core is None else ("taskset", "--cpu-list", str(core))
    return _started(log, *place, "java", _HEAP, *_OPEN, *words, **environment)


@contextlib.contextmanager
def _started(log: Path, *command: str, **environment: str) -> Iterator[Path]:
    """Runs a program in a session of its own, which ends with the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)


def _wait_for(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + _START_S
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{log.name} has no {pattern!r}:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.2)
    return found[1]
