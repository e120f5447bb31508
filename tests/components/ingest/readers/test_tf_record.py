"""TFRecord: every record is checked, features become columns, and where a file is cut never shows."""

import gzip
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.ingest.readers import Dialect, format_of, reader_of
from spanwise.orchestrator.errors import ColumnsChanged, UnreadableInput
from tests.components.tf_example import framed, serialized, serialized_sequence


@pytest.fixture
def ingested(tmp_path):
    """Ingests records, given as dicts of lists, and returns the table and the report."""
    made = []

    def ingested(rows, *, name="a.tfrecord", raw=None, **settings):
        made.append(None)
        path = tmp_path / name
        path.write_bytes(framed(map(serialized, rows)) if raw is None else raw)
        out = tmp_path / f"out{len(made)}"
        report = ingest(IngestPlan(files={"all": (str(path),)}, destination=str(out), **settings))
        return pa.concat_tables(map(pq.read_table, sorted((out / "Split-all").iterdir()))), report

    return ingested


def test_features_become_columns(ingested):
    """Whole numbers, floats and text, each of them possibly missing, in the order of their names."""
    table, report = ingested([{"n": [1], "x": [0.5], "s": [b"a"]}, {"n": [-2], "s": []}, {"s": [b"\xc3\xbc"], "x": []}])

    assert report.columns == (("n", "int64"), ("s", "string"), ("x", "float"))
    assert table.to_pylist() == [
        {"n": 1, "s": "a", "x": 0.5},
        {"n": -2, "s": None, "x": None},
        {"n": None, "s": "ü", "x": None},
    ]


def test_a_feature_with_several_values_is_a_list(ingested):
    """One record with two values makes a list of the whole column; no value is an empty list, no feature a missing one."""
    rows = [{"n": [1]}] * 50 + [{"n": [1, 2]}, {"n": []}, {"m": [1]}]

    table, report = ingested(rows, dialect=Dialect(block_bytes=64))

    assert report.columns == (("m", "int64"), ("n", "list<element: int64>"))
    assert table["n"].to_pylist()[48:] == [[1], [1], [1, 2], [], None]


def test_bytes_that_are_no_text_are_binary(ingested):
    """One value that is not UTF-8 makes the column binary, wherever it stands."""
    table, _ = ingested([{"b": [b"text"]}] * 50 + [{"b": [b"\xff"]}], dialect=Dialect(block_bytes=64))

    assert table["b"].type == pa.binary()
    assert table["b"].to_pylist()[-2:] == [b"text", b"\xff"]


def test_bytes_stay_bytes_when_told(ingested):
    """Text is not looked for in features that hold images or keys."""
    table, _ = ingested([{"b": [b"text"]}], dialect=Dialect(bytes_as_text=False))

    assert table["b"].type == pa.binary()


def test_a_type_can_be_pinned(ingested, tmp_path):
    """A pinned feature is read as its type; a record whose value does not fit is set aside."""
    rows = [{"n": [b"7"]}, {"n": [b"x"]}, {"n": [b"8"]}]

    table, report = ingested(rows, types={"n": "int64"}, rejects=str(tmp_path / "rejects"))

    assert table["n"].to_pylist() == [7, 8]
    assert [(r.line, r.reason) for r in report.reject_examples] == [(2, "column 'n': 'x' is no int64")]


@pytest.mark.parametrize(
    "compress", [gzip.compress, zlib.compress, lambda d: gzip.compress(d[:21]) + gzip.compress(d[21:])]
)
def test_compression_is_known_by_its_bytes(ingested, compress):
    """Gzip and zlib are told apart from plain records by what stands there, not by the name."""
    raw = framed([serialized({"n": [n]}) for n in range(1000)])

    table, _ = ingested(None, raw=compress(raw), name="a.tfrecord.gz")

    assert table["n"].to_pylist() == list(range(1000))


@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
def test_columns_stand_in_the_order_of_their_names_wherever_a_file_is_cut(ingested, part_bytes):
    """Also where the first record lacks one."""
    table, report = ingested(
        [{"n": [1]}, {"a": [1]}, {"m": [1]}], dialect=Dialect(block_bytes=1, part_bytes=part_bytes)
    )

    assert [name for name, _ in report.columns] == table.column_names == ["a", "m", "n"]


def test_rows_do_not_depend_on_pieces(ingested):
    """Small blocks and pieces give the same rows in the same order, over several files."""
    rows = [{"n": [n], "s": [b"x" * (n % 70)]} for n in range(500)]

    table, report = ingested(rows, dialect=Dialect(block_bytes=100, part_bytes=1000))

    assert len(report.files) > 5
    assert table.to_pydict() == {"n": list(range(500)), "s": ["x" * (n % 70) for n in range(500)]}


@pytest.mark.parametrize(
    "name",
    ["a.tfrecord", "a.tfrecords.gz", "data_tfrecord-00000-of-00001.gz", "x.tfrecord-00001-of-00010", "a.tfrecord.zlib"],
)
def test_names_tell_the_format(name):
    """The endings that TensorFlow and TFX give."""
    assert format_of(name) == "tfrecord"


def corrupted(at):
    raw = bytearray(framed([serialized({"n": [1]})] * 3))
    raw[at] ^= 1
    return bytes(raw)


SIZE = len(framed([serialized({"n": [1]})]))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "the file is empty"),
        (b"n,m\n1,2\n3,4\n5,6\n", "not a TFRecord file"),
        (b"PAR1", "not a TFRecord file|ends inside record 1"),
        (corrupted(SIZE), "record 2, at byte .*: the checksum of its length is wrong"),
        (corrupted(SIZE + 14), f"record 2, at byte {SIZE}: its checksum is wrong"),
        (corrupted(2 * SIZE - 1), "record 2, .* its checksum is wrong"),
        (corrupted(0)[: SIZE - 3], "not a TFRecord file"),
        (framed([serialized({"n": [1]})] * 3)[:-5], "ends inside record 3"),
        (framed([serialized({"n": [1]})] * 3)[: 2 * SIZE + 5], "ends inside record 3"),
        (
            gzip.compress(framed([serialized({"n": [n]}) for n in range(100)]), mtime=0)[:-30],
            "compression is cut short",
        ),
        (gzip.compress(framed([serialized({"n": [1]})]), mtime=0)[:10] + b"\xff" * 40, "compression is damaged"),
        (framed([b"\xff\xff", b"\x08"]), "line 1: not a tf.Example"),
        (framed([serialized({"n": [1]}), serialized({"n": [b"x"]})]), "'n' has numbers in some records and bytes"),
    ],
)
def test_a_bad_file_is_told(ingested, raw, said):
    """Where it is bad, and what to do; nothing is ingested."""
    with pytest.raises(UnreadableInput, match=said):
        ingested(None, raw=raw)


@pytest.mark.parametrize("part_bytes", [10, 1 << 20])
def test_a_truncated_file_is_told_in_pieces_too(ingested, part_bytes):
    """A file that is cut into pieces is checked to its end."""
    raw = framed([serialized({"n": [1]})] * 30)[:-1]

    with pytest.raises(UnreadableInput, match="ends inside record 30"):
        ingested(None, raw=raw, dialect=Dialect(part_bytes=part_bytes))


def test_records_that_are_no_example_are_set_aside(ingested, tmp_path):
    """A record with a good checksum that cannot be parsed is a rejected row with its number."""
    good = serialized({"n": [1]})

    table, report = ingested(None, raw=framed([good, b"\xff", good, b"\x0a\x05", good]), rejects=str(tmp_path / "no"))

    assert table["n"].to_pylist() == [1, 1, 1]
    assert [(r.line, r.reason) for r in report.reject_examples] == [(2, "not a tf.Example"), (4, "not a tf.Example")]


@pytest.mark.parametrize(
    ("rows", "previous", "type_"),
    [
        ([{"n": [1]}], "list<item: int64>", "list<element: int64>"),
        ([{"n": [b"a"]}], "binary", "binary"),
        ([{"n": [1]}], "double", "double"),
        ([{"n": [1]}, {}], "int64", "int64"),
    ],
)
def test_a_span_keeps_the_type_of_the_one_before(ingested, rows, previous, type_):
    """A list that happens to be of single values, or bytes that happen to be text, are not of another type."""
    _, report = ingested(rows, previous=(("n", previous),))

    assert dict(report.columns)["n"] == type_


@pytest.mark.parametrize(
    ("rows", "previous"),
    [
        ([{"n": [1]}] * 30 + [{"n": [1, 2]}], "int64"),
        ([{"n": [b"a"]}] * 30 + [{"n": [b"\xff"]}], "string"),
        ([{"n": [1]}], "string"),
        ([{"n": [b"1"]}], "int64"),
        ([{"n": [1]}] * 30 + [{"n": [0.5]}], "int64"),
    ],
)
def test_another_type_than_before_is_an_error(ingested, rows, previous):
    """The spans of a window are of one type; a change is told with the column."""
    with pytest.raises(ColumnsChanged, match="column 'n'"):
        ingested(rows, previous=(("n", previous),), dialect=Dialect(block_bytes=64))


def test_a_feature_that_comes_late_is_a_column(ingested):
    """A feature that only the last record has is found, though the first block did not have it."""
    table, _ = ingested([{"n": [1]}] * 100 + [{"n": [1], "late": [2]}], dialect=Dialect(block_bytes=64))

    assert table["late"].to_pylist() == [None] * 100 + [2]


def test_the_survey_of_a_part_of_a_file(tmp_path):
    """A list that has had one value at most is marked as such until the whole span is known."""
    path = tmp_path / "a.tfrecord"
    path.write_bytes(framed([serialized({"n": [1]})]))
    reader = reader_of("tfrecord")
    (piece,) = reader.describe(str(path), "tfrecord", Dialect()).descriptors

    found = reader.infer(piece, Dialect(), frozenset(), None)

    assert found == {"n": pa.list_(pa.int64(), 1)}


def test_feature_lists_are_lists_of_lists(ingested):
    """Each step has its values; a record without the list has a missing value, and one without steps an empty list."""
    raw = framed(
        [
            serialized_sequence({"id": [7]}, {"words": [[b"a"], [], [b"b", b"c"]], "times": []}),
            serialized_sequence({}, {"words": []}),
            serialized({"id": [8]}),
        ]
    )

    table, report = ingested(None, raw=raw)

    assert report.columns == (
        ("id", "int64"),
        ("times", "list<element: list<element: null>>"),
        ("words", "list<element: list<element: string>>"),
    )
    assert table["words"].to_pylist() == [[["a"], [], ["b", "c"]], [], None]
    assert table["times"].to_pylist() == [[], None, None]
    assert table["id"].to_pylist() == [7, None, 8]


def test_the_next_span_keeps_the_type_of_a_feature_list(ingested):
    """Also where none of its steps has a value; as a plain feature it is another column."""
    previous = (("s", "list<element: list<element: string>>"),)
    raw = framed([serialized_sequence({}, {"s": [[], []]})])
    assert ingested(None, raw=raw, previous=previous)[1].columns == previous

    with pytest.raises(ColumnsChanged, match="column 's' was list<element: list<element: string>>"):
        ingested([{"s": [b"a"]}], previous=previous)


def test_a_feature_and_a_feature_list_of_one_name_are_refused(ingested):
    """In one record or in two, and wherever a block ends."""
    both = serialized_sequence({"s": [1]}, {"s": [[1]]})
    for raw in (framed([both]), framed([serialized({"s": [1]})] * 9 + [serialized_sequence({}, {"s": [[1]]})])):
        for block_bytes in (1, 1 << 20):
            with pytest.raises(UnreadableInput, match="'s' is a feature of some records and a feature list of others"):
                ingested(None, raw=raw, dialect=Dialect(block_bytes=block_bytes))


def test_an_empty_list_of_another_kind_says_nothing(ingested):
    """Some programs write a list without values as one of numbers, whatever the others are."""
    for block_bytes in (1, 1 << 20):
        table, _ = ingested([{"s": [b"a"]}, {"s": []}], dialect=Dialect(block_bytes=block_bytes))

        assert table["s"].to_pylist() == ["a", None]


LARGE = 2**53 + 1  # which no double is


@pytest.mark.parametrize(
    ("rows", "settings", "type_", "values", "rejected"),
    [
        ([[7], [0.5]] * 20, {}, "double", [7.0, 0.5] * 20, 0),
        ([[LARGE], [0.5]], {"types": {"x": "double"}}, "double", [0.5], 1),
        ([[LARGE], [0.5]], {"types": {"x": "int64"}}, "int64", [LARGE], 1),
        ([[LARGE], [0.1]], {"types": {"x": "string"}}, "string", [str(LARGE), "0.1"], 0),
        ([[2**24 + 1], [0.5]], {"types": {"x": "float"}}, "float", [0.5], 1),
        ([[3, 4], [0.5]], {}, "list<element: double>", [[3.0, 4.0], [0.5]], 0),
        ([[3], [4, LARGE], [0.5]], {"types": {"x": "list<double>"}}, "list<element: double>", [[3.0], [0.5]], 1),
        ([[3], [0.5, 1.5]], {"previous": (("x", "list<double>"),)}, "list<element: double>", [[3.0], [0.5, 1.5]], 0),
        ([[3], [4]], {"previous": (("x", "list<double>"),)}, "list<element: double>", [[3.0], [4.0]], 0),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_whole_numbers_beside_floats_are_exact_or_refused(
    ingested, tmp_path, rows, settings, type_, values, rejected, block_bytes
):
    """Each is converted from what it was written as, wherever blocks end: large ones were rounded beside a float."""
    table, report = ingested(
        [{"x": row} for row in rows], rejects=str(tmp_path / "no"), dialect=Dialect(block_bytes=block_bytes), **settings
    )

    assert report.columns == (("x", type_),)
    assert table["x"].to_pylist() == values
    assert len(report.reject_examples) == rejected


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
@pytest.mark.parametrize("many", [[], [1]])
def test_a_whole_number_that_no_double_is_stops_a_column_of_doubles(ingested, many, block_bytes):
    """The error says where it is."""
    with pytest.raises(UnreadableInput, match=rf"does not survive that: .*row 2 \(.*{LARGE}"):
        ingested([{"x": [0.5]}, {"x": [*many, LARGE]}], dialect=Dialect(block_bytes=block_bytes))


def test_steps_of_two_kinds_are_exact_or_refused(ingested, tmp_path):
    """A record may have both kinds in one feature list."""
    raw = framed([serialized_sequence({}, {"s": steps}) for steps in ([[1], [0.5, 2.0]], [[LARGE], [0.5]])])
    pin = {"s": "list<list<double>>"}

    table, report = ingested(None, raw=raw, types=pin, rejects=str(tmp_path / "no"))

    assert table["s"].to_pylist() == [[[1.0], [0.5, 2.0]]]
    assert [r.reason for r in report.reject_examples] == [
        f"column 's': [{LARGE}, 0.5] is no list<element: list<element: double>>"
    ]
    with pytest.raises(UnreadableInput, match="does not survive"):
        ingested(None, raw=raw)
