"""Shards: parts that together are the whole, errors included."""

import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import BlockFailed, FunctionFailed
from spanwise.pipelines import input as inputs


def outcomes(dataset):
    """The elements, and None for each that failed."""
    elements = iter(dataset)
    while True:
        try:
            yield next(elements)
        except StopIteration:
            return
        except FunctionFailed:
            yield None


def test_an_element_that_fails_is_an_error_in_its_own_shard_alone():
    """The other shards lose nothing by it."""
    dataset = inputs.range(1, 10).map(lambda x: x // (x != 5) and x)

    assert [list(outcomes(dataset.shard(3, index))) for index in range(3)] == [[1, 4, 7], [2, None, 8], [3, 6, 9]]


def test_a_block_that_fails_is_an_error_in_each_shard():
    """Its rows are those of all of them."""
    rows = inputs.from_arrow(pa.table({"text": ["1", "x"]})).filter(inputs.col("text").cast("int64") > 0)

    with pytest.raises(BlockFailed):
        list(rows.map(dict).shard(2, 1))
