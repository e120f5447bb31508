"""A pass over a file that changes while it is read fails, whatever the format."""

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.images import ImageFile
from spanwise.pipelines.input.readers.descriptor import Dialect
from tests.components.tf_example import framed, serialized
from tests.pipelines.input.elements import write_tar

ROWS = 40


def table(first):
    return pa.table({"a": range(first, first + ROWS)})


def arrow_stream(first):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table(first).schema) as out:
        out.write_table(table(first), max_chunksize=4)
    return sink.getvalue()


def parquet(first):
    sink = io.BytesIO()
    pq.write_table(table(first), sink, row_group_size=4, compression="none", use_dictionary=False)
    return sink.getvalue()


def tar(first, folder):
    write_tar(folder / "drawn", ROWS)
    return (folder / "drawn").read_bytes().replace(b"text", b"%04d" % first)


def sources(folder):
    """For each format: the content of a file of rows from a number on, and what reads it in several pieces."""
    small, numbers = Dialect(block_bytes=40), range(ROWS)
    return {
        "csv": (lambda n: b"a\n" + b"".join(b"%d\n" % (n + i) for i in numbers), inputs.from_csv, {"dialect": small}),
        "jsonl": (
            lambda n: b"".join(b'{"a": %d}\n' % (n + i) for i in numbers),
            inputs.from_json_lines,
            {"dialect": small},
        ),
        "txt": (lambda n: b"".join(b"%d\n" % (n + i) for i in numbers), inputs.from_text, {"dialect": small}),
        "parquet": (parquet, inputs.from_parquet, {}),
        "arrow": (arrow_stream, inputs.from_arrow_files, {}),
        "tar": (lambda n: tar(n, folder), inputs.from_webdataset, {}),
        "tfrecord": (
            lambda n: framed([serialized({"a": [n + i]}) for i in numbers]),
            inputs.from_tfrecord,
            {"parse": False},
        ),
    }


@pytest.mark.parametrize("rename", [True, False])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "txt", "parquet", "arrow", "tar", "tfrecord"])
def test_a_file_that_changes_while_it_is_read_fails_the_pass(tmp_path, ending, rename):
    """Replaced by one of the same size and time, or written in place; the file as it then is can be read."""
    content, read, settings = sources(tmp_path)[ending]
    path = tmp_path / f"a.{ending}"
    path.write_bytes(content(1000))
    dataset = read(path, **settings)
    elements = iter(dataset)
    next(elements)

    if rename:
        (tmp_path / "new").write_bytes(content(2000))
        times = path.stat()
        os.utime(tmp_path / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
        (tmp_path / "new").replace(path)
    else:
        times = path.stat()
        with path.open("r+b") as file:
            file.write(content(2000))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))  # of a clock with coarse ticks

    with pytest.raises(UnreadableInput, match=rf"a\.{ending} changed while it was read"):
        list(elements)
    assert len(list(dataset)) == ROWS


def test_a_file_that_is_deleted_or_linked_while_it_is_read_is_read_to_its_end(tmp_path):
    """What was opened stays as it is; a link or a permission changes no row."""
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(0))
    elements = iter(inputs.from_parquet(path))
    next(elements)

    path.chmod(0o600)
    os.link(path, tmp_path / "link")
    next(elements)
    path.unlink()

    assert len(list(elements)) == ROWS - 2


def test_row_groups_that_were_not_there_are_not_left_out_in_silence(tmp_path):
    """A Parquet file that was replaced after the dataset was made has other row groups: the pass says so."""
    path = tmp_path / "a.parquet"
    pq.write_table(table(0), path, row_group_size=10)
    dataset = inputs.from_parquet(path)
    pq.write_table(pa.concat_tables([table(0), table(ROWS)]), path, row_group_size=10)

    with pytest.raises(UnreadableInput, match="it had 40 rows then, and has 80 now"):
        list(dataset)


def write_parquet(rows, path):
    pq.write_table(rows, path)


def write_arrow(rows, path):
    with pa.ipc.new_file(path, rows.schema) as file:
        file.write_table(rows)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"x": [1, 2, 3, 4], "y": [5, 6, 7, 8]}, "it had 3 rows then, and has"),
        ({"x": [1], "y": [5]}, "it had 3 rows then, and has 1 now"),
        ({"x": [1, 2, 3], "z": [5, 6, 7]}, "it has no column 'y' any more"),
        ({"x": [1, 2, 3], "y": ["5", "6", "7"]}, "its column 'y' is string now, and was int64"),
    ],
)
@pytest.mark.parametrize(
    ("write", "read"), [(write_parquet, inputs.from_parquet), (write_arrow, inputs.from_arrow_files)]
)
@pytest.mark.parametrize(
    "count_on", [lambda d: d, lambda d: d.take(4), lambda d: d.filter(inputs.col("y").is_null()), lambda d: d.skip(1)]
)
def test_a_file_that_was_replaced_after_the_dataset_was_made_is_refused(tmp_path, write, read, now, message, count_on):
    """Its rows would be null in a column that is gone, and more or fewer than the dataset was planned for."""
    path = str(tmp_path / "a")
    write(pa.table({"x": [1, 2, 3], "y": [5, 6, 7]}), path)
    dataset = count_on(read(path))
    write(pa.table(now), path)

    with pytest.raises(UnreadableInput, match=f"was replaced after the dataset was made: {message}"):
        list(dataset)


def test_an_image_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """Its bytes may be of two images."""
    path = tmp_path / "a.png"
    Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(path)
    read = ImageFile(channels=3, size=None, labels=None)
    locate = inputs.images.locate

    def replace_then_open(path):
        Image.fromarray(np.ones((3, 3, 3), np.uint8)).save(path)
        return locate(path)

    monkeypatch.setattr(inputs.images, "locate", replace_then_open)

    with pytest.raises(UnreadableInput, match=r"a\.png changed while it was read"):
        read(str(path))
