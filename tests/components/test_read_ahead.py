"""Reading ahead: the same items, in their order, from one other thread."""

import threading

import pytest

from spanwise.components.read_ahead import read_ahead


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
