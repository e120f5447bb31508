"""Elements that are no plain arrays: ragged, sparse, missing, and datasets; through ops, and what their specs say."""

from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
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
from spanwise.pipelines.input.element import UNKNOWN, each_leaf


@dataclass(frozen=True, slots=True)
class Scaled:
    """Divides when it is made, and knows more than it is made of."""

    pixels: float
    unit: InitVar[float]
    half: float = field(init=False)

    def __post_init__(self, unit):
        object.__setattr__(self, "pixels", self.pixels / unit)
        object.__setattr__(self, "half", self.pixels / 2)


class Sorted(NamedTuple("Sorted", [("low", int), ("high", int)])):
    """Is made of differences."""

    __slots__ = ()

    def __new__(cls, low, width):
        return super().__new__(cls, low, low + width)


def lists(*lengths):
    """Arrays of these lengths, described as such."""
    spec = ArraySpec("int64", (None,))
    return inputs.from_generator(lambda: (np.arange(length) for length in lengths), spec=spec)


def rows(ragged):
    assert isinstance(ragged, Ragged)
    return [row.tolist() for row in ragged]


def test_windows_are_datasets_to_all_ops():
    """They are mapped, filtered, shuffled, repeated, cached, zipped, and flattened again; of rows they have rows."""
    windows = inputs.range(6).window(2)
    table = inputs.from_arrow(pa.table({"a": [1, 2, 3]}))

    assert windows.spec == DatasetSpec(ArraySpec("int64", ()))
    assert list(windows.flat_map(lambda window: window)) == [0, 1, 2, 3, 4, 5]
    assert [list(window) for window in windows.map(lambda w: w.map(lambda n: n * n))] == [[0, 1], [4, 9], [16, 25]]
    assert list(windows.filter(lambda w: sum(w) > 1).map(sum, num_parallel=2, workers="processes")) == [5, 9]
    assert sorted(map(list, windows.shuffle(3, seed=1).cache().repeat(1))) == [[0, 1], [2, 3], [4, 5]]
    assert [(list(window), n) for window, n in inputs.zip(windows, inputs.range(2))] == [([0, 1], 0), ([2, 3], 1)]
    assert [w.to_arrow()["a"].to_pylist() for w in table.window(2)] == [[1, 2], [3]]
    with pytest.raises(DatasetError, match="an element holds a Dataset, which cannot be stored"):
        list(windows.snapshot("memory://windows"))


def test_datasets_may_be_elements_from_the_beginning():
    """As values, in structures and from generators."""
    datasets = [inputs.range(1), inputs.range(2)]

    assert list(inputs.from_elements(datasets).flat_map(lambda each: each)) == [0, 0, 1]
    assert list(inputs.from_generator(lambda: iter(datasets)).interleave(lambda each: each, cycle_length=2)) == [
        0,
        0,
        1,
    ]
    assert [list(each["d"]) for each in inputs.from_elements([{"d": each} for each in datasets])] == [[0], [0, 1]]


def test_ragged_batches_are_ragged_whatever_the_lengths():
    """Also where all happen to be equal; only what the spec says to have one shape is an array."""
    even = lists(2, 2).batch(2, ragged=True)
    mixed = inputs.from_tensor_slices({"x": np.zeros((2, 3)), "y": np.arange(2)}).batch(2, ragged=True)

    assert even.spec == RaggedSpec("int64", ())
    assert [rows(batch) for batch in even] == [[[0, 1], [0, 1]]]
    assert [rows(batch) for batch in lists(0, 2).map(np.asarray).batch(1, ragged=True)] == [[[]], [[0, 1]]]
    assert mixed.spec.parts == (ArraySpec("float64", (2, 3)), ArraySpec("int64", (2,)))
    assert next(iter(mixed))["x"].shape == (2, 3)


def test_ragged_batches_go_through_ops_and_back(tmp_path):
    """Unbatched, rebatched, mapped in other processes, kept in memory and on disk."""
    batches = lists(0, 1, 2, 3).batch(3, ragged=True)
    doubled = batches.map(lambda each: Ragged(each.values * 2, each.offsets), num_parallel=2, workers="processes")

    assert [row.tolist() for row in batches.unbatch()] == [[], [0], [0, 1], [0, 1, 2]]
    assert [rows(batch) for batch in batches.rebatch(2, ragged=True)] == [[[], [0]], [[0, 1], [0, 1, 2]]]
    assert [rows(batch) for batch in doubled] == [[[], [0], [0, 2]], [[0, 2, 4]]]
    for kept in (batches.cache().repeat(2), batches.snapshot(tmp_path).repeat(2)):
        assert [rows(batch) for batch in kept] == [[[], [0], [0, 1]], [[0, 1, 2]]] * 2
    with pytest.raises(DatasetError, match=r"are Ragged already; rebatch\(n, ragged=True\)"):
        list(batches.batch(2))


def test_sparse_elements_go_through_ops_and_back(tmp_path):
    """Batched, rebatched, unbatched, and from a snapshot; the spec tells their shape."""
    ones = [Sparse(np.array([[n]]), np.array([1.0]), (3,)) for n in range(3)]
    dataset = inputs.from_elements(ones)

    assert dataset.batch(2, drop_remainder=True).spec == SparseSpec("float64", (2, 3))
    assert [batch.dense().tolist() for batch in dataset.batch(2).rebatch(3)] == [np.eye(3).tolist()]
    assert [each.dense().tolist() for each in dataset.batch(2).unbatch()] == np.eye(3).tolist()
    snapshot = dataset.batch(3).snapshot(tmp_path)
    assert [batch.dense().tolist() for _ in range(2) for batch in snapshot] == [np.eye(3).tolist()] * 2


def test_what_may_be_missing_is_said_by_the_spec():
    """None anywhere among the values counts, and axes that differ; a batch has a mask."""
    dataset = inputs.from_elements([{"a": 1, "b": np.zeros(2)}, {"a": None, "b": np.zeros(3)}])

    assert dataset.spec == Structure(
        dict, ("a", "b"), (OptionalSpec(ArraySpec("int64", ())), ArraySpec("float64", (None,)))
    )
    (batch,) = inputs.from_elements([1, None, 3]).batch(3)
    assert batch.tolist() == [1, None, 3]
    assert list(inputs.from_elements([1, None, 3]).batch(3).unbatch()) == [1, None, 3]


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        ([1, 2], ArraySpec("int64", ())),
        ([None], OptionalSpec(UNKNOWN)),
        ([(1, 2), (3, None)], Structure(tuple, (), (ArraySpec("int64", ()), OptionalSpec(ArraySpec("int64", ()))))),
        ([1, "a"], UNKNOWN),
        ([1, 2**70], UNKNOWN),
        ([2**63, 2**64 - 1], ArraySpec("uint64", ())),
        ([(1, 2), (1, 2, 3)], UNKNOWN),
        ([[[1], [1, 2]], None], UNKNOWN),
        ([np.zeros(2), np.zeros((2, 2))], ArraySpec("float64", None)),
    ],
    ids=str,
)
def test_a_spec_says_what_all_values_have_in_common(values, spec):
    """And no more than that."""
    assert inputs.from_elements(values).spec == spec


def test_what_is_masked_stays_so(tmp_path):
    """Alone, with a value of its own to fill it with, and in columns that NumPy joins after they were stored."""
    filled = np.ma.array([1.0, 2.0], mask=[False, True], fill_value=-1)
    alone = inputs.from_elements([np.ma.masked, filled]).map(lambda leaf: leaf)
    columns = inputs.from_arrow(pa.table({"a": [1, None]})).batch(2).as_numpy().snapshot(tmp_path)

    constant, found = alone

    assert constant is np.ma.masked
    assert found.filled().tolist() == [1, -1]
    for batch in [*columns, *columns]:
        assert np.column_stack([batch["a"], batch["a"]]).tolist() == [[1, 1], [None, None]]


@pytest.mark.parametrize("element", [Scaled(8.0, 2.0), Sorted(1, 2)], ids=["dataclass", "named tuple"])
def test_what_a_constructor_did_is_not_done_again(element, tmp_path):
    """Where an element is taken apart and put together: in batches, snapshots and what is handed over."""
    dataset = inputs.from_elements([element, element])
    kept = dataset.snapshot(tmp_path)

    assert list(dataset.batch(2).unbatch()) == [element, element]
    assert list(kept) == list(kept) == [element, element]
    assert each_leaf(lambda leaf: leaf, element) == element
