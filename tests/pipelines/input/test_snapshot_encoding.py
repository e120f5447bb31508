"""Elements of any structure come back exactly as they were."""

import datetime as dt
import subprocess
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from spanwise.orchestrator.errors import DatasetError, SnapshotDamaged
from spanwise.pipelines.input.element import Ragged, Sparse, spec_of
from spanwise.pipelines.input.nullable import NullableArray
from spanwise.pipelines.input.snapshot import element_types
from spanwise.pipelines.input.snapshot.encoding import ENCODINGS, encoding_of


class Point(NamedTuple):
    x: object
    y: object


@dataclass(frozen=True)
class Ride:
    fare: object
    zone: object


class InMetres(np.ndarray):
    """Means more than its values."""


def back(elements, kind="elements", skip=0):
    _, blocks, layout = ENCODINGS[kind].pack(elements)
    return list(ENCODINGS[kind].unpack(blocks, layout, skip))


def same(found, wanted):  # noqa: PLR0911  a line for each kind
    """Equal in value and in kind, down to the leaves."""
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(same(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, tuple | list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, Ride | Ragged | Sparse):
        return same(vars(found), vars(wanted))
    if wanted is np.ma.masked:
        return found is wanted
    if isinstance(wanted, np.ma.MaskedArray):
        return all(
            same(part(found), part(wanted))
            for part in (np.ma.getdata, np.ma.getmaskarray, lambda each: each.fill_value)
        )
    if isinstance(wanted, np.ndarray) and wanted.dtype.kind == "O":
        return found.shape == wanted.shape and all(map(same, found.flat, wanted.flat))
    if isinstance(wanted, np.ndarray | np.generic):
        equal = repr(found.tolist()) == repr(wanted.tolist())
        return found.dtype == wanted.dtype and found.shape == wanted.shape and equal
    return repr(found) == repr(wanted)


def objects(items):
    """An array of any objects."""
    array = np.empty(len(items), object)
    for at, item in enumerate(items):
        array[at] = item
    return array


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | arrays.arrays(
        arrays.boolean_dtypes()
        | arrays.integer_dtypes()
        | arrays.floating_dtypes()
        | arrays.datetime64_dtypes(max_period="ns", min_period="ns"),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    )
    | st.builds(np.float32, st.floats(width=32))
    | st.complex_numbers()
    | st.decimals()
    | st.dates()
    | st.timedeltas()
    | st.times(timezones=st.none() | st.just(dt.UTC))
    | st.datetimes(
        timezones=st.none()
        | st.timezones()
        | st.builds(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)), st.integers(-1000, 1000))
        | st.just(dt.timezone(dt.timedelta(hours=2), "Here"))
    )
)
elements = st.recursive(
    leaves,
    lambda parts: (
        st.dictionaries(st.text(), parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(objects)
        | st.builds(Point, parts, parts)
        | st.builds(Ride, parts, parts)
    ),
    max_leaves=6,
)


@given(st.lists(elements, min_size=1, max_size=6), st.integers(0, 7))
def test_every_structure_comes_back(items, skip):
    """Whatever was put in, also if no two elements are alike; from any of them on."""
    found = back(items, skip=skip)

    assert len(found) == max(0, len(items) - skip)
    assert all(map(same, found, items[skip:]))


@pytest.mark.parametrize(
    "element",
    [
        Ragged(np.arange(5.0), np.asarray([0, 2, 5])),
        Ragged(NullableArray([1, 2, 3], [False, True, False]), np.asarray([0, 2, 3])),
        Ragged(NullableArray([1.0, 2.0], [True, False], fill_value=-1), np.asarray([0, 2])),
        Ragged(np.ma.MaskedArray([True, False], [True, False]), np.asarray([0, 2])),
        Sparse(np.asarray([[0, 1], [2, 2]]), NullableArray([1.5, 2.5], [False, True]), (3, 4)),
        Sparse(np.asarray([[0, 1], [2, 2]]), np.asarray([1.5, 2.5]), (3, 4)),
        np.ma.MaskedArray([1, 2, 3], [False, True, False]),
        np.ma.MaskedArray([1.0, 2.0], [False, True], fill_value=-1),
        NullableArray([1, 2], [False, True]),
        np.ma.masked,
        np.asarray(["a", b"b", None, 3], object),
        np.asarray(["ab", "c"]),
    ],
)
def test_arrays_of_other_kinds_come_back(element):
    """Ragged, sparse, masked, of objects, of texts."""
    (found,) = back([element])

    assert same(found, element)


def test_a_record_batch_inside_an_element_comes_back():
    """With its schema."""
    batch = pa.record_batch({"fare": [1.0, None]})

    ((number, found),) = back([(1, batch)])

    assert number == 1
    assert found.equals(batch)


def test_arrays_that_were_read_can_be_written_to():
    """As those of the pass that wrote them: a function that changes its argument works in both."""
    (found,) = back([np.zeros(3)])
    found += 1

    assert found.tolist() == [1, 1, 1]


@pytest.mark.parametrize("element", [{1, 2}, object(), {3: "a"}, np.asarray([object()]), np.zeros(2).view(InMetres)])
def test_what_cannot_be_kept_is_refused(element):
    """Told as the user's, before anything wrong is written."""
    with pytest.raises(DatasetError, match="snapshot"):
        back([element])


def test_only_registered_types_are_made(monkeypatch, tmp_path):
    """What a file names is neither imported nor called: that could run a command."""
    ran = tmp_path / "ran"

    @dataclass(frozen=True)
    class Popen:
        args: str
        shell: bool

    Popen.__module__, Popen.__qualname__ = "subprocess", "Popen"
    monkeypatch.setattr(element_types, "_registered", {})
    _, blocks, layout = ENCODINGS["elements"].pack([Popen(f"touch {ran}", shell=True)])
    element_types._registered.clear()

    with pytest.raises(SnapshotDamaged, match=r"subprocess.Popen, which this process has not registered"):
        list(ENCODINGS["elements"].unpack(blocks, layout, 0))
    with pytest.raises(DatasetError, match="a dataclass or a named tuple"):
        element_types.register_type(subprocess.Popen)
    assert not ran.exists()


@pytest.mark.parametrize("register", [element_types.register_type, lambda kind: encoding_of(spec_of(kind(1, 2)))])
def test_a_type_is_made_when_the_reader_registers_it_or_its_spec_holds_it(monkeypatch, register):
    """In another process than the one that wrote it."""
    monkeypatch.setattr(element_types, "_registered", {})
    _, blocks, layout = ENCODINGS["elements"].pack([Point(1, Ride(2.5, "a"))])
    element_types._registered.clear()
    register(Point)
    register(Ride)

    assert list(ENCODINGS["elements"].unpack(blocks, layout, 0)) == [Point(1, Ride(2.5, "a"))]


def test_small_blocks_of_rows_are_joined():
    """So that a chunk is read in blocks that are worth their fixed cost."""
    blocks = pa.table({"x": range(1000)}).to_batches(max_chunksize=10)

    _, packed, _ = ENCODINGS["rows"].pack(blocks)

    assert [block.num_rows for block in packed] == [1000]


def test_batches_stay_apart():
    """Each is an element."""
    batches = pa.table({"x": range(10)}).to_batches(max_chunksize=4)

    assert [batch.num_rows for batch in back(batches, "batches")] == [4, 4, 2]
    assert [batch.num_rows for batch in back(batches, "batches", skip=2)] == [2]


@given(st.lists(st.integers(0, 5) | st.integers(30_000, 70_000), min_size=1, max_size=12), st.integers(0, 12))
def test_batches_that_lie_behind_each_other_come_back_as_they_were(sizes, skip):
    """Large and small ones, some without a row, from any of them on."""
    rows = pa.RecordBatch.from_pydict({"x": np.arange(sum(sizes)), "even": np.arange(sum(sizes)) % 2 == 0})
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    batches = [rows.slice(start, size) for start, size in zip(starts, sizes, strict=True)]

    assert back(batches, "batches", skip) == batches[skip:]


def test_batches_that_were_written_each_as_a_block_are_still_read():
    """As earlier writers left them."""
    batches = pa.table({"x": range(10)}).to_batches(max_chunksize=4)

    assert list(ENCODINGS["batches"].unpack(batches, "", 1)) == batches[1:]


def test_small_batches_lie_in_large_blocks():
    """So that they are read as fast as rows are."""
    batches = pa.table({"x": range(100_000)}).to_batches(max_chunksize=100)

    _, packed, _ = ENCODINGS["batches"].pack(batches)

    assert len(packed) == 2


@pytest.mark.parametrize("kind", ["rows", "batches"])
def test_rows_of_different_columns_are_refused(kind):
    """They have no schema together."""
    with pytest.raises(DatasetError, match="different columns"):
        back([pa.record_batch({"x": [1]}), pa.record_batch({"y": [1]})], kind)
