"""Values of Python as rows: exact, or refused."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from spanwise.orchestrator.errors import BlockFailed, DatasetError
from spanwise.pipelines import input as inputs

MIDNIGHT = dt.datetime(2024, 1, 1)  # noqa: DTZ001  of a wall clock
NOON = MIDNIGHT + dt.timedelta(hours=12, microseconds=500)
CUT = [
    (1.5, pa.int64()),
    (np.float32(0.5), pa.int8()),
    (Decimal("1.5"), pa.int64()),
    (1e300, pa.float32()),
    (2049, pa.float16()),
    (np.int32(70_000), pa.float16()),
    (NOON, pa.date32()),
    (NOON, pa.timestamp("ms")),
    (NOON, pa.timestamp("us", "UTC")),
    (NOON.replace(tzinfo=dt.UTC), pa.timestamp("us")),
    (NOON.time(), pa.time32("ms")),
    (dt.time(1, tzinfo=dt.UTC), pa.time64("us")),
    (dt.timedelta(microseconds=1), pa.duration("s")),
    ({"a": 1, "b": 2}, pa.struct([("a", pa.int8())])),
]
NESTED = {
    "itself": (lambda value: value, lambda type_: type_),
    "list": (lambda value: [None, [value]], lambda type_: pa.list_(pa.list_(type_))),
    "struct": (lambda value: {"a": value}, lambda type_: pa.struct([("a", type_)])),
}


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize(("value", "type_"), CUT, ids=lambda value: str(value)[:20])
def test_what_a_column_would_cut_is_refused(value, type_, nested):
    """Arrow itself makes a 1 of 1.5, a day of a moment, another moment of a wall clock, and infinity of what is large."""
    put, of = NESTED[nested]
    elements = inputs.from_elements([{"x": None}, {"x": put(value)}])

    with pytest.raises(DatasetError, match=r"elements 0 to 1 do not fit the schema: 'x.*' is of type"):
        list(elements.as_rows(pa.schema([("x", of(type_))])))


def test_nanoseconds_of_pandas_are_refused():
    """Its times are those of Python to Arrow, which has none."""
    import pandas as pd

    for value, type_ in ((pd.Timestamp(1), pa.timestamp("us")), (pd.Timedelta(1), pa.duration("us"))):
        with pytest.raises(DatasetError, match="does not hold"):
            list(inputs.from_elements([{"x": value}]).as_rows(pa.schema([("x", type_)])))


def test_what_a_column_holds_comes_back():
    """A whole float in a column of whole numbers, a float that is rounded, a midnight, milliseconds."""
    row = {"a": 2.0, "b": 0.1, "c": MIDNIGHT, "d": MIDNIGHT.replace(microsecond=5000), "e": np.inf}
    types = [pa.int8(), pa.float32(), pa.date32(), pa.timestamp("ms"), pa.float16()]

    (found,) = inputs.from_elements([row]).as_rows(pa.schema(zip(row, types, strict=True)))

    assert found == {**row, "a": 2, "b": float(np.float32(0.1)), "c": dt.date(2024, 1, 1)}


@pytest.mark.parametrize(
    "pair", [(NOON.replace(tzinfo=dt.UTC), NOON), (NOON.date(), NOON), (2**70, 1)], ids=["zone", "date", "large"]
)
def test_a_table_of_dicts_cuts_nothing(pair):
    """The first value says what the type is; another one is not made to fit."""
    with pytest.raises(DatasetError, match="to_arrow: the elements do not form a table"):
        inputs.from_elements([{"x": value} for value in pair]).to_arrow()


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 1.5], pa.int64()),
        (np.array([1, 1.5], object), pa.int64()),
        ([NOON, NOON], pa.date32()),
        (np.array([NOON, NOON], "M8[us]"), pa.date32()),
        (np.array([1, 1e300]), pa.float32()),
        (pa.array([1, 1e300]), pa.float16()),
        (pa.array([1, 2049]), pa.float16()),
        (np.array([[1], [1e300]]), pa.list_(pa.float32())),
        (pa.array([[("a", 1e300)], None], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.float32())),
        (pa.array(["inf", "1e300"]), pa.float32()),
        (np.array([1, 2]), pa.bool_()),
        (np.array([1, np.nan]), pa.bool_()),
        (np.array([1.5, 1.55]), pa.decimal128(5, 1)),
        (pa.array([[NOON], None]), pa.list_(pa.date32())),
        (pa.array([NOON, None]), pa.time64("us")),
        (pa.array([NOON, None]), pa.timestamp("us", "UTC")),
        (pa.array([None, NOON], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([MIDNIGHT, None], pa.timestamp("us", "UTC")), pa.date32()),
        (pa.array([{"a": 1, "b": 2}, None]), pa.struct([("a", pa.int64())])),
        (pa.array([{"a": 1}, None]), pa.struct([("b", pa.int64())])),
    ],
    ids=lambda value: getattr(value, "type", type(value)) if hasattr(value, "__len__") else value,
)
def test_a_function_of_blocks_gives_what_its_spec_holds(values, type_):
    """As a function of elements does."""
    rows = inputs.from_arrow(pa.table({"row": [0, 1]}))

    with pytest.raises(BlockFailed, match=r"hold|place for"):
        list(rows.map(lambda _: {"x": values}, vectorized=True, spec=pa.schema([("x", type_)])))


@pytest.mark.parametrize(
    ("values", "type_", "found"),
    [
        (
            np.array(["2024-01-01T12:00"], "M8[us]"),
            pa.timestamp("us", "UTC"),
            [NOON.replace(microsecond=0, tzinfo=dt.UTC)],
        ),
        (np.array([b"ab"]), pa.binary(2), [b"ab"]),
        (np.array([1.5], np.float32), pa.decimal128(5, 2), [Decimal("1.50")]),
        (np.array([0, 1]), pa.bool_(), [False, True]),
        (pa.array([{"a": 1}]), pa.struct([("b", pa.int64()), ("a", pa.int8())]), [{"b": None, "a": 1}]),
        (pa.array([["inf"]]), pa.large_list(pa.float32()), [[np.inf]]),
    ],
    ids=str,
)
def test_what_a_type_holds_is_converted(values, type_, found):
    """A time of NumPy's, which has no zone, is one of UTC, as it is where columns become arrays."""
    rows = inputs.from_arrow(pa.table({"row": list(range(len(found)))}))

    made = rows.map(lambda _: {"x": values}, vectorized=True, spec=pa.schema([("x", type_)]))

    assert made.to_arrow()["x"].to_pylist() == found


def test_what_is_masked_is_missing():
    """Arrow shows what lies below the mask of an array in a list."""
    elements = inputs.from_elements([{"x": np.ma.array([1, 2], mask=[False, True])}])

    assert elements.to_arrow().to_pylist() == [{"x": [1, None]}]
    assert list(elements.as_rows(pa.schema([("x", pa.list_(pa.int8()))]))) == [{"x": [1, None]}]


PICTURES = np.arange(12).reshape(2, 3, 2)


@pytest.mark.parametrize("pictures", [PICTURES, PICTURES.transpose(0, 2, 1)], ids=["in order", "with other strides"])
def test_a_tensor_has_its_axes_in_a_row_too(pictures):
    """As in an array of the column, whatever the order in which its values are stored; and it becomes a column again."""
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(pictures)
    rows = inputs.from_arrow(pa.table({"picture": column}))

    assert [row["picture"] for row in rows] == rows.to_numpy()["picture"].tolist() == pictures.tolist()
    assert list(rows.filter(lambda row: row["picture"][1][0] == pictures[1][1][0])) == list(rows.skip(1))
    assert list(rows.take_while(lambda row: row["picture"][1][0] == pictures[0][1][0])) == list(rows.take(1))
    assert rows.map(lambda row: row).as_rows(rows.spec.schema).to_arrow()["picture"].combine_chunks() == column


def test_a_tensor_in_a_struct_or_a_list_has_its_axes_too():
    """Rows and arrays showed it flat, in the order in which it is stored."""
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(PICTURES.transpose(0, 2, 1))
    shown = PICTURES.transpose(0, 2, 1).tolist()
    columns = {
        "struct": pa.StructArray.from_arrays([tensors, pa.array([1, 2])], ["t", "n"]),
        "list": pa.ListArray.from_arrays(pa.array([0, 2, 2]), tensors),
        "map": pa.MapArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", "b"]), tensors),
        "struct of lists": pa.StructArray.from_arrays([pa.ListArray.from_arrays(pa.array([0, 1, 2]), tensors)], ["l"]),
    }
    rows = inputs.from_arrow(pa.table(columns))

    assert list(rows) == [
        {
            "struct": {"t": shown[0], "n": 1},
            "list": shown,
            "map": [("a", shown[0])],
            "struct of lists": {"l": [shown[0]]},
        },
        {"struct": {"t": shown[1], "n": 2}, "list": [], "map": [("b", shown[1])], "struct of lists": {"l": [shown[1]]}},
    ]
    assert rows.map(lambda row: row).as_rows(rows.spec.schema).to_arrow() == rows.to_arrow()
    assert rows.select("struct").to_numpy()["struct"].tolist() == [row["struct"] for row in rows]


def test_a_change_beside_a_tensor_in_a_struct_is_kept():
    """By a function of arrays, in whose dicts it has its axes."""
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(PICTURES)
    rows = inputs.from_arrow(pa.table({"s": pa.StructArray.from_arrays([tensors, pa.array([1, 2])], ["t", "n"])}))

    def count(columns):
        columns["s"][0]["n"] = 7
        columns["s"][0]["t"][2][1] = 8
        return columns

    found = list(rows.map_batches(count))

    assert [row["s"]["n"] for row in found] == [7, 2]
    assert [row["s"]["t"][2][1] for row in found] == [8, 11]


@pytest.mark.parametrize("picture", [PICTURES[0].T, PICTURES[0] + 0.5, PICTURES[0].reshape(1, 6)], ids=repr)
def test_a_tensor_of_another_shape_or_type_is_refused(picture):
    """Arrow makes whole numbers of fractions in it."""
    schema = pa.schema([("picture", pa.fixed_shape_tensor(pa.int64(), (3, 2)))])

    with pytest.raises(DatasetError, match=r"holds tensors of the shape|does not hold"):
        list(inputs.from_elements([{"picture": picture}]).as_rows(schema))
