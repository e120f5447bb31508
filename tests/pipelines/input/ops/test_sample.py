"""Elements drawn from several datasets."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs
from tests.pipelines.input.elements import all_of


def constant(value, count=20_000):
    return inputs.from_arrow(pa.table({"value": np.full(count, value)}))


def test_weights_are_kept():
    """Of ten thousand draws each dataset gets about its share."""
    dataset = inputs.sample_from_datasets([constant(0), constant(1), constant(2)], [0.5, 0.3, 0.2], seed=1)
    counts = Counter(dataset.take(10_000).to_arrow()["value"].to_pylist())

    assert [round(counts[value] / 10_000, 1) for value in range(3)] == [0.5, 0.3, 0.2]


def test_rows_and_other_elements_are_drawn_alike():
    """The draws follow from the seed, not from how elements travel."""
    parts = [inputs.range(30), inputs.range(100, 110), inputs.range(200, 230)]
    schema = pa.schema([("value", pa.int64())])
    in_rows = [part.map(lambda value: {"value": value}, spec=schema) for part in parts]

    for stop in (False, True):
        drawn = all_of(inputs.sample_from_datasets(parts, [3, 1, 2], seed=4, stop_on_empty=stop))
        rows = all_of(inputs.sample_from_datasets(in_rows, [3, 1, 2], seed=4, stop_on_empty=stop))
        assert [row["value"] for row in rows] == drawn


def test_all_elements_come_unless_it_stops_on_empty():
    """What is left of the others follows when one has ended."""
    dataset = inputs.sample_from_datasets([inputs.range(5), inputs.range(5, 30)], seed=2)

    assert sorted(dataset) == list(range(30))
    assert dataset.cardinality == 30


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1], "2 datasets, but 1 weights"), ([0, 0], "at least one of them above 0"), ([1, -1], "at least 0")],
)
def test_weights_that_make_no_sense_are_refused(weights, message):
    """Bad arguments are told when the graph is built."""
    with pytest.raises(DatasetError, match=message):
        inputs.sample_from_datasets([inputs.range(3), inputs.range(3)], weights)
