"""Input pipelines: rows through read, map, shuffle and batch; snapshots; the slow path; autotune; memory.

With `--tf PYTHON`, an interpreter that has TensorFlow and Grain (`make bench-input` makes one), also against these, in
the same run. Every rate is of the best of a few passes over a table of 2 million rows, mapped into memory.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, at_least, at_most, show
from benchmarks.input_peers import BATCH, SHUFFLE, features, rate
from spanwise.pipelines.input import sources
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.op import AUTOTUNE
from spanwise.pipelines.input.sources import from_arrow, from_arrow_files
from spanwise.pipelines.input.tuning.timing import overhead_s

ROWS = 2_000_000
COLUMNS = 12
EPOCHS = 100
SLOW = 20_000  #: elements of the slow path
PEERS = Path(__file__).with_name("input_peers.py")


def measured(python: str | None) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "table.arrow"
        _write(file)
        pipeline = _pipeline(file)
        ours, plain = rates_in_turn(lambda: _rows(pipeline), lambda: _streamed(file))
        yield Figure(name="read, map, shuffle, batch 1024, prefetch", value=ours, unit="M rows/s")
        yield at_least("the same, to plain pyarrow and NumPy", ours / plain, "x", 0.7)
        yield from _autotuned(file, pipeline)
        snapshot_write, snapshot_read = yield from _snapshots(file, Path(name))
        slow = rate(lambda: (1 for _ in _slow_path()), times=2)
        yield Figure(name="a Python function of each element", value=slow, unit="M/s")
        yield from _overheads(file)
        yield from _memory(file)
        if python is not None:
            done = subprocess.run([python, str(PEERS), str(file)], stdout=subprocess.PIPE, text=True, check=True)
            peers = json.loads(done.stdout.splitlines()[-1])
            # the best form of the others comes first; those that nobody should use are left out: records parsed one by
            # one, and a function that does nothing through readers of threads
            yield at_least("the pipeline, to Grain on Arrow blocks", ours / peers["grain"], "x", 1.1)
            yield at_least("the pipeline, to tf.data's best form", ours / peers["best"], "x", 2)
            usual = ours / peers["batch then map"]
            yield Figure(name="the pipeline, to tf.data that maps batches", value=usual, unit="x")
            best = snapshot_write / peers["snapshot write, blocks"]
            yield at_least("writing a snapshot, to tf.data's of blocks that are rebatched", best, "x", 2)
            yield Figure(
                name="the same, to tf.data's of batches", value=snapshot_write / peers["snapshot write"], unit="x"
            )
            yield at_least("reading a snapshot, to tf.data", snapshot_read / peers["snapshot read"], "x", 5)


def _write(file: Path) -> None:
    random = np.random.default_rng(0)
    table = pa.table({f"c{i}": random.random(ROWS) for i in range(COLUMNS)})
    with pa.ipc.new_file(str(file), table.schema) as out:
        out.write_table(table, max_chunksize=65_536)


def _mapped(file: Path, num_parallel: int | None = None) -> Dataset:
    return from_arrow_files([str(file)]).map(features, vectorized=True, num_parallel=num_parallel, stateless=True)


def _pipeline(file: Path) -> Dataset:
    return _mapped(file).shuffle(SHUFFLE, seed=1).batch(BATCH).prefetch()


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    return (batch.num_rows for batch in batches)


def _streamed(file: Path) -> Iterator[int]:
    """The same work written by hand: what reading, NumPy and slicing cost at the least, in one thread."""
    reader = pa.ipc.open_file(pa.memory_map(str(file)))
    for number in range(reader.num_record_batches):
        block = reader.get_batch(number)
        made = features({name: block.column(name).to_numpy() for name in block.schema.names})
        order = np.random.default_rng(number).permutation(block.num_rows)
        shuffled = pa.RecordBatch.from_pydict({name: column[order] for name, column in made.items()})
        for at in range(0, block.num_rows, BATCH):
            yield shuffled.slice(at, BATCH).num_rows


def rates_in_turn(*forms: Callable[[], Iterable[int]], times: int = 5) -> list[float]:
    """The rate of each form in its best pass; the forms take turns, so that what else the machine does meets all."""
    found = [0.0] * len(forms)
    for _ in range(times):
        found = [max(best, rate(form, times=1, warm_up=0)) for best, form in zip(found, forms, strict=True)]
    return found


def _autotuned(file: Path, pipeline: Dataset) -> Iterator[Figure]:
    by_hand = [
        (mapped.shuffle(SHUFFLE, seed=1).batch(BATCH).prefetch(ready)).options(
            block_rows=block_rows, autotune=False, optimize=False
        )
        for mapped in (_mapped(file), _mapped(file, num_parallel=1), _mapped(file, num_parallel=2))
        for block_rows in (16_384, 32_768, 65_536)
        for ready in (0, 2)
    ]
    rates = rates_in_turn(*(functools.partial(_rows, dataset) for dataset in by_hand), times=2)
    best = by_hand[rates.index(max(rates))]
    tuned, hand = rates_in_turn(lambda: _rows(pipeline), lambda: _rows(best))
    yield at_least("autotune on the table, to the best by hand", tuned / hand, "x", 0.95)
    by_hand_s, tuned_s = _steady_s(_talk(5, 10), 2.0), _steady_s(_talk(AUTOTUNE, AUTOTUNE), 7.0)
    yield Figure(name="stages of 20, 100 and 200 ms, tuned", value=tuned_s * 1000, unit="ms")
    yield at_least("the same, after 5 s, to the best by hand", by_hand_s / tuned_s, "x", 0.9)


def _stage(seconds: float) -> Callable[[int], int]:
    def wait(x: int) -> int:
        time.sleep(seconds)
        return x

    return wait


def _talk(first: int, second: int) -> Dataset:
    source = sources.range(1_000_000).map(_stage(0.02))
    stages = source.map(_stage(0.1), num_parallel=first).map(_stage(0.2), num_parallel=second)
    return stages.options(optimize=False)


def _steady_s(dataset: Dataset, run_s: float) -> float:
    """The time of an element, from 5 s on; or in the last half of a shorter run."""
    begun, times = time.perf_counter(), []
    with dataset.iterator() as elements:
        while time.perf_counter() < begun + run_s:
            next(elements)
            times.append(time.perf_counter())
    late = [t for t in times if t > begun + min(5.0, run_s / 2)]
    return (late[-1] - late[0]) / (len(late) - 1)


def _snapshots(file: Path, folder: Path) -> Generator[Figure, None, tuple[float, float]]:
    """Gives what writing and reading manage, in millions of rows a second."""
    numbers = itertools.count()
    kept = [_mapped(file).snapshot(folder / f"snapshot{number}", compression=None) for number in range(3)]
    write = rate(lambda: _rows(kept[next(numbers)].batch(BATCH)), warm_up=0)
    yield Figure(name="writing a snapshot", value=write, unit="M rows/s")
    chunk = max((folder / "snapshot0").rglob("*.snapshot"), key=lambda path: path.stat().st_size)
    arrays = kept[0].batch(BATCH).as_numpy()
    row_bytes = sum(column.nbytes for column in next(iter(arrays)).values()) / BATCH
    read, most = rates_in_turn(lambda: (_touched(batch) for batch in arrays), lambda: _summed(chunk, row_bytes))
    yield Figure(name="reading it, every byte touched", value=read, unit="M rows/s")
    yield at_least("the same, to the page cache's bandwidth", read / most, "x", 0.6)
    return write, read


def _touched(batch: dict[str, np.ndarray]) -> int:
    for column in batch.values():
        column.sum()
    return len(column)


def _summed(file: Path, row_bytes: float) -> Iterator[int]:
    """Every byte of a mapped file summed, in pieces as large as a column of a batch: the most that a reader can do."""
    numbers = np.memmap(file, dtype=np.float64, mode="r", shape=(file.stat().st_size // 8,))
    for at in range(0, len(numbers), BATCH):
        numbers[at : at + BATCH].sum()
    yield int(numbers.nbytes // row_bytes)


def _slow_path() -> Dataset:
    return sources.range(SLOW).map(lambda x: x * 2 + 1)


def _overheads(file: Path) -> Iterator[Figure]:
    yield at_most("timing an op, for each element or block", overhead_s() * 1e9, "ns", 1000)
    plain = sources.range(200_000).options(optimize=False, autotune=False)
    idle = plain
    for _ in range(10):
        idle = idle.skip(0)
    slower, faster = rates_in_turn(lambda: (1 for _ in idle), lambda: (1 for _ in plain))
    cost_s = 1e-6 / slower - 1e-6 / faster
    yield at_most("an idle op, for each element", cost_s / 10 * 1e6, "us", 2)
    work = _mapped(file).shuffle(SHUFFLE, seed=1).batch(BATCH).options(optimize=False)
    chained = work
    for _ in range(10):
        chained = chained.skip(0)
    busy_s = [math.inf, math.inf]  # of the one thread there is: what else the machine does is not in it
    for _ in range(15):
        for place, dataset in enumerate((work, chained)):
            begun = time.thread_time()
            sum(_rows(dataset))
            busy_s[place] = min(busy_s[place], time.thread_time() - begun)
    yield at_most("ten idle ops over batches, to the pipeline", (busy_s[1] / busy_s[0] - 1) * 100, "%", 2)


def _memory(file: Path) -> Iterator[Figure]:
    small = from_arrow(pa.ipc.open_file(pa.memory_map(str(file))).read_all().slice(0, 100_000))
    dataset = small.map(features, vectorized=True, num_parallel=2).shuffle(SHUFFLE).batch(BATCH).prefetch()
    held = []
    for epoch in range(EPOCHS):
        for _ in dataset:
            pass
        if epoch in {EPOCHS // 10 - 1, EPOCHS - 1}:
            held.append(_resident_bytes())
    yield at_most(f"memory after {EPOCHS} epochs, to after {EPOCHS // 10}", held[1] / held[0], "x", 1.05)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--tf", metavar="PYTHON")
    options, rest = parser.parse_known_args()
    sys.exit(show(measured(options.tf), rest))
