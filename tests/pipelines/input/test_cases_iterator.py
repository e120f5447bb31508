"""The cases of iterators, each named after its id."""

import gc
import threading
import time
from collections import Counter

import pytest

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines import input as inputs
from tests.pipelines.input.elements import all_of


def threads():
    return [thread for thread in threading.enumerate() if thread is not threading.main_thread()]


def drawn(elements):
    """What `next` gives or raises, until the end."""
    found = []
    while True:
        try:
            found.append(next(elements))
        except StopIteration:
            return found
        except FunctionFailed:
            found.append("error")


def test_IT_01_background_threads_start_with_the_first_next():
    """To make an iterator calls nothing; the first element calls ahead no further than the buffers reach."""
    calls = []
    enough = threading.Event()

    def slow(number):
        calls.append(number)
        if len(calls) > 1:
            enough.set()
        return number

    elements = iter(inputs.range(1000).map(slow, num_parallel=4).prefetch(8))
    before = len(calls)
    next(elements)
    enough.wait(300)
    elements.close()

    assert before == 0
    assert 1 < len(calls) <= 1 + 2 * (4 + 8)


def test_IT_02_a_parallel_map_keeps_the_order_unless_told_otherwise():
    """Uneven calls come in the order of their elements; without order they are the same elements."""

    def uneven(number):
        time.sleep(0.002 * (number % 3))
        return number

    in_order = list(inputs.range(40).map(uneven, num_parallel=4))
    as_ready = list(inputs.range(40).map(uneven, num_parallel=4, deterministic=False))

    assert in_order == list(range(40))
    assert Counter(as_ready) == Counter(range(40))


@pytest.mark.parametrize("parallel", [None, 2])
def test_IT_03_an_error_belongs_to_its_element(parallel):
    """The element that fails raises, and the next one comes after it."""
    dataset = inputs.from_elements([1, 2, 0, 4]).map(lambda x: 1 / x, num_parallel=parallel)

    assert drawn(iter(dataset)) == [1.0, 0.5, "error", 0.25]
    assert list(dataset.ignore_errors()) == [1.0, 0.5, 0.25]


def test_IT_04_interleave_order():
    """Two datasets are open at a time and take turns of two elements."""
    dataset = inputs.range(3).interleave(lambda x: inputs.from_elements([x] * 4), cycle_length=2, block_length=2)

    assert list(dataset) == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 2, 2]


def test_IT_05_shard():
    """A shard has every so-manieth element; one that cannot be is refused."""
    assert list(inputs.range(10).shard(3, 1)) == [1, 4, 7]
    with pytest.raises(DatasetError, match=r"shard\(index=3\): expected less than shards=3"):
        inputs.range(10).shard(3, 3)
    with pytest.raises(DatasetError, match=r"shard\(shards=0\)"):
        inputs.range(10).shard(0, 0)


def test_IT_06_shuffle_seeds():
    """A seed fixes the order of every pass; passes differ unless told not to; a buffer of one changes nothing."""

    def shuffled(**options):
        return inputs.range(50).shuffle(50, seed=1, **options)

    one, other, still = shuffled(), shuffled(), shuffled(reshuffle_each_iteration=False)
    first = list(one)

    assert first == list(other)
    assert list(one) != first
    assert sorted(first) == list(range(50))
    assert list(still) == list(still)
    assert list(inputs.range(50).shuffle(1, seed=1)) == list(range(50))


def test_IT_08_a_cache_computes_once():
    """A second pass calls nothing; a pass that was not finished keeps nothing."""
    calls = []
    dataset = inputs.range(5).map(lambda number: calls.append(number) or number).cache()

    next(iter(dataset))
    calls.clear()
    first, second = list(dataset), list(dataset)

    assert calls == [0, 1, 2, 3, 4]
    assert first == second == [0, 1, 2, 3, 4]


def test_IT_09_dropping_an_iterator_stops_its_threads():
    """Who takes one element and forgets the iterator leaves no thread behind."""
    before = set(threads())
    elements = iter(inputs.range(1000).map(lambda number: time.sleep(0.001) or number).prefetch(8))
    next(elements)

    del elements
    gc.collect()
    for thread in set(threads()) - before:
        thread.join(120)

    assert set(threads()) <= before
    assert all_of(inputs.range(3)) == [0, 1, 2]
