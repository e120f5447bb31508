"""How fast the web page is over a long history: 10,000 runs of 12 nodes, and 33,662 hourly spans.

With `--dagster PYTHON`, an interpreter that has dagster-webserver (`make bench-ui` makes one), also that of Dagster,
in the same run: as many runs and partitions, asked by the queries of its page.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure, at_most, show
from benchmarks.ui_history import HOURLY, PIPELINE, make_history
from spanwise.orchestrator import Run, State
from spanwise.orchestrator.mlmd import open_store
from spanwise.scheduler.web.pages import ASSETS

RUNS, HOURS = 10_000, 33_662
READERS = 50
REQUESTS = 40
IDLE_S = 10.0
SPANS = f"/p/{HOURLY}/spans"


COMPARED = {
    "runs: median": "runs: median",
    "all partitions: median": f"{HOURS} spans: median",
    "all partitions of a job: median": f"{HOURS} spans: median",
    "start to the first page": "start to the first page, overview",
}
"""Figures of Dagster, and those of ours that answer the same question."""


def measured(dagster: str | None = None) -> Iterator[Figure]:
    ours: dict[str, float] = {}
    for figure in _ours():
        ours[figure.name] = figure.value
        yield figure
    if dagster is not None:
        command = [dagster, "-P", str(Path(__file__).with_name("ui_dagster.py"))]
        shape = ["--runs", str(RUNS), "--hours", str(HOURS)]
        done = subprocess.run([*command, *shape], stdout=subprocess.PIPE, text=True, check=True)
        for name, value in json.loads(done.stdout.splitlines()[-1]).items():
            what, _, unit = name.rpartition(", ")
            yield Figure(name=f"Dagster, {what}", value=value, unit=unit)
            if what in COMPARED:
                yield Figure(name=f"Dagster, {what}, to ours", value=value / ours[COMPARED[what]], unit="x")


def _ours() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        began = time.perf_counter()
        make_history(root / "metadata.db", runs=RUNS, hours=HOURS)
        yield Figure(name="making the history", value=time.perf_counter() - began, unit="s")
        for name, path in (("runs", f"/p/{PIPELINE}/runs"), ("overview", "/"), (f"{HOURS} spans", SPANS)):
            with contextlib.ExitStack() as opened:
                began = time.perf_counter()
                server, port = _start(root, opened)
                body = _get(port, path)
                yield at_most(f"start to the first page, {name}", time.perf_counter() - began, "s", 1.5)
                yield Figure(name=f"start to the first page, {name}: processor", value=_cpu_s(server.pid), unit="s")
                if path == SPANS:
                    while "Reading older spans" in body:
                        time.sleep(0.1)
                        body = _get(port, path)
                    yield Figure(name="start to all spans read", value=time.perf_counter() - began, unit="s")
        with contextlib.ExitStack() as opened:
            server, port = _start(root, opened)
            yield from _pages(server, port)
            yield from _live(root, server, port)
        size = sum(file.stat().st_size for file in ASSETS.iterdir())
        yield at_most("assets", size / 1024, "KiB", 300)


def _start(root: Path, opened: contextlib.ExitStack) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "spanwise", "ui", "--port", "0", "--root", str(root)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    opened.callback(server.wait)
    opened.callback(server.terminate)
    assert server.stdout is not None
    found = re.search(r":(\d+)/", server.stdout.readline())
    assert found is not None
    return server, int(found[1])


def _pages(server: subprocess.Popen[str], port: int) -> Iterator[Figure]:
    pages = {
        "overview": ("/", 150), "runs": (f"/p/{PIPELINE}/runs", 150), "run": (f"/runs/{PIPELINE}/7000", 150),
        "older runs": (f"/p/{PIPELINE}/runs?before=5000", 150), "artifact": (None, 150),
        "models": (f"/p/{PIPELINE}/models", 150), f"{HOURS} spans": (SPANS, 500),
        "a month of hours": (f"/p/{HOURLY}/spans?first=2018-01-01T00&last=2018-01-31T23", 500),
    }  # fmt: skip
    artifact = re.search(r'href="(/a/\d+)', _get(port, f"/runs/{PIPELINE}/7000"))
    assert artifact is not None
    for name, (path, limit_ms) in pages.items():
        where = path or artifact[1]
        began = time.perf_counter()
        body = _get(port, where)
        took = [(time.perf_counter() - began) * 1000]
        yield at_most(f"{name}: the first time", took[0], "ms", 1500)
        while "Reading older spans" in (body := _get(port, where)):
            time.sleep(0.1)
        before = _cpu_s(server.pid)
        for _ in range(REQUESTS):
            began = time.perf_counter()
            _get(port, where)
            took.append((time.perf_counter() - began) * 1000)
        yield Figure(name=f"{name}: median", value=statistics.median(took), unit="ms")
        yield at_most(f"{name}: p95", statistics.quantiles(took, n=20)[-1], "ms", limit_ms)
        busy = (_cpu_s(server.pid) - before) * 1000 / REQUESTS
        yield Figure(name=f"{name}: processor of the server", value=busy, unit="ms")
        yield Figure(name=f"{name}: size", value=len(body) / 1024, unit="KiB")


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    assert answer.status == http.HTTPStatus.OK, (path, answer.status, body[-500:])
    return body


class _Reader(threading.Thread):
    """One page that is open: notes when its last event came."""

    def __init__(self, port: int, page: str) -> None:
        super().__init__(daemon=True)
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(f"GET /live?page={page} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        self.events = 0
        self.at = 0.0

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self.socket.recv(1 << 16):
                if b"event: fragment" in chunk:
                    self.events += 1
                    self.at = time.perf_counter()


def _live(root: Path, server: subprocess.Popen[str], port: int) -> Iterator[Figure]:
    with contextlib.closing(open_store(str(root / "metadata.db"))) as store:
        run = store.begin_run(Run(pipeline="live", state=State.COMPLETE, nodes=("One",)))
        readers = [_Reader(port, "/runs/live/1") for _ in range(READERS)]
        for reader in readers:
            reader.start()
        _wait(readers, 1)
        before, began = _cpu_s(server.pid), time.perf_counter()
        time.sleep(IDLE_S)
        share = (_cpu_s(server.pid) - before) / (time.perf_counter() - began)
        began = time.perf_counter()
        store.update_run(replace(run, state=State.FAILED, error="as asked for"))
        _wait(readers, 2)
        yield at_most(f"an event at {READERS} readers", max(r.at for r in readers) - began, "s", 1)
        yield at_most(f"the server with {READERS} readers", share * 100, "% core", 25)
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
        held = re.search(r"VmHWM:\s*(\d+) kB", status)
        assert held is not None
        yield at_most("memory of the server, at most", int(held[1]) / 1024, "MiB", 200)
        for reader in readers:
            reader.socket.close()


def _wait(readers: list[_Reader], events: int) -> None:
    until = time.perf_counter() + 30
    while any(reader.events < events for reader in readers):
        assert time.perf_counter() < until, "an event did not come"
        time.sleep(0.01)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--dagster", metavar="PYTHON")
    found, others = parser.parse_known_args()
    sys.exit(show(measured(found.dagster), others))
