"""Readers: a file is read in pieces and blocks, and where they are cut never shows."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanwise.components.ingest.readers import Dialect, format_of, reader_of
from spanwise.orchestrator.errors import ParameterError, UnreadableInput
from spanwise.pipelines.input.readers import records
from spanwise.pipelines.input.readers.column import Column, Misfit, join
from spanwise.pipelines.input.readers.columns import pinned_types, reads_as, wider
from spanwise.pipelines.input.readers.stored_types import parse_type
from tests.components.tf_example import framed

# one folder serves all examples: each overwrites the file of the one before
relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)

FIELD = st.one_of(
    st.sampled_from(["", "NA", "1", "-7", "2.5", "1e3", "true", "False", "x", "007", "0x1F"]),
    st.sampled_from(["2013-01-01", "2013-01-01 10:00:00", "2013-01-01T10:00:00Z", "9999-12-31T00:00:00.5", "10:00:01"]),
    st.text(alphabet='ab,"\n\r \u00fc', max_size=6),
)
ROWS = st.lists(st.tuples(FIELD, FIELD), max_size=30)


def csv_text(rows):
    """The rows as RFC 4180 writes them, a record number first, so that no line is blank."""

    def quoted(value):
        return '"' + value.replace('"', '""') + '"' if any(c in value for c in ',"\n\r') else value

    return "n,a,b\n" + "".join(f"{n},{quoted(a)},{quoted(b)}\n" for n, (a, b) in enumerate(rows))


def refuse(rejected):
    raise AssertionError(rejected)


def read(path, dialect, types):
    """All rows of a file as the given types, over all its pieces."""
    fmt = format_of(path)
    columns = [Column(name=name, type=type_, source="pinned") for name, type_ in types.items()]
    layout = reader_of(fmt).describe(path, fmt, dialect)
    batches = [batch for d in layout.descriptors for batch in reader_of(fmt).read(d, dialect, columns, refuse)]
    return pa.Table.from_batches(batches, schema=pa.schema(list(types.items()))).to_pydict()


def infer(path, dialect):
    """The types of a file, joined over all its pieces."""
    fmt = format_of(path)
    types = {}
    for descriptor in reader_of(fmt).describe(path, fmt, dialect).descriptors:
        for name, type_ in reader_of(fmt).infer(descriptor, dialect, frozenset(), None).items():
            types[name] = join(types.get(name, pa.null()), type_)
    return types


def described(path, dialect=None):
    fmt = format_of(str(path))
    return reader_of(fmt).describe(str(path), fmt, dialect or Dialect()).descriptors


# --- where records end


@given(ROWS, st.integers(0, 400))
def test_a_cut_never_falls_inside_a_record(rows, at):
    """However a file is cut off, the last record end found is the end of a whole record."""
    text = csv_text(rows).encode()
    ends = {0}
    for count in range(len(rows) + 1):
        ends.add(len(csv_text(rows[:count]).encode()))

    found = records.find_last_end(text[:at], ",")

    assert found == max(end for end in ends if end <= at)


@given(st.text(alphabet='a,"\n', max_size=30))
def test_any_quotes_are_cut_as_pyarrow_reads_them(text):
    """Also where quotes stand in odd places, each record that is found is one row to the parser."""
    data = text.encode()
    whole = data[: records.find_last_end(data, ",")]

    for _, record in records.split(whole, ","):
        table = pa.csv.read_csv(
            io.BytesIO(record),
            read_options=pa.csv.ReadOptions(autogenerate_column_names=True),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        )
        assert table.num_rows == 1
        assert table.num_columns == records.count_fields(record, ",")


@given(st.text(alphabet='a,"\n', max_size=40))
def test_any_quotes_are_followed_to_the_last_record(text):
    """The record end that is found is the last one, as reading byte by byte finds it."""
    state, end = "begin", 0
    for at, byte in enumerate(text):
        match state, byte:
            case ("begin", '"') | ("closed", '"'):
                state = "quoted"
            case "quoted", _:
                state = "closed" if byte == '"' else "quoted"
            case _, "," | "\n":
                state, end = "begin", at + 1 if byte == "\n" else end
            case _:
                state = "bare"

    assert records.find_last_end(text.encode(), ",") == end


@pytest.mark.parametrize("data", [b'a,"b', b'a,"b""', b'1,2\n"x\ny', b'"'])
def test_an_unclosed_quote_is_found(data):
    """A value that is opened and never closed is seen, whatever comes before it."""
    assert records.find_unclosed(data, ",") == data.index(b'"')


@pytest.mark.parametrize(("data", "lines"), [(b"a\nb\n", 2), (b"a\r\nb\r\n", 2), (b"a\rb\r", 2), (b"a", 0)])
def test_lines_are_counted_in_any_convention(data, lines):
    """Line numbers are those of an editor, whichever system wrote the file."""
    assert records.count_newlines(data) == lines


# --- blocks and pieces


@relaxed
@given(ROWS, st.integers(1, 60), st.integers(1, 200))
def test_types_do_not_depend_on_blocks(tmp_path, rows, block, part):
    """The join over small blocks and pieces widens to the type that one block has."""
    path = tmp_path / "a.csv"
    path.write_bytes(csv_text(rows).encode())

    small = infer(str(path), Dialect(block_bytes=block, part_bytes=part))

    assert settled(path, small) == settled(path, infer(str(path), Dialect()))


def settled(path, types):
    """The types after the widening that an ingest does when a value does not fit."""
    types = dict(types)
    for name in types:
        while True:
            column = [Column(name=name, type=types[name], source="inferred")]
            try:
                for descriptor in described(path):
                    list(reader_of("csv").read(descriptor, Dialect(), column, refuse))
            except Misfit:
                types[name] = wider(types[name])
            else:
                break
    return types


@relaxed
@given(ROWS, st.integers(1, 60), st.integers(1, 200))
def test_rows_do_not_depend_on_blocks(tmp_path, rows, block, part):
    """Small blocks and pieces give the rows of one block, in order, with the values that were written."""
    path = tmp_path / "a.csv"
    path.write_bytes(csv_text(rows).encode())
    types = {"n": pa.int64(), "a": pa.string(), "b": pa.string()}

    small = read(str(path), Dialect(block_bytes=block, part_bytes=part), types)

    values = [[value or None for value in row] for row in rows]
    assert small == {"n": list(range(len(rows))), "a": [v[0] for v in values], "b": [v[1] for v in values]}


ODD = [["a", ""], ['say "no"', "x,y"], ["Zürich", "two\nlines"], ["\U0001f600", "  "], ["NA", "\r\n"], ["", "end"]]


@pytest.mark.parametrize("part", [1 << 20, None])
def test_a_file_may_be_cut_at_every_byte(tmp_path, part):
    """Blocks, or blocks and pieces, of each size up to that of the file: within quotes, newlines and characters."""
    csv, jsonl = tmp_path / "a.csv", tmp_path / "a.jsonl"
    csv.write_bytes(csv_text(ODD).encode())
    lines = (json.dumps({"n": n, "a": a, "b": b}, ensure_ascii=False) for n, (a, b) in enumerate(ODD))
    jsonl.write_bytes("".join(f"{line}\n" for line in lines).encode())
    types = {"n": pa.int64(), "a": pa.string(), "b": pa.string()}
    for path in (csv, jsonl):
        whole = read(str(path), Dialect(), types)
        assert whole["n"] == list(range(len(ODD)))
        for size in range(1, path.stat().st_size + 1):
            cut = Dialect(block_bytes=size, part_bytes=part or size)
            assert read(str(path), cut, types) == whole, (path.name, size)


SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
)
VALUE = st.one_of(SCALAR, st.lists(SCALAR, max_size=2), st.dictionaries(st.sampled_from("xy"), SCALAR, max_size=2))
OBJECTS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUE, max_size=3), min_size=1, max_size=15)


@relaxed
@given(OBJECTS, st.integers(1, 60), st.integers(1, 200))
def test_json_types_do_not_depend_on_blocks(tmp_path, rows, block, part):
    """Small blocks and pieces of JSON lines give the types of one block."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    small = infer(str(path), Dialect(block_bytes=block, part_bytes=part))

    assert small == infer(str(path), Dialect())


@relaxed
@given(OBJECTS, st.integers(1, 60))
def test_json_text_does_not_depend_on_blocks(tmp_path, rows, block):
    """A key of mixed kinds is text, the same whether its block was parsed at once or row by row."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    types = dict.fromkeys("abc", pa.string())

    assert read(str(path), Dialect(block_bytes=block), types) == read(str(path), Dialect(), types)


def test_a_large_plain_file_is_read_in_pieces(tmp_path):
    """The pieces of a file meet without gap or overlap, begin with a record, and know their line numbers."""
    path = tmp_path / "a.csv"
    path.write_text("n,s\n" + "".join(f'{n},"two\nlines"\n' for n in range(100)))

    pieces = described(path, Dialect(block_bytes=64, part_bytes=200))

    data = path.read_bytes()
    assert len(pieces) > 4
    assert [piece.start for piece in pieces] == [4] + [piece.stop for piece in pieces[:-1]]
    assert pieces[-1].stop == len(data)
    for piece in pieces:
        assert piece.first_line == 1 + data.count(b"\n", 0, piece.start)
        assert data[piece.start : piece.start + 1].isdigit()


@pytest.mark.parametrize(
    ("name", "head", "record"),
    [("a.csv", b"n\n", b"1234567\n"), ("a.jsonl", b"", b'{"n":1}\n'), ("a.tfrecord", b"", framed([b"x"]))],
    ids=["csv", "jsonl", "tfrecord"],
)
def test_the_pieces_of_a_file_are_even(tmp_path, name, head, record):
    """Those who share a file that is a little larger than a piece have half of it each, not all and a rest."""
    (tmp_path / name).write_bytes(head + record * 1100)

    pieces = described(tmp_path / name, Dialect(block_bytes=8, part_bytes=len(record) * 1000))

    assert len(pieces) == 2
    assert abs(pieces[0].size_bytes - pieces[1].size_bytes) <= 4 * len(record)


def test_a_compressed_file_is_one_piece(tmp_path):
    """A compressed file cannot be entered in the middle."""
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"n\n" + b"12345678\n" * 1000))

    assert len(described(path, Dialect(block_bytes=64, part_bytes=10))) == 1


def test_parquet_pieces_are_runs_of_row_groups(tmp_path):
    """The pieces of a Parquet file are runs of its row groups and know the number of their first row."""
    pq.write_table(pa.table({"a": list(range(100))}), tmp_path / "a.parquet", row_group_size=10)

    pieces = described(tmp_path / "a.parquet", Dialect(part_bytes=200))

    assert [piece.start for piece in pieces] == [0] + [piece.stop for piece in pieces[:-1]]
    assert pieces[-1].stop == 10
    assert [piece.first_line for piece in pieces] == [1 + 10 * piece.start for piece in pieces]
    assert read(str(tmp_path / "a.parquet"), Dialect(part_bytes=200), {"a": pa.int64()}) == {"a": list(range(100))}


TAG = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.list_(TAG), [["a"], ["b", "a"], None]),
        (pa.struct([("x", TAG)]), [{"x": "a"}, {"x": "b"}, {"x": None}]),
        (pa.map_(pa.string(), TAG), [[("k", "a")], [("k", "b")], []]),
    ],
)
def test_dictionaries_inside_values_are_read_over_row_groups(tmp_path, type_, values):
    """Each row group of Parquet has a dictionary of its own."""
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"v": pa.array(values, type_)}), path, row_group_size=1)

    assert read(path, Dialect(), infer(path, Dialect()))["v"] == values


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_an_error_in_what_is_done_with_rows_is_not_one_of_the_file(tmp_path, name):
    """A disk that is full when a rejected row is set aside does not make the input a damaged file."""

    def no_room(rejected):
        raise OSError(28, "No space left on device")

    path, table = str(tmp_path / name), pa.table({"v": ["x"]})
    pq.write_table(table, path) if name.endswith("parquet") else pa.feather.write_feather(table, path)
    (descriptor,) = reader_of(format_of(path)).describe(path, format_of(path), Dialect()).descriptors
    column = Column(name="v", type=pa.int64(), source="pinned")

    with pytest.raises(OSError, match="No space left"):
        list(reader_of(format_of(path)).read(descriptor, Dialect(), [column], no_room))


def test_arrow_pieces_are_runs_of_batches(tmp_path):
    """The pieces of an Arrow file are runs of its batches; all rows come out once."""
    table = pa.table({"a": list(range(1000))})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table, max_chunksize=100)

    assert len(described(tmp_path / "a.arrow", Dialect(part_bytes=1000))) == 10
    assert read(str(tmp_path / "a.arrow"), Dialect(part_bytes=3000), {"a": pa.int64()}) == {"a": list(range(1000))}


def test_a_row_longer_than_a_block_is_read_whole(tmp_path):
    """A block grows until it holds a row."""
    path = tmp_path / "a.csv"
    path.write_text(f"n,s\n1,{'x' * 100_000}\n2,y\n")

    found = read(str(path), Dialect(block_bytes=10), {"n": pa.int64(), "s": pa.string()})

    assert [len(text) for text in found["s"]] == [100_000, 1]


def test_a_stray_quote_does_not_swallow_the_memory(tmp_path, monkeypatch):
    """A quote that is opened and not closed stops the reading long before the end of a large file."""
    monkeypatch.setattr("spanwise.pipelines.input.readers.text.LONGEST_RECORD_BYTES", 1 << 10)
    path = tmp_path / "a.csv"
    path.write_text('n,s\n1,ok\n2,"x\n' + "3,y\n" * 10_000)

    with pytest.raises(UnreadableInput, match="line 3: the record that begins here has not ended"):
        read(str(path), Dialect(block_bytes=256), {"n": pa.int64()})


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_every_newline_convention_is_read(tmp_path, newline):
    """Unix, Windows and old Macintosh files are the same rows; blank lines are none."""
    path = tmp_path / "a.csv"
    path.write_bytes(f"a,b{newline}1,x{newline}{newline}2,y".replace("\n", "\n").encode())

    assert read(str(path), Dialect(block_bytes=4), {"a": pa.int64(), "b": pa.string()}) == {
        "a": [1, 2],
        "b": ["x", "y"],
    }


# --- names of files, names of types


@pytest.mark.parametrize(
    ("path", "fmt"),
    [("a.csv", "csv"), ("A.CSV.GZ", "csv"), ("x/a.tsv.zst", "tsv"), ("a.json", "jsonl"), ("a.feather", "arrow")],
)
def test_the_name_tells_the_format(path, fmt):
    """The ending, and the one before a compression's, decide."""
    assert format_of(path) == fmt


@pytest.mark.parametrize("path", ["a", "a.txt", "a.gz", "a.parquet.gz"])
def test_an_unknown_name_is_refused(path):
    """A name that tells no format is refused with the endings that do."""
    with pytest.raises(ParameterError, match=r"Known endings are \.csv"):
        format_of(path)


TYPES = [
    pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.date32(), pa.timestamp("us"),
    pa.timestamp("us", "UTC"), pa.time32("ms"), pa.list_(pa.int64()), pa.struct([("x", pa.int64())]),
    pa.struct([("x", pa.float64()), ("y", pa.bool_())]),
]  # fmt: skip


@given(st.sampled_from(TYPES), st.sampled_from(TYPES), st.sampled_from(TYPES))
def test_the_types_form_a_lattice(one, two, three):
    """Types join the same in any order and grouping, and with themselves to themselves."""
    assert join(one, two) == join(two, one)
    assert join(join(one, two), three) == join(one, join(two, three))
    assert join(one, one) == one


@pytest.mark.parametrize("type_", [*TYPES[:9], pa.decimal128(9, 2), pa.timestamp("ns", "America/New_York")])
def test_a_type_is_read_back_from_its_text(type_):
    """What a report says of a column can be given to the next ingest."""
    assert parse_type(str(type_)) == type_


def test_a_text_that_is_no_type_is_refused():
    """A wrong pin is told with the types there are."""
    with pytest.raises(ParameterError, match=r"column 'a' cannot be pinned to 'number'. Types are: bool"):
        pinned_types({"a": "number"})


@pytest.mark.parametrize(
    ("found", "wanted", "may"),
    [
        (pa.int64(), pa.float64(), True),
        (pa.float64(), pa.int64(), True),
        (pa.null(), pa.string(), True),
        (pa.date32(), pa.timestamp("us"), True),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.int64(), pa.string(), False),
        (pa.string(), pa.int64(), False),
        (pa.bool_(), pa.int64(), False),
    ],
)
def test_only_like_kinds_are_read_as_each_other(found, wanted, may):
    """A number may be read as another number, never as text or the other way round."""
    assert reads_as(found, wanted) is may
