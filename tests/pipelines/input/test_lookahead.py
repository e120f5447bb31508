"""Elements that are converted ahead of their use: a state does not count them, whatever becomes of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import FunctionFailed
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.lookahead import Lookahead

ERRORS = (ValueError, FunctionFailed)


def convert(bad):
    def place(number):
        if number in bad:
            raise ValueError(f"no device has a place for {number}")
        return number

    return place


def rest(elements):
    """What comes until the end: elements and errors."""
    found = []
    for _ in range(30):
        try:
            found.append(next(elements))
        except StopIteration:
            break
        except ERRORS as error:
            found.append(str(error))
    return found


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 4), bad=st.sets(st.integers(0, 9), max_size=3), at=st.integers(0, 10), fails=st.booleans())
def test_a_state_before_an_error_leads_to_it(count, bad, at, fails):
    """Of the conversion or of the dataset, and however far ahead it was met: nothing is left out without a word."""
    dataset = inputs.range(10).map(convert(bad)) if fails else inputs.range(10)
    place = convert(set()) if fails else convert(bad)
    one = Lookahead(dataset.iterator(), place, count)
    for _ in range(at):
        try:
            next(one)
        except ERRORS:
            break  # the place behind an error is its own
    state = one.state()
    expected = rest(one)

    again = rest(Lookahead(dataset.iterator().restore(state), place, count))

    assert again == expected


@pytest.mark.parametrize("count", [0, 1, 3])
def test_without_errors_all_elements_come(count):
    """In their order."""
    assert list(Lookahead(inputs.range(5).iterator(), convert(set()), count)) == list(range(5))
