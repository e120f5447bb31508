"""Batches of arrays of different sizes."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs


def lists(*lengths):
    return inputs.from_elements([np.arange(1, length + 1) for length in lengths])


def test_arrays_are_filled_up_to_the_largest():
    """Zeros stand behind the shorter ones."""
    first, second = lists(1, 3, 2).padded_batch(2)

    assert first.tolist() == [[1, 0, 0], [1, 2, 3]]
    assert second.tolist() == [[1, 2]]


def test_a_shape_and_a_value_can_be_given():
    """All batches then have one size."""
    batches = [batch.tolist() for batch in lists(1, 3).padded_batch(1, shapes=[4], values=-1)]

    assert batches == [[[1, -1, -1, -1]], [[1, 2, 3, -1]]]


def test_each_part_of_a_structure_has_its_own():
    """Shapes and values may be dicts like the elements."""
    dataset = inputs.from_elements([{"a": np.arange(2), "b": 1}, {"a": np.arange(1), "b": 2}])

    (batch,) = dataset.padded_batch(2, shapes={"a": [3]}, values={"a": 9})

    assert batch["a"].tolist() == [[0, 1, 9], [0, 9, 9]]
    assert batch["b"].tolist() == [1, 2]


def test_what_is_larger_than_its_shape_is_refused():
    """Nothing is cut off in silence."""
    with pytest.raises(DatasetError, match=r"shapes=\[2\]\): an element has the shape \(3,\)"):
        list(lists(3).padded_batch(1, shapes=[2]))


def test_other_numbers_of_axes_make_no_batch():
    """A list and a matrix cannot be filled up to be alike."""
    with pytest.raises(DatasetError, match=r"elements with \[1, 2\] axes"):
        list(inputs.from_elements([np.zeros(2), np.zeros((2, 2))]).padded_batch(2))


KINDS = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 255),
    "float32": st.floats(width=32),
    "bool": st.booleans(),
    "datetime64[us]": st.datetimes().map(np.datetime64),
    "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    "bytes": st.binary(max_size=3),
}


@st.composite
def sequences(draw):
    """Lists, arrays or masked arrays of one kind and of different lengths, and a value to pad with or None."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    lists = draw(st.lists(st.lists(KINDS[kind], max_size=4), min_size=1, max_size=4))
    value = draw(st.none() | KINDS[kind])
    form = draw(st.sampled_from(["list", "array", "masked"]))
    if form == "list":
        return [list(each) for each in lists], value
    arrays = [np.array(each, object if kind in {"str", "bytes"} else kind) for each in lists]
    if form == "array":
        return arrays, value
    return [np.ma.MaskedArray(each, [at % 2 == 1 for at in range(len(each))]) for each in arrays], value


def plain_list(values):
    return (
        values.tolist()
        if isinstance(values, np.ndarray)
        else [item.item() if isinstance(item, np.generic) else item for item in values]
    )


@settings(max_examples=60, deadline=None)
@given(sequences())
def test_the_elements_are_in_their_batch(given_):
    """Each begins its row, down to the last digit and with its mask, and the value stands behind it."""
    elements, value = given_
    (batch,) = inputs.from_elements(elements).padded_batch(len(elements), values=value)

    for row, element in zip(batch, elements, strict=True):
        there, rest = row[: len(element)], row[len(element) :]
        assert repr(there.tolist()) == repr(plain_list(element))
        assert not np.ma.getmaskarray(rest).any()
        if value is not None:
            assert repr(rest.tolist()) == repr(
                [value if batch.dtype == object else np.array(value, batch.dtype).item()] * len(rest)
            )


def test_parts_are_those_of_the_same_name():
    """The keys of dicts may come in another order; other keys are no padding for those that are missing."""
    (batch,) = inputs.from_elements([{"a": [1], "b": [2, 3]}, {"b": [4], "a": [5, 6]}]).padded_batch(2)

    assert {name: part.tolist() for name, part in batch.items()} == {"a": [[1, 0], [5, 6]], "b": [[2, 3], [4, 0]]}
    with pytest.raises(DatasetError, match="different structure"):
        list(inputs.from_elements([{"a": [1], "b": [2]}, {"a": [3], "c": [4]}]).padded_batch(2))


def test_an_empty_list_changes_no_type():
    """NumPy takes it for one of floats, which would round the numbers of the others."""
    (batch,) = inputs.from_arrow(pa.table({"a": [[2**53 + 1], [], [3, 4]]})).padded_batch(3)

    assert batch["a"].dtype == np.int64
    assert batch["a"].tolist() == [[2**53 + 1, 0], [0, 0], [3, 4]]


def test_texts_are_padded_as_a_whole():
    """The padding is not cut to the longest text, and texts of objects get an empty text."""
    fixed = inputs.from_elements([np.array(["a"]), np.array(["b", "c"])])
    objects = inputs.from_elements([["a\0"], ["b", "c"]])

    assert next(iter(fixed.padded_batch(2, values="<pad>"))).tolist() == [["a", "<pad>"], ["b", "c"]]
    assert next(iter(objects.padded_batch(2))).tolist() == [["a\0", ""], ["b", "c"]]


@pytest.mark.parametrize(
    ("elements", "value", "message"),
    [
        ([[1], [2, 3]], 0.5, r"padded_batch\(values=0.5\): elements are of int64, which does not hold it"),
        ([[1], [2, 3]], float("nan"), "which does not hold it"),
        ([np.array([1], np.uint8), np.array([1, 2], np.uint8)], -1, "elements are of uint8, which does not hold it"),
        ([np.zeros(1, np.float32), np.zeros(2, np.float32)], 1e300, "elements are of float32, which does not hold it"),
        ([[True], [True, False]], 2, "elements are of bool, which does not hold it"),
        ([np.array(["a"]), np.array(["b", "c"])], 0, "which does not hold it"),
        ([np.array([1]), np.array(["a"])], None, "of different types"),
        ([np.array([2**63 + 1], np.uint64), np.array([2**53 + 1])], None, "without losing digits"),
        ([inputs.Ragged(np.arange(3), np.array([0, 1, 3]))], None, "are Ragged"),
    ],
)
def test_what_would_be_another_value_is_refused(elements, value, message):
    """Nothing is rounded, cut or made a text in silence."""
    with pytest.raises(DatasetError, match=message):
        list(inputs.from_elements(elements).padded_batch(2, values=value))
