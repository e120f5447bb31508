"""Snapshots of 2 million rows of 12 columns: how fast they are written and read, to the page cache's bandwidth."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from benchmarks.figures import Figure, median_s, show
from spanwise.pipelines import input as inputs

ROWS = 2_000_000
TF_WRITES_PER_S = 0.28e6  # rows of 12 columns, tf.data's snapshot, batches of 1,024
TF_READS_PER_S = 5.1e6
CODECS = ("none", "lz4", "zstd")


def measured() -> Iterator[Figure]:
    table = rows()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for codec in CODECS:
            write_s = median_s(lambda codec=codec: _write(table, root / "written", codec), times=3)
            yield _at_least(f"write, {codec}", ROWS / write_s / 1e6, "M rows/s", 5 * TF_WRITES_PER_S / 1e6)
        kept = {codec: _written(table, root / codec, codec) for codec in CODECS}
        files = {codec: list((root / codec).rglob("*.snapshot")) for codec in CODECS}
        cache_s = median_s(lambda: _read_all(files["none"]))
        size = sum(path.stat().st_size for path in files["none"])
        yield Figure(name="page cache, into a reused buffer", value=size / cache_s / 1e9, unit="GB/s")
        read_s = median_s(lambda: _touch(kept["none"]))
        yield _at_least("read, none, every byte touched", ROWS / read_s / 1e6, "M rows/s", 5 * TF_READS_PER_S / 1e6)
        yield _at_least("the same, to the page cache", cache_s / read_s, "x", 0.6)
        for codec in CODECS[1:]:
            packed_s = median_s(lambda codec=codec: _touch(kept[codec]))
            yield Figure(name=f"read, {codec}, every byte touched", value=ROWS / packed_s / 1e6, unit="M rows/s")
        map_s = median_s(lambda: _mapped(files["none"]))
        yield Figure(name="mapped and hashed without anything else", value=size / map_s / 1e9, unit="GB/s")
        for codec in CODECS:
            total = sum(path.stat().st_size for path in files[codec])
            yield Figure(name=f"size, {codec}", value=total / 1e6, unit="MB")


def rows() -> pa.Table:
    """Taxi-like rows: counts, categories, money and coordinates, 12 columns of 8 bytes."""
    dice = np.random.default_rng(2013)
    columns = {f"count_{at}": dice.integers(0, 100, ROWS) for at in range(4)}
    columns |= {f"money_{at}": np.round(dice.gamma(2.0, 7.0, ROWS), 2) for at in range(4)}
    columns |= {f"place_{at}": dice.normal(40.7, 0.05, ROWS) for at in range(4)}
    return pa.table(columns)


def _dataset(table: pa.Table, path: Path, codec: str) -> inputs.Dataset:
    rows = inputs.from_arrow(table).with_snapshot_fingerprint("rows")  # to hash the table is not what is measured
    return rows.snapshot(path, codec)


def _write(table: pa.Table, path: Path, codec: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    for _ in _dataset(table, path, codec).blocks():
        pass


def _written(table: pa.Table, path: Path, codec: str) -> inputs.Dataset:
    _write(table, path, codec)
    return _dataset(table, path, codec)


def _touch(dataset: inputs.Dataset) -> float:
    total = 0.0
    with dataset.blocks() as blocks:
        for block in blocks:
            total += sum(float(column.to_numpy().sum()) for column in block.columns)
    return total


def _read_all(files: list[Path]) -> None:
    buffer = bytearray(1 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _mapped(files: list[Path]) -> None:
    for path in files:
        with pa.memory_map(str(path)) as file:
            xxhash.xxh3_128_digest(memoryview(file.read_buffer()))


def _at_least(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name=name, value=value, unit=unit, goal=f">= {limit:.3g}", ok=value >= limit)


if __name__ == "__main__":
    sys.exit(show(measured()))
