"""What TensorFlow is given; `make test-torch` installs it, in an environment of its own."""

import datetime as dt
import decimal
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import ArraySpec

tf = pytest.importorskip("tensorflow")


class Pair(NamedTuple):
    left: object
    right: object


@dataclass
class Ride:
    fare: object
    zone: object


def test_the_signature_is_that_of_the_columns():
    """Types and axes are known from the schema: nothing is computed, and an empty dataset has them too."""
    schema = pa.schema(
        [
            ("small", pa.int8()),
            ("text", pa.string()),
            ("vector", pa.list_(pa.float32(), 2)),
            ("list", pa.list_(pa.int64())),
            ("lists", pa.list_(pa.list_(pa.int64()))),
        ]
    )
    rows = inputs.from_arrow(schema.empty_table())

    found = rows.batch(4, drop_remainder=True).to_tf()

    assert found.element_spec == {
        "small": tf.TensorSpec(4, tf.int8),
        "text": tf.TensorSpec(4, tf.string),
        "vector": tf.TensorSpec((4, 2), tf.float32),
        "list": tf.RaggedTensorSpec((4, None), tf.int64, 1, tf.int64),
        "lists": tf.RaggedTensorSpec((4, None, None), tf.int64, 2, tf.int64),
    }
    assert list(found) == []
    assert rows.select("small", "vector").to_tf().element_spec == {
        "small": tf.TensorSpec((), tf.int8),
        "vector": tf.TensorSpec(2, tf.float32),
    }


def test_structures_texts_and_numbers_arrive():
    """A dataclass as a dict, which TensorFlow looks into; texts as bytes, with their NULs."""
    dataset = inputs.from_elements([Pair({"a": 1, "b": "é\0"}, Ride(np.float32(2.5), (b"\0", True)))])

    (element,) = dataset.to_tf().as_numpy_iterator()

    assert element == Pair({"a": 1, "b": "é\0".encode()}, {"fare": 2.5, "zone": (b"\0", True)})


def test_lists_become_ragged_tensors():
    """A batch of them, also of lists of lists."""
    table = pa.table({"list": [[1, 2], [], [3]], "lists": [[[1], [2, 3]], [], [[]]]})

    (batch,) = inputs.from_arrow(table).batch(3).to_tf()

    assert batch["list"].to_list() == [[1, 2], [], [3]]
    assert batch["lists"].to_list() == [[[1], [2, 3]], [], [[]]]


@pytest.mark.parametrize(
    "value", [None, dt.datetime(2013, 1, 1, tzinfo=dt.UTC), decimal.Decimal(1), 2**70, np.array([1, None])]
)
def test_what_has_no_tensor_is_refused_when_the_graph_is_built(value):
    """With what to do."""
    with pytest.raises(DatasetError, match=r"to_tf: TensorFlow has no tensors for .*map"):
        inputs.from_elements([{"x": value}]).to_tf()
    if value is not None and not isinstance(value, np.ndarray | int):
        with pytest.raises(DatasetError, match="TensorFlow has no tensors for"):
            inputs.from_arrow(pa.table({"x": [value]})).batch(1).to_tf()


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 2.5), (1, True), (np.int8(1), 300), (1.5, "x"), ("x", 1.5), ({"a": 1}, {"b": 1}), (np.uint8(1), -1)],
)
def test_a_value_that_does_not_fit_the_first_ones_type_is_refused(first, second):
    """TensorFlow alone would make 2 of 2.5 in silence."""
    dataset = inputs.range(2).map(lambda number: second if number else first)

    with pytest.raises(tf.errors.OpError, match=r"to_tf: .* of element 1"):
        list(dataset.to_tf())


def test_a_value_that_fits_exactly_is_given_in_the_first_ones_type():
    """The caller may also say which type that is, which computes no element for it."""
    dataset = inputs.range(2).map(lambda number: number or 1.5)

    assert [float(each) for each in dataset.to_tf()] == [1.5, 1.0]
    wide = inputs.range(2).to_tf(signature=tf.TensorSpec((), tf.float64))
    assert [each.dtype for each in wide] == [tf.float64] * 2


def test_missing_values_are_refused_until_they_are_filled():
    """A tensor cannot say that they are missing; those of floats are not numbers."""
    table = pa.table({"whole": [1, None], "real": [0.5, None]})

    with pytest.raises(tf.errors.OpError, match="to_tf: values are missing"):
        list(inputs.from_arrow(table).batch(2).to_tf())
    (batch,) = inputs.from_arrow(table).select("real").batch(2).to_tf()
    assert np.isnan(batch["real"].numpy()).tolist() == [False, True]


def test_each_pass_is_the_next_one_and_its_length_is_known():
    """As of the dataset, of which a model's training asks both."""
    numbers = inputs.range(9).shuffle(seed=3)
    found = numbers.to_tf()

    assert len(found) == 9
    assert [[int(each) for each in found] for _ in range(2)] == [list(numbers.iterator(epoch=n)) for n in range(2)]
    assert inputs.range(3).repeat().to_tf().cardinality() == tf.data.INFINITE_CARDINALITY
    assert [int(each) for each in inputs.range(3).repeat().to_tf().take(4)] == [0, 1, 2, 0]


def test_elements_that_are_described_are_not_computed_for_their_type():
    """By the spec of a map."""
    calls = []
    dataset = inputs.range(1).map(lambda number: calls.append(number) or np.zeros(2), spec=ArraySpec("float64", (2,)))

    found = dataset.to_tf()

    assert found.element_spec == tf.TensorSpec(2, tf.float64)
    assert calls == []


def test_the_first_element_is_in_the_first_pass():
    """Also where no other pass gives it again, as in a job of a data service: it was read for its type, and dropped."""
    once = iter(range(3))
    found = inputs.from_generator(lambda: once).map(lambda number: number * 2).to_tf()

    assert [int(each) for each in found] == [0, 2, 4]
    assert list(found) == []


def test_a_dataset_without_elements_or_types_wants_a_signature():
    """They cannot be known otherwise."""
    with pytest.raises(DatasetError, match=r"to_tf\(signature=…\)"):
        inputs.range(0).map(str).to_tf()
    assert list(inputs.range(0).map(str).to_tf(signature=tf.TensorSpec((), tf.string))) == []
