"""Graphs whose sources read the splits that a queue hands out."""

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.op import Opening
from spanwise.pipelines.input.service.sharding.dealing import SplitQueue, read_from_queue


class Queue(SplitQueue):
    """Hands out the splits of the first rounds of one source: by round, those that this worker gets."""

    def __init__(self, *rounds):
        self.rounds = [list(splits) for splits in rounds]

    def next(self, source, repetition):
        splits = self.rounds[repetition]
        return splits.pop(0) if splits else None


def read(dataset, queue):
    return list(read_from_queue(dataset.op, queue).open(Opening()))


def test_a_worker_whose_cache_is_empty_ends_its_endless_repeat():
    """It asks for no more splits, so it would go round for ever, also when it is stopped."""
    numbers = inputs.range(3)

    assert read(numbers.cache().repeat(), Queue([])) == []
    assert read(numbers.cache().filter(lambda number: number > 9).repeat(), Queue([0, 1, 2])) == []


def test_a_worker_without_splits_of_a_round_waits_for_those_of_the_next():
    """Others were faster."""
    assert read(inputs.range(3).repeat(4), Queue([], [1], [], [0, 2])) == [1, 0, 2]
