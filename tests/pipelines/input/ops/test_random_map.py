"""A generator of random numbers for each element: the same numbers however the dataset runs."""

import itertools

import pytest

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines import input as inputs


def noisy(element, numbers):
    return element, numbers.random()


def fails_on_three(number):
    if number == 3:
        raise ValueError("three")
    return number


RUNS = {
    "one after the other": {},
    "threads": {"num_parallel": 3},
    "processes": {"num_parallel": 2, "workers": "processes"},
}


@pytest.mark.parametrize("run", RUNS)
def test_an_element_gets_the_same_numbers_in_any_way_of_running(run):
    """In this thread, in others, in other processes; also behind an element that failed."""
    source = inputs.range(9).map(fails_on_three)
    expected = list(source.random_map(noisy, seed=5).ignore_errors().iterator(epoch=4))

    found = list(source.random_map(noisy, seed=5, **RUNS[run]).ignore_errors().iterator(epoch=4))

    assert found == expected
    assert len({number for _, number in found}) == 8


@pytest.mark.parametrize("run", RUNS)
def test_a_restored_pass_draws_the_same_numbers(run):
    """From any element on."""
    dataset = inputs.range(7).random_map(noisy, seed=5, **RUNS[run])
    expected = list(dataset.iterator(epoch=1))

    with dataset.iterator(epoch=1) as elements:
        first = list(itertools.islice(elements, 3))
        state = elements.state()

    assert first + list(dataset.iterator().restore(state)) == expected


def test_each_pass_and_each_round_draws_others():
    """Else augmentation would teach the same picture twice."""
    dataset = inputs.range(3).random_map(noisy, seed=5).repeat(2)

    passes = [tuple(dataset.iterator(epoch=number)) for number in (0, 1)]

    assert len({number for found in passes for _, number in found}) == 12


def test_with_a_key_an_element_has_its_numbers_wherever_it_stands():
    """So parts of the input can be computed apart, in another order."""
    dataset = inputs.range(10).random_map(noisy, key=lambda number: number, seed=5)
    mixed = inputs.range(10).shuffle(seed=1).random_map(noisy, key=lambda number: number, seed=5)

    assert sorted(dataset.iterator(epoch=0)) == sorted(mixed.iterator(epoch=0))
    assert dataset.op.needs_all == ""
    assert "unless it has a key=" in inputs.range(10).random_map(noisy).op.needs_all


def test_a_key_is_a_number_or_a_text():
    """What it is made of must be the same in every process."""
    with pytest.raises(FunctionFailed, match=r"key= must return a whole number, a text or bytes, not 0\.5"):
        list(inputs.range(1).random_map(noisy, key=lambda _: 0.5))
    with pytest.raises(DatasetError, match=r"random_map\(workers='ray'\): expected 'threads' or 'processes'"):
        inputs.range(1).random_map(noisy, workers="ray")
