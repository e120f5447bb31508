"""Elements as plain values that can be compared, and datasets of every op."""

import dataclasses
import io
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import Dataset, Ragged, Sparse
from tests.components.tf_example import framed, serialized


def plain(element: object) -> object:  # noqa: PLR0911  one line per kind of element
    """An element with its types, down to the dtype of each array."""
    match element:
        case pa.RecordBatch():
            return "batch", element.schema.to_string(), element.to_pylist()
        case Dataset():
            return "dataset", contents(element)
        case Ragged():
            return "ragged", [plain(row) for row in element]
        case Sparse():
            return "sparse", plain(element.dense())
        case np.ma.MaskedArray():
            return type(element).__name__, str(element.dtype), str(element.tolist())
        case np.ndarray():
            return "array", str(element.dtype), str(element.tolist())  # as text a NaN equals a NaN
        case dict():
            return {key: plain(value) for key, value in element.items()}
        case tuple():
            return type(element).__name__, [plain(value) for value in element]
        case _ if dataclasses.is_dataclass(element):
            return type(element).__name__, plain(vars(element))
    return element


def contents(elements: Iterable[object]) -> list[object]:
    return [plain(element) for element in elements]


def all_of(dataset: Dataset, epoch: int = 0) -> list[object]:
    with dataset.iterator(epoch=epoch) as elements:
        return contents(elements)


@cache
def table() -> pa.Table:
    """Forty rows in chunks of odd sizes, with nulls and lists among them."""
    rows = pa.table(
        {
            "number": np.arange(40),
            "fare": pa.array([None if number % 7 == 3 else number / 2 for number in range(40)], pa.float64()),
            "paid": pa.array([None if number % 5 == 1 else number % 2 == 0 for number in range(40)], pa.bool_()),
            "zone": [f"zone {number % 4}" for number in range(40)],
            "stops": pa.array([list(range(number % 4)) for number in range(40)], pa.list_(pa.int32())),
        }
    )
    return pa.concat_tables([rows.slice(0, 1), rows.slice(1, 16), rows.slice(17, 5), rows.slice(22)])


@cache
def folder() -> Path:
    """Files with the rows of `table`: three of Parquet in groups of 5, three of Arrow, two of CSV."""
    place = Path(tempfile.mkdtemp(prefix="dataset-"))
    for number, (start, count) in enumerate([(0, 12), (12, 17), (29, 11)]):
        part = table().slice(start, count)
        pq.write_table(part, place / f"{number}.parquet", row_group_size=5)
        with pa.ipc.new_file(place / f"{number}.arrow", part.schema) as writer:
            writer.write_table(part, max_chunksize=6)
        (place / f"{number}.csv").write_text(
            "number,zone\n" + "".join(f"{row['number']},{row['zone']}\n" for row in part.to_pylist())
        )
    (place / "lines.txt").write_text("one\r\n\nthree\nfour")
    (place / "more.txt").write_text("five\nsix\n")
    for number in range(2):
        (place / f"{number}.jsonl").write_text("".join(f'{{"a": {number + at}, "b": [{at}]}}\n' for at in range(5)))
        records = [serialized({"a": [number + at], "b": [b"x"] * at}) for at in range(5)]
        (place / f"{number}.tfrecord").write_bytes(framed(records))
        write_tar(place / f"{number}.tar", 4)
    for number in range(4):
        label = place / "images" / ("cat", "dog")[number % 2]
        label.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 3, 3), number, np.uint8)).save(label / f"{number}.png")
    return place


def write_tar(path: Path, samples: int) -> None:
    """Samples of a text and a number each."""
    with tarfile.open(path, "w") as archive:
        for sample in range(samples):
            for ending, content in (("txt", b"text"), ("cls", str(sample).encode())):
                member = tarfile.TarInfo(f"{path.stem}/{sample}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def rows() -> Dataset:
    return inputs.from_arrow(table())


def numbers() -> Dataset:
    return inputs.range(23)


def doubled(columns):
    return {"number": columns["number"], "twice": columns["number"] * 2}


def lists(number: int) -> dict[str, object]:
    return {"number": number, "values": np.arange(number % 5)}


def pairs(number: int) -> Dataset:
    return inputs.from_elements([number, -number]).repeat(number % 3)


def some_rows(number: int) -> Dataset:
    return inputs.from_arrow(table().slice(number, number % 6)).shuffle(4, seed=number)


def added(total: int, number: int) -> tuple[int, int]:
    return total + number, total


def noisy(element, numbers):
    return element, int(numbers.integers(1000))


def is_odd(number: int) -> bool:
    return number % 2 == 1


def count_to(limit: int):
    yield from range(limit)


def row_dicts():
    return iter(table().select(["number", "zone"]).to_pylist())


NUMBER_AND_ZONE = pa.schema([("number", pa.int64()), ("zone", pa.string())])

#: Every op, of rows where it takes rows and of other elements where it takes these.
DATASETS: dict[str, Callable[[], Dataset]] = {
    "range": numbers,
    "from_tensors": lambda: inputs.from_tensors({"a": np.arange(3)}),
    "from_elements": lambda: inputs.from_elements(["a", "b", None]),
    "from_tensor_slices": lambda: inputs.from_tensor_slices({"a": np.arange(12).reshape(6, 2), "b": list("abcdef")}),
    "from_arrow": rows,
    "from_parquet": lambda: inputs.from_parquet(folder() / "*.parquet"),
    "from_parquet, some columns and rows": lambda: inputs.from_parquet(
        folder() / "*.parquet", columns=["zone", "fare"], filter=inputs.col("number") > 6
    ),
    "from_parquet, shuffled": lambda: inputs.from_parquet(folder() / "*.parquet", shuffle=True, seed=3),
    "from_arrow_files": lambda: inputs.from_arrow_files(folder() / "*.arrow"),
    "from_csv": lambda: inputs.from_csv(folder() / "*.csv"),
    "from_generator": lambda: inputs.from_generator(count_to, 9),
    "from_generator, rows": lambda: inputs.from_generator(row_dicts, spec=NUMBER_AND_ZONE),
    "from_text": lambda: inputs.from_text(folder() / "*.txt"),
    "from_json_lines": lambda: inputs.from_json_lines(folder() / "*.jsonl"),
    "from_tfrecord": lambda: inputs.from_tfrecord(folder() / "*.tfrecord"),
    "from_tfrecord, records": lambda: inputs.from_tfrecord(folder() / "*.tfrecord", parse=False),
    "from_webdataset": lambda: inputs.from_webdataset(folder() / "*.tar"),
    "from_images": lambda: inputs.from_images(folder() / "images", shuffle=True, num_parallel=2).map(
        lambda image: (image["label"], image["image"])
    ),
    "from_random_access": lambda: inputs.from_random_access(list("abcdefg")),
    "from_random_access, shuffled": lambda: inputs.from_random_access(range(23), shuffle=True, seed=3).shard(2, 1),
    "list_files": lambda: inputs.list_files(folder() / "*.txt", shuffle=True).flat_map(inputs.from_text),
    "map": lambda: numbers().map(lists),
    "map, of rows": lambda: rows().map(lambda row: row["number"]),
    "map, vectorized": lambda: rows().map(doubled, vectorized=True),
    "map, to rows": lambda: numbers().map(lambda number: {"number": number, "zone": "a"}, spec=NUMBER_AND_ZONE),
    "random_map": lambda: numbers().random_map(noisy),
    "random_map, by a key": lambda: rows().random_map(noisy, key=lambda row: row["number"] % 5),
    "random_map, parallel": lambda: numbers().random_map(noisy, num_parallel=3),
    "filter": lambda: numbers().filter(is_odd),
    "filter, by an expression": lambda: rows().filter(inputs.col("fare") > 4),
    "filter, by a mask": lambda: rows().filter(lambda columns: columns["number"] % 3 == 1, vectorized=True),
    "filter, row by row": lambda: rows().filter(lambda row: len(row["stops"]) == 2),
    "select": lambda: rows().select("zone", "number"),
    "enumerate": lambda: numbers().enumerate(5),
    "enumerate, rows": lambda: rows().enumerate(),
    "scan": lambda: numbers().scan(0, added),
    "batch": lambda: numbers().batch(4),
    "batch, of structures": lambda: inputs.zip(numbers(), rows().select("number", "zone")).batch(4),
    "batch, without the rest": lambda: numbers().batch(4, drop_remainder=True),
    "batch, ragged": lambda: numbers().map(lists).batch(3, ragged=True),
    "batch, of rows": lambda: rows().batch(7),
    "batch, of rows, without the rest": lambda: rows().batch(7, drop_remainder=True),
    "as_numpy": lambda: rows().batch(7).as_numpy(),
    "unbatch": lambda: numbers().batch(4).unbatch(),
    "unbatch, rows": lambda: rows().batch(7).unbatch(),
    "rebatch": lambda: numbers().batch(4).rebatch(6),
    "rebatch, rows": lambda: rows().batch(4).rebatch(6),
    "padded_batch": lambda: numbers().map(lists).padded_batch(4, values=-1),
    "padded_batch, of rows": lambda: rows().select("number", "stops").padded_batch(7),
    "bucket_by_sequence_length": lambda: (
        numbers().map(lists).bucket_by_sequence_length(lambda element: len(element["values"]), [2, 4], [3, 2, 4])
    ),
    "group_by_window": lambda: numbers().group_by_window(lambda number: number % 3, lambda _, group: group.batch(2), 4),
    "group_by_window, of rows": lambda: rows().group_by_window(
        lambda row: row["zone"], lambda _, group: group, lambda zone: 3 + int(zone[-1]), spec=table().schema
    ),
    "rejection_resample": lambda: numbers().rejection_resample(is_odd, [0.8, 0.2]),
    "rejection_resample, of rows": lambda: rows().rejection_resample(lambda row: row["number"] % 2, [1, 3], [1, 1]),
    "window": lambda: numbers().window(5, shift=3),
    "window, with strides": lambda: numbers().window(3, shift=4, stride=2, drop_remainder=True),
    "window, with gaps": lambda: numbers().window(2, shift=5),
    "window, of rows": lambda: rows().select("number").window(5, shift=3, stride=2),
    "flat_map": lambda: numbers().flat_map(pairs),
    "flat_map, of windows": lambda: numbers().window(5, shift=3).flat_map(lambda window: window.batch(5)),
    "flat_map, to rows": lambda: numbers().flat_map(some_rows, spec=table().schema),
    "interleave": lambda: numbers().interleave(pairs, cycle_length=3, block_length=2),
    "interleave, to rows": lambda: numbers().interleave(some_rows, cycle_length=3, block_length=2, spec=table().schema),
    "interleave, of rows": lambda: rows().interleave(lambda row: pairs(row["number"]), cycle_length=2),
    "shuffle": lambda: numbers().shuffle(7, seed=1),
    "shuffle, of all": lambda: numbers().shuffle(seed=1),
    "shuffle, without a seed": lambda: numbers().shuffle(7),
    "shuffle, of rows": lambda: rows().shuffle(9, seed=1),
    "shuffle, of all rows": lambda: rows().shuffle(seed=1),
    "repeat": lambda: numbers().repeat(3),
    "repeat, of a shuffle": lambda: numbers().shuffle(5, seed=1).repeat(3),
    "repeat, of a whole shuffle": lambda: rows().shuffle(seed=1).repeat(3),
    "repeat, of rows": lambda: rows().repeat(2),
    "take": lambda: numbers().take(11),
    "take, of rows": lambda: rows().take(19),
    "take, all": lambda: rows().take(-1),
    "take_while": lambda: numbers().take_while(lambda number: number < 9),
    "take_while, of rows": lambda: rows().take_while(inputs.col("number") < 19),
    "take_while, row by row": lambda: rows().take_while(lambda row: row["number"] < 19),
    "unique": lambda: numbers().map(lambda number: number % 7).unique(),
    "unique, of rows": lambda: rows().select("zone").unique(),
    "skip": lambda: numbers().skip(11),
    "skip, of rows": lambda: rows().skip(19),
    "skip, all": lambda: rows().skip(-1),
    "shard": lambda: numbers().shard(3, 1),
    "shard, of rows": lambda: rows().shard(3, 2),
    "zip": lambda: inputs.zip(numbers(), numbers().skip(2).map(lists)),
    "zip, nested": lambda: inputs.zip({"a": numbers(), "b": (rows(), numbers().skip(1))}),
    "unzip": lambda: inputs.zip({"a": numbers(), "b": (rows(), numbers().skip(1))}).unzip()["b"][0]["fare"],
    "choose_from_datasets": lambda: inputs.choose_from_datasets(
        [numbers(), numbers().map(lambda number: -number).take(2)],
        inputs.range(23).map(lambda number: number % 3 // 2),
        stop_on_empty=False,
    ),
    "choose_from_datasets, of rows": lambda: inputs.choose_from_datasets(
        [rows(), rows().take(3)], inputs.range(23).map(lambda number: number % 3 // 2)
    ),
    "zip, of rows": lambda: inputs.zip(rows(), numbers()),
    "concatenate": lambda: numbers().concatenate(numbers().skip(20), numbers().take(0), numbers()),
    "concatenate, of rows": lambda: rows().concatenate(rows().skip(20)),
    "sample_from_datasets": lambda: inputs.sample_from_datasets(
        [numbers(), numbers().map(lambda number: -number), numbers().take(2)], [0.6, 0.3, 0.1], seed=5
    ),
    "sample_from_datasets, until one is empty": lambda: inputs.sample_from_datasets(
        [numbers(), numbers().repeat()], seed=5, stop_on_empty=True
    ),
    "sample_from_datasets, of rows": lambda: inputs.sample_from_datasets(
        [rows(), rows().take(3), rows().skip(30)], [0.6, 0.3, 0.1], seed=5
    ),
    "sample_from_datasets, of rows, until one is empty": lambda: inputs.sample_from_datasets(
        [rows(), rows().repeat()], seed=5, stop_on_empty=True
    ),
    "cache": lambda: numbers().shuffle(4).cache().repeat(3),
    "cache, of rows": lambda: rows().shuffle(6).cache().repeat(2),
    "prefetch": lambda: numbers().map(lists).prefetch(3),
    "prefetch, of rows": lambda: rows().shuffle(6, seed=1).prefetch(3),
    "ignore_errors": lambda: numbers().map(lambda number: 60 // (number % 4)).ignore_errors(),
    "apply": lambda: numbers().apply(lambda dataset: dataset.skip(3).batch(2)),
    "map, parallel": lambda: numbers().map(lists, num_parallel=3),
    "map, parallel, of rows": lambda: rows().map(doubled, vectorized=True, num_parallel=2),
    "interleave, parallel": lambda: numbers().interleave(pairs, cycle_length=3, block_length=2, num_parallel=2),
    "a chain": lambda: (
        inputs.from_parquet(folder() / "*.parquet")
        .map(doubled, vectorized=True)
        .filter(inputs.col("twice") > 8)
        .shuffle(11, seed=2)
        .repeat(2)
        .batch(5)
        .as_numpy()
    ),
}
