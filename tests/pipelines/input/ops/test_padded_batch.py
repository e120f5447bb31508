"""Batches of arrays of different sizes."""

import numpy as np
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs


def lists(*lengths):
    return inputs.from_elements([np.arange(1, length + 1) for length in lengths])


def test_arrays_are_filled_up_to_the_largest():
    """Zeros stand behind the shorter ones."""
    first, second = lists(1, 3, 2).padded_batch(2)

    assert first.tolist() == [[1, 0, 0], [1, 2, 3]]
    assert second.tolist() == [[1, 2]]


def test_a_shape_and_a_value_can_be_given():
    """All batches then have one size."""
    batches = [batch.tolist() for batch in lists(1, 3).padded_batch(1, shapes=[4], values=-1)]

    assert batches == [[[1, -1, -1, -1]], [[1, 2, 3, -1]]]


def test_each_part_of_a_structure_has_its_own():
    """Shapes and values may be dicts like the elements."""
    dataset = inputs.from_elements([{"a": np.arange(2), "b": 1}, {"a": np.arange(1), "b": 2}])

    (batch,) = dataset.padded_batch(2, shapes={"a": [3]}, values={"a": 9})

    assert batch["a"].tolist() == [[0, 1, 9], [0, 9, 9]]
    assert batch["b"].tolist() == [1, 2]


def test_what_is_larger_than_its_shape_is_refused():
    """Nothing is cut off in silence."""
    with pytest.raises(DatasetError, match=r"shapes=\[2\]\): an element has the shape \(3,\)"):
        list(lists(3).padded_batch(1, shapes=[2]))


def test_other_numbers_of_axes_make_no_batch():
    """A list and a matrix cannot be filled up to be alike."""
    with pytest.raises(DatasetError, match=r"elements with \[1, 2\] axes"):
        list(inputs.from_elements([np.zeros(2), np.zeros((2, 2))]).padded_batch(2))
