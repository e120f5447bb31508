"""Elements that fail are left out, and nothing else."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator.errors import BlockFailed
from spanwise.pipelines import input as inputs

ROWS = pa.table({"text": ["1", "2", "x", "4", "5"]})
NUMBER = inputs.col("text").cast("int64")

FAILING = {
    "filter": lambda rows: rows.filter(NUMBER > 0),
    "filter by rows": lambda rows: rows.filter(lambda row: int(row["text"]) > 0),
    "filter by masks": lambda rows: rows.filter(lambda block: block["text"].astype(int) > 0, vectorized=True),
    "map": lambda rows: rows.map(lambda block: {"n": block["text"].astype(int)}, vectorized=True),
    "take_while": lambda rows: rows.take_while(NUMBER > 0),
}


@pytest.mark.parametrize("block_rows", [1, 2, 100])
@pytest.mark.parametrize("as_elements", [lambda d: d.batch(2), lambda d: d.map(dict), lambda d: d.unique()])
@pytest.mark.parametrize("failing", FAILING)
def test_no_block_of_rows_is_left_out(failing, as_elements, block_rows):
    """It is as large as suits the machine, and the other rows of it are sound."""
    dataset = as_elements(FAILING[failing](inputs.from_arrow(ROWS))).ignore_errors().options(block_rows=block_rows)

    with pytest.raises(BlockFailed, match="leaves out no rows, which travel in blocks"):
        list(dataset)


def test_an_element_that_is_made_of_a_row_is_left_out():
    """A function of one row fails for that row."""
    dataset = inputs.from_arrow(ROWS).map(lambda row: int(row["text"])).ignore_errors()

    assert list(dataset) == [1, 2, 4, 5]


def test_a_condition_that_fails_does_not_blame_the_file(tmp_path):
    """The file is sound; where the condition is evaluated makes no difference."""
    pq.write_table(ROWS, tmp_path / "0.parquet", row_group_size=2)

    with pytest.raises(BlockFailed, match=r"filter: .* raised ArrowInvalid at row group 1 of .*0.parquet"):
        inputs.from_parquet(tmp_path / "0.parquet").filter(NUMBER > 0).to_arrow()
