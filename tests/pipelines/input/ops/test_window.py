"""Datasets as elements."""

import pyarrow as pa

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import DatasetSpec, Table


def lists(dataset):
    return [list(window) for window in dataset]


def test_windows_follow_overlap_or_leave_gaps():
    """`shift` is from start to start, `stride` from element to element; the last windows are short, or dropped."""
    numbers = inputs.range(7)

    assert lists(numbers.window(3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert lists(numbers.window(3, drop_remainder=True)) == [[0, 1, 2], [3, 4, 5]]
    assert lists(numbers.window(3, shift=2)) == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6]]
    assert lists(numbers.window(2, shift=3)) == [[0, 1], [3, 4], [6]]
    assert lists(numbers.window(2, shift=2, stride=3, drop_remainder=True)) == [[0, 3], [2, 5]]


def test_a_window_of_rows_is_a_dataset_of_rows():
    """It can be batched, filtered and read as any other."""
    windows = inputs.from_arrow(pa.table({"fare": [1, 2, 3, 4]})).window(3, shift=1, drop_remainder=True)

    assert windows.spec == DatasetSpec(Table(pa.schema([("fare", pa.int64())])))
    assert [window.to_arrow()["fare"].to_pylist() for window in windows] == [[1, 2, 3], [2, 3, 4]]
