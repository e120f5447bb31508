"""Elements kept in memory."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs
from tests.pipelines.input.elements import all_of


def test_what_does_not_fit_is_an_error_that_says_what_to_do():
    """The limit is in bytes, and is not passed in silence."""
    rows = inputs.from_arrow(pa.table({"fare": np.arange(100_000)}))

    with pytest.raises(DatasetError, match=r"cache\(limit_bytes=100000\): .* use snapshot"):
        list(rows.cache(limit_bytes=100_000).batch(10))


def test_rows_are_read_once():
    """The second pass comes from memory, whatever size its blocks have."""
    calls = []

    def counted(columns):
        calls.append(len(columns["fare"]))
        return columns

    dataset = inputs.from_arrow(pa.table({"fare": np.arange(50)})).map(counted, vectorized=True).cache()
    first, second = dataset.to_arrow(), dataset.options(block_rows=7).to_arrow()

    assert first == second
    assert sum(calls) == 50


def test_a_copy_in_another_process_begins_empty():
    """A pickled dataset takes no elements along."""
    dataset = inputs.range(1000).cache()
    list(dataset)

    copy = pickle.loads(pickle.dumps(dataset))

    assert copy.op.cached.contents is None
    assert list(copy) == list(dataset)


def test_what_was_shuffled_below_keeps_its_order():
    """The order of the pass that was kept is that of all later ones."""
    dataset = inputs.range(20).shuffle(seed=1).cache()

    assert all_of(dataset, 0) == all_of(dataset, 1)


def noisy(*element_and_numbers):
    *element, numbers = element_and_numbers
    return (*element, numbers.random())


def flat(one, other):
    return *one, *other


def cached_twice():
    """What is drawn below one cache, below another one, and above both."""
    left, right = (inputs.range(4).random_map(noisy).cache() for _ in range(2))
    return inputs.zip(left, right).map(flat).random_map(noisy)


def test_what_is_drawn_below_caches_and_above_them_differs():
    """Noise that is cached is other noise than that which is added to it, or cached beside it."""
    rows = list(cached_twice().options(seed=3))

    assert len({number for _, one, _, other, last in rows for number in (one, other, last)}) == 12


def test_a_cache_changes_no_number_that_is_drawn():
    """With a seed in the options, the elements are those of the dataset without the cache."""
    plain = inputs.range(4).random_map(noisy).random_map(noisy).shuffle()
    cached = inputs.range(4).random_map(noisy).cache().random_map(noisy).cache().shuffle()

    assert list(cached.options(seed=3)) == list(plain.options(seed=3))


def test_a_pass_is_restored_where_the_cache_is_empty():
    """The pass that filled the caches had another seed than the one that reads them."""
    dataset = cached_twice()
    list(dataset)
    passed = dataset.iterator(epoch=1)
    next(passed)
    copy = pickle.loads(pickle.dumps(dataset))

    rest = list(copy.iterator().restore(passed.state()))

    assert rest == list(passed)


def test_a_projection_is_not_pushed_through():
    """Others may want the columns that this one does not."""
    kept = inputs.from_arrow(pa.table({"a": [1, 2], "b": [3, 4]})).cache()

    assert kept.select("a").to_arrow().column_names == ["a"]
    assert kept.select("b").to_arrow()["b"].to_pylist() == [3, 4]
