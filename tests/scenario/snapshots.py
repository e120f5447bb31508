"""A dataset with a snapshot, and passes over it in processes that can be killed."""

import itertools
import os
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.snapshot import split_writer
from tests.forkserver import FORKS

ROWS = 60_000
BLOCK_ROWS = 2_000
PAUSE_S = 0.01  # for each block in processes that run side by side, so that they meet
NEVER = -1
SOON_S = 300.0
CHANGES = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"}
EXPIRY_S = 1
pause_s = 0.0


def add_fare(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(pause_s)
    return batch.append_column("fare", pa.array(batch.column("trip").to_numpy() * 0.5))


def dataset(path, *, now):
    """Rows in an order that is another one each time. The clock stands at `now`."""
    trips = pa.table({"trip": np.arange(ROWS), "zone": np.arange(ROWS) % 7})
    rows = inputs.from_arrow(trips).shuffle(ROWS // 10).map(add_fare, vectorized=True, format="arrow")
    kept = (
        rows.with_snapshot_fingerprint("with fares")
        .options(block_rows=BLOCK_ROWS)
        .snapshot(path, pending_snapshot_expiry_seconds=EXPIRY_S)
    )
    return inputs.Dataset(replace(kept.op, clock=lambda: now), kept.settings)


def is_right(blocks):
    """Whether these are all rows, each once, with their own values."""
    table = pa.Table.from_batches(blocks).sort_by("trip")
    trips = table["trip"].to_numpy()
    return (
        np.array_equal(trips, np.arange(ROWS))
        and np.array_equal(table["zone"].to_numpy(), trips % 7)
        and np.array_equal(table["fare"].to_numpy(), trips * 0.5)
    )


def passed(path, *, now, said=None):
    """One pass: whether it gave the right rows, and what it had of the snapshot."""
    split_writer.CHUNK_BYTES = 64 << 10  # some fifteen chunks
    with dataset(path, now=now).blocks() as blocks:
        first = next(blocks)
        if said is not None:
            said.send("under way")
        return is_right([first, *blocks]), blocks.reports[0]


def run(path, now, begin, said):
    """The same in a process of its own, which waits until all are there."""
    global pause_s  # noqa: PLW0603
    pause_s = PAUSE_S
    said.send("ready")
    begin.wait()
    right, use = passed(path, now=now, said=said)
    said.send((right, use.state, use.committed))


def start(path, *, nows):
    """Processes that begin their passes together; of each, itself and what it says."""
    begin = FORKS.Event()
    started = []
    for now in nows:
        ours, theirs = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=run, args=(path, now, begin, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    for _, said in started:
        assert said.recv() == "ready"
    begin.set()
    return started


def write_until(path, *, now, change):
    """A pass in a process of its own, killed before the `change`-th change that it makes below a path.

    How many changes it has made if it was not killed; None if it was.
    """
    ours, theirs = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_write_until, args=(path, now, change, theirs))
    process.start()
    theirs.close()
    assert ours.poll(SOON_S), "the writer hangs"
    changes = ours.recv()
    process.kill()
    process.join()
    return changes


def _write_until(path, now, change, said):
    numbers = itertools.count()

    def before(event, arguments):
        is_change = event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if is_change and str(arguments[0]).startswith(str(path)) and next(numbers) == change:
            said.send(None)
            threading.Event().wait()  # to be killed

    sys.addaudithook(before)
    right, _ = passed(path, now=now)
    assert right
    said.send(next(numbers))
