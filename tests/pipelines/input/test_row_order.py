"""Values that pandas has numbered do not stand beside other rows."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spanwise.orchestrator.errors import BlockFailed, DatasetError, FunctionFailed
from spanwise.pipelines import input as inputs

ROWS = inputs.from_arrow(pa.table({"id": [0, 1, 2, 3], "x": [3.0, 1.0, 2.0, 0.0]}))
BATCHES = ROWS.batch(4).as_numpy()
REFUSED = r"whose index is not in the order of the rows: return .*sort_index\(\)"


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas")


def table_of(values):
    return pa.Table.from_pandas(values.to_frame("y"))


BLOCK_RESULTS = {
    "a column": lambda values: {"y": values},
    "a frame as column": lambda values: {"y": values.to_frame()},
    "a table": table_of,
    "a batch": lambda values: table_of(values).to_batches()[0],
}


@pytest.mark.parametrize("result", BLOCK_RESULTS.values(), ids=BLOCK_RESULTS)
@pytest.mark.parametrize("options", [{}, {"reads": ("x",), "writes": ("y",)}], ids=["all columns", "one column"])
def test_what_a_function_of_blocks_returns_in_another_order_is_refused(pandas, result, options):
    """As of a Series that was sorted: by position, its values would be those of other rows."""
    for turned in (slice(None, None, -1), [2, 0, 1, 3]):
        made = ROWS.map(lambda c, at=turned: result(pandas.Series(c["x"]).iloc[at]), vectorized=True, **options)
        with pytest.raises(BlockFailed, match=REFUSED):
            made.to_arrow()


@pytest.mark.parametrize("index", [[0, 1, 2, 3], [70, 50, 60, 80], [0, 0, 1, 1], list("dacb")])
def test_an_index_in_the_order_of_the_rows_or_with_other_numbers_goes_by_position(pandas, index):
    """It says nothing of another order."""
    made = ROWS.map(lambda c: {"x": pandas.Series(c["x"], index=index)}, vectorized=True)
    kept = ROWS.filter(lambda c: pandas.Series(c["x"] > 1.5, index=index), vectorized=True)

    assert made.to_arrow()["x"].to_pylist() == [3.0, 1.0, 2.0, 0.0]
    assert kept.to_arrow()["id"].to_pylist() == [0, 2]


def test_a_mask_in_another_order_is_refused(pandas):
    """It would select other rows."""
    with pytest.raises(BlockFailed, match=f"filter: .* returned a Series of pandas {REFUSED}"):
        ROWS.filter(lambda c: pandas.Series(c["x"]).sort_values() > 1.5, vectorized=True).to_arrow()


def test_a_frame_is_no_mask(pandas):
    """Refused with what is expected, not with an error from within."""
    with pytest.raises(BlockFailed, match="must return a column of values, not a DataFrame: return one of its"):
        ROWS.filter(lambda c: pandas.DataFrame({"x": c["x"] > 1}), vectorized=True).to_arrow()


@pytest.mark.parametrize("turned", [slice(None, None, -1), [2, 0, 3, 1]], ids=["reversed", "shuffled"])
def test_rows_that_come_with_an_index_of_pandas_keep_their_order(pandas, turned):
    """The frame of a block has the index that was stored, and so has what is computed from it."""
    table = pa.Table.from_pandas(pandas.DataFrame({"x": [3.0, 1.0, 2.0, 0.0]}).iloc[turned])
    rows = inputs.from_arrow(table)

    def double(block):
        return {"twice": block.to_pandas()["x"] * 2}

    def add(block: pa.RecordBatch):
        return block.append_column("twice", pc.multiply(block["x"], 2))

    for function in (double, add):
        twice = rows.map(function, vectorized=True, format="arrow").to_arrow()["twice"]
        assert twice.to_pylist() == [2 * x for x in table["x"].to_pylist()]


def test_an_index_in_another_order_than_that_which_came_with_the_rows_is_refused(pandas):
    """The message says how to bring it into that order: to sort it would not."""
    frame = pandas.DataFrame({"x": [3.0, 1.0, 2.0]}, index=[70, 50, 60])
    rows = inputs.from_arrow(pa.Table.from_pandas(frame))

    with pytest.raises(BlockFailed, match=r"return values.reindex\(index\) with the index of the rows, or values.to"):
        rows.map(lambda b: {"x": b.to_pandas()["x"].sort_values()}, vectorized=True, format="arrow").to_arrow()


def sort_beside(pandas, batch):
    return {**batch, "y": pandas.Series(batch["x"]).sort_values()}


ELEMENT_CALLS = {
    "map": BATCHES.map,
    "map in threads": lambda function: BATCHES.map(function, num_parallel=2),
    "random_map": lambda function: BATCHES.random_map(lambda batch, _: function(batch)),
    "scan": lambda function: BATCHES.scan(0, lambda carried, batch: (carried, function(batch))),
    "from_generator": lambda function: inputs.from_generator(lambda: map(function, BATCHES)),
    "from_tensors": lambda function: inputs.from_tensors(function(next(iter(BATCHES)))).unbatch(),
    "from_tensor_slices": lambda function: inputs.from_tensor_slices(function(next(iter(BATCHES)))),
    "nested": lambda function: BATCHES.map(lambda batch: (batch["x"], {"inner": function(batch)["y"]})),
}


@pytest.mark.parametrize("call", ELEMENT_CALLS.values(), ids=ELEMENT_CALLS)
def test_a_part_of_a_batch_in_another_order_than_the_parts_beside_it_is_refused(pandas, call):
    """Whatever makes the batch: to cut, stack or train on it would go by position."""
    with pytest.raises((DatasetError, FunctionFailed), match=rf"'(y|inner)' is a Series of pandas {REFUSED}"):
        list(call(lambda batch: sort_beside(pandas, batch)))


@pytest.mark.parametrize("whole", [lambda frame: frame, lambda frame: {"x": [1, 2], "y": frame}], ids=["alone", "part"])
def test_a_frame_is_no_batch(pandas, whole):
    """To iterate over it would give the names of its columns."""
    frame = pandas.DataFrame({"a": [1, 2], "b": [3, 4]})

    with pytest.raises(
        DatasetError, match=r"a DataFrame is not a batch of elements: .* from_arrow\(pyarrow.Table.from_"
    ):
        inputs.from_tensor_slices(whole(frame))


def test_parts_in_one_order_go_by_position(pandas):
    """A frame that was shuffled as a whole has rows that belong together."""
    frame = pandas.DataFrame({"x": [3.0, 1.0, 2.0], "y": [6.0, 2.0, 4.0]}).iloc[[2, 0, 1]]

    rows = list(inputs.from_tensor_slices({"x": frame["x"], "y": frame["y"]}))

    assert rows == [{"x": 2.0, "y": 4.0}, {"x": 3.0, "y": 6.0}, {"x": 1.0, "y": 2.0}]
    with pytest.raises(DatasetError, match=r"'y' is a Series of pandas .* return values\.reindex\(index\)"):
        inputs.from_tensor_slices({"x": frame["x"], "y": frame["y"].sort_index()})


def test_an_element_that_is_refused_is_left_out_after_a_restore_too(pandas):
    """A generator goes on behind it, and a restored one counts it."""
    x = np.array([2.0, 1.0])
    parts = [x, x, pandas.Series(x).sort_values(), x, x]
    dataset = inputs.from_generator(lambda: ({"at": at, "x": x, "y": y} for at, y in enumerate(parts))).ignore_errors()
    iterator = iter(dataset)
    assert [next(iterator)["at"] for _ in range(3)] == [0, 1, 3]

    restored = iter(dataset)
    restored.restore(iterator.state())

    assert [element["at"] for element in restored] == [4]
