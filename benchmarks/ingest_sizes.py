"""What ingest takes of a span of one large file, of many small ones, and of a few large among many small.

Each in this process and on two worker processes of Beam, in a process of its own; both write the same bytes. It needs
20 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.figures import Figure, Timed, at_most, most_held_bytes, show
from benchmarks.ingest import flights_csv
from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.orchestrator.beam_settings import HERE, BeamSettings
from spanwise.orchestrator.fingerprint import of_tree

LARGE_BYTES = 5 << 30
FILES = 10_000
ROWS_OF_SMALL = 200
SKEWED_BYTES, AMONG = 500 << 20, 999
MEMORY = 1.5 * (1 << 30)
RUNNERS = {
    "in one process": HERE,
    "on two of Beam's": BeamSettings(
        runner="FnApiRunner", options={"direct_num_workers": 2, "direct_running_mode": "multi_processing"}
    ),
}


def measured() -> Iterator[Figure]:
    writers = {
        "one CSV of 5 GiB": _write_large,
        f"{FILES:,} CSVs": _write_small,
        "a skewed list of CSVs": _write_skewed,
    }
    for name, write in writers.items():
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            data.mkdir()
            write(data)
            taken = {how: _ingest_alone(data, how) for how in RUNNERS}
        assert len({each["digest"] for each in taken.values()}) == 1, f"{name}: other bytes on other runners"
        for how, each in taken.items():
            yield Figure(name=f"{name}, {how}", value=each["wall_s"], unit="s")
            yield Figure(name=f"{name}, {how}: processor", value=each["cpu_s"], unit="s")
            yield at_most(f"{name}, {how}: most memory of a process", each["peak_bytes"] / 1e6, "MB", MEMORY / 1e6)


def ingest_once(data: Path, how: str) -> Mapping[str, object]:
    """Ingests all files of a folder, and says what it took and the digest of what was written."""
    files = {"all": tuple(map(str, sorted(data.iterdir())))}
    with tempfile.TemporaryDirectory(dir=data.parent) as destination:
        timed = Timed.of(lambda: ingest(IngestPlan(files=files, destination=destination, beam=RUNNERS[how])))
        digest = of_tree(Path(destination)).digest
    children_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    peak_bytes = max(most_held_bytes(), children_bytes)
    return {"wall_s": timed.wall_s, "cpu_s": timed.cpu_s, "peak_bytes": peak_bytes, "digest": digest}


def _ingest_alone(data: Path, how: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.ingest_sizes", "--once", how, str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return taken


def _write_large(folder: Path) -> None:
    _repeat_flights(folder / "flights.csv", LARGE_BYTES)


def _write_small(folder: Path) -> None:
    header, *rows = flights_csv().splitlines(keepends=True)
    for number in range(FILES):
        start = number * ROWS_OF_SMALL % (len(rows) - ROWS_OF_SMALL)
        (folder / f"{number:05}.csv").write_bytes(b"".join([header, *rows[start : start + ROWS_OF_SMALL]]))


def _write_skewed(folder: Path) -> None:
    _repeat_flights(folder / "00500-large.csv", SKEWED_BYTES)
    header, *rows = flights_csv().splitlines(keepends=True)
    for number in range(AMONG):
        (folder / f"{number:05}.csv").write_bytes(b"".join([header, *rows[number : number + 1]]))


def _repeat_flights(path: Path, least_bytes: int) -> None:
    header, newline, body = flights_csv().partition(b"\n")
    with path.open("wb") as file:
        file.write(header + newline)
        while file.tell() < least_bytes:
            file.write(body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--once", nargs=2, metavar=("HOW", "FOLDER"))
    options, rest = parser.parse_known_args()
    if options.once:
        print(json.dumps(ingest_once(Path(options.once[1]), options.once[0])))
        sys.exit(0)
    sys.exit(show(measured(), rest))
