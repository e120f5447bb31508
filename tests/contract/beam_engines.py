"""Engines of Beam for tests: real ones on this machine, each started alone, with little memory, and gone afterwards.

SPANWISE_TEST_BEAM names the folder in which `tests/contract/beam_engines.sh` has put them.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

Options: TypeAlias = Mapping[str, str | int]

ENGINES = ("prism", "flink", "spark")

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
def start(engine: str, folder: Path) -> Iterator[Options]:
    """Starts an engine; yields what `[beam]` in the settings has to say to use it."""
    tools = Path(os.environ["SPANWISE_TEST_BEAM"])
    if engine == "prism":  # Beam starts and stops one for each job
        yield {"runner": "PrismRunner", "prism_location": str(tools / "prism")}
        return
    master = {"flink": ("--flink-master", "[local]"), "spark": ("--spark-master-url", "local[2]")}[engine]
    with _job_server(tools / f"{engine}-job-server.jar", folder, *master) as port:
        yield {
            "runner": f"{engine.title()}Runner",
            "job_endpoint": f"localhost:{port}",
            "environment_type": "LOOPBACK",
            **({"parallelism": 2} if engine == "flink" else {}),
        }


@contextlib.contextmanager
def _job_server(jar: Path, folder: Path, *master: str) -> Iterator[int]:
    ports = [word for name in ("job", "artifact", "expansion") for word in (f"--{name}-port", "0")]
    options = [_HEAP, *_OPEN, f"-Djava.io.tmpdir={folder}", "-jar", str(jar), "--artifacts-dir", str(folder / "staged")]
    with _java(folder / "job-server.log", *options, *ports, *master) as log:
        yield int(_wait_for(log, r"JobService started on localhost:(\d+)"))


@contextlib.contextmanager
def _java(log: Path, *words: str) -> Iterator[Path]:
    """Runs Java in a session of its own, which ends with the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["java", *words],
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
