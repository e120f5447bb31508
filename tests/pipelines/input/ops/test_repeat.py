"""Elements several times over."""

import itertools
import math

import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.iterator import DatasetIterator


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


def test_a_round_that_gives_nothing_does_not_end_a_count_of_rounds():
    """The next round has another order, so that its first number may pass: each of the rounds has its turn."""
    firsts = inputs.range(6).shuffle(seed=0).take(1).filter(lambda number: number < 3)
    rounds = [
        list(DatasetIterator(firsts.op, firsts.settings, (0, number), blocks=False, dataset=inputs.Dataset))
        for number in range(8)
    ]

    assert rounds[0] == []
    assert list(firsts.repeat(8).iterator(epoch=0)) == [number for each in rounds for number in each] != []
    assert list(inputs.range(0).repeat(10**12)) == []


def test_a_round_of_errors_does_not_end_a_repeat():
    """What was left out since it failed was there: only a round of nothing at all is the end."""
    calls = itertools.count()
    dataset = inputs.range(2).map(lambda number: number // (next(calls) // 2)).repeat().ignore_errors()

    assert list(dataset.take(2)) == [0, 1]


@pytest.mark.parametrize(
    "select",
    [
        lambda ds: ds.filter(lambda number: number > 0),
        lambda ds: ds.ignore_errors(),
        lambda ds: ds.rejection_resample(lambda number: number % 2, [1, 1]),
        lambda ds: ds.bucket_by_sequence_length(lambda number: number, [1], [2, 2]),
    ],
)
def test_what_is_made_of_some_elements_of_an_endless_repeat_is_endless(select):
    """A data service reads it in step, and a snapshot of it is refused, which would never be complete."""
    assert select(inputs.range(3).repeat()).cardinality == math.inf
    assert select(inputs.range(3)).cardinality is None
