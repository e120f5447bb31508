"""Selected rows: with the right values in every column, tensors among them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.components.ingest.part import filter_rows as filter_of_ingest
from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.selection import filter_rows, take_rows

ROWS = 24


def tensors(*shape, values=None):
    """One array of this shape for each row, filled with the row's number."""
    size = int(np.prod(shape))
    made = pa.array(np.repeat(np.arange(ROWS), size)) if values is None else values
    for axis in reversed(shape):
        made = pa.FixedSizeListArray.from_arrays(made, axis)
    return made


MATRIX = pa.list_(pa.list_(pa.int64(), 2), 2)
COLUMNS = {
    "numbers": pa.array(np.arange(ROWS)),
    "texts": pa.array([f"row {number}" for number in range(ROWS)]),
    "vectors": tensors(4),
    "matrices": tensors(2, 3),
    "images": tensors(28, 28),
    "four axes": tensors(2, 1, 2, 2),
    "matrices of truth": tensors(2, 2, values=pa.array(np.arange(4 * ROWS) % 3 == 0)),
    "matrices of decimals": tensors(2, 2, values=pa.array(np.arange(4 * ROWS)).cast(pa.decimal128(21, 2))),
    "matrices of texts": tensors(2, 2, values=pa.array([str(number) for number in range(4 * ROWS)])),
    "missing matrices": pa.array([None if row % 3 else [[row, 1], [2, 3]] for row in range(ROWS)], MATRIX),
    "missing rows": pa.array([[[row, 1], None] for row in range(ROWS)], MATRIX),
    "structs of matrices": pa.StructArray.from_arrays([tensors(2, 2), pa.array(np.arange(ROWS))], ["image", "label"]),
    "missing structs": pa.array(
        [None if row % 4 else {"image": [[row] * 2] * 2} for row in range(ROWS)], pa.struct({"image": MATRIX})
    ),
    "lists of matrices": pa.array([[[[row, 1], [2, 3]]] * (row % 3) for row in range(ROWS)], pa.list_(MATRIX)),
    "tensors of Arrow's": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(ROWS * 6.0).reshape(ROWS, 2, 3)),
}
TABLE = pa.record_batch(COLUMNS)


@given(st.integers(0, ROWS), st.integers(0, ROWS), st.data())
def test_rows_are_taken_and_left_out_whole(start, count, data):
    """From any part of a batch, in any order: each column has the values of its row."""
    rows = TABLE.slice(start, count)
    expected = rows.to_pylist()
    places = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=30) if expected else st.just([]))
    mask = data.draw(st.lists(st.sampled_from([True, False, None]), min_size=len(expected), max_size=len(expected)))

    taken = take_rows(rows, np.array(places, np.uint16))
    kept = filter_rows(rows, pa.array(mask, pa.bool_()))
    behind = filter_rows(rows, inputs.col("numbers") > 11)

    for found in (taken, kept, behind):
        found.validate(full=True)
        assert found.schema == rows.schema
    assert taken.to_pylist() == [expected[place] for place in places]
    assert kept.to_pylist() == [row for row, chosen in zip(expected, mask, strict=True) if chosen]
    assert behind.to_pylist() == [row for row in expected if row["numbers"] > 11]
    assert filter_of_ingest is filter_rows


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    "steps",
    [
        lambda rows: rows.shuffle(7, seed=1),
        lambda rows: rows.shuffle(7, seed=1).repeat(2),
        lambda rows: rows.skip(5).shard(3, 1),
        lambda rows: rows.skip(5).filter(inputs.col("number") > 9),
        lambda rows: rows.skip(5).filter(lambda columns: columns["number"] % 2 == 0, vectorized=True),
        lambda rows: rows.skip(5).filter(lambda row: row["number"] % 2 == 0),
        lambda rows: inputs.sample_from_datasets([rows.skip(3), rows.skip(9)], seed=2),
        lambda rows: rows.skip(3).window(6, stride=2).flat_map(lambda window: window, spec=rows.spec),
    ],
)
def test_an_image_stays_beside_its_row(steps, optimize):
    """Whatever leaves rows out or changes their order."""
    images = {"number": np.arange(60), "image": np.repeat(np.arange(60.0), 6).reshape(60, 2, 3)}
    rows = inputs.from_arrow(pa.table({name: to_column(array) for name, array in images.items()}))

    batches = list(steps(rows).options(optimize=optimize).batch(8).as_numpy())

    assert sum(len(batch["number"]) for batch in batches) > 5
    for batch in batches:
        assert (batch["image"] == batch["number"].reshape(-1, 1, 1)).all()


def to_column(array):
    column = pa.array(array.reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def test_pyarrow_still_needs_the_detour():
    """When this fails, `take_rows` and `filter_rows` may become pyarrow's own `take` and `filter` again."""
    rows = pa.record_batch({"matrix": tensors(2, 2)}).slice(8)

    taken = rows.take(pa.array([3]))

    assert taken.to_pylist() != rows.slice(3, 1).to_pylist()


@pytest.mark.parametrize("type_", [pa.string_view(), pa.run_end_encoded(pa.int32(), pa.int64())])
def test_columns_of_which_arrow_cannot_select_rows_are_refused(type_):
    """When the graph is built, with the column's name."""
    rows = inputs.from_arrow(pa.table({"zone": pa.nulls(3, type_)}))

    for build in (lambda: rows.shuffle(3), lambda: rows.shard(2, 0), lambda: rows.filter(lambda row: row["zone"])):
        with pytest.raises(DatasetError, match=r"column 'zone' is of the type .*, of which Arrow cannot select rows"):
            build()
