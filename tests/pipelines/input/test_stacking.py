"""Elements as one batch, and a batch as elements again."""

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import (
    ArraySpec,
    DatasetSpec,
    OptionalSpec,
    Ragged,
    RaggedSpec,
    Sparse,
    SparseSpec,
    Structure,
)
from spanwise.pipelines.input.element import UNKNOWN, batch_spec, spec_of, unbatch_spec
from spanwise.pipelines.input.stacking import stack, unstack
from tests.pipelines.input.elements import contents, plain


@dataclass(frozen=True)
class Trip:
    fare: float
    stops: object


class Pair(NamedTuple):
    one: object
    other: object


def sparse(*places):
    return Sparse(np.array(places, int).reshape(-1, 1), np.ones(len(places)), (5,))


ELEMENTS = {
    "numbers": [1, 2, 3],
    "numbers of a type of NumPy's": [np.float32(0.1), np.float32(2)],
    "texts": ["a", "bcd"],
    "texts that end in NUL": ["a\0", "\0", ""],
    "bytes that end in NUL": [b"a\0\0", b"\0"],
    "datetimes": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 2, 3, tzinfo=dt.UTC)],
    "decimals": [Decimal("1.50"), Decimal("1e30")],
    "missing decimals": [Decimal("1.50"), None],
    "arrays that lack a number": [np.ma.MaskedArray([1, 2], [True, False]), np.ma.MaskedArray([3, 4], [False, True])],
    "arrays": [np.arange(4).reshape(2, 2), np.zeros((2, 2), int)],
    "dicts": [{"a": 1, "b": np.arange(2)}, {"a": 2, "b": np.arange(2)}],
    "tuples": [(1, "a"), (2, "b")],
    "named tuples": [Pair(1, {"c": 2.0}), Pair(3, {"c": 4.0})],
    "dataclasses": [Trip(1.0, np.arange(3)), Trip(2.0, np.arange(3))],
    "missing": [1.0, None, 3.0],
    "missing arrays": [None, np.arange(2)],
    "sparse": [sparse(1, 3), sparse(), sparse(4)],
}


@pytest.mark.parametrize("elements", ELEMENTS.values(), ids=ELEMENTS)
def test_a_batch_gives_its_elements_back(elements):
    """Whatever the structure and the leaves, what was put together comes apart the same."""
    assert contents(unstack(stack(elements))) == contents(elements)


@pytest.mark.parametrize("elements", ELEMENTS.values(), ids=ELEMENTS)
def test_the_spec_of_a_batch_follows_from_that_of_its_elements(elements):
    """It is known before a batch was made, and back."""
    if any(element is None for element in elements):
        return
    spec = spec_of(elements[0])

    assert batch_spec(spec, len(elements)) == spec_of(stack(elements))
    assert unbatch_spec(batch_spec(spec, 2)) == spec


def test_arrays_of_different_lengths_make_a_ragged_one_if_asked_to():
    """Otherwise the error says what to use."""
    elements = [np.arange(2), np.arange(0), np.arange(3)]

    assert plain(stack(elements, ragged=True)) == ("ragged", [plain(element) for element in elements])
    with pytest.raises(DatasetError, match=r"different shapes .* Use padded_batch, or batch\(..., ragged=True\)"):
        stack(elements)


def test_elements_of_different_structure_are_told_apart_by_part():
    """The message names the part that does not fit."""
    with pytest.raises(DatasetError, match=r"elements\['a'\] of different shapes"):
        stack([{"a": np.zeros(1)}, {"a": np.zeros(2)}])
    with pytest.raises(DatasetError, match="different structure"):
        stack([{"a": 1}, {"b": 1}])


def test_none_makes_a_masked_array():
    """A batch of optional values says which are missing."""
    batch = stack([1, None, np.ma.masked])

    assert isinstance(batch, np.ma.MaskedArray)
    assert batch.tolist() == [1, None, None]
    assert np.column_stack([batch, batch]).tolist() == [[1, 1], [None, None], [None, None]]


def test_every_kind_of_leaf_has_a_spec():
    """Arrays, ragged, sparse, missing, datasets."""
    ragged = Ragged(np.arange(3.0), np.array([0, 1, 3]))

    assert spec_of(np.zeros((2, 3))) == ArraySpec("float64", (2, 3))
    assert spec_of(ragged) == RaggedSpec("float64", ())
    assert spec_of(sparse(1)) == SparseSpec("float64", (5,))
    assert spec_of(None) == OptionalSpec(UNKNOWN)
    assert spec_of(inputs.range(3)) == DatasetSpec(ArraySpec("int64"))
    assert spec_of(Pair(1, "a")) == Structure(Pair, ("one", "other"), (ArraySpec("int64"), ArraySpec("str")))


def test_a_ragged_array_is_cut_without_copying():
    """Rows are counted from either end, slices show the same values."""
    ragged = Ragged(np.arange(6), np.array([0, 2, 2, 6]))

    assert ragged[-1].tolist() == [2, 3, 4, 5]
    assert [row.tolist() for row in ragged[1:]] == [[], [2, 3, 4, 5]]
    assert np.shares_memory(ragged[1:].values, ragged.values)
    with pytest.raises(IndexError):
        ragged[3]


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ([2**53 + 1, 0.5], "9007199254740993 cannot be batched with floats, since no float is exactly this number"),
        ([np.array([2**53 + 1]), np.array([0.5])], "of the types float64, int64 cannot be batched without losing"),
        ([np.array(["a"]), np.array([1])], "of different types"),
        (["a", b"a"], r"of different types \(bytes, str\)"),
        ([[1, [2]], [1, 2]], r"the list \[1, \[2\]\] has no shape"),
    ],
)
def test_what_no_array_can_hold_is_refused(elements, message):
    """Rather than rounded, or written as text."""
    with pytest.raises(DatasetError, match=message):
        stack(elements)


@pytest.mark.parametrize("numbers", [[1, 2**70], [-1, 2**63], [2**63, 2**64 - 1], [True, 2**65]])
def test_whole_numbers_stay_exact(numbers):
    """Also those that no type of NumPy's holds together."""
    assert list(unstack(stack(numbers))) == numbers


@pytest.mark.parametrize("numbers", [[float("nan"), 2**53 + 1], [0.5, 2**53 + 1], [[float("inf")], [2**63 + 1]]])
def test_whole_numbers_in_a_list_stay_exact_beside_floats(numbers):
    """A float that equals nothing, such as NaN, is no reason to round the others."""
    (found,) = unstack(stack([numbers]))

    assert repr(found.tolist()) == repr(numbers)


def test_a_batch_of_numbers_keeps_their_dtype():
    """Also when it is taken apart and put together again."""
    batch = np.arange(4, dtype=np.float32)

    (again,) = inputs.from_tensor_slices(batch).batch(2).rebatch(4)

    assert again.dtype == np.float32
    assert inputs.from_tensor_slices(batch).batch(2).rebatch(4).spec == ArraySpec("float32", (None,))


def test_an_empty_list_is_one_of_what_the_others_hold():
    """NumPy takes it for one of floats: whole numbers became floats, and texts could not be batched."""
    assert plain(stack([[1], [], [2, 3]], ragged=True)) == (
        "ragged",
        [("array", "int64", text) for text in ("[1]", "[]", "[2, 3]")],
    )
    assert stack([["a"], []], ragged=True).values.tolist() == ["a"]
