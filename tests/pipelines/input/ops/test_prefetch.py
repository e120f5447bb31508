"""Elements made ready in the background."""

import threading
import time
import weakref

import numpy as np
import pyarrow as pa
import pytest

import spanwise.pipelines.input as tfdata
from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.dataset import Dataset
from spanwise.pipelines.input.ops.prefetch import Prefetch


def assert_taken_ahead(dataset, expected):
    """So many elements, and no more, are taken from the source beyond the one that the consumer holds."""
    taken = []
    source = tfdata.range(1000).map(lambda x: taken.append(x) or np.zeros(125_000))
    with Dataset(dataset(source.op)).options(optimize=False).iterator() as elements:
        for given in range(1, 11):
            next(elements)
            deadline = time.monotonic() + 5
            while len(taken) < given + expected and time.monotonic() < deadline:
                time.sleep(0.001)
            assert len(taken) == given + expected
    assert len(taken) == given + expected  # nor were more taken by a thread that has ended now


def test_it_keeps_so_many_elements_ready():
    """And takes no more than these from its input."""
    assert_taken_ahead(lambda source: Prefetch(input=source, buffer=3), 3)


def test_it_holds_no_more_bytes_than_it_may():
    """Elements of a megabyte each: three of them, whatever the buffer; but always one."""
    assert_taken_ahead(lambda source: Dataset(source).prefetch(100, limit_bytes=3_500_000).op, 3)
    assert_taken_ahead(lambda source: Dataset(source).prefetch(100, limit_bytes=1).op, 1)


@pytest.mark.parametrize("num_parallel", [None, 2])
def test_what_was_ready_is_given_back_when_it_is_closed(num_parallel):
    """Even while somebody still holds the iterator, to ask for its state; and by threads that others have closed."""
    alive = weakref.WeakSet()

    class Made:
        def __init__(self, _number):
            alive.add(self)

    made = tfdata.range(20).map(Made, num_parallel=num_parallel)
    elements = iter(made.prefetch(4).options(optimize=False))
    elements.state()  # looks at what the function reaches, which is nothing yet
    next(elements)
    state = elements.state()
    elements.close()

    deadline = time.monotonic() + 5
    while alive and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not alive
    assert elements.state() == state


def test_the_next_element_is_made_while_the_consumer_works():
    """Each of both waits for the other: in one thread that would be for ever."""
    barrier = threading.Barrier(2, timeout=120)
    dataset = tfdata.range(5).map(lambda x: (barrier.wait(), x)[1] if x else x).options(optimize=False).prefetch(1)

    found = []
    for element in dataset:
        found.append(element)
        if element < 4:
            barrier.wait()

    assert found == [0, 1, 2, 3, 4]


def test_the_sources_error_comes_in_its_turn():
    """After the elements before it, which were ready already."""

    def fails_at_2(x):
        if x == 2:
            raise ValueError(x)
        return x

    elements = iter(tfdata.range(4).map(fails_at_2).prefetch(3).options(optimize=False))

    assert [next(elements), next(elements)] == [0, 1]
    with pytest.raises(Exception, match="element 2"):
        next(elements)
    assert list(elements) == [3]


@pytest.mark.parametrize("stop", [0, 1, 33, 70, 100])
def test_what_was_ready_is_taken_again_after_a_restore(stop):
    """The state is that of the consumer, not of the thread ahead of it."""
    dataset = tfdata.range(100).shuffle(10, seed=3).prefetch(5).options(optimize=False)
    whole = list(dataset.iterator(epoch=0))
    elements = dataset.iterator(epoch=0)
    before = [next(elements) for _ in range(stop)]

    after = list(dataset.iterator().restore(elements.state()))

    assert before + after == whole


def test_a_buffer_of_rows_is_rounded_up_to_blocks():
    """Rows travel in blocks, so fewer than a block cannot be ready."""
    table = pa.table({"x": np.arange(10_000)})

    found = tfdata.from_arrow(table).prefetch(10).options(optimize=False, block_rows=1024)

    assert [row["x"] for row in found] == list(range(10_000))


@pytest.mark.parametrize("wrong", [{"buffer": -2}, {"buffer": 1.5}, {"limit_bytes": 0}])
def test_a_wrong_argument_is_refused_when_the_graph_is_built(wrong):
    """In the words of the user."""
    with pytest.raises(DatasetError, match="prefetch"):
        Prefetch(input=tfdata.range(3).op, **wrong)
