"""Where datasets begin, beside Parquet."""

import gc
import io
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from spanwise.orchestrator.errors import DatasetError, SourceFailed, UnreadableInput
from spanwise.orchestrator.storage import open_bucket, parse_url
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import ArraySpec, Structure, Table
from spanwise.pipelines.input.graph.fingerprint import of_graph


def test_range_counts_as_pythons_own():
    """Up, down, in steps; a step of none is refused."""
    assert list(inputs.range(5)) == [0, 1, 2, 3, 4]
    assert list(inputs.range(5, 0, -2)) == [5, 3, 1]
    with pytest.raises(DatasetError, match="the step must not be 0"):
        inputs.range(0, 5, 0)
    with pytest.raises(DatasetError, match=r"range\(stop='5'\): expected a whole number"):
        inputs.range("5")


def test_slices_of_a_structure():
    """A structure of arrays gives structures of slices, described beforehand."""
    dataset = inputs.from_tensor_slices({"a": np.arange(4).reshape(2, 2), "b": np.array(["x", "y"])})

    assert dataset.spec == Structure(dict, ("a", "b"), (ArraySpec("int64", (2,)), ArraySpec("str", ())))
    assert [(element["a"].tolist(), element["b"]) for element in dataset] == [([0, 1], "x"), ([2, 3], "y")]


def test_slices_of_different_lengths_are_refused():
    """The message has the lengths."""
    with pytest.raises(DatasetError, match=r"different lengths: \[2, 3\]"):
        inputs.from_tensor_slices({"a": [1, 2], "b": [1, 2, 3]})
    with pytest.raises(DatasetError, match="has no first axis"):
        inputs.from_tensor_slices(3)


def test_a_table_is_not_copied():
    """Blocks are views of the table."""
    table = pa.table({"fare": np.arange(10)})

    (block,) = inputs.from_arrow(table).blocks()

    assert block.column(0).buffers()[1].address == table["fare"].chunk(0).buffers()[1].address


def test_what_is_no_table_is_refused():
    """A frame of another library has to be made one first."""
    with pytest.raises(DatasetError, match=r"from_arrow\(dict\): expected a pyarrow.Table"):
        inputs.from_arrow({"fare": [1]})


def test_arrow_files_are_mapped_not_read(tmp_path):
    """Rows lie in the mapped file, in files and in streams alike."""
    table = pa.table({"fare": np.arange(100_000)})
    with pa.ipc.new_file(tmp_path / "0.arrow", table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(tmp_path / "1.arrow", table.schema) as writer:
        writer.write_table(table)
    gc.collect()
    before = pa.total_allocated_bytes()

    dataset = inputs.from_arrow_files(tmp_path / "*.arrow")
    blocks = list(dataset.blocks())

    assert sum(block.num_rows for block in blocks) == 200_000
    assert inputs.from_arrow_files(tmp_path / "0.arrow").cardinality == 100_000
    assert dataset.cardinality is None
    assert pa.total_allocated_bytes() - before < 100_000
    (tmp_path / "2.arrow").write_bytes(b"nothing")
    with pytest.raises(UnreadableInput, match=r"2.arrow: cannot be read as Arrow IPC"):
        inputs.from_arrow_files(tmp_path / "*.arrow")


def test_csv_has_the_types_of_its_first_lines_or_of_a_schema(tmp_path):
    """A value that does not fit is told with its file."""
    (tmp_path / "0.csv").write_text("fare;zone\n1;a\n2;b\n")
    (tmp_path / "1.csv").write_text("fare;zone\nmuch;c\n")
    schema = pa.schema([("fare", pa.float32()), ("zone", pa.string())])

    first = inputs.from_csv(tmp_path / "0.csv", delimiter=";")

    assert first.spec == Table(pa.schema([("fare", pa.int64()), ("zone", pa.string())]))
    assert inputs.from_csv(tmp_path / "0.csv", delimiter=";", schema=schema).to_arrow()["fare"].to_pylist() == [1, 2]
    with pytest.raises(UnreadableInput, match=r"1.csv, line 2: column 'fare': 'much' is no float"):
        list(inputs.from_csv([tmp_path / "0.csv", tmp_path / "1.csv"], delimiter=";", schema=schema))


def failing():
    yield 1
    raise ValueError("no more of that")


def test_a_generator_is_made_anew_for_each_pass():
    """Its arguments are kept; its errors come with their place."""
    dataset = inputs.from_generator(range, 3)

    assert list(dataset) == list(dataset) == [0, 1, 2]
    with pytest.raises(SourceFailed, match=r"from_generator: failing raised ValueError at element 1 .*no more of that"):
        list(inputs.from_generator(failing))
    with pytest.raises(SourceFailed, match="must return an iterable, not int"):
        list(inputs.from_generator(int))


def test_a_generator_that_has_raised_ends_the_pass_with_its_error(tmp_path):
    """Nothing follows: ignore_errors() does not take the rest for not there, and no snapshot is complete without it."""
    dataset = inputs.from_generator(failing).ignore_errors().with_snapshot_fingerprint("v1").snapshot(tmp_path)

    for _ in range(2):
        elements = iter(dataset)
        assert next(elements) == 1
        for _ in range(2):
            with pytest.raises(SourceFailed, match="no element follows"):
                next(elements)


def test_a_source_whose_function_raises_is_no_endless_pass():
    """Each element that is wanted would fail alike, so ignore_errors() has none to go on with."""
    with pytest.raises(SourceFailed, match="at element 0"):
        list(inputs.from_generator(lambda: 1 / 0).ignore_errors())


def test_dicts_become_rows_of_a_schema():
    """What a row lacks is null; what does not fit is told with its place."""
    schema = pa.schema([("fare", pa.float64()), ("zone", pa.string())])

    rows = inputs.from_generator(lambda: iter([{"fare": 1.0}, {"zone": "a"}]), spec=schema)

    assert rows.to_arrow().to_pylist() == [{"fare": 1.0, "zone": None}, {"fare": None, "zone": "a"}]
    with pytest.raises(DatasetError, match="element 1 is not a dict with"):
        list(inputs.from_elements([{"fare": 1.0}, {"tip": 1.0}]).as_rows(schema))
    with pytest.raises(DatasetError, match="elements 0 to 0 do not fit the schema"):
        list(inputs.from_elements([{"fare": "much"}]).as_rows(schema))


def test_a_slow_source_of_rows_is_not_waited_for():
    """The first rows come before a whole block of them has been made."""
    made = []

    def source():
        for number in range(100_000):
            made.append(number)
            yield {"number": number}

    rows = inputs.from_generator(source, spec=pa.schema([("number", pa.int64())]))

    assert next(iter(rows)) == {"number": 0}
    assert len(made) < 10


@pytest.fixture(params=["s3", "memory", "file"])
def lake(request, tmp_path):
    """The URL of an empty folder."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3_url')}/{tmp_path.name}"
    return f"memory://{tmp_path.name}" if request.param == "memory" else tmp_path.as_uri()


def put(url, write):
    content = io.BytesIO()
    write(content)
    if url.startswith("file:"):
        Path(url.removeprefix("file://")).write_bytes(content.getvalue())
    else:
        open_bucket(parse_url(url).home).write(parse_url(url).key, content.getvalue())


def test_files_behind_urls_are_read_as_those_of_a_disk(lake):
    """Parquet, CSV and Arrow IPC, by name and by pattern, with conditions that leave row groups out."""
    tables = [pa.table({"n": range(number * 100, number * 100 + 100)}) for number in range(2)]
    for number, table in enumerate(tables):
        put(f"{lake}/{number}.parquet", lambda to, table=table: pq.write_table(table, to, row_group_size=10))
        put(f"{lake}/{number}.csv", lambda to, table=table: csv.write_csv(table, to))
        put(f"{lake}/{number}.arrow", lambda to, table=table: write_ipc(table, to))

    for source, end in [
        (inputs.from_parquet, "parquet"),
        (inputs.from_csv, "csv"),
        (inputs.from_arrow_files, "arrow"),
    ]:
        assert source([f"{lake}/0.{end}", f"{lake}/1.{end}"]).to_arrow()["n"].to_pylist() == list(range(200))
        assert source(f"{lake}/*.{end}").to_arrow()["n"].to_pylist() == list(range(200))
        with pytest.raises(UnreadableInput, match=f"7.{end}: cannot be read"):
            source(f"{lake}/7.{end}")
    late = inputs.from_parquet(f"{lake}/*.parquet", filter=inputs.col("n") > 195)
    assert late.to_arrow()["n"].to_pylist() == [196, 197, 198, 199]
    assert inputs.from_arrow_files(f"{lake}/0.arrow").cardinality == 100
    with pytest.raises(DatasetError, match="no file matches this pattern"):
        inputs.from_csv(f"{lake}/*.tsv")


def write_ipc(table, to):
    with pa.ipc.new_file(to, table.schema) as writer:
        writer.write_table(table)


def test_a_file_behind_a_url_that_has_changed_is_another_one(lake):
    """A snapshot of the old one is not taken for the new one's, though name and size are the same."""
    fingerprints = []
    for value in (1, 2):
        put(f"{lake}/0.csv", lambda to, value=value: to.write(f"n\n{value}\n".encode()))
        fingerprints.append(of_graph(inputs.from_csv(f"{lake}/0.csv").op))
        time.sleep(0.01)  # a disk tells no less; an object has its etag

    assert fingerprints[0] != fingerprints[1]


def test_a_url_that_nobody_knows_is_an_error():
    """The message names it."""
    with pytest.raises(DatasetError, match=r"nonsense://x/y.csv: cannot be read as a URL"):
        inputs.from_csv("nonsense://x/y.csv")
