"""Servers for demos and tests: PostgreSQL, S3, Flink and Ray on this machine, which stop with their context."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import ServiceError

SOON_S: Final = 600.0
"""How long a server may take to come up: the machine may be busy."""


@contextlib.contextmanager
def serve_postgresql(folder: Path, host: str = "127.0.0.1", *, durable: bool = True) -> Iterator[str]:
    """The URL of an empty database, which the 256 addresses around that of `host` may use.

    Without `durable` it syncs nothing, which is faster: for databases that need not outlive the machine.

    Raises:
        ServiceError: PostgreSQL is not installed, or does not start.
    """
    programs = find_postgresql()
    if programs is None:
        raise ServiceError("PostgreSQL is not installed here. Install it:  apt-get install postgresql")
    folder.mkdir()
    user: dict[str, object] = {}
    if os.getuid() == 0:  # as which PostgreSQL refuses to run
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    make = [programs / "initdb", "--auth=trust", "--username=spanwise", "--encoding=UTF8", "--locale=C.UTF-8"]
    log = folder / "log"
    with log.open("wb") as out:
        made = subprocess.run(
            [*make, "--no-sync", f"--pgdata={folder / 'data'}"], stdout=out, stderr=out, cwd=folder, check=False, **user
        )  # type: ignore[call-overload]  # mypy cannot see into the options
    if made.returncode:
        raise ServiceError(f"PostgreSQL could not make a cluster:\n{_tail(log)}")
    with (folder / "data" / "pg_hba.conf").open("a") as rules:
        rules.write(f"host all all {host}/24 trust\n")
    port = _free_port(host)
    command = [programs / "postgres", "-D", folder / "data", "-k", folder, "-h", host, "-p", port]
    is_ready = (programs / "pg_isready", "--quiet", f"--host={host}", f"--port={port}")  # it listens before it is ready
    with _started(
        "PostgreSQL", [*command, *([] if durable else ["-F"])], log,
        lambda: subprocess.run(is_ready, check=False).returncode == 0, cwd=folder, **user,
    ):  # fmt: skip
        yield f"postgresql://spanwise@{host}:{port}/postgres"


def find_postgresql() -> Path | None:
    """The folder of PostgreSQL's programs, if it is installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)  # Debian keeps them off the path
    if (initdb := shutil.which("initdb")) is not None:
        folders.append(Path(initdb).resolve().parent)
    return next((each for each in folders if (each / "postgres").exists() and (each / "initdb").exists()), None)


@contextlib.contextmanager
def serve_s3(gateway: Path, folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """The variables of the environment with which a new bucket is found; `gateway` is the program of versitygw.

    Raises:
        ServiceError: it does not start.
    """
    (folder / "objects" / bucket).mkdir(parents=True)
    (folder / "properties").mkdir()
    port = _free_port()
    command = [
        gateway, "--access", "demo", "--secret", "demodemo", "--port", f"127.0.0.1:{port}",
        "posix", "--sidecar", folder / "properties", folder / "objects",
    ]  # fmt: skip
    with _started("versitygw", command, folder / "log", lambda: _listens(port)):
        yield {
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demodemo",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }


@contextlib.contextmanager
def serve_flink(jar: Path, folder: Path) -> Iterator[str]:
    """The endpoint of a job server of Beam's for Flink, which does the work in a Flink of its own.

    Raises:
        ServiceError: there is no Java, or it does not start.
    """
    java = shutil.which("java")
    if java is None:
        raise ServiceError("Java is not installed here. Install it:  apt-get install default-jre-headless")
    folder.mkdir()
    log, port = folder / "log", _free_port()
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "nio", "util")]
    command = [
        java, "-Xmx512m", *opened, f"-Djava.io.tmpdir={folder}", "-jar", jar.resolve(), "--flink-master=[local]",
        f"--job-port={port}", "--artifact-port=0", "--expansion-port=0", f"--artifacts-dir={folder / 'staged'}",
    ]  # fmt: skip
    with _started("Flink", command, log, lambda: "JobService started" in log.read_text(errors="replace"), cwd=folder):
        yield f"127.0.0.1:{port}"


class RayCluster:
    """A head of some processors, and machines that come and go. As root, they do not see the folder `hidden`.

    The path of `folder` is short: those of sockets in it must be.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, *, cpus: int = 0, hidden: Path | None = None
    ) -> None:
        self._folder = folder
        self._environment = environment or {}
        self._cpus = cpus
        self._hidden = hidden
        self._machines: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""

    def __enter__(self) -> Self:
        options = (f"--num-cpus={self._cpus}", "--include-dashboard=false", f"--temp-dir={self._folder}")
        self._start("head", "--head", "--port=0", *options)
        self._wait("head", "--head", "--port=0", *options)
        port = next(self._folder.glob("session_latest/gcs_server_port_*")).read_text()
        self.address = f"127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._machines):
            self.kill(name)

    def add(self, *names: str, cpus: int = 2) -> None:
        """Starts machines of so many processors each.

        Raises:
            ServiceError: one does not start.
        """
        options = (f"--address={self.address}", f"--num-cpus={cpus}")
        for name in names:
            self._start(name, *options)
        for name in names:
            self._wait(name, *options)

    def kill(self, name: str) -> None:
        """What becomes of a machine that is taken away: all its processes are gone at once."""
        machine = self._machines.pop(name)
        process.send([machine.pid, *process.descendants(machine.pid)], signal.SIGKILL)
        machine.wait()

    @property
    def is_apart(self) -> bool:
        """Whether the machines do not see `hidden`."""
        if self._hidden is None or os.getuid() != 0:
            return False
        return subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0

    def _start(self, name: str, *options: str) -> None:
        ray = Path(sys.executable).with_name("ray")
        if not ray.exists():
            raise ServiceError("Ray is not installed here. Install it:  pip install 'spanwise[ray]'")
        command = [str(ray), "start", "--block", "--node-ip-address=127.0.0.1", "--disable-usage-stats", *options]
        if name != "head" and self.is_apart:
            script = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", script, str(self._hidden), *command]
        with Path(self._folder, f"{name}.log").open("wb") as log:
            self._machines[name] = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **self._environment, "RAY_health_check_period_ms": "1000",
                     "RAY_health_check_initial_delay_ms": "1000", "RAY_raylet_start_wait_time_s": str(int(SOON_S))},
            )  # fmt: skip

    def _wait(self, name: str, *options: str) -> None:
        """Starts the machine again whenever Ray gives up: it gives the helpers of one 15 seconds to start."""
        log = self._folder / f"{name}.log"
        deadline = time.monotonic() + SOON_S

        def is_ready() -> bool:
            if _lost_raylet(self._machines[name].pid) and time.monotonic() < deadline:
                self.kill(name)
                self._start(name, *options)
            return "Ray runtime started" in log.read_text(errors="replace")

        _wait_for(f"Ray ({name})", lambda: self._machines[name], log, is_ready)


def _lost_raylet(pid: int) -> bool:
    """Whether the daemon of a machine has died, for which `ray start` goes on waiting."""
    with contextlib.suppress(OSError):
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return any("(raylet) Z" in Path(f"/proc/{each}/stat").read_text(errors="replace") for each in below)
    return False


def _free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as free:
        free.bind((host, 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def _started(
    what: str, command: Sequence[object], log: Path, ready: Callable[[], bool], **options: object
) -> Iterator[None]:
    with log.open("ab") as out:
        server = subprocess.Popen([str(word) for word in command], stdout=out, stderr=out, **options)  # type: ignore[call-overload]
    try:
        _wait_for(what, lambda: server, log, ready)
        yield
    finally:
        server.send_signal(signal.SIGINT)  # PostgreSQL ends its connections and stops
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for(what: str, server: Callable[[], subprocess.Popen[bytes]], log: Path, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not ready():
        if server().poll() is not None or time.monotonic() > deadline:
            raise ServiceError(f"{what} did not start:\n{_tail(log)}")
        time.sleep(0.1)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
