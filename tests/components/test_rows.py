"""Rows: a window reads as one table, whatever came and went between its spans."""

import pyarrow as pa
import pytest

from spanwise.components import rows
from spanwise.orchestrator import ColumnsChanged, ParameterError, UnreadableInput
from tests.components.flow import written


@pytest.fixture
def window(tmp_path):
    """Two spans; the second has a column more, and values where the first has only nulls."""
    first = pa.table({"x": [1, 2], "note": pa.nulls(2)})
    second = pa.table({"note": ["a", None], "x": [3, 4], "new": [0.5, 0.25]})
    return [written(tmp_path / "1", 1, {"train": first}), written(tmp_path / "2", 2, {"train": second})]


def test_a_window_is_one_table(window):
    """Spans follow each other; a column that came later, or had no values yet, is null before."""
    table = rows.read_table(window, "train")

    assert table.to_pydict() == {
        "x": [1, 2, 3, 4],
        "note": [None, None, "a", None],
        "new": [None, None, 0.5, 0.25],
    }


def test_columns_are_in_the_order_of_the_newest_span(tmp_path):
    """The oldest may lack some, as where it was backfilled: the others would change their places when it leaves."""
    tables = {1: {"old": [0], "x": [1], "z": [3]}, 2: {"x": [1], "y": [2], "z": [3]}}
    spans = [written(tmp_path / str(span), span, {"train": pa.table(table)}) for span, table in tables.items()]

    for window in (spans, spans[1:]):
        assert rows.read_table(window, "train").column_names[:3] == ["x", "y", "z"]


def test_a_dataset_is_the_same_rows(window):
    """Batches have the columns of the table, in its order; one may have rows of two spans."""
    batches = list(rows.open_dataset(window, "train").batch(3))

    assert [len(batch) for batch in batches] == [3, 1]
    assert pa.Table.from_batches(batches) == rows.read_table(window, "train")


def test_each_span_is_read_with_the_columns_of_all(window):
    """What reads one span gives the columns that only another one has as nulls, all in their places."""
    (first, second) = rows.open_by_artifact(window, "train")

    assert first[0] is window[0]
    assert first[1].spec == second[1].spec == rows.open_dataset(window, "train").spec


def test_a_part_has_the_columns_of_all_spans(window):
    """A row group is read as the window is."""
    (part, _) = rows.list_parts(window, "train")

    (batch,) = rows.read_part(part, rows.read_schema(window, "train"))

    assert batch.to_pydict() == {"x": [1, 2], "note": [None, None], "new": [None, None]}


def test_columns_come_as_they_are_named(window):
    """Only the named columns are read, in the order named."""
    assert rows.read_table(window, "train", ["new", "x"]).column_names == ["new", "x"]


def test_no_columns_are_refused(window):
    """An empty list is a mistake, and all columns are asked for in another way."""
    with pytest.raises(ParameterError, match="leave it out for all of them"):
        rows.read_table(window, "train", [])


def test_an_unknown_column_is_told_with_those_there_are(window):
    """A misspelt column is refused before anything is read."""
    with pytest.raises(ParameterError, match="no column 'y'; they have: note, x, new"):
        rows.read_table(window, "train", ["y"])


def test_an_unknown_split_is_told_with_those_there_are(window):
    """A misspelt split is refused."""
    with pytest.raises(ParameterError, match="no split 'test'; it has: train"):
        rows.read_table(window, "test")


def test_two_types_for_one_column_name_both_spans(tmp_path, window):
    """A window whose spans disagree is refused rather than converted."""
    third = written(tmp_path / "3", 3, {"train": pa.table({"x": ["seven"]})})

    with pytest.raises(ColumnsChanged, match="'x' is int64 in span 1 and string in span 3"):
        rows.read_table([*window, third], "train")


def test_a_damaged_file_is_named(window):
    """A truncated Parquet file is told by its path."""
    part = window[1].path / "Split-train" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-20])

    with pytest.raises(UnreadableInput, match="2/Split-train/part-00000"):
        rows.read_table(window, "train")
