"""Where elements go."""

import os
import pickle
import sys

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs
from tests.forked import in_fork
from tests.pipelines.input.elements import plain


@pytest.fixture
def table():
    return pa.table({"fare": np.arange(10.0), "zone": list("abcdefghij")})


def _through_polars(table):
    return inputs.from_arrow(table).to_polars().to_arrow()


def test_tables_and_frames(table):
    """Rows, batches and dicts all make tables."""
    rows = inputs.from_arrow(table)

    assert rows.to_arrow() == table
    assert rows.batch(3).to_arrow() == table
    assert inputs.from_elements(table.to_pylist()).to_arrow() == table
    assert rows.to_pandas().equals(table.to_pandas())
    assert in_fork(_through_polars, table).cast(table.schema) == table
    with pytest.raises(DatasetError, match="the columns have no names"):
        inputs.range(3).to_arrow()


@pytest.mark.parametrize(
    "cells",
    [
        [2**53 + 1, None],
        [[2**53 + 1, None], None],
        [[[2**53 + 1]], [[None]]],
        [{"x": 2**53 + 1}, {"x": None}],
        [[{"x": 2**53 + 1}], [{"x": None}]],
        pa.array([[("k", 2**53 + 1), ("j", None)]], pa.map_(pa.string(), pa.int64())),
        pa.array([2**64 - 1, None], pa.uint64()),
    ],
    ids=["numbers", "lists", "lists of lists", "structs", "lists of structs", "maps", "without a sign"],
)
def test_large_whole_numbers_stay_themselves_in_a_frame_beside_missing_ones(cells):
    """Where floats hold them all, they are floats, as Arrow makes them."""
    table = pa.table({"n": cells, "small": pa.array([7, None][: len(cells)])})

    frame = inputs.from_arrow(table).to_pandas()

    assert pa.array(frame["n"], table.schema.types[0], from_pandas=True) == table["n"].combine_chunks()
    assert frame["small"].equals(table["small"].to_pandas())


def test_no_rows_are_a_table_with_columns(table):
    """The schema is known even if nothing comes."""
    assert inputs.from_arrow(table).take(0).to_arrow().schema == table.schema


def test_everything_as_arrays(table):
    """All elements make one batch."""
    arrays = inputs.from_arrow(table).to_numpy()

    assert arrays["fare"].tolist() == list(range(10))
    assert inputs.range(4).to_numpy().tolist() == [0, 1, 2, 3]


def test_batches_of_arrays_are_cut_from_blocks(table):
    """A batch inside a block shows the block's own memory, and is the same as the batch converted by itself."""
    dataset = inputs.from_arrow(table).batch(4).as_numpy()
    batches = list(dataset)

    assert np.shares_memory(batches[0]["fare"], table["fare"].chunk(0).to_numpy())
    assert [plain(batch) for batch in batches] == [plain(batch) for batch in dataset.options(optimize=False)]
    with pytest.raises(DatasetError, match="batch the rows first"):
        inputs.range(3).as_numpy()


@pytest.fixture
def library(monkeypatch):
    """A library by its name, from the environment or from the folders that SPANWISE_TEST_LIBRARIES names."""
    for folder in filter(None, os.environ.get("SPANWISE_TEST_LIBRARIES", "").split(os.pathsep)):
        monkeypatch.setattr(sys, "path", [*sys.path, folder])
    return pytest.importorskip


def test_torch_workers_share_the_elements(table, library):
    """Each of a loader's workers gives its part; together they give each element once, as tensors."""
    torch = library("torch")
    dataset = inputs.from_arrow(table).batch(2).to_torch()

    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
        batches = list(loader)
        assert sorted(batch["fare"].tolist() for batch in batches) == [[at, at + 1] for at in range(0, 10, 2)]
        assert batches[0]["fare"].dtype == torch.float64


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [True, False])
def test_torch_workers_share_each_epoch(library, method, persistent):
    """Each element once, in the order of that epoch: another one each time, and as a pass without workers has it."""
    torch = library("torch")
    numbers = inputs.range(60).shuffle(20, seed=3)

    def epochs(dataset, count=3):
        loader = torch.utils.data.DataLoader(
            dataset.to_torch(),
            batch_size=None,
            num_workers=2,
            persistent_workers=persistent,
            multiprocessing_context=method,
        )
        return [[int(number) for number in loader] for _ in range(count)]

    assert epochs(numbers) == [list(numbers.iterator(epoch=epoch)) for epoch in range(3)]
    unseeded = epochs(inputs.range(60).shuffle(20), 2)
    assert [sorted(epoch) for epoch in unseeded] == [list(range(60))] * 2
    assert unseeded[0] != unseeded[1]


def test_an_epoch_that_is_broken_off_counts(library):
    """The next one has the order of the next one, and every element."""
    torch = library("torch")
    numbers = inputs.range(30).shuffle(seed=3)
    loader = torch.utils.data.DataLoader(numbers.to_torch(), batch_size=None, num_workers=2)

    for _ in loader:
        break

    assert [int(number) for number in loader] == list(numbers.iterator(epoch=1))


def test_a_torch_dataset_can_be_pickled(library):
    """With the functions in it, for processes that are spawned."""
    library("torch")
    factor = 3

    again = pickle.loads(pickle.dumps(inputs.range(4).map(lambda number: number * factor).to_torch()))

    assert [int(number) for number in again] == [0, 3, 6, 9]


def test_jax_arrays(table, library):
    """Leaves are arrays of JAX; texts stay as they are."""
    jax = library("jax")

    first = next(iter(inputs.from_arrow(table).batch(2).to_jax()))

    assert isinstance(first["fare"], jax.Array)
    assert first["zone"].tolist() == ["a", "b"]


@pytest.mark.parametrize("rows", [0, 2])
def test_tensors_whose_axes_are_stored_in_another_order_are_arrays(rows):
    """Arrow makes none of them from a list, not even none."""
    numbers = pa.array([[1, 2, 3, 4, 5, 6]] * rows, pa.list_(pa.int64(), 6))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), (2, 3), permutation=[1, 0]), numbers)
    dataset = inputs.from_arrow(pa.table({"x": tensors}))

    assert dataset.to_numpy()["x"].tolist() == tensors.to_numpy_ndarray().tolist()
    assert sum(len(batch["x"]) for batch in dataset.batch(1).as_numpy()) == rows


@pytest.mark.parametrize("type_", [pa.decimal256(60, 2), pa.list_view(pa.int64())])
def test_what_polars_has_no_type_for_is_refused(type_):
    """Polars panics at some of them, which no `except Exception` catches."""
    with pytest.raises(DatasetError, match=r"to_polars: Polars has no type .* a: (decimal256|list_view)"):
        inputs.from_arrow(pa.table({"a": pa.nulls(2, type_)})).to_polars()
