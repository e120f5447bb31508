"""What the tf.data service makes of the work of `benchmarks.service`; run by it with an interpreter that has it.

    PYTHON service_peers.py TABLE.arrow …

Prints one JSON object: millions of rows a second, by form. A dispatcher and two workers, each a process, as ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import pyarrow as pa
import tensorflow as tf
from input_peers import features, rate  # type: ignore[import-not-found]  # run as a script, it lies beside this one

BATCH = 1_024
BLOCK = 16_384
PASSES = 4
ROWS_AS_RECORDS = 65_536  # of the table: a row a record, all of it would take minutes
WORKERS = 2


class Module:
    sin, cos, maximum = tf.sin, tf.cos, tf.maximum


def serve(kind: str, *arguments: str) -> None:
    """A dispatcher or a worker, in this process."""
    if kind == "dispatcher":
        server = tf.data.experimental.service.DispatchServer()
        print(server.target, flush=True)
    else:
        server = tf.data.experimental.service.WorkerServer(
            tf.data.experimental.service.WorkerConfig(dispatcher_address=arguments[0].partition("://")[2])
        )
        print("worker", flush=True)
    server.join()


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[str]:
    """A process that serves; gives its first line."""
    with subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.kill()


def rates(paths: list[str]) -> dict[str, float]:
    names = pa.ipc.open_file(paths[0]).schema.names
    found = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        target = stack.enter_context(process("--serve", "dispatcher"))
        for _ in range(WORKERS):
            stack.enter_context(process("--serve", "worker", target))
        records, batches, blocks = _written(folder, names, paths)

        def parsed(some: Any) -> Any:
            kinds = {name: tf.io.FixedLenFeature([], tf.float32) for name in names}
            return features(tf.io.parse_example(some, kinds), Module)

        def decoded(record: Any) -> Any:
            columns = tf.reshape(tf.io.decode_raw(record, tf.float64), [len(names), -1])
            return features(dict(zip(names, tf.unstack(columns, num=len(names)), strict=True)), Module)

        auto = tf.data.AUTOTUNE
        forms = {
            "records parsed on workers": (
                tf.data.TFRecordDataset(records).repeat(PASSES).batch(BATCH).map(parsed, auto),
                "AUTO",
            ),
            "batches of 1,024": (tf.data.TFRecordDataset(batches).repeat(PASSES).map(decoded, auto), "AUTO"),
            "batches of 1,024, uncompressed": (
                tf.data.TFRecordDataset(batches).repeat(PASSES).map(decoded, auto),
                None,
            ),
            "blocks of 16,384, uncompressed": (
                tf.data.TFRecordDataset(blocks).repeat(PASSES).map(decoded, auto),
                None,
            ),
        }
        for form, (dataset, compression) in forms.items():
            read = dataset.apply(
                tf.data.experimental.service.distribute(
                    processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
                    service=target,
                    compression=compression,
                )
            )
            read = read.prefetch(auto)
            found[form] = rate(lambda read=read: (int(batch["f0"].shape[0]) for batch in read), times=3)
    return found


def _written(folder: Path, names: list[str], paths: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The table as files of records, of raw batches and of raw blocks."""
    written: dict[str, list[str]] = {"records": [], "batches": [], "blocks": []}

    def out(kind: str, number: int) -> tf.io.TFRecordWriter:
        written[kind].append(str(folder / f"{kind}{number:04}"))
        return tf.io.TFRecordWriter(written[kind][-1])

    few = 0
    for number, path in enumerate(paths):
        table = pa.ipc.open_file(path).read_all()
        whole = np.stack([table.column(name).to_numpy() for name in names], axis=1)
        for kind, rows in (("batches", BATCH), ("blocks", BLOCK)):
            with out(kind, number) as file:
                for at in range(0, len(whole), rows):
                    file.write(np.ascontiguousarray(whole[at : at + rows].T).tobytes())
        if few < ROWS_AS_RECORDS:
            for part in np.array_split(whole[: ROWS_AS_RECORDS - few], 8):
                with out("records", len(written["records"])) as file:
                    for row in part:
                        values = {
                            name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
                            for name, value in zip(names, row, strict=True)
                        }
                        file.write(tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString())
            few += len(whole)
    return written["records"], written["batches"], written["blocks"]


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
    else:
        print(json.dumps(rates(sys.argv[1:])))
