"""A MariaDB of the tests' own: a server in a temporary folder that listens on a free port."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import free_ports

SOON_S = 300.0


def is_installed():
    return shutil.which("mariadbd", path=_PATH) is not None


@contextmanager
def serve(host: str = "127.0.0.1") -> Iterator[str]:
    """The URL of an empty database on a server that stops at the end, with all that is in it."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="mariadb-", dir="/tmp") as folder:
        data, socket, log = Path(folder, "data"), Path(folder, "socket"), Path(folder, "log")
        user = f"--user={'root' if os.getuid() == 0 else os.getlogin()}"
        _call("mariadb-install-db", user, "--auth-root-authentication-method=normal", f"--datadir={data}")
        command = [
            *_named("mariadbd"), user, f"--datadir={data}", f"--socket={socket}", "--skip-name-resolve",
            f"--bind-address={host}", f"--port={port}",
            "--character-set-server=utf8mb4", "--collation-server=utf8mb4_bin",
            "--innodb-flush-log-at-trx-commit=0",  # it need not outlive the machine
        ]  # fmt: skip
        with log.open("wb") as out:
            server = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            deadline = time.monotonic() + SOON_S
            while not socket.exists():
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            make = (
                "CREATE DATABASE spanwise; CREATE USER spanwise@'%' IDENTIFIED BY 'secret'; "
                "GRANT ALL ON spanwise.* TO spanwise@'%'"
            )
            _call("mariadb", f"--socket={socket}", "--user=root", f"--execute={make}")
            yield f"mysql://spanwise:secret@{host}:{port}/spanwise"
        finally:
            server.terminate()
            server.wait(SOON_S)


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"


def _named(program):
    return [shutil.which(program, path=_PATH), "--no-defaults"]


def _call(program, *options):
    subprocess.run([*_named(program), *options], check=True, capture_output=True)
