"""Batches of elements of like length."""

import numpy as np
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs


def bucketed(lengths, **options):
    dataset = inputs.from_elements([np.ones(length) for length in lengths])
    return [batch.shape for batch in dataset.bucket_by_sequence_length(len, [3, 5], [2, 2, 1], **options)]


def test_elements_wait_for_others_of_their_length():
    """A batch is given when its bucket is full; what waits at the end comes bucket by bucket."""
    assert bucketed([1, 4, 9, 2, 3, 2, 4]) == [(1, 9), (2, 2), (2, 4), (1, 2), (1, 4)]


def test_the_rest_can_be_dropped():
    """Only full batches are given."""
    assert bucketed([1, 4, 2], drop_remainder=True) == [(2, 2)]


@pytest.mark.parametrize(
    ("boundaries", "sizes", "message"),
    [([5, 3], [1, 1, 1], "expected ascending numbers"), ([3, 5], [1, 1], "make 3 buckets, but there are 2")],
)
def test_buckets_that_do_not_fit_are_refused(boundaries, sizes, message):
    """Bad arguments are told when the graph is built."""
    with pytest.raises(DatasetError, match=message):
        inputs.range(3).bucket_by_sequence_length(len, boundaries, sizes)
