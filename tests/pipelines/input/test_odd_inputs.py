"""What users get wrong, and data that is odd: an error that says what to do, and never a wrong result."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator.errors import DatasetError, FunctionFailed, StateMismatch
from spanwise.pipelines import input as inputs

TABLE = inputs.from_arrow(pa.table({"a": [1, 2, 3]}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: inputs.from_parquet(5), r"from_parquet\(5\): expected a path, a URL, a pattern, or a list"),
        (lambda: inputs.from_csv(None), r"from_csv\(None\): expected a path"),
        (lambda: inputs.from_csv(b"x"), r"expected a path"),
        (lambda: inputs.from_csv("x.csv", delimiter="::"), r"delimiter='::'\): expected one character"),
        (lambda: inputs.from_csv("x.csv", delimiter=3), r"delimiter=3\): expected one character"),
        (lambda: inputs.from_parquet("x", columns="ab"), r"columns='ab'\): expected a list of names"),
        (lambda: inputs.from_arrow(pa.table([[1], [2]], ["a", "a"])), r"several columns are named 'a'"),
        (lambda: inputs.zip([1]), r"zip: expected datasets, not \[1\]"),
        (lambda: inputs.range(3).concatenate(None), r"concatenate: expected datasets, not None"),
        (lambda: inputs.sample_from_datasets([3]), r"sample_from_datasets: expected datasets"),
        (lambda: inputs.range(3).profile(3), r"profile\(step=3\): expected a function"),
        (lambda: list(inputs.from_elements([1, "a"]).batch(2)), r"different types \(int, str\) cannot be batched"),
        (lambda: list(inputs.from_elements([1, np.zeros(2)]).batch(2)), r"different shapes \(\(\), \(2,\)\)"),
    ],
)
def test_a_wrong_argument_is_named(make, message):
    """With what was wanted; nothing of Python's or NumPy's own comes through."""
    with pytest.raises(DatasetError, match=message):
        make()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda columns: {"a": 1}, r"must return a column of values, not 1 of type int\. Its own"),
        (lambda columns: {"a": "xyz"}, r"must return a column of values, not 'xyz' of type str"),
        (lambda columns: None, r"dict of arrays, not NoneType\. Its own"),
    ],
)
def test_what_a_vectorized_function_must_give_is_said(function, message):
    """A number is no column, and neither is a text."""
    with pytest.raises(FunctionFailed, match=message):
        list(TABLE.map(function, vectorized=True))


def test_a_state_that_is_none_is_refused():
    """Whatever it is."""
    for state in (None, {}, {"x": 1}, []):
        with pytest.raises(StateMismatch, match="not the state of an iterator"):
            inputs.range(3).iterator().restore(state)


def test_csv_files_with_other_columns_lose_none(tmp_path):
    """Each column that any file has is there; the type is that of the first file with values of it."""
    (tmp_path / "0.csv").write_text("a,b\n")
    (tmp_path / "1.csv").write_text("b,c\n1,x\n")
    (tmp_path / "2.csv").write_text("a\n2.5\n")

    rows = list(inputs.from_csv(tmp_path / "*.csv"))

    assert rows == [{"a": None, "b": 1, "c": "x"}, {"a": 2.5, "b": None, "c": None}]


def test_two_columns_of_one_name_are_refused_in_files(tmp_path):
    """A row could show only one of them."""
    (tmp_path / "0.csv").write_text("a,a\n1,2\n")
    pq.write_table(pa.table([[1], [2]], ["a", "a"]), tmp_path / "0.parquet")

    for source, name in ((inputs.from_csv, "0.csv"), (inputs.from_parquet, "0.parquet")):
        with pytest.raises(DatasetError, match=f"{name}: several columns are named 'a'"):
            source(tmp_path / name)


def test_dicts_with_other_keys_lose_none():
    """Each key of any of them is a column; values of two types are an error."""
    table = inputs.from_elements([{"a": 1}, {"b": 2}]).to_arrow()

    assert table.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": 2}]
    with pytest.raises(DatasetError, match=r"to_arrow: the elements do not form a table: .*'x'"):
        inputs.from_elements([{"a": 1}, {"a": "x"}]).to_arrow()


def test_whole_numbers_beside_a_missing_struct_stay_whole():
    """What a value becomes does not depend on whether its neighbour is null."""
    whole = 2**53 + 1
    (batch,) = inputs.from_arrow(pa.table({"s": [{"x": whole}, None]})).batch(2).as_numpy()

    assert batch["s"].tolist() == [{"x": whole}, None]


def test_a_range_may_be_longer_than_a_machine_word():
    """It is counted as all others are."""
    assert inputs.range(10**30).cardinality == 10**30
    assert [inputs.range(*each).cardinality for each in ((5,), (5, 0, -2), (0, 6, 2), (5, 0), (3, 10, 3))] == [
        5,
        3,
        3,
        0,
        3,
    ]


def test_a_profile_of_nothing_says_so():
    """It blames no op."""
    assert "No elements came out" in str(inputs.range(0).profile())


def test_a_timeline_says_which_part_of_the_pass_it_shows():
    """It ends when there is too much to show."""
    long = inputs.range(100_000).map(lambda number: number).profile(limit_s=60)
    short = inputs.range(10).map(lambda number: number).profile()

    assert "These are the first" in long.html()
    assert "These are the first" not in short.html()
