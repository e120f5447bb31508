"""A PostgreSQL of the tests' own: a cluster in a temporary folder that listens on a free port of the loopback interface.

`SPANWISE_TEST_POSTGRESQL` names a server that is there already; without it, one is started where PostgreSQL is installed.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEEDED = "SPANWISE_TEST_SQL"  #: set where a missing PostgreSQL is a failure, as in `make test-sql`
STARTS_IN_S = 60.0


def find_programs() -> Path | None:
    """The folder of PostgreSQL's programs, which Debian keeps off the path."""
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    beside = shutil.which("initdb")
    if beside is not None:
        folders.append(Path(beside).resolve().parent)
    return next((folder for folder in folders if (folder / "postgres").exists() and (folder / "initdb").exists()), None)


@contextmanager
def serve(programs: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """The URL of a server that stops at the end, with all that is in it; its network of 256 addresses may come in."""
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder:
        place = Path(folder)
        user = {}
        if os.getuid() == 0:  # as which PostgreSQL refuses to run
            nobody = pwd.getpwnam("nobody")
            os.chown(place, nobody.pw_uid, nobody.pw_gid)
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        make = [programs / "initdb", "--auth=trust", "--username=spanwise", "--encoding=UTF8", "--locale=C.UTF-8"]
        with (place / "log").open("wb") as log:
            subprocess.run(
                [*make, "--no-sync", f"--pgdata={place / 'data'}"],
                check=True, stdout=log, stderr=log, cwd=place, **user,
            )  # fmt: skip
            with (place / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {host}/24 trust\n")
            with socket.socket() as free:
                free.bind((host, 0))
                port = free.getsockname()[1]
            server = subprocess.Popen(
                [programs / "postgres", "-D", place / "data", "-k", place, "-h", host, "-p", str(port), "-F"],
                stdout=log, stderr=log, cwd=place, **user,
            )  # fmt: skip
        try:
            url = f"postgresql://spanwise@{host}:{port}/postgres"
            _await(url, server, place / "log")
            yield url
        finally:
            server.terminate()  # "smart": waits for connections, of which none should be left
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _await(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    from adbc_driver_postgresql import dbapi

    deadline = time.monotonic() + STARTS_IN_S
    while True:
        try:
            dbapi.connect(url).close()
        except dbapi.Error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}") from None
            time.sleep(0.05)
        else:
            return
