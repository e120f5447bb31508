"""Where datasets begin, beside Parquet."""

import gc

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.errors import DatasetError, FunctionFailed, UnreadableInput
from pipelines import input as inputs
from pipelines.input import ArraySpec, Structure, Table


def test_range_counts_as_pythons_own():
    """Up, down, in steps; a step of none is refused."""
    assert list(inputs.range(5)) == [0, 1, 2, 3, 4]
    assert list(inputs.range(5, 0, -2)) == [5, 3, 1]
    with pytest.raises(DatasetError, match="a step of 0 gets nowhere"):
        inputs.range(0, 5, 0)
    with pytest.raises(DatasetError, match=r"range\(stop='5'\): wants a whole number"):
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
    with pytest.raises(DatasetError, match=r"from_arrow\(dict\): wants a pyarrow.Table"):
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
    with pytest.raises(UnreadableInput, match=r"1.csv: .*much"):
        list(inputs.from_csv([tmp_path / "0.csv", tmp_path / "1.csv"], delimiter=";"))


def failing():
    yield 1
    raise ValueError("no more of that")


def test_a_generator_is_made_anew_for_each_pass():
    """Its arguments are kept; its errors come with their place."""
    dataset = inputs.from_generator(range, 3)

    assert list(dataset) == list(dataset) == [0, 1, 2]
    with pytest.raises(
        FunctionFailed, match=r"from_generator: failing raised ValueError at element 1 .*no more of that"
    ):
        list(inputs.from_generator(failing))
    with pytest.raises(FunctionFailed, match="wants an iterable back, not int"):
        list(inputs.from_generator(int))


def test_dicts_become_rows_of_a_schema():
    """What a row lacks is null; what does not fit is told with its place."""
    schema = pa.schema([("fare", pa.float64()), ("zone", pa.string())])

    rows = inputs.from_generator(lambda: iter([{"fare": 1.0}, {"zone": "a"}]), spec=schema)

    assert rows.to_arrow().to_pylist() == [{"fare": 1.0, "zone": None}, {"fare": None, "zone": "a"}]
    with pytest.raises(DatasetError, match="element 1 is no dict of"):
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
