"""Classes in given proportions."""

import numpy as np
import pytest

from spanwise.orchestrator.errors import DatasetError, FunctionFailed
from spanwise.pipelines import input as inputs


def rare(number: int) -> int:
    return number % 10 == 0


@pytest.mark.parametrize("initial", [None, [0.9, 0.1]])
def test_classes_come_in_the_shares_of_the_target(initial):
    """A class of a tenth makes up half of what is left, and none of it is given away."""
    found = list(inputs.range(20_000).rejection_resample(rare, [0.5, 0.5], initial, seed=1))

    assert 0.47 < sum(map(rare, found)) / len(found) < 0.53
    assert sum(map(rare, found)) > 1_900
    assert found == sorted(found)


def test_the_numbers_follow_from_seed_and_pass():
    """Another pass leaves out others; the same pass, the same ones."""
    dataset = inputs.range(100).rejection_resample(rare, [0.5, 0.5], seed=1)

    assert list(dataset.iterator(epoch=1)) == list(dataset.iterator(epoch=1)) != list(dataset.iterator(epoch=2))


def test_a_class_that_is_not_wanted_is_left_out():
    """With a share of 0."""
    assert list(inputs.range(30).rejection_resample(rare, [0, 1], [0.9, 0.1])) == [0, 10, 20]


def test_shares_that_cannot_be_are_refused():
    """When the graph is built; a class without a share, when it comes."""
    numbers = inputs.range(3)
    with pytest.raises(DatasetError, match=r"target=\[0, 0\]\): expected numbers of at least 0"):
        numbers.rejection_resample(rare, [0, 0])
    with pytest.raises(DatasetError, match="2 classes in target, but 3 in initial"):
        numbers.rejection_resample(rare, [1, 1], [1, 1, 1])
    with pytest.raises(DatasetError, match="a class that initial says never comes"):
        numbers.rejection_resample(rare, [1, 1], [1, 0])
    with pytest.raises(FunctionFailed, match="must return the number of one of the 2 classes"):
        list(numbers.rejection_resample(lambda number: 2, [1, 1]))
    for found in (0.5, float("nan"), -0.2):  # no class is what is left of one when it is cut
        with pytest.raises(FunctionFailed):
            list(numbers.rejection_resample(lambda number, found=found: found, [1, 1]))
    assert list(numbers.rejection_resample(lambda number: np.float32(number % 2), [0, 1])) == [1]
