"""What nine nodes cost whose data work is Flink's workers, and whose trainer streams: 1 M to 100 M rows.

It needs Flink as `make test-engines` gets it: `SPANWISE_TEST_BEAM_ENGINES=… python -m benchmarks.flink_rows`, a quarter
of an hour and 20 GB of disk; `--rows N N N` chooses other sizes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, at_most, growth
from benchmarks.pipeline import Ran, run_taxi, show_for_rows, write_rides
from spanwise.orchestrator.fingerprint import of_tree
from tests.contract.beam_engines import start, start_workers

ROWS = (1_000_000, 10_000_000, 100_000_000)
MOST_BYTES = 1.5 * 2**30
MADE_BY_WORKERS = ("ExampleGen/examples", "StatisticsGen/statistics", "Transform/examples", "Transform/graph")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class _Watched:
    """What processes of the engine were last seen to have used, by process id."""

    cpu_s: dict[int, float]
    peak_bytes: dict[int, int]


def measured(rows: Sequence[int]) -> Iterator[Figure]:
    taken = []
    for count in rows:
        with tempfile.TemporaryDirectory() as folder:
            data = write_rides(Path(folder) / "rides", count)
            ran, watched = _run_on_flink(data, Path(folder))
            if count == rows[0]:
                run_taxi(data, Path(folder) / "embedded", "learns=true")
                for output in MADE_BY_WORKERS:
                    assert _digest(Path(folder) / "root", output) == _digest(Path(folder) / "embedded", output), output
        taken.append(ran.cpu_s + sum(watched.cpu_s.values()))
        name = f"nine nodes on {count / 1e6:g} M rows, by Flink's workers"
        yield Figure(name=name, value=ran.wall_s, unit="s")
        yield Figure(name=f"{name}: processor of all processes", value=taken[-1], unit="s")
        most = max(ran.peak_bytes, *watched.peak_bytes.values())
        yield at_most(f"{name}: peak memory of a process", most / 1e6, "MB", MOST_BYTES / 1e6)
    if len(rows) > 1:
        yield growth("nine nodes by Flink's workers, by rows", rows, taken)


def _run_on_flink(data: Path, folder: Path) -> tuple[Ran, _Watched]:
    place = folder / "engine"
    place.mkdir()
    with start("flink-cluster", place) as engine, start_workers("PROCESS", place) as workers, _watch() as watched:
        beam = json.dumps({**engine, **workers})
        return run_taxi(data, folder / "root", "learns=true", SPANWISE_BEAM=beam), watched


def _digest(root: Path, output: str) -> str:
    (made,) = (root / "taxi" / output).iterdir()
    return of_tree(made).digest


@contextlib.contextmanager
def _watch() -> Iterator[_Watched]:
    """Looks at the processes that this one has started so far, and at theirs, until the end of the block."""
    watched, over = _Watched({}, {}), threading.Event()
    roots = set(_list_processes().get(os.getpid(), ()))

    def look() -> None:
        while not over.wait(0.2):
            children = _list_processes()
            below = [*roots]
            for process in below:
                below += children.get(process, ())
                with contextlib.suppress(OSError):
                    found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text())
                    times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                    watched.cpu_s[process] = (int(times[11]) + int(times[12])) * _TICK_S
                    if found is not None:  # not yet gone
                        watched.peak_bytes[process] = int(found[1]) * 1024

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield watched
    finally:
        over.set()
        watcher.join()


def _list_processes() -> dict[int, list[int]]:
    """The children of each process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry.name))
    return children


if __name__ == "__main__":
    sys.exit(show_for_rows(measured, ROWS))
