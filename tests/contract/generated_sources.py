"""Random sources of files, and of what has a length: a dataset, and its elements by plain Python."""

import csv
import io
import json
import tarfile
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from PIL import Image

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.op import mix_seed
from spanwise.pipelines.input.ops.random_access import permuted
from tests.components.tf_example import framed, serialized

WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=4)
NAMES = st.text("abcxyz", min_size=1, max_size=5)


def in_files(draw: Any, folder: Any, ending: str, items: list[Any], write: Any) -> list[Any]:
    """The items in one or two files, in the order of their names."""
    at = draw(st.integers(0, len(items)))
    parts = [part for part in (items[:at], items[at:]) if part] or [[]]
    paths = [folder / f"{number}.{ending}" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        write(path, part)
    return paths


def text(draw: Any, folder: Any) -> tuple[Any, Any]:
    lines = draw(st.lists(st.just("") | WORDS, max_size=9))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    paths = in_files(
        draw, folder, "txt", lines, lambda path, part: path.write_bytes("".join(each + end for each in part).encode())
    )
    return inputs.from_text(paths), lambda _: lines


def names(draw: Any, folder: Any) -> tuple[Any, Any]:
    for number in range(draw(st.integers(1, 5))):
        (folder / f"{number}.name").write_text("")
    found = sorted(str(path) for path in folder.glob("*.name"))
    seed = draw(st.none() | st.integers(0, 9))
    dataset = inputs.list_files(folder / "*.name", shuffle=seed is not None, seed=seed)
    if seed is None:
        return dataset, lambda _: found
    return dataset, lambda epoch: [
        found[at] for at in np.random.Generator(np.random.PCG64(mix_seed(seed, *epoch))).permutation(len(found))
    ]


def random_access(draw: Any, _: Any) -> tuple[Any, Any]:
    values = draw(st.lists(st.integers(-9, 9) | WORDS, max_size=11))
    seed = draw(st.none() | st.integers(0, 9))
    dataset = inputs.from_random_access(values, shuffle=seed is not None, seed=seed)
    if seed is None:
        return dataset, lambda _: values
    return dataset, lambda epoch: [
        values[at] for at in permuted(range(len(values)), len(values), mix_seed(seed, *epoch))
    ]


def records(draw: Any, folder: Any) -> tuple[Any, Any]:
    found = draw(st.lists(st.binary(max_size=9), min_size=1, max_size=9))
    paths = in_files(draw, folder, "tfrecord", found, lambda path, part: path.write_bytes(framed(part)))
    return inputs.from_tfrecord(paths, parse=False), lambda _: found


def tar(draw: Any, folder: Any) -> tuple[Any, Any]:
    samples = draw(st.lists(st.fixed_dictionaries({"txt": WORDS, "cls": st.integers(-9, 9)}), min_size=1, max_size=7))

    def write(path: Any, part: list[Any]) -> None:
        with tarfile.open(path, "w") as archive:
            for number, sample in part:
                for ending, value in sample.items():
                    content = str(value).encode()
                    member = tarfile.TarInfo(f"{number}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))

    paths = in_files(draw, folder, "tar", list(enumerate(samples)), write)
    return inputs.from_webdataset(paths), lambda _: [{"__key__": str(at), **one} for at, one in enumerate(samples)]


def images(draw: Any, folder: Any) -> tuple[Any, Any]:
    shapes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4))
    found = []
    for number, (height, width) in enumerate(shapes):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
        path = folder / f"{number}.png"
        Image.fromarray(pixels).save(path)
        found.append({"image": pixels, "label": folder.name, "path": str(path)})
    return inputs.from_images(folder / "*.png", num_parallel=draw(st.sampled_from([None, 2]))), lambda _: found


ELEMENT_SOURCES = [text, names, random_access, random_access, records, tar, images]


# Sources of rows: the file gives each value as it is


def json_lines(draw: Any, folder: Any) -> tuple[Any, list[Any]]:
    values = st.fixed_dictionaries(
        {"row": st.just(0), "a": st.integers(-9, 9), "b": WORDS, "c": st.lists(st.booleans(), min_size=1, max_size=2)}
    )
    rows = numbered(draw(st.lists(values, min_size=1, max_size=9)))

    def write(path: Any, part: list[Any]) -> None:
        path.write_text("".join(json.dumps(row) + "\n" for row in part))

    return inputs.from_json_lines(in_files(draw, folder, "jsonl", rows, write)), rows


def csv_rows(draw: Any, folder: Any) -> tuple[Any, list[Any]]:
    values = st.fixed_dictionaries({"row": st.just(0), "a": st.integers(-9, 9), "b": NAMES, "c": st.booleans()})
    rows = numbered(draw(st.lists(values, min_size=1, max_size=9)))
    schema = pa.schema([("row", pa.int64()), ("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_())])

    def write(path: Any, part: list[Any]) -> None:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, schema.names)
            writer.writeheader()
            writer.writerows(row | {"c": str(row["c"]).lower()} for row in part)

    return inputs.from_csv(in_files(draw, folder, "csv", rows, write), schema=schema), rows


def tf_examples(draw: Any, folder: Any) -> tuple[Any, list[Any]]:
    values = st.fixed_dictionaries(
        {"row": st.just(0), "a": st.floats(width=32), "b": WORDS, "c": st.lists(st.integers(-9, 9), max_size=3)}
    )
    rows = numbered(draw(st.lists(values, min_size=1, max_size=9)))
    schema = pa.schema([("row", pa.int64()), ("a", pa.float32()), ("b", pa.string()), ("c", pa.list_(pa.int64()))])

    def write(path: Any, part: list[Any]) -> None:
        features = [{"row": [row["row"]], "a": [row["a"]], "b": [row["b"].encode()], "c": row["c"]} for row in part]
        path.write_bytes(framed([serialized(each) for each in features]))

    return inputs.from_tfrecord(in_files(draw, folder, "tfrecord", rows, write), schema=schema), rows


def numbered(rows: list[Any]) -> list[Any]:
    return [{"row": number} | {name: row[name] for name in "abc"} for number, row in enumerate(rows)]


ROW_SOURCES = [json_lines, csv_rows, tf_examples]
