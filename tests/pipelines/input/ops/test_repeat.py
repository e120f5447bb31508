"""Elements several times over."""

import math

from spanwise.pipelines import input as inputs


def test_without_a_count_there_is_no_end():
    """It goes round as long as it is asked."""
    dataset = inputs.range(3).repeat()

    assert dataset.cardinality == math.inf
    assert list(dataset.take(7)) == [0, 1, 2, 0, 1, 2, 0]


def test_nothing_without_end_is_nothing():
    """A round that gives nothing is the last, so that the consumer does not wait for ever."""
    assert list(inputs.range(3).filter(lambda number: number > 5).repeat()) == []
    assert inputs.range(0).repeat().cardinality == 0


def test_no_rounds_are_nothing():
    """Zero times is none."""
    assert list(inputs.range(3).repeat(0)) == []
