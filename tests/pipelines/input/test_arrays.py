"""Arrow columns as NumPy arrays, and back."""

import datetime as dt
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import Ragged
from spanwise.pipelines.input.arrays import as_array, as_column, convert_arrays, examples_of
from tests.pipelines.input.elements import plain

COLUMNS = {
    "int64": pa.array([1, 2, 3]),
    "int32 with nulls": pa.array([1, None, 3], pa.int32()),
    "bool": pa.array([True, False]),
    "bool with nulls": pa.array([True, None]),
    "text": pa.array(["a", None]),
    "bytes": pa.array([b"a", b""]),
    "timestamps": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us")),
    "dates": pa.array([dt.date(2024, 1, 1)], pa.date32()),
    "lists": pa.array([[1], [], [2, 3]], pa.large_list(pa.int64())),
    "lists of one length": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
    "structs": pa.array([{"a": 1}, None]),
    "dates with nulls": pa.array([dt.date(2024, 1, 1), None], pa.date32()),
    "times with nulls": pa.array([dt.time(1, 2), None], pa.time32("s")),
    "intervals": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "matrices": pa.array([[[1, 2], [3, 4]]] * 2, pa.list_(pa.list_(pa.int16(), 2), 2)),
    "lists of one length with nulls": pa.array([[1, 2], None, [None, 3]], pa.list_(pa.int64(), 2)),
    "lists of length 0": pa.array([[], []], pa.list_(pa.int64(), 0)),
}
MISSING_INSIDE = pa.array([[1, None]], pa.list_(pa.int8(), 2)).cast(pa.fixed_shape_tensor(pa.int8(), (1, 2)))


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_column_comes_back_with_its_type(column):
    """Nothing is lost on the way to NumPy and back, also of a slice."""
    for rows in (column, column.slice(1)):
        assert as_column(as_array(rows), None if pa.types.is_list(column.type) else column.type) == rows


def test_nulls_do_not_change_the_dtype():
    """Whether a block happens to hold a null changes no type: integers are masked, floats have NaN."""
    assert as_array(pa.array([1, None])).dtype == as_array(pa.array([1, 2])).dtype == np.int64
    assert plain(as_array(pa.array([1.5, None]))) == ("array", "float64", "[1.5, nan]")


def test_null_lists_are_empty_ones():
    """What a null list points at is not its own."""
    lists = as_array(pa.array([[1, 2], None, [3]]))

    assert isinstance(lists, Ragged)
    assert [row.tolist() for row in lists] == [[1, 2], [], [3]]
    assert [row.tolist() for row in as_array(pa.array([[1, 2], None, [3]]).slice(1))] == [[], [3]]


def test_arrays_cannot_be_written_to():
    """They may be the very memory that others read."""
    with pytest.raises(ValueError, match="read-only"):
        as_array(pa.array([1, 2]))[0] = 5


def test_a_dictionary_is_decoded():
    """Categories come as their values."""
    assert as_array(pa.array(["a", "b", "a"]).dictionary_encode()).tolist() == ["a", "b", "a"]


@pytest.mark.parametrize("type_", [pa.list_view(pa.int64()), pa.large_list_view(pa.int64())])
def test_views_of_lists_that_were_joined_keep_their_values(type_):
    """As where a batch spans two blocks. Arrow's own cast to lists loses them."""
    parts = [pa.array([[9], [1, 2], None, []], type_).slice(1), pa.array([[3]], type_)]

    assert plain(as_array(pa.concat_arrays(parts))) == plain(Ragged(np.array([1, 2, 3]), np.array([0, 2, 2, 2, 3])))


def test_runs_are_what_they_stand_for():
    """A missing whole number is masked: as floats, the others would lose digits."""
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], [2**53 + 1, None])

    assert as_array(runs).tolist() == [2**53 + 1, 2**53 + 1, None]
    assert as_array(runs[:1]).tolist() == [2**53 + 1]


def test_tensors_of_arrow_have_their_axes():
    """Those that are missing are masked, or NaN; none is an array of objects."""
    numbers = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.int32).reshape(2, 3, 2))
    missing = pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2)).cast(pa.fixed_shape_tensor(pa.float64(), (1, 2)))

    assert as_array(numbers).dtype == np.int32
    assert as_array(numbers[1:]).tolist() == [[[6, 7], [8, 9], [10, 11]]]
    assert plain(as_array(missing)) == ("array", "float64", "[[[1.0, 2.0]], [[nan, nan]]]")


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("type_", [pa.int32(), pa.float32()])
def test_a_number_that_is_missing_inside_a_tensor_is_missing_in_the_array(type_, axes):
    """As in a list of one length: masked, or NaN, wherever the tensor's axes put it."""
    sizes = (2, 3, 2)
    stored = [[9] * 12, [None, *range(1, 12)], None, [*range(11), None]]
    cells = pa.array(stored, pa.list_(type_, 12))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(type_, sizes, permutation=axes), cells)

    for rows in (slice(0, 4), slice(1, 4), slice(1, 2), slice(3, 4)):
        numbers = [row or [None] * 12 for row in stored[rows]]
        expected = np.array(numbers, float).reshape(-1, *sizes).transpose(0, *(axis + 1 for axis in axes))
        found = as_array(tensors[rows])
        np.testing.assert_array_equal(np.ma.filled(found.astype(float), np.nan), expected)
        assert found.dtype == type_.to_pandas_dtype()
        assert isinstance(found, np.ma.MaskedArray) == pa.types.is_integer(type_)


def test_what_lies_below_a_null_inside_a_tensor_is_not_shown():
    """Functions of blocks would compute with it."""
    holes = pa.array([True, False, True, True]).buffers()[1]
    numbers = pa.Array.from_buffers(pa.int32(), 4, [holes, pa.array([1, 77, 3, 4], pa.int32()).buffers()[1]])
    cells = pa.FixedSizeListArray.from_arrays(numbers, 2)
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), (2,)), cells)

    sums = inputs.from_arrow(pa.table({"t": tensors})).map(lambda c: {"sum": c["t"].sum(axis=1)}, vectorized=True)

    assert sums.to_arrow()["sum"].to_pylist() == [1, 7]


def test_a_list_of_lists_keeps_its_rows():
    """One `Ragged` of as many rows as there are, whose rows are ragged themselves."""
    lists = as_array(pa.array([[[1], []], None, [[2, 3], [4]]], pa.list_(pa.list_(pa.int64()), 2)))

    assert [[inner.tolist() for inner in row] for row in lists] == [[[1], []], [], [[2, 3], [4]]]


@pytest.mark.parametrize("column", [pa.array([1, None]), pa.array([[1], []]), pa.array([True, None]), MISSING_INSIDE])
def test_no_part_of_an_array_can_be_written_to(column):
    """Neither values nor masks nor offsets: the column itself is used when the array comes back."""
    array = as_array(column)
    parts = [array.values, array.offsets] if isinstance(array, Ragged) else [array.data, array.mask]

    assert not any(part.flags.writeable for part in parts)


_STRUCT = pa.struct([("a", pa.int64())])
_BERLIN = pa.struct([("a", pa.timestamp("us", "Europe/Berlin"))])


def _first(values):
    """The first dict in an array, in lists or not."""
    while not isinstance(values, dict):
        values = values.values if isinstance(values, Ragged) else values[0]
    return values


@pytest.mark.parametrize(
    ("column", "changed"),
    [
        ([{"a": 1}, {"a": 2}], [{"a": 0}, {"a": 2}]),
        (pa.array([[{"a": 1}], None, []], pa.list_(_STRUCT)), [[{"a": 0}], None, []]),
        (pa.array([None, [{"a": 1}, None]], pa.large_list(_STRUCT)), [None, [{"a": 0}, None]]),
        (pa.array([[{"a": 1}], None, [None]], pa.list_(_STRUCT, 1)), [[{"a": 0}], None, [None]]),
        (pa.array([[[{"a": 1}], None], None], pa.list_(pa.list_(_STRUCT), 2)), [[[{"a": 0}], None], None]),
        (pa.array([[[{"a": 1}, {}]], [[]]], pa.list_(pa.list_(_STRUCT))), [[[{"a": 0}, {"a": None}]], [[]]]),
        (pa.array([[("k", {"a": 1})]], pa.map_(pa.string(), _STRUCT)), [[("k", {"a": 0})]]),
    ],
    ids=["structs", "lists", "large lists", "lists of one length", "lists in these", "lists of lists", "maps"],
)
def test_a_change_inside_of_a_struct_is_not_lost(column, changed):
    """Its dicts can be written to, so what comes back is read again, in lists too; what is missing stays so."""
    table = pa.table({"s": column})

    def zero(columns):
        first = columns["s"][0][0][1] if pa.types.is_map(table.schema.types[0]) else _first(columns["s"])
        first["a"] = 0
        return columns

    found = inputs.from_arrow(table).map_batches(zero).to_arrow()

    assert found["s"].to_pylist() == changed
    assert found.schema == table.schema
    assert inputs.from_arrow(table).map_batches(lambda columns: columns).to_arrow() == table


def test_a_moment_that_is_changed_to_the_second_of_its_hour_is_changed():
    """When summer time ends, both are equal to Python."""
    moments = [dt.datetime(2024, 10, 27, hour, 30, tzinfo=dt.UTC) for hour in (0, 1)]
    table = pa.table({"s": pa.array([{"a": moments[0]}], _BERLIN)})

    def second(columns):
        columns["s"][0]["a"] = columns["s"][0]["a"].replace(fold=1)
        return columns

    found = inputs.from_arrow(table).map_batches(second).to_arrow()

    assert found["s"].to_pylist()[0]["a"].astimezone(dt.UTC) == moments[1]


LISTS = {
    "numbers": pa.array([[1, 2], []], pa.list_(pa.int64())),
    "inside": pa.array([{"b": [[]]}, {"b": [[True]]}], pa.struct([("b", pa.list_(pa.list_(pa.bool_())))])),
    "texts": pa.array([["a"], []], pa.list_(pa.string())),
    "some missing": pa.array([[1, None], [2, 3]]),
}


def test_lists_in_rows_are_arrays_for_other_libraries():
    """Empty ones are of the type of their column; lists of other things than numbers stay lists."""
    rows = inputs.from_arrow(pa.table(LISTS))

    first, last = (convert_arrays(row, "to_torch", examples_of(rows.spec)) for row in rows)

    assert first["numbers"].dtype == last["numbers"].dtype == np.int64
    assert [each["inside"]["b"].dtype for each in (first, last)] == [np.dtype(bool)] * 2
    assert (first["texts"], last["texts"], first["some missing"]) == (["a"], [], [1, None])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([2**53 + 1, 0.5], r"^to_torch: no type of numbers holds all of \[9007199254740993, 0.5\] exactly"),
        ([2**64, 1], r"^to_torch: no type of numbers holds all of"),
        ([[1], [2, 3]], r"^to_torch: the list \[\[1\], \[2, 3\]\] has no shape .* Pad the lists in it with map"),
        ([np.zeros(2), np.zeros(3)], r"^to_torch: the list .* has no shape"),
    ],
    ids=["beside a float", "beyond 64 bits", "lists of different lengths", "arrays of different lengths"],
)
def test_a_list_that_no_array_holds_is_refused(value, message):
    """Its numbers were rounded, or the error was NumPy's."""
    with pytest.raises(DatasetError, match=message):
        convert_arrays({"x": value}, "to_torch")


def test_arrays_of_several_axes_become_columns_without_a_copy():
    """Images cost nothing per byte on their way from a function to the next op, unless values are missing."""
    images = np.zeros((64, 32, 32, 3), np.uint8)
    tracemalloc.start()
    held = pa.total_allocated_bytes()

    column = as_column(images)

    copied = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - held
    tracemalloc.stop()
    assert column.type == pa.list_(pa.list_(pa.list_(pa.uint8(), 3), 32), 32)
    assert copied < images.nbytes / 4
