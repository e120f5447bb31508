"""PgBouncer before a PostgreSQL, as many have it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers import free_ports

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


@contextlib.contextmanager
def pooled(url: str, folder: Path, **settings: object) -> Iterator[str]:
    """The URL that leads through a PgBouncer of these settings; its users need no password."""
    assert PGBOUNCER is not None
    server = urlsplit(url)
    (port,) = free_ports(1)
    options = {
        "listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": "", "auth_type": "any", **settings,
    }  # fmt: skip
    lines = "\n".join(f"{name} = {value}" for name, value in options.items())
    place = f"* = host={server.hostname} port={server.port} user={server.username}"
    file, log = folder / f"pgbouncer-{port}.ini", folder / f"pgbouncer-{port}.log"
    file.write_text(f"[databases]\n{place}\n[pgbouncer]\n{lines}\n")
    user: dict[str, object] = {}
    if os.getuid() == 0:  # as which it refuses to run
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    with file.open() as stdin, log.open("wb") as out:  # the folders of tests are closed to nobody
        pooler = subprocess.Popen([PGBOUNCER, "/dev/stdin"], stdin=stdin, stdout=out, stderr=out, **user)  # type: ignore[call-overload]
    try:
        while not _listens(port):
            assert pooler.poll() is None, log.read_text()
            time.sleep(0.02)
        yield url.replace(server.netloc, f"{server.username}@127.0.0.1:{port}")
    finally:
        pooler.kill()
        pooler.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
