"""Which elements are left out."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines import input as inputs


@pytest.fixture
def rows():
    return inputs.from_arrow(pa.table({"fare": [1.0, None, 3.0, 4.0], "zone": ["a", "b", "a", "b"]}))


def test_a_row_for_which_a_condition_is_null_goes(rows):
    """As in SQL, a comparison with nothing is not true."""
    assert rows.filter(inputs.col("fare") < 4).to_arrow()["fare"].to_pylist() == [1.0, 3.0]


def test_a_condition_a_mask_and_a_predicate_agree(rows):
    """The three ways to say it leave the same rows."""
    by_condition = rows.filter(inputs.col("zone") == "b").to_arrow()

    assert rows.filter(lambda columns: columns["zone"] == "b", vectorized=True).to_arrow() == by_condition
    assert rows.filter(lambda row: row["zone"] == "b").to_arrow() == by_condition


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (inputs.col("fares") > 1, "The columns are fare, zone"),
        (inputs.col("zone") > 1, "zone > 1"),
        (inputs.col("fare") + 1, "expected a condition, which is true or false, not double"),
        (pc.field(0) > 1, "by their names"),
        ((inputs.col("fare") > 1) & pc.is_valid(pc.field(1)), "by their names"),
    ],
)
def test_a_condition_that_does_not_fit_is_found_when_the_graph_is_built(rows, condition, message):
    """Columns and types of a condition are checked before anything is read, and the error names the op."""
    for op in ("filter", "take_while"):
        with pytest.raises(DatasetError, match=rf"(?s)^{op}\(.*{message}"):
            getattr(rows, op)(condition)


@pytest.mark.parametrize("op", ["filter", "take_while"])
def test_a_condition_is_asked_beside_columns_of_tensors(op):
    """It is checked on no rows, and Arrow makes no tensors from an empty list."""
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(3, 2, 2))
    rows = inputs.from_arrow(pa.table({"fare": [1.0, 2.0, 3.0], "x": tensors}))

    assert getattr(rows, op)(inputs.col("fare") < 3).to_numpy()["x"].tolist() == np.arange(8).reshape(2, 2, 2).tolist()


def test_a_condition_needs_rows():
    """Numbers have no columns."""
    with pytest.raises(DatasetError, match="the elements are not rows"):
        inputs.range(3).filter(inputs.col("fare") > 1)


def test_a_predicate_that_fails_names_the_element():
    """Its error says at which element."""
    with pytest.raises(FunctionFailed, match=r"filter: .* at element 2"):
        list(inputs.from_elements([1, 2, "three"]).filter(lambda value: value > 1))


def test_a_mask_of_another_length_is_an_error(rows):
    """A mask has a value for each row."""
    with pytest.raises(FunctionFailed, match="rows 0 to 3"):
        list(rows.filter(lambda columns: np.ones(2, bool), vectorized=True))


def test_two_predicates_that_are_asked_in_one_step_are_named():
    """Which of them failed is in the traceback."""

    def second(x):
        return 1 // x

    with pytest.raises(FunctionFailed, match=r"^filter: (\S*<lambda>) and \S*second raised ZeroDivisionError"):
        list(inputs.range(1).filter(lambda x: x == 0).filter(second))
