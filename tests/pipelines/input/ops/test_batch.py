"""Batches of elements and of rows."""

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs


def test_elements_are_stacked_along_a_new_first_axis():
    """Numbers make arrays; the last batch holds what is left."""
    batches = list(inputs.range(5).batch(2))

    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]


def test_rows_are_cut_without_copying():
    """A batch of rows inside one block shows the table's own memory."""
    table = pa.table({"fare": np.arange(10)})

    first = next(iter(inputs.from_arrow(table).batch(4)))

    assert first.column(0).buffers()[1].address == table.column(0).chunk(0).buffers()[1].address


def test_a_batch_crosses_blocks():
    """A batch is full wherever the blocks end."""
    table = pa.concat_tables([pa.table({"fare": [1, 2, 3]}), pa.table({"fare": [4, 5]})])

    batches = list(inputs.from_arrow(table).batch(2))

    assert [batch.column(0).to_pylist() for batch in batches] == [[1, 2], [3, 4], [5]]


def test_a_size_that_is_none_is_refused_at_once():
    """A bad argument is found when the graph is built, and named."""
    with pytest.raises(DatasetError, match=r"batch\(size=0\): expected a whole number of at least 1"):
        inputs.range(5).batch(0)
