"""Consumers of a coordinated read, each in a thread: what they are given, round by round."""

import threading
import time

import numpy as np

from spanwise.pipelines import input as inputs

SOON_S = 300.0


class Consumers:
    """All consumers of a job; `dataset` makes that of each, by its index and their number."""

    def __init__(self, count, dataset):
        self.iterators = [dataset(consumer_index=index, num_consumers=count).iterator() for index in range(count)]

    def read(self, rounds):
        """So many rounds more: what each consumer got in each of them. The first error of a consumer is raised."""
        found = [[] for _ in self.iterators]
        errors = []

        def take(iterator, into):
            try:
                into.extend(next(iterator) for _ in range(rounds))
            except Exception as error:  # noqa: BLE001  it is raised in the test
                errors.append(error)

        threads = [
            threading.Thread(target=take, args=each, daemon=True) for each in zip(self.iterators, found, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON_S)
        assert not any(thread.is_alive() for thread in threads), f"a consumer hangs: {[len(each) for each in found]}"
        if errors:
            raise errors[0]
        return list(zip(*found, strict=True))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for iterator in self.iterators:
            iterator.close()


def groups(size, pause_s=0.0):
    """Groups of consecutive numbers, in an order that each worker draws for itself."""

    def group(number):
        time.sleep(pause_s)
        return np.arange(size) + number * size

    return inputs.range(10_000).shuffle(10_000).map(group).unbatch().repeat()


def is_consecutive(numbers):
    return all(number == numbers[0] + at for at, number in enumerate(numbers))
