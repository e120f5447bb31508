"""What a full pipeline costs from the shell: on a day of taxi rides, cached, and on up to 20 million rows.

`--rows N N N` chooses other sizes, such as 100,000,000, which needs 40 GB of disk.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, at_most, growth, show
from spanwise.orchestrator.mlmd import open_store

PROJECT = Path(__file__).parents[1]
DAY = 20_000
ROWS = (500_000, 5_000_000, 20_000_000)
AT_ONCE = 1_000_000
TIMES = 3


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a run from the shell took."""

    wall_s: float
    cpu_s: float  #: of all its processes
    peak_bytes: int  #: of the largest of them
    nodes_s: float  #: from the start of its first node to the end of its last


def measured(rows: Sequence[int]) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        data = write_rides(Path(folder) / "day", DAY)
        fresh = sorted((run_taxi(data, Path(folder) / f"root{n}") for n in range(TIMES)), key=lambda ran: ran.wall_s)
        cached = sorted((run_taxi(data, Path(folder) / "root0") for _ in range(TIMES)), key=lambda ran: ran.wall_s)
        yield at_most(f"nine nodes on {DAY:,} rows", fresh[TIMES // 2].wall_s, "s", 1.7)
        yield Figure(name="the same: processor", value=fresh[TIMES // 2].cpu_s, unit="s")
        yield Figure(name="the same: peak memory of a process", value=fresh[0].peak_bytes / 1e6, unit="MB")
        yield at_most("nine nodes, everything cached", cached[TIMES // 2].wall_s, "s", 0.5)
        yield Figure(name="the same: processor", value=cached[TIMES // 2].cpu_s, unit="s")
        yield Figure(name="the same: first node to last", value=cached[TIMES // 2].nodes_s, unit="s")
    taken = []
    for count in rows:
        with tempfile.TemporaryDirectory() as folder:
            ran = run_taxi(write_rides(Path(folder) / "rides", count), Path(folder) / "root")
        taken.append(ran)
        goal_s = 25.0 if count == ROWS[-1] else None
        name = f"nine nodes on {count / 1e6:g} M rows"
        yield (
            Figure(name=name, value=ran.wall_s, unit="s") if goal_s is None else at_most(name, ran.wall_s, "s", goal_s)
        )
        yield Figure(name="the same: processor", value=ran.cpu_s, unit="s")
        yield at_most("the same: peak memory of a process", ran.peak_bytes / 1e6, "MB", 500)
        if len(taken) > 1:
            before, rows_before = taken[-2].cpu_s, rows[len(taken) - 2]
            cost = ran.cpu_s / count / (before / rows_before)
            yield at_most(f"processor a row, {count / 1e6:g} M rows to {rows_before / 1e6:g} M", cost, "x", 1.1)
    if len(rows) > 1:
        yield growth("nine nodes, by rows", rows, [ran.cpu_s for ran in taken])


def run_taxi(data: Path, root: Path, *parameters: str, **settings: str) -> Ran:
    """Runs the pipeline in processes of its own; `os.wait4` reports them all. Settings are variables."""
    words = ["run", f"{PROJECT / 'benchmarks' / 'taxi.py'}:taxi", "--span", "1", "--root", str(root)]
    for parameter in (f"data={data}", f"serving={root / 'serving'}", *parameters):
        words += ["--param", parameter]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src"), **settings}
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        started = subprocess.Popen(
            [sys.executable, "-m", "spanwise", *words], env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, used = os.wait4(started.pid, 0)
        wall_s = time.perf_counter() - began
        started.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        assert started.returncode == 0, errors.read().decode()
    with contextlib.closing(open_store(str(root / "metadata.db"))) as store:
        executions = store.executions(next(store.runs("taxi")))
    begun = [e.started for e in executions if e.started]
    ended = [e.ended for e in executions if e.ended]
    nodes_s = (max(ended) - min(begun)).total_seconds()
    kib = 1 if sys.platform == "darwin" else 1024
    return Ran(wall_s=wall_s, cpu_s=used.ru_utime + used.ru_stime, peak_bytes=used.ru_maxrss * kib, nodes_s=nodes_s)


def write_rides(data: Path, rows: int) -> Path:
    """Eight columns; the same for the same number of rows."""
    draw = np.random.default_rng(rows)
    folder = data / "1"
    folder.mkdir(parents=True)
    zones = pa.array([f"zone {n}" for n in range(300)])
    companies = pa.array([f"company {n}" for n in range(20)])
    writer = None
    for first in range(0, rows, AT_ONCE):
        count = min(AT_ONCE, rows - first)
        distance = draw.gamma(2, 1.5, count)
        table = pa.table(
            {
                "ride": np.arange(first, first + count),
                "distance": distance,
                "minutes": draw.integers(1, 90, count),
                "fare": np.round(3 + 2.5 * distance + draw.normal(0, 1, count), 2),
                "tip": np.round(draw.exponential(1.5, count), 2),
                "passengers": draw.integers(1, 6, count),
                "zone": zones.take(pa.array(draw.integers(0, len(zones), count))),
                "company": companies.take(pa.array(draw.integers(0, len(companies), count))),
            }
        )
        writer = writer or pq.ParquetWriter(folder / "rides.parquet", table.schema, compression="zstd")
        writer.write_table(table, row_group_size=1 << 16)
    assert writer is not None
    writer.close()
    return data


def show_for_rows(measured: Callable[[Sequence[int]], Iterator[Figure]], rows: Sequence[int]) -> int:
    """Prints the figures of these numbers of rows, or of those that the command line has; returns the exit code."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rows", type=int, nargs="+", default=rows)
    options, rest = parser.parse_known_args()
    return show(measured(options.rows), rest)


if __name__ == "__main__":
    sys.exit(show_for_rows(measured, ROWS))
