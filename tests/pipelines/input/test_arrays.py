"""Arrow columns as NumPy arrays, and back."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from spanwise.pipelines.input import Ragged
from spanwise.pipelines.input.arrays import as_array, as_column
from tests.pipelines.input.elements import plain

COLUMNS = {
    "int64": pa.array([1, 2, 3]),
    "int32 with nulls": pa.array([1, None, 3], pa.int32()),
    "bool": pa.array([True, False]),
    "bool with nulls": pa.array([True, None]),
    "text": pa.array(["a", None]),
    "bytes": pa.array([b"a", b""]),
    "timestamps": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us")),
    "dates": pa.array([dt.date(2024, 1, 1)], pa.date32()),
    "lists": pa.array([[1], [], [2, 3]], pa.large_list(pa.int64())),
    "lists of one length": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
    "structs": pa.array([{"a": 1}, None]),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_column_comes_back_with_its_type(column):
    """Nothing is lost on the way to NumPy and back, also of a slice."""
    for rows in (column, column.slice(1)):
        assert as_column(as_array(rows), None if pa.types.is_list(column.type) else column.type) == rows


def test_nulls_do_not_change_the_dtype():
    """Whether a block happens to hold a null changes no type: integers are masked, floats have NaN."""
    assert as_array(pa.array([1, None])).dtype == as_array(pa.array([1, 2])).dtype == np.int64
    assert plain(as_array(pa.array([1.5, None]))) == ("array", "float64", "[1.5, nan]")


def test_null_lists_are_empty_ones():
    """What a null list points at is not its own."""
    lists = as_array(pa.array([[1, 2], None, [3]]))

    assert isinstance(lists, Ragged)
    assert [row.tolist() for row in lists] == [[1, 2], [], [3]]
    assert [row.tolist() for row in as_array(pa.array([[1, 2], None, [3]]).slice(1))] == [[], [3]]


def test_arrays_cannot_be_written_to():
    """They may be the very memory that others read."""
    with pytest.raises(ValueError, match="read-only"):
        as_array(pa.array([1, 2]))[0] = 5


def test_a_dictionary_is_decoded():
    """Categories come as their values."""
    assert as_array(pa.array(["a", "b", "a"]).dictionary_encode()).tolist() == ["a", "b", "a"]
