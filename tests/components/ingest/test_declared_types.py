"""Types that files declare: what becomes of them, what is refused, and how a pin lets in what is not."""

import datetime as dt
import re
import uuid
from decimal import Decimal
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.orchestrator.errors import ColumnsChanged, UnreadableInput
from spanwise.pipelines.input.readers.stored_types import parse_type

INT = pa.int64()
PAIRS = pa.list_(INT, 2)


@pytest.fixture
def ingested(tmp_path):
    """Ingests arrays, each the column `v` of an Arrow file, and returns the rows of all splits and the report."""
    made = []

    def ingested(*arrays, **settings):
        made.append(None)
        paths = [tmp_path / f"{number}.arrow" for number in range(len(arrays))]
        for path, array in zip(paths, arrays, strict=True):
            table = array if isinstance(array, pa.Table) else pa.table({"v": array})
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
                out.write_table(table)
        out = tmp_path / f"out{len(made)}"
        plan = IngestPlan(files={"all": tuple(map(str, paths))}, destination=str(out), **settings)
        report = ingest(plan)
        return pa.concat_tables(pq.read_table(Path(out, f"Split-{f.split}", f.name)) for f in report.files), report

    return ingested


@pytest.mark.parametrize(
    "array",
    [
        pa.array([b"\xff" * 16, b"\0" * 16], pa.binary(16)),
        pa.array([uuid.UUID(int=1), None], pa.uuid()),
        pa.array([[1], None], pa.list_(INT)),
        pa.array([{"t": 1}, {"t": None}], pa.struct([("t", pa.timestamp("ns"))])),
        pa.array([[("a", [1, 2])], []], pa.map_(pa.string(), PAIRS)),
        pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(INT, [2]), pa.array([[1, 2], [3, 4]], PAIRS)),
    ],
    ids=str,
)
def test_rows_of_any_type_are_divided(ingested, array):
    """The default split hashes whole rows, of whatever types."""
    table, report = ingested(array, ratios={"train": 1, "eval": 1})

    assert table.num_rows == sum(report.rows.values()) == 2


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "is of type month_day_nano_interval, which Parquet does"),
        (pa.array([{}], pa.struct([])), "is a struct without fields"),
        (pa.StructArray.from_arrays([pa.array([1])] * 2, ["a", "a"]), "has two fields called 'a'"),
        (pa.array([[]], pa.list_(INT, 0)), "which has room for nothing"),
        (pa.array([[[None, None]]], pa.large_list(pa.list_(pa.null(), 2))), "which has room for nothing"),
        (pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "which Parquet does not have"),
        (
            pa.ListArray.from_arrays([0, 1], pa.RunEndEncodedArray.from_arrays([1], ["a"])),
            "has values of type run_end_encoded",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(ingested, array, said):
    """The message names the column; leaving it out lets the rest in, and nothing is written before."""
    table = pa.table({"v": array, "k": [1]})
    with pytest.raises(UnreadableInput, match=said) as refused:
        ingested(table)
    assert "column 'v'" in str(refused.value)

    assert ingested(table, dropped=("v",))[0].to_pylist() == [{"k": 1}]


@pytest.mark.parametrize(
    ("array", "pin"),
    [
        (pa.array([[1, 2], None], PAIRS), "list<element: int64>"),
        (pa.array([[[1, 2], None]], pa.list_(PAIRS)), "list<element: list<element: int64>>"),
        (pa.array([{"a": [1, 2]}, None], pa.struct([("a", PAIRS)])), "struct<a: list<element: int64>>"),
    ],
    ids=str,
)
def test_a_missing_list_of_one_length_is_refused_and_has_a_pin(ingested, array, pin):
    """Parquet cannot give such a value back, so it is not written; as a list of any length it is."""
    with pytest.raises(UnreadableInput, match="lacks a list") as refused:
        ingested(array)
    assert f"types={{'v': '{pin}'}}" in str(refused.value)

    assert ingested(array, types={"v": pin})[0]["v"].to_pylist() == array.to_pylist()


@pytest.mark.parametrize(
    ("array", "pin", "wrong"),
    [
        (pa.array([1.5, 1e300]), "float", 1e300),
        (pa.array([Decimal("0.5"), Decimal(f"1{'0' * 60}.0")], pa.decimal256(76, 1)), "float", "000.0"),
        (pa.array([0.5, 70000.0]), "halffloat", 70000.0),
        (pa.array([1.5, 1.505]), "decimal128(9, 2)", 1.505),
        (pa.array([1, 2**24 + 1]), "float", 2**24 + 1),
        (pa.array([1, 2**53 + 1]), "double", 2**53 + 1),
        (pa.array([1, -1]), "uint64", -1),
        (pa.array([1.0, 1.5]), "uint64", 1.5),
        (pa.array([2**63 - 1, 2**63], pa.uint64()), "int64", 2**63),
        (pa.array([Decimal(1), Decimal(1000)]), "decimal128(3, 2)", 1000),
        (pa.array([1, 7]), "bool", 7),
        (pa.array(["1.5", "1e300"]), "float", "1e300"),
        (pa.array([0, 86_400_001], pa.timestamp("ms")), "date32", "datetime"),
        (pa.array(["1", "9007199254740993"]), "double", "9007199254740993"),
        (pa.array(["1", "0x1F"]), "int64", "0x1F"),
        (pa.array(["true", "1"]), "bool", "'1'"),
        (pa.array([1, 2049]), "halffloat", 2049),
        (pa.array([Decimal(1), Decimal(2**53 + 1)]), "double", 2**53 + 1),
        (pa.array([Decimal("0.1"), Decimal("16777217.0")]), "float", "16777217.0"),
    ],
    ids=str,
)
def test_a_pinned_type_refuses_the_value_that_it_does_not_hold(ingested, array, pin, wrong, tmp_path):
    """No infinity, no other integer, no lost fraction or time; the row is named, and the others are ingested."""
    table, report = ingested(array, types={"v": pin}, rejects=str(tmp_path / "no"))

    assert table["v"].to_pylist() == array[:1].cast(parse_type(pin)).to_pylist()
    (rejected,) = report.reject_examples
    assert rejected.line == 2
    assert str(wrong) in rejected.reason


@pytest.mark.parametrize(
    ("array", "pin", "values"),
    [
        (pa.array([0.1]), "decimal128(9, 2)", [Decimal("0.10")]),
        (pa.array([0.1]), "float", [pytest.approx(0.1, rel=1e-7)]),
        (pa.array([float("inf")]), "float", [float("inf")]),
        (pa.array([2**64 - 1], pa.uint64()), "uint64", [2**64 - 1]),
        (pa.array([1e19]), "uint64", [10**19]),
        (pa.array([5, 12]), "decimal128(9, 2)", [5, 12]),
        (pa.array(["1.50"]), "decimal256(50, 2)", [Decimal("1.50")]),
        (pa.array([Decimal("0.1")]), "double", [0.1]),
        (pa.array([0.123456789012345, 1e20]), "string", ["0.123456789012345", "1e+20"]),
        (pa.array([0, 1]), "bool", [False, True]),
    ],
    ids=str,
)
def test_a_pinned_type_takes_the_nearest_value(ingested, array, pin, values):
    """What the pinned type holds, to its precision, is ingested."""
    assert ingested(array, types={"v": pin})[0]["v"].to_pylist() == values


@pytest.mark.parametrize(
    ("previous", "array"),
    [
        ("float", pa.array([0.1])),
        ("double", pa.array([Decimal("1234567890123456.789")])),
        ("double", pa.array([2**53 + 1])),
        ("int64", pa.array([2**63], pa.uint64())),
        ("struct<x: int64>", pa.array([{"x": 1, "y": 2}])),
        ("struct<x: int64, y: int64>", pa.array([{"x": 1}])),
        ("list<item: float>", pa.array([[0.1]])),
        ("list<item: int64>", pa.array([["a"]])),
        ("list<item: int64>", pa.array([1])),
    ],
    ids=str,
)
def test_a_value_that_the_type_before_does_not_hold_is_refused(ingested, previous, array):
    """The message says both types."""
    with pytest.raises(ColumnsChanged, match="column 'v' was ") as refused:
        ingested(array, previous=(("v", previous),))
    assert str(parse_type(previous)) in str(refused.value) or previous in str(refused.value)


@pytest.mark.parametrize(
    ("previous", "array", "type_"),
    [
        ("list<item: int64>", pa.array([[], None], pa.list_(pa.null())), "list<element: int64>"),
        ("large_list<item: large_string>", pa.array([["a"]]), "list<element: string>"),
        (
            "list<element: int64>",
            pa.array([[1]], pa.list_(pa.field("array", pa.int32(), nullable=False))),
            "list<element: int64>",
        ),
        ("struct<x: int64, y: string>", pa.array([{"y": None, "x": 1}]), "struct<x: int64, y: string>"),
        ("map<string, double>", pa.array([[("a", 0.5)]], pa.map_(pa.string(), pa.float32())), "map<string, double>"),
    ],
    ids=str,
)
def test_what_is_inside_a_value_keeps_the_type_of_the_span_before(ingested, previous, array, type_):
    """An empty list after lists, an element of another name, a narrower number: nothing has changed."""
    table, report = ingested(array, previous=(("v", previous),))

    assert dict(report.columns) == {"v": type_}
    assert table["v"].to_pylist() == array.to_pylist()


def test_a_struct_without_an_optional_field_has_a_pin(ingested):
    """The error shows it, and with it the field is a missing value; a field that the pin does not have is refused."""
    before, array = "struct<x: int64, y: string>", pa.array([{"x": 1}])
    with pytest.raises(ColumnsChanged) as refused:
        ingested(array, previous=(("v", before),))
    assert f"pin the type: types={{'v': '{before}'}}" in str(refused.value)

    assert ingested(array, types={"v": before})[0]["v"].to_pylist() == [{"x": 1, "y": None}]
    with pytest.raises(UnreadableInput, match="is no struct<x: int64, y: string>"):
        ingested(pa.array([{"x": 1, "z": 2}]), types={"v": before})


def test_a_conflict_within_a_first_span_speaks_of_its_files(ingested):
    """There is no previous span to blame, and a pin is named that takes both."""
    files = pa.array([2**53 + 1]), pa.array([1.5])
    with pytest.raises(UnreadableInput, match="is read as double, by what the files of the span declare") as refused:
        ingested(*files)
    assert "previous" not in str(refused.value)
    assert "0.arrow, row 1 (9007199254740993)" in str(refused.value)

    assert ingested(*files, types={"v": "string"})[0]["v"].to_pylist() == ["9007199254740993", "1.5"]


def test_files_whose_structs_have_different_fields_are_refused(ingested):
    """As files with different columns are; a pin says that they may be missing."""
    files = pa.array([{"x": 1}]), pa.array([{"x": 1, "y": 2}])
    with pytest.raises(UnreadableInput, match="must have the same columns") as refused:
        ingested(*files)
    pin = "struct<x: int64, y: int64>"
    assert f"types={{'v': '{pin}'}}" in str(refused.value)

    assert ingested(*files, types={"v": pin})[0]["v"].to_pylist() == [{"x": 1, "y": None}, {"x": 1, "y": 2}]


def test_two_columns_of_one_name_are_refused(ingested, tmp_path):
    """In Arrow and in Parquet files alike."""
    table = pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"])
    with pytest.raises(UnreadableInput, match="two columns are called 'a'"):
        ingested(table)
    pq.write_table(table, tmp_path / "a.parquet")
    plan = IngestPlan(files={"all": (str(tmp_path / "a.parquet"),)}, destination=str(tmp_path / "p"))
    with pytest.raises(UnreadableInput, match="two columns are called 'a'"):
        ingest(plan)


@pytest.mark.parametrize(
    "text",
    ["list<element: int64>", "struct<a: b: int64, c, d: map<string, list<element: decimal128(3, 1)>>>", "halffloat"],
)
def test_a_recorded_type_is_read_back(text):
    """Nested or not, and whatever the names of its fields."""
    assert str(parse_type(text)) == text


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("list<int64>", "list<element: int64>"),
        ("large_list<item: large_string not null>", "list<element: string>"),
        ("map<string, int64 ('v')>", "map<string, int64>"),
        ("fixed_size_list<item: float>[3]", "fixed_size_list<element: float>[3]"),
        ("timestamp[s, tz=Asia/Kolkata]", "timestamp[ms, tz=Asia/Kolkata]"),
        ("decimal256(9, 2)", "decimal128(9, 2)"),
        ("struct<>", "None"),
        ("list<nonsense>", "None"),
    ],
)
def test_a_type_may_be_written_in_several_ways(text, type_):
    """Whatever a program calls it, it is stored in one way."""
    assert str(parse_type(text)) == type_


WALL = pa.array([0], pa.timestamp("us"))
UTC = pa.array([0], pa.timestamp("us", "UTC"))
DAY = pa.array([0], pa.date32())


@pytest.mark.parametrize(
    ("array", "pin"),
    [
        (WALL, "timestamp[us, tz=Europe/Berlin]"),
        (UTC, "timestamp[us]"),
        (DAY, "timestamp[us, tz=UTC]"),
        (pa.array([0], pa.timestamp("us", "Europe/Berlin")), "date32"),
        *((pa.array([1]), pin) for pin in ("timestamp[us]", "timestamp[us, tz=UTC]", "time64[us]", "date32")),
        (pa.array([1], pa.int32()), "time32[ms]"),
        (pa.array([1], pa.int32()), "date32"),
    ],
    ids=str,
)
def test_a_pin_says_not_of_which_zone_or_unit_a_value_is(ingested, array, pin, tmp_path):
    """A wall clock is no instant, a date none either, and a number no time, as in CSV and JSON lines."""
    with pytest.raises(UnreadableInput, match=f"column 'v': .* is no {re.escape(pin)}"):
        ingested(array, types={"v": pin}, rejects=str(tmp_path / "no"))


def test_midnight_in_the_zone_of_an_instant_can_be_pinned_as_a_date(ingested):
    """The date is the one that a clock in that zone shows."""
    instants = pa.array([dt.datetime(2024, 4, 30, 22), None], pa.timestamp("us", "Europe/Berlin"))  # noqa: DTZ001

    assert ingested(instants, types={"v": "date32"})[0]["v"].to_pylist() == [dt.date(2024, 5, 1), None]


def test_an_instant_in_another_zone_is_the_same(ingested):
    """A pin may say another zone, since that changes no instant, and no zone for dates."""
    berlin = UTC.cast(pa.timestamp("us", "Europe/Berlin"))

    assert ingested(UTC, types={"v": str(berlin.type)})[0]["v"].to_pylist() == berlin.to_pylist()
    assert ingested(DAY, types={"v": "timestamp[us]"})[0]["v"].to_pylist() == WALL.to_pylist()


def test_a_date_is_no_instant_of_the_span_before(ingested):
    """Midnight of which zone it would be, nothing says; without a zone it is midnight."""
    with pytest.raises(ColumnsChanged, match=r"was timestamp\[us, tz=UTC\] in the previous span and is date32"):
        ingested(DAY, previous=(("v", str(UTC.type)),))

    assert ingested(DAY, previous=(("v", str(WALL.type)),))[0]["v"].to_pylist() == WALL.to_pylist()


def test_files_with_and_without_a_zone_are_refused_with_a_pin_that_holds_both(ingested):
    """Their values stay what they are as text."""
    with pytest.raises(UnreadableInput, match=r"or pin one: types=\{'v': 'string'\}"):
        ingested(WALL, UTC)

    texts = ingested(WALL, UTC, types={"v": "string"})[0]["v"].to_pylist()
    assert texts == ["1970-01-01 00:00:00.000000", "1970-01-01 00:00:00.000000Z"]
    with pytest.raises(UnreadableInput, match=r"or pin one: types=\{'v': 'timestamp\[us\]'\}"):
        ingested(DAY, WALL)


def test_a_pinned_double_is_the_nearest_to_a_decimal(ingested):
    """89.6, not 89.60000000000001, of decimals of any width; and a double may be pinned to the decimal that it is."""
    random = Random(0)
    for digits, scale in ((2, 1), (9, 2), (18, 4), (38, 10), (38, 38), (76, 40)):
        type_ = pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
        whole = [random.randrange(-(10 ** random.randrange(1, digits + 1)), 1) for _ in range(50)]
        decimals = [None, *(Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)) for n in whole)]
        table, _ = ingested(pa.array(decimals, type_), types={"v": "double"})
        assert table["v"].to_pylist() == [None if each is None else float(each) for each in decimals]

    prices = [n / 100 for n in range(10_000)]
    table, _ = ingested(pa.array(prices), types={"v": "decimal128(9, 2)"})
    assert table["v"].to_pylist() == [Decimal(n).scaleb(-2) for n in range(10_000)]
