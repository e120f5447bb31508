"""What tf.data and Grain make of the work of `benchmarks.input`; run by it with an interpreter that has them.

    PYTHON input_peers.py TABLE.arrow

Prints one JSON object: millions of rows (elements, for the slow path) a second, by form. Imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import pyarrow as pa

BATCH = 1024
BLOCK = 16_384
ROWS_ONE_BY_ONE = 60_000  # of the table: a row at a time, all of it would take minutes
SHUFFLE = 65_536


def features(c: dict[str, Any], np: Any = np) -> dict[str, Any]:  # of arrays, or with another module of tensors
    """Eight columns of twelve; the same work in every form."""
    hour, day = c["c0"], c["c1"]
    return {
        "f0": np.sin(hour * 0.2618),
        "f1": np.cos(hour * 0.2618),
        "f2": c["c2"] * 0.5 + c["c3"],
        "f3": (c["c4"] - 0.5) / 0.29,
        "f4": c["c5"] * c["c6"],
        "f5": np.maximum(c["c7"], c["c8"]),
        "f6": c["c9"] - c["c10"],
        "f7": c["c11"] + day,
    }


def rate(passes: Callable[[], Iterable[int]], *, times: int = 3, warm_up: int = 1) -> float:
    """Millions of rows a second in the best of a few passes; each gives how many rows its elements have."""
    best = 0.0
    for number in range(times + warm_up):
        begun, rows = time.perf_counter(), 0
        for count in passes():
            rows += count
        if number >= warm_up:
            best = max(best, rows / (time.perf_counter() - begun) / 1e6)
    return best


def tensorflow(path: str) -> dict[str, float]:  # noqa: C901  one form after the other
    import tensorflow as tf

    table = pa.ipc.open_file(pa.memory_map(path)).read_all()
    names = table.column_names
    whole = np.stack([table.column(n).to_numpy() for n in names], axis=1)
    few = whole[:ROWS_ONE_BY_ONE]
    found = {}

    class Module:
        sin, cos, maximum = tf.sin, tf.cos, tf.maximum

    def mapped(columns):  # noqa: ANN001, ANN202
        return features(columns, Module)

    with tempfile.TemporaryDirectory() as name:
        records, blocks = (str(Path(name) / file) for file in ("rows.tfrecord", "blocks.tfrecord"))
        with tf.io.TFRecordWriter(records) as out:
            for row in few:
                feature = {
                    n: tf.train.Feature(float_list=tf.train.FloatList(value=[v]))
                    for n, v in zip(names, row, strict=True)
                }
                out.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
        with tf.io.TFRecordWriter(blocks) as out:
            for at in range(0, len(whole), BLOCK):
                out.write(np.ascontiguousarray(whole[at : at + BLOCK].T).tobytes())
        kinds = {n: tf.io.FixedLenFeature([], tf.float32) for n in names}

        def parsed(record):  # noqa: ANN001, ANN202
            return mapped(tf.io.parse_single_example(record, kinds))

        def parsed_batch(records):  # noqa: ANN001, ANN202
            return mapped(tf.io.parse_example(records, kinds))

        def decoded(record):  # noqa: ANN001, ANN202
            columns = tf.reshape(tf.io.decode_raw(record, tf.float64), [len(names), -1])
            return mapped(dict(zip(names, tf.unstack(columns, num=len(names)), strict=True)))

        def shuffled(block):  # noqa: ANN001, ANN202
            order = tf.random.shuffle(tf.range(tf.shape(block["f0"])[0]))
            return {key: tf.gather(value, order) for key, value in block.items()}

        auto = tf.data.AUTOTUNE
        rows = tf.data.TFRecordDataset(records)
        forms = {
            "rows": rows.map(parsed, auto).shuffle(SHUFFLE).batch(BATCH).prefetch(auto),
            "batch then map": rows.shuffle(SHUFFLE).batch(BATCH).map(parsed_batch, auto).prefetch(auto),
            "best": tf.data.TFRecordDataset(blocks)
            .map(decoded, auto)
            .map(shuffled, auto)
            .rebatch(BATCH)
            .prefetch(auto),
        }
        for form, dataset in forms.items():
            found[form] = rate(lambda dataset=dataset: (int(batch["f0"].shape[0]) for batch in dataset))

        mapped_columns = features({n: np.ascontiguousarray(whole[:, at]) for at, n in enumerate(names)})
        batches = tf.data.TFRecordDataset(blocks).map(decoded, auto).rebatch(BATCH)
        written = {
            "snapshot write": tf.data.Dataset.from_tensor_slices(mapped_columns).batch(BATCH),
            "snapshot write, blocks": batches,
        }
        for form, dataset in written.items():
            kept = dataset.snapshot(str(Path(name) / form), compression=None)
            found[form] = rate(lambda kept=kept: (int(batch["f0"].shape[0]) for batch in kept), times=1, warm_up=0)
        # every byte is touched, as it is by us
        found["snapshot read"] = rate(
            lambda: (int(b["f0"].shape[0]) + 0 * int(sum(float(v.numpy().sum()) for v in b.values()) > 0) for b in kept)
        )

    def python(x):  # noqa: ANN001, ANN202
        return x * 2 + 1

    slow = tf.data.Dataset.range(20_000).map(lambda x: tf.py_function(python, [x], tf.int64))
    found["python map"] = rate(lambda: (1 for _ in slow), times=2)
    return found


def grain(path: str) -> dict[str, float]:
    import grain.python as pygrain

    table = pa.ipc.open_file(pa.memory_map(path)).read_all().combine_chunks().to_batches()[0]
    size = 65_536

    def block(at: int):  # noqa: ANN202
        taken = table.slice(at, size)
        made = features({name: taken.column(name).to_numpy() for name in taken.schema.names})
        order = np.random.default_rng(at).permutation(taken.num_rows)
        return {key: value[order] for key, value in made.items()}

    starts = list(range(0, table.num_rows, size))
    blocks = (
        pygrain.MapDataset.source(starts)
        .map(block)
        .to_iter_dataset(pygrain.ReadOptions(num_threads=2, prefetch_buffer_size=4))
    )

    def batches() -> Iterable[int]:
        for columns in blocks:
            for at in range(0, len(columns["f0"]), BATCH):
                batch = {key: value[at : at + BATCH] for key, value in columns.items()}
                yield len(batch["f0"])

    slow = pygrain.MapDataset.range(20_000).map(lambda x: x * 2 + 1).to_iter_dataset()
    return {"grain": rate(batches), "grain python map": rate(lambda: (1 for _ in slow), times=2)}


if __name__ == "__main__":
    print(json.dumps({**tensorflow(sys.argv[1]), **grain(sys.argv[1])}))
