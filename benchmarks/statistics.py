"""StatisticsGen against the same figures computed directly with Polars, on a year of flights; memory, and many columns.

Both read the Parquet file from the disk. Beam's import is left out; the start of its graph is counted.
"""

from __future__ import annotations

import functools
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.figures import Figure, at_most, median_s, most_held_bytes, show
from spanwise.components.statistics.span_statistics import SpanStatistics, merge
from spanwise.components.statistics.statistics_gen import count
from spanwise.pipelines.nycflights import archive

TIMES = 7
COPIES = 10  #: how many times larger the large file is, for the memory
WIDE = 5000  #: columns
WINDOW = 30  #: spans
PEAK = "from benchmarks.statistics import peak_bytes; import sys; print(peak_bytes(sys.argv[1]))"


def measured() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flights = _flights()
        once, many, wide = (folder / size / "Split-train" for size in ("once", "many", "wide"))
        _write(once, flights, 1)
        _write(many, flights, COPIES)
        values = np.random.default_rng(0).normal(size=(1000, WIDE))
        _write(wide, pa.table({f"c{i}": values[:, i] for i in range(WIDE)}), 1)

        polars_s = median_s(functools.partial(_directly, once / "0.parquet"), times=TIMES)
        ours_s = median_s(functools.partial(_count, once), times=TIMES)
        yield at_most("statistics of 336,776 flights, to Polars", ours_s / polars_s, "x", 3)
        yield Figure(name="statistics", value=flights.num_rows / ours_s, unit="rows/s")
        wide_s = median_s(functools.partial(_count, wide), times=1, warm_up=0)
        yield Figure(name=f"statistics of {WIDE:,} columns, 1000 rows", value=wide_s, unit="s")

        spans = [_count(once)] * WINDOW
        yield Figure(name=f"merge of {WINDOW} spans' statistics", value=median_s(lambda: merge(spans)), unit="s")

        small, large = _peak_bytes_alone(once), _peak_bytes_alone(many)
        yield Figure(name="peak memory, Beam and pyarrow included", value=small / 1e6, unit="MB")
        yield Figure(name=f"peak memory for {COPIES} times the rows", value=large / 1e6, unit="MB")
        yield at_most("the same, to once", large / small, "x", 1.3)


def peak_bytes(folder: str) -> int:
    """Counts a folder and returns the most memory that this process has held."""
    _count(Path(folder))
    return most_held_bytes()


def _count(folder: Path) -> SpanStatistics:
    with tempfile.TemporaryDirectory() as scratch:
        return count({"train": folder}, scratch=Path(scratch))


def _directly(file: Path) -> pl.DataFrame:
    """The same figures, exactly, with all of Polars's threads."""
    table = pl.read_parquet(file)
    wanted: list[pl.Expr] = []
    for name, kind in table.schema.items():
        column = pl.col(name)
        wanted += [column.null_count().alias(f"{name} missing"), column.n_unique().alias(f"{name} distinct")]
        if kind == pl.String:
            wanted += _of_numbers(column.str.len_chars(), f"{name} length")
        else:
            wanted += _of_numbers(column.cast(pl.Int64) if kind.is_temporal() else column, name)
        if kind == pl.String or kind.is_integer():
            wanted.append(column.value_counts(sort=True).head(20).implode().alias(f"{name} top"))
    return table.select(wanted)


def _of_numbers(column: pl.Expr, name: str) -> list[pl.Expr]:
    ordered = column.sort()
    return [
        column.mean().alias(f"{name} mean"),
        column.std(ddof=0).alias(f"{name} std"),
        column.min().alias(f"{name} min"),
        column.max().alias(f"{name} max"),
        (column == 0).sum().alias(f"{name} zeros"),
        *(ordered.quantile(i / 10).alias(f"{name} {i}0 %") for i in range(1, 10)),
        column.hist(bin_count=20).implode().alias(f"{name} histogram"),
    ]


def _flights() -> pa.Table:
    with zipfile.ZipFile(archive()) as packed:
        options = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
        return pyarrow.csv.read_csv(io.BytesIO(packed.read("flights.csv")), convert_options=options)


def _write(folder: Path, table: pa.Table, copies: int) -> None:
    folder.mkdir(parents=True)
    with pq.ParquetWriter(folder / "0.parquet", table.schema, compression="zstd") as file:
        for _ in range(copies):
            file.write_table(table, row_group_size=table.num_rows)


def _peak_bytes_alone(folder: Path) -> int:
    done = subprocess.run([sys.executable, "-c", PEAK, str(folder)], stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout)


if __name__ == "__main__":
    sys.exit(show(measured()))
