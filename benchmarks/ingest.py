"""Ingest against a direct pyarrow conversion, on the 336,776 flights that left New York in 2013; and its memory.

Beam's start is left out: its import, and the time that the same graph takes for a file of one row.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks.figures import Figure, at_most, median_s, most_held_bytes, show
from spanwise.components.ingest.fingerprint import fingerprint
from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.pipelines.input.readers.descriptor import NULL_VALUES
from spanwise.pipelines.nycflights import archive

TIMES = 7
COPIES = 10  #: how many times larger the large file is, for the memory
PEAK = "from benchmarks.ingest import peak_bytes; import sys; print(peak_bytes(sys.argv[1]))"


def measured() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flights, single = folder / "flights.csv", folder / "single.csv"
        flights.write_bytes(flights_csv())
        single.write_bytes(b"".join(flights.read_bytes().splitlines(keepends=True)[:2]))

        rows = _ingest(str(flights), folder)
        start_s = median_s(lambda: _ingest(str(single), folder), times=TIMES)
        direct_s = median_s(lambda: _direct(flights, folder / "direct.parquet"), times=TIMES)
        ingest_s = median_s(lambda: _ingest(str(flights), folder), times=TIMES) - start_s
        split_s = median_s(lambda: _ingest(str(flights), folder, {"train": 2, "eval": 1}), times=TIMES) - start_s
        print_s = median_s(lambda: fingerprint({"all": (str(flights),)}), times=TIMES)
        yield at_most("ingest, to a direct pyarrow conversion", ingest_s / direct_s, "x", 1.3)
        yield at_most("ingest with a hash split, to the same", split_s / direct_s, "x", 1.6)
        yield Figure(name="ingest", value=rows / ingest_s, unit="rows/s")
        yield Figure(name="Beam graph of one row, not counted above", value=start_s, unit="s")
        yield Figure(name="fingerprint", value=flights.stat().st_size / print_s / 1e9, unit="GB/s")

        large = folder / "large.csv"
        header, newline, body = flights.read_bytes().partition(b"\n")
        with large.open("wb") as file:
            file.write(header + newline)
            for _ in range(COPIES):
                file.write(body)
        once, many = _peak_bytes_alone(flights), _peak_bytes_alone(large)
        yield Figure(name="peak memory, Beam and pyarrow included", value=once / 1e6, unit="MB")
        yield at_most(f"peak memory for {COPIES} times the rows, to once", many / once, "x", 1.3)


def peak_bytes(path: str) -> int:
    """Ingests a file and returns the most memory that this process has held."""
    with tempfile.TemporaryDirectory() as folder:
        _ingest(path, Path(folder))
    return most_held_bytes()


def flights_csv() -> bytes:
    """The flights of 2013 as one file, with its header."""
    with zipfile.ZipFile(archive()) as packed:
        return packed.read("flights.csv")


def _ingest(path: str, folder: Path, ratios: dict[str, int] | None = None) -> int:
    with tempfile.TemporaryDirectory(dir=folder) as destination:
        report = ingest(IngestPlan(files={"all": (path,)}, destination=destination, ratios=ratios))
    return sum(report.rows.values())


def _direct(path: Path, out: Path) -> None:
    convert = pa.csv.ConvertOptions(null_values=list(NULL_VALUES), strings_can_be_null=True)
    table = pa.csv.read_csv(path, convert_options=convert)
    pa.parquet.write_table(table, out, compression="zstd", row_group_size=1 << 16)


def _peak_bytes_alone(path: Path) -> int:
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


if __name__ == "__main__":
    sys.exit(show(measured()))
