"""Reading ahead: the same items, in their order, from other threads."""

import threading

import pytest

from spanwise.components.read_ahead import map_ahead, read_ahead


def test_items_come_in_order_and_the_next_one_is_ready():
    """While an item is worked on, the one after it is computed, in a thread of its own."""
    second = threading.Event()

    def items():
        yield threading.current_thread()
        second.set()
        yield threading.current_thread()

    with read_ahead(items()) as ahead:
        first = next(ahead)
        assert second.wait(30)
        assert next(ahead) is first
        assert first is not threading.current_thread()
        assert list(ahead) == []


def test_an_error_comes_in_its_turn():
    """What was read before it is given first."""

    def items():
        yield 1
        raise ValueError("damaged")

    with read_ahead(items()) as ahead:
        assert next(ahead) == 1
        with pytest.raises(ValueError, match="damaged"):
            next(ahead)


def test_whoever_stops_early_ends_the_generator_in_its_own_thread():
    """Files are closed, and connections that belong to a thread are closed by it."""
    ended = []

    def items():
        try:
            while True:
                yield threading.current_thread()
        finally:
            ended.append(threading.current_thread())

    with read_ahead(items()) as ahead:
        thread = next(ahead)

    assert ended == [thread]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_come_in_the_order_of_the_items(threads):
    """All threads work at once, and whichever is done first, the first item's result comes first."""
    others = threading.Barrier(threads)

    def work(item):
        if item < threads:
            others.wait(30)  # all threads work at once
        return item * 10

    assert list(map_ahead(work, range(7), threads)) == [0, 10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_more_is_done_than_the_threads_and_one_result_need(threads):
    """Items are taken while results are, so that what is held does not grow with their number."""
    taken = []

    def items():
        for item in range(100):
            taken.append(item)
            yield item

    results = map_ahead(str, items(), threads)

    assert [next(results) for _ in range(5)] == ["0", "1", "2", "3", "4"]
    assert len(taken) <= 5 + threads
    results.close()
    assert len(taken) <= 5 + threads


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_of_several_errors_the_first_in_order_is_raised(threads):
    """Whichever thread is faster, what was done before it comes first."""
    second = threading.Event()

    def work(item):
        if item == 1:
            assert threads < 3 or second.wait(30)
        if item == 2:
            second.set()
        if item:
            raise ValueError(f"item {item}")
        return item

    results = map_ahead(work, range(4), threads)

    assert next(results) == 0
    with pytest.raises(ValueError, match="item 1"):
        next(results)
