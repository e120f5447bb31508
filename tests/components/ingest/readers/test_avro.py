"""Avro: the schema says the columns, blocks are the pieces, and files of one span may have schemas of different age."""

import datetime as dt
import decimal
import io
import itertools
import uuid

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.ingest.readers import Dialect, reader_of
from spanwise.orchestrator.errors import ColumnsChanged, UnreadableInput

UTC = dt.UTC


def avro(fields, rows, **settings):
    """An Avro file. A field is a name and a type, and a default if it has one."""
    described = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "Row", "fields": described}, rows, **settings)
    return out.getvalue()


@pytest.fixture
def ingested(tmp_path):
    """Ingests files, given as bytes, and returns the table and the report."""

    def ingested(*files, **settings):
        paths = []
        for number, raw in enumerate(files):
            paths.append(tmp_path / f"{number}.avro")
            paths[-1].write_bytes(raw)
        report = ingest(
            IngestPlan(files={"all": tuple(map(str, paths))}, destination=str(tmp_path / "out"), **settings)
        )
        return pa.concat_tables(map(pq.read_table, sorted((tmp_path / "out" / "Split-all").iterdir()))), report

    return ingested


@pytest.mark.parametrize(
    ("avro_type", "value", "arrow_type", "expected"),
    [
        ("boolean", True, pa.bool_(), True),
        ("int", 3, pa.int32(), 3),
        ("long", 2**62, pa.int64(), 2**62),
        ("float", 0.5, pa.float32(), 0.5),
        ("double", 0.1, pa.float64(), 0.1),
        ("bytes", b"\xff", pa.binary(), b"\xff"),
        ("string", "ü", pa.string(), "ü"),
        (["null", "string"], None, pa.string(), None),
        (["int", "null", "double"], 3, pa.float64(), 3.0),
        (["int", "long"], 2**40, pa.int64(), 2**40),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(2), b"ab"),
        ({"type": "array", "items": ["null", "int"]}, [1, None], pa.list_(pa.int32()), [1, None]),
        ({"type": "map", "values": "int"}, {"a": 1}, pa.map_(pa.string(), pa.int32()), [("a", 1)]),
        (
            {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]},
            {"x": 1},
            pa.struct([("x", pa.int32())]),
            {"x": 1},
        ),
        ({"type": "int", "logicalType": "date"}, dt.date(2013, 1, 5), pa.date32(), dt.date(2013, 1, 5)),
        (
            {"type": "int", "logicalType": "time-millis"},
            dt.time(1, 2, 3),
            pa.time32("ms"),
            dt.time(1, 2, 3),
        ),
        ({"type": "long", "logicalType": "time-micros"}, dt.time(1), pa.time64("us"), dt.time(1)),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            dt.datetime(2013, 1, 5, tzinfo=UTC),
            pa.timestamp("ms", "UTC"),
            dt.datetime(2013, 1, 5, tzinfo=UTC),
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            dt.datetime(2013, 1, 5, 1, 2, 3, 4, tzinfo=UTC),
            pa.timestamp("us", "UTC"),
            dt.datetime(2013, 1, 5, 1, 2, 3, 4, tzinfo=UTC),
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            dt.datetime(2013, 1, 5),  # noqa: DTZ001  local by definition
            pa.timestamp("us"),
            dt.datetime(2013, 1, 5),  # noqa: DTZ001  as above
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            decimal.Decimal("1.25"),
            pa.decimal128(9, 2),
            decimal.Decimal("1.25"),
        ),
        (
            {"type": "string", "logicalType": "uuid"},
            uuid.UUID(int=7),
            pa.string(),
            "00000000-0000-0000-0000-000000000007",
        ),
        (["null", {"type": "string", "logicalType": "uuid"}], None, pa.string(), None),
        ({"type": "long", "logicalType": "nobody-knows"}, 7, pa.int64(), 7),
    ],
)
def test_a_type_becomes_an_arrow_type(ingested, avro_type, value, arrow_type, expected):
    """Primitive, complex and logical types keep their meaning; what Avro does not know is read as what it is put on."""
    table, _ = ingested(avro([("c", avro_type)], [{"c": value}]))

    assert table.schema.field("c").type == arrow_type
    assert table["c"].to_pylist() == [expected]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_rows_do_not_depend_on_pieces(ingested, codec):
    """Whatever the codec, the file is cut at its blocks and its rows keep their order."""
    raw = avro(
        [("n", "long"), ("s", "string")], [{"n": n, "s": f"{n}"} for n in range(2000)], codec=codec, sync_interval=300
    )

    table, report = ingested(raw, dialect=Dialect(part_bytes=500))

    assert len(report.files) > 3
    assert table["n"].to_pylist() == list(range(2000))


def test_pieces_know_their_first_row(tmp_path):
    """A message about a row names its number in the file."""
    path = tmp_path / "a.avro"
    path.write_bytes(avro([("n", "long")], [{"n": n} for n in range(1000)], sync_interval=100))

    pieces = reader_of("avro").describe(str(path), "avro", Dialect(part_bytes=300)).descriptors

    assert pieces[0].first_line == 1
    assert len(pieces) > 2
    assert all(a.stop == b.start and a.first_line < b.first_line for a, b in itertools.pairwise(pieces))


def test_a_file_of_an_older_schema_has_the_defaults(ingested):
    """A field that came later is read in older files as its default, as Avro resolves schemas; order does not matter."""
    old = avro([("n", "int")], [{"n": 1}])
    new = avro([("k", "string", "none"), ("n", "long"), ("m", ["null", "int"], None)], [{"n": 2, "k": "x", "m": 3}])

    table, report = ingested(old, new)

    assert dict(report.columns) == {"n": "int64", "k": "string", "m": "int32"}
    assert table.to_pylist() == [{"n": 1, "k": "none", "m": None}, {"n": 2, "k": "x", "m": 3}]


def test_a_missing_field_without_a_default_is_an_error(ingested):
    """A field that a file lacks and for which there is no default is told with both files."""
    with pytest.raises(UnreadableInput, match=r"'k' is in .*1\.avro and not in .*0\.avro"):
        ingested(avro([("n", "int")], [{"n": 1}]), avro([("n", "int"), ("k", "string")], [{"n": 1, "k": ""}]))


def test_a_missing_field_with_two_defaults_is_an_error(ingested):
    """Which of them a file of neither schema means cannot be known; they do not matter to files that have the field."""
    old, one, other = (
        avro([("n", "int")], [{"n": 1}]),
        avro([("n", "int"), ("k", "int", 7)], [{"n": 2, "k": 0}]),
        avro([("n", "int"), ("k", "int", 9)], [{"n": 3, "k": 0}]),
    )

    with pytest.raises(UnreadableInput, match=r"0\.avro lacks 'k', whose default is 7 .*1\.avro and 9 .*2\.avro"):
        ingested(old, one, other)
    assert ingested(one, other)[0].to_pylist() == [{"n": 2, "k": 0}, {"n": 3, "k": 0}]


def test_types_that_do_not_meet_are_an_error(ingested):
    """A field that is text here and a number there is told with the file."""
    with pytest.raises(UnreadableInput, match=r"'n' is string in .*1\.avro and int32 in an earlier file"):
        ingested(avro([("n", "int")], [{"n": 1}]), avro([("n", "string")], [{"n": "1"}]))


def test_a_column_keeps_the_type_of_the_span_before(ingested):
    """Whole numbers are read as the long that they were in the span before."""
    _, report = ingested(avro([("n", "int")], [{"n": 1}]), previous=(("n", "int64"),))

    assert report.columns == (("n", "int64"),)


def test_another_type_than_before_is_an_error(ingested):
    """A number that has become text is told with the column."""
    with pytest.raises(ColumnsChanged, match="column 'n' was int64 in the previous span and is string"):
        ingested(avro([("n", "string")], [{"n": "1"}]), previous=(("n", "int64"),))


RAW = avro([("n", "long")], [{"n": n} for n in range(1000)], sync_interval=500)
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "next", "type": ["null", "Tree"]}]}


def changed(raw, at, byte):
    return raw[:at] + bytes([byte]) + raw[at + 1 :]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "the file is empty"),
        (b"PAR1abcd", "not an Avro file: it begins with b'PAR1'"),
        (b"Obj\x01\x04\x16avro", "not a whole Avro file"),
        (RAW[:-1], "the block at byte .* is cut short or damaged"),
        (RAW[:-700], "not a whole Avro file"),
        (changed(RAW, len(RAW) - 1, RAW[-1] ^ 1), "the block at byte .* is cut short or damaged"),
        (avro([("n", ["int", "string"])], [{"n": 1}]), "column 'n' is a union of int, string; a column has one type"),
        (avro([("t", TREE)], [{"t": {"next": None}}]), "is of type Tree, which contains itself"),
        (avro([("n", "int")], []), "the span has no rows"),
    ],
    ids=range(9),  # a file has random bytes in it
)
def test_a_bad_file_is_told(ingested, raw, said):
    """What is wrong with it, and where."""
    with pytest.raises(UnreadableInput, match=said):
        ingested(raw)


def test_damage_within_a_block_is_told(ingested):
    """Bytes that cannot be decoded are an error with the file's name, not a crash of the decoder."""
    raw = avro([("s", "string")], [{"s": "x" * 50}] * 100, codec="deflate")

    with pytest.raises(UnreadableInput, match=r"0\.avro: not a whole Avro file"):
        ingested(changed(raw, len(raw) - 30, raw[-30] ^ 0xFF))


def test_rows_that_are_no_records_are_refused(ingested):
    """A file of plain numbers has no columns."""
    out = io.BytesIO()
    fastavro.writer(out, "long", [1, 2])

    with pytest.raises(UnreadableInput, match="not records with named fields"):
        ingested(out.getvalue())


@pytest.mark.parametrize(
    ("schema", "default", "expected"),
    [
        ("bytes", "\u00ff", b"\xff"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "1", decimal.Decimal("0.49")),
        ({"type": "fixed", "name": "F", "size": 2}, "\u0000\u00fe", b"\x00\xfe"),
        ({"type": "int", "logicalType": "date"}, 19723, dt.date(2024, 1, 1)),
        ([{"type": "array", "items": "bytes"}, "null"], ["\u0080"], [b"\x80"]),
        ({"type": "record", "name": "In", "fields": [{"name": "x", "type": "bytes", "default": "a"}]}, {}, {"x": b"a"}),
    ],
)
def test_a_default_is_decoded_as_the_specification_says(ingested, schema, default, expected):
    """Bytes are text of code points, decimals and dates are encoded as in rows."""
    table, _ = ingested(avro([("k", "int")], [{"k": 1}]), avro([("k", "int"), ("v", schema, default)], []))

    assert table["v"].to_pylist() == [expected]


def test_a_union_of_numbers_refuses_what_no_double_holds(ingested):
    """With a sentence that names the column; a pin takes it."""
    rows = [{"v": 2**53 + 1}, {"v": 1.5}]
    file = avro([("v", ["long", "double"])], rows)
    with pytest.raises(UnreadableInput, match="column 'v' is read as double, by what the files of the span declare"):
        ingested(file)


def test_a_pin_takes_what_no_double_holds(ingested):
    """As text, every number has its digits."""
    file = avro([("v", ["long", "double"])], [{"v": 2**53 + 1}, {"v": 1.5}])

    assert ingested(file, types={"v": "string"})[0]["v"].to_pylist() == ["9007199254740993", "1.5"]
