"""Ways in which data once went wrong without an error, each as short as it was first shown."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator.errors import FunctionFailed
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import col
from spanwise.pipelines.input.graph.fingerprint import of_graph


@pytest.mark.parametrize("shape", [(2, 2), (28, 28), (3, 2, 2)])
def test_images_stay_beside_their_rows(shape):
    """Through a shuffle that is smaller than the data, through skips, shards and filters."""
    count, size = 600, int(np.prod(shape))
    images = np.repeat(np.arange(count, dtype=np.float32), size)
    column = pa.array(images)
    for axis in reversed(shape):
        column = pa.FixedSizeListArray.from_arrays(column, axis)
    rows = inputs.from_arrow(pa.table({"row": range(count), "image": column}))

    for dataset in (rows.shuffle(100, seed=1), rows.skip(5).shard(3, 1), rows.skip(5).filter(col("row") > 50)):
        for block in dataset.blocks():
            pixels = inputs.from_arrow(block).to_numpy()
            assert (pixels["image"].reshape(block.num_rows, -1) == np.asarray(pixels["row"])[:, None]).all()


def test_a_function_that_changes_its_argument_is_refused():
    """Else a source and its caches would change from pass to pass."""

    def halve(array):
        array /= 2
        return array

    with pytest.raises(FunctionFailed, match="write x = x / 2 instead of"):
        list(inputs.from_elements([np.full(2, 8.0)]).map(halve))


def test_one_look_does_not_keep_a_snapshot_from_being_written(tmp_path):
    """The pass that was looked at withdraws, so the next one writes."""
    dataset = inputs.range(1000).map(lambda number: number * 2).snapshot(tmp_path)
    with dataset.iterator() as elements:
        next(elements)

    states = []
    for _ in range(2):
        elements = dataset.iterator()
        assert len(list(elements)) == 1000
        states.append(elements.reports[0].state)

    assert states == ["write", "read"]


def test_a_source_without_an_order_is_written_anew_after_a_stop(tmp_path):
    """A stopped pass has written chunks that another pass, in another order, cannot continue."""

    def elements():
        numbers = list(range(120))
        random.Random().shuffle(numbers)
        return iter(numbers)

    dataset = inputs.from_generator(elements).snapshot(tmp_path)
    with dataset.iterator() as stopped:
        list(itertools.islice(stopped, 70))
    for _ in range(2):
        assert sorted(dataset) == list(range(120))


def key(expression):
    return of_graph(inputs.from_arrow(pa.table({"a": range(30)})).filter(expression).op)


def test_keys_differ_where_expressions_print_alike():
    """Arrow prints the ends of a long list, and 2 like 2.0; with a NumPy ufunc of a function, nothing of it."""
    long, other = list(range(30)), [*range(14), 99, *range(15, 30)]
    assert str(pc.field("a").isin(long)) == str(pc.field("a").isin(other))
    assert key(pc.field("a").isin(long)) != key(pc.field("a").isin(other))
    assert key(col("a") > 2) != key(col("a") > 2.0)
    one, two = (np.frompyfunc(function, 1, 1) for function in (lambda x: x + 1, lambda x: x + 2))
    assert of_graph(inputs.range(3).map(one).op) != of_graph(inputs.range(3).map(two).op)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    "condition", [col("x") != 1, ~(col("x") > 5), col("x").is_null(nan_is_null=True)], ids=["not equal", "not", "null"]
)
def test_rows_with_nan_are_not_pruned(tmp_path, condition, optimize):
    """Statistics of Parquet say nothing of them."""
    values = [1.0] * 7 + [float("nan")] * 3 + [1.0] * 10
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", row_group_size=5)
    wanted = pa.table({"x": values}).filter(condition).num_rows

    found = inputs.from_parquet(tmp_path / "*.parquet").filter(condition).options(optimize=optimize)

    assert len(list(found)) == wanted > 0
