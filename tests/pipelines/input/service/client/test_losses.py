"""Losses of workers: which of them say that an element ends its worker."""

from spanwise.pipelines.input.service.client.losses import AHEAD_BYTES, TaskLosses


def lives(losses, *places):
    """Workers that come back one after another, and end when so many bytes of each were received."""
    counts = []
    for task, place in enumerate(places):
        losses.receive(task, place)
        counts.append(losses.lose(task, [task]))
    return counts


def test_workers_that_end_one_after_another_at_one_place_are_counted():
    """Also when one of them had sent a little more than the others."""
    assert lives(TaskLosses(), 1000, 900, 1100) == [1, 2, 3]


def test_workers_that_end_at_once_count_once():
    """Their machine was lost."""
    losses = TaskLosses()
    assert [losses.lose(task, range(4)) for task in range(4)] == [1, 1, 1, 1]


def test_an_end_at_another_place_begins_a_new_count():
    """Machines that are taken back end workers anywhere."""
    assert lives(TaskLosses(), 0, 5 * AHEAD_BYTES, 9 * AHEAD_BYTES) == [1, 1, 1]


def test_a_worker_that_has_got_beyond_shows_that_it_is_not_the_element():
    """Another one's machine is at fault."""
    losses = TaskLosses()
    losses.receive(100, 10 * AHEAD_BYTES)
    assert lives(losses, 1, 1, 1) == [1, 1, 1]
