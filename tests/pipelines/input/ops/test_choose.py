"""Elements chosen from several datasets by the elements of another one."""

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs


def three():
    return [inputs.from_elements([f"{letter}{number}" for number in range(2)]) for letter in "abc"]


def test_elements_come_from_the_datasets_that_are_chosen():
    """Each choice takes the next element of its dataset."""
    choices = inputs.from_elements([2, 0, np.int64(2), 1])

    assert list(inputs.choose_from_datasets(three(), choices)) == ["c0", "a0", "c1", "b0"]


@pytest.mark.parametrize(("stop", "expected"), [(True, ["a0", "a1"]), (False, ["a0", "a1", "b0"])])
def test_the_choice_of_a_dataset_that_has_ended_ends_all_or_is_passed_over(stop, expected):
    """As the argument says."""
    choices = inputs.from_elements([0, 0, 0, 1])

    assert list(inputs.choose_from_datasets(three(), choices, stop_on_empty=stop)) == expected


@pytest.mark.parametrize("stop", [True, False])
def test_rows_are_chosen_as_elements_are(stop):
    """In blocks, but with the same result."""
    tables = [pa.table({"a": range(start, start + 3)}) for start in (0, 10)]
    choices = inputs.from_elements([1, 0, 0, 0, 0, 1, 1, 1])

    rows = inputs.choose_from_datasets([*map(inputs.from_arrow, tables)], choices, stop_on_empty=stop)
    elements = inputs.choose_from_datasets(
        [inputs.from_elements(table.to_pylist()) for table in tables], choices, stop_on_empty=stop
    )

    assert list(rows) == list(elements)


@pytest.mark.parametrize("choice", [3, -1, 0.5, "a"])
def test_what_is_not_the_number_of_a_dataset_is_refused(choice):
    """After the elements that were chosen before it."""
    for datasets in (three(), [inputs.from_arrow(pa.table({"a": [1, 2]})) for _ in range(3)]):
        elements = iter(inputs.choose_from_datasets(datasets, inputs.from_elements([0, choice])))
        next(elements)
        with pytest.raises(DatasetError, match="is not the number of one of the 3 datasets"):
            next(elements)
