"""Orders that follow from a seed."""

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines import input as inputs
from tests.pipelines.input.elements import all_of


def rows(count=1000):
    return inputs.from_arrow(pa.table({"number": np.arange(count)}))


def numbers(dataset, epoch=0):
    return [row["number"] for row in dataset.iterator(epoch=epoch)]


def test_rows_and_other_elements_get_the_same_order():
    """How an element travels does not change where it comes."""
    assert numbers(rows().shuffle(64, seed=3)) == all_of(inputs.range(1000).shuffle(64, seed=3))


def test_no_element_leaves_its_window():
    """A window of the buffer's size is shuffled by itself."""
    shuffled = numbers(rows(100).shuffle(10, seed=1))

    assert shuffled != list(range(100))
    assert [number // 10 for number in shuffled] == [at // 10 for at in range(100)]


def test_a_seed_means_the_same_tomorrow():
    """The order of a seed is pinned: a state kept today is restored with a later version."""
    assert all_of(inputs.range(10).shuffle(seed=7)) == [1, 8, 3, 7, 5, 2, 6, 4, 0, 9]


def test_rounds_differ_from_each_other_and_from_passes():
    """Each round of a repeat has an order of its own, and so has each pass."""
    dataset = inputs.range(20).shuffle(seed=1).repeat(2)
    orders = {tuple(all_of(dataset, epoch)[half : half + 20]) for epoch in (0, 1) for half in (0, 20)}

    assert len(orders) == 4


def test_without_a_seed_two_shuffles_of_one_graph_differ():
    """Seeds that are left open are drawn for each op by itself."""
    one, other = inputs.range(30).shuffle(), inputs.range(30).shuffle()
    pairs = list(inputs.zip(one, other).options(seed=5))

    assert any(first != second for first, second in pairs)
    assert pairs == list(inputs.zip(one, other).options(seed=5))


def test_without_any_seed_passes_differ():
    """Nobody named a seed, so nobody can foresee the order."""
    dataset = inputs.range(50).shuffle()

    assert list(dataset.iterator(epoch=0)) != list(dataset.iterator(epoch=0))


def test_a_state_holds_places_not_elements():
    """Its size does not grow with the buffer."""
    elements = iter(rows(100_000).shuffle(50_000, seed=1).batch(10))
    next(elements)

    assert len(str(elements.state())) < 500


def test_a_buffer_of_none_or_a_negative_seed_is_refused():
    """Bad arguments are told when the graph is built."""
    with pytest.raises(DatasetError, match=r"shuffle\(buffer=0\)"):
        inputs.range(5).shuffle(0)
    with pytest.raises(DatasetError, match=r"shuffle\(seed=-1\)"):
        inputs.range(5).shuffle(5, seed=-1)


@pytest.mark.parametrize("rows", [False, True])
def test_a_shuffle_reads_while_it_gives(rows):
    """An element of the next window for each of this one, so that the consumer never waits for a whole window."""
    read = []

    def count():
        for number in range(1000):
            read.append(number)
            yield {"number": number}

    dataset = inputs.from_generator(count, spec=pa.schema([("number", pa.int64())]) if rows else None)
    elements = iter(dataset.shuffle(100, seed=1).options(optimize=False, block_rows=10))
    most = 0
    before = 100
    for number, _ in enumerate(elements, 1):
        if number > 1:
            most = max(most, len(read) - before)
        before = len(read)
        assert len(read) <= 100 + number + 20

    assert most <= 20


def test_an_error_ahead_comes_in_its_turn():
    """After the elements of the window before it, and those of its own window that were read before it."""

    def failing(number):
        if number == 7:
            raise ValueError("seven")
        return number

    dataset = inputs.range(10).map(failing).shuffle(4, seed=1)
    elements = dataset.iterator(epoch=0)
    first = [next(elements) for _ in range(7)]
    state = elements.state()

    assert sorted(first[:4]) == [0, 1, 2, 3]
    assert sorted(first[4:]) == [4, 5, 6]
    for rest in (elements, dataset.iterator().restore(state)):
        with pytest.raises(FunctionFailed, match="seven"):
            next(rest)
        assert sorted(rest) == [8, 9]
