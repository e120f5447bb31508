"""The course of a consumer through its splits: from every place it goes on with the same elements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.pipelines.input.service.client.leases import LeaseCourse, Place, size_leases


@pytest.mark.parametrize(
    ("before", "lasted_s", "waited_s", "then"),
    [
        pytest.param(4, 0.05, 0.05, 8, id="small ones: more, so that it asks seldom"),
        pytest.param(16, 0.05, 0.0, 16, id="but not any number"),
        pytest.param(16, 0.5, 0.0, 4, id="larger ones"),
        pytest.param(4, 60.0, 5.0, 4, id="it waits for elements now and then"),
        pytest.param(4, 60.0, 0.1, 2, id="it never does: others may have to wait for it at the end"),
        pytest.param(2, 60.0, 5.0, 4, id="it does again"),
    ],
)
def test_a_consumer_leases_as_many_splits_as_it_needs(before, lasted_s, waited_s, then):
    """By how long half of those before lasted, and how long it waited for elements of them."""
    assert size_leases(before, lasted_s, waited_s) == then


def read(course, split, count, *, ends=False):
    course.add(split, [((split.number, split.fetched + at), 1, 1) for at in range(count)])
    split.is_complete = ends
    split.is_read = False


def test_splits_are_yielded_in_the_order_of_their_leases():
    """Whichever worker is faster."""
    course = LeaseCourse()
    course.update([(3, 0), (5, 0)], [])
    first, second = course.begin_read(), course.begin_read()
    read(course, second, 1, ends=True)
    before = course.pop()
    read(course, first, 2, ends=True)

    assert before is None
    assert [course.pop() for _ in range(4)] == [(3, 0), (3, 1), (5, 0), None]
    assert course.is_spent


def test_what_a_lost_worker_has_sent_is_not_yielded_again():
    """The next worker's elements count from the first that is missing."""
    course = LeaseCourse()
    course.update([(0, 2)], [])
    split = course.begin_read()
    read(course, split, 2)
    again = course.begin_read()

    assert (again, again.fetched) == (split, 4)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 30), st.booleans())),
    st.data(),
)
def test_a_course_goes_on_from_each_place_with_the_same_elements(sizes, steps, data):
    """What is committed is never yielded again, and all the rest is, whatever was committed in between."""
    whole = [(split, at) for split, size in enumerate(sizes) for at in range(size)]
    course, found, places = LeaseCourse(), [], [Place(0, 0)]
    course.update([(split, 0) for split in range(len(sizes))], [])
    for size in sizes:
        read(course, course.begin_read(), size, ends=True)
    for count, commits in steps:
        found += [each for each in (course.pop() for _ in range(count)) if each is not None]
        places.append(course.place)
        if commits:
            course.commit(data.draw(st.sampled_from(places)))
    done, progress = course.committed()
    counts = dict(progress)
    used = [
        (split, at)
        for split in range(len(sizes))
        for at in range(sizes[split] if split in done else counts.get(split, 0))
    ]

    assert found == whole[: len(found)]
    assert used == whole[: len(used)]
    assert len(used) <= len(found)
