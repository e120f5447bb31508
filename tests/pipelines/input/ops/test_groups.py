"""Elements that are gathered by a key, and reduced group by group."""

import datetime as dt
import itertools
import queue

import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import FunctionFailed
from spanwise.pipelines import input as inputs


def test_a_group_is_reduced_when_it_is_complete():
    """Elements of one key follow each other in the group; what is left over at the end makes smaller groups."""
    dataset = inputs.range(10).group_by_window(
        lambda number: number % 3, lambda key, group: group.map(lambda number: (int(key), number)), 2
    )

    assert list(dataset) == [(0, 0), (0, 3), (1, 1), (1, 4), (2, 2), (2, 5), (0, 6), (0, 9), (1, 7), (2, 8)]


def test_the_size_of_a_group_may_depend_on_its_key():
    """Such as fewer long texts than short ones in a batch."""
    dataset = inputs.from_elements(["a", "bb", "c", "dd", "e"]).group_by_window(
        len, lambda _, group: group.batch(9), lambda length: 3 if length == 1 else 1
    )

    assert [batch.tolist() for batch in dataset] == [["bb"], ["dd"], ["a", "c", "e"]]


def test_groups_of_rows_are_rows():
    """With their types, so that they can be batched as Arrow data."""
    table = pa.table({"zone": ["a", "b", "a"], "fare": pa.array([1, 2, 3], pa.int8())})

    found = inputs.from_arrow(table).group_by_window(
        lambda row: row["zone"], lambda _, group: group, 2, spec=table.schema
    )

    assert found.to_arrow().to_pylist() == [table.to_pylist()[at] for at in (0, 2, 1)]
    assert found.to_arrow().schema == table.schema


def test_elements_without_a_number_for_a_key_are_one_group():
    """A NaN is a NaN, as in `unique`: a group of each element by itself would wait for others until the end."""
    numbers = inputs.range(6).group_by_window(
        lambda number: float("nan") if number % 2 else 0, lambda _, group: group, 2
    )

    assert list(numbers) == [0, 2, 1, 3, 4, 5]


@pytest.mark.parametrize("key", [lambda row: row["at"], lambda row: (0, row["at"])], ids=["a moment", "with others"])
def test_the_hour_that_comes_twice_in_autumn_is_two(key):
    """Half past two in summer time and an hour later are equal to Python: they were one group, and one element."""
    utc = [dt.datetime(2024, 10, 27, hour, 30, tzinfo=dt.UTC) for hour in (0, 1, 0)]
    rows = inputs.from_arrow(pa.table({"at": pa.array(utc, pa.timestamp("us", "Europe/Berlin"))}))

    groups = rows.group_by_window(key, lambda key, group: group.batch(9).map(lambda batch: (key, len(batch["at"]))), 9)

    assert [size for _, size in groups] == [2, 1]
    assert [key[1].fold if type(key) is tuple else key.fold for key, _ in groups] == [0, 1]
    assert [row["at"].astimezone(dt.UTC) for row in rows.unique()] == utc[:2]


def test_a_key_that_cannot_be_compared_is_reported_with_its_element():
    """As any error of a function."""
    with pytest.raises(FunctionFailed, match=r"group_by_window: .* raised TypeError at element 0"):
        list(inputs.range(3).group_by_window(lambda number: [number], lambda _, group: group, 2))
    with pytest.raises(FunctionFailed, match=r"must return a whole number of at least 1, not 0"):
        list(inputs.range(3).group_by_window(lambda number: 1, lambda _, group: group, lambda key: 0))


def test_a_stopped_pass_reads_again_only_what_waits():
    """The state leads to the oldest element that waits, not to the beginning."""
    read = queue.SimpleQueue()  # whose content is no part of the graph, as that of a list would be

    def noted(number):
        read.put(number)
        return number

    def dataset():
        return (
            inputs.range(100).map(noted).group_by_window(lambda number: number % 2, lambda _, group: group.batch(5), 5)
        )

    with dataset().iterator() as elements:
        first = [batch.tolist() for batch in itertools.islice(elements, 15)]
        state = elements.state()
    before = read.qsize()
    with dataset().iterator().restore(state) as elements:
        rest = [batch.tolist() for batch in elements]

    assert first + rest == [batch.tolist() for batch in dataset()]
    assert min([read.get() for _ in range(read.qsize())][before : before + 5]) >= 60
