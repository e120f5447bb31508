"""Ingest: one span of files becomes Parquet examples, the same bytes wherever it runs."""

import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components import beam
from spanwise.components.ingest.fingerprint import fingerprint, stamp
from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.part import InputPart, PartWriter, write_part
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.ingest.readers import Dialect, reader_of
from spanwise.components.ingest.readers.custom import FunctionReader
from spanwise.orchestrator.beam_settings import BeamSettings
from spanwise.orchestrator.errors import ColumnsChanged, LoadError, ParameterError, UnreadableInput
from spanwise.pipelines.input.readers.column import Column
from tests.components.tf_example import framed, serialized


@pytest.fixture
def write(tmp_path):
    """Writes a file of the span and returns its path."""

    def write(name, content):
        path = tmp_path / "in" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


@pytest.fixture
def plan(tmp_path):
    """A plan over one input split, with a fresh destination each time."""
    made = []

    def plan(*paths, **settings):
        made.append(None)
        files = settings.pop("files", {"all": paths})
        return IngestPlan(files=files, destination=str(tmp_path / f"out{len(made)}"), **settings)

    return plan


def table(plan, split="all"):
    """All rows of a split, in order."""
    return pa.concat_tables(pq.read_table(path) for path in sorted(Path(plan.destination, f"Split-{split}").iterdir()))


def contents(folder):
    """Every file under a folder, by its name within it."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


SMALL = Dialect(block_bytes=256, part_bytes=1024)


def numbered(rows, extra=""):
    return "n,word\n" + "".join(f"{n},w{n % 7}{extra}\n" for n in range(rows))


# --- what is written


def test_csv_becomes_parquet_with_types_and_counts(write, plan):
    """A CSV file becomes one Parquet file of its split, typed, and the report says what it holds."""
    asked = plan(write("a.csv", "day,delay,name\n2013-01-01,1.5,x\n2013-01-02,NA,NA\n"))

    report = ingest(asked)

    assert table(asked).to_pydict()["delay"] == [1.5, None]
    assert table(asked).to_pydict()["name"] == ["x", "NA"]
    assert report.columns == (("day", "date32[day]"), ("delay", "double"), ("name", "string"))
    assert report.rows == {"all": 2}
    assert report.size_bytes == {"all": report.files[0].size_bytes}
    assert [(file.split, file.name, file.rows) for file in report.files] == [("all", "part-00000.parquet", 2)]
    assert list(contents(asked.destination)) == ["Split-all/part-00000.parquet"]


def test_every_format_gives_the_same_rows(write, plan, tmp_path):
    """The same rows come out of CSV, TSV, JSON lines, Parquet, Arrow files and Arrow streams, compressed or not."""
    rows = pa.table({"n": [1, 2, None], "x": [0.5, None, 2.0], "s": ["a", "b,\nc", None]})
    text = 'n,x,s\n1,0.5,a\n2,,"b,\nc"\n,2.0,\n'
    lines = "".join(json.dumps(row) + "\n" for row in rows.to_pylist())
    paths = [
        write("a.csv", text),
        write("a.tsv", text.replace(",", "\t").replace("b\t", "b,")),
        write("a.csv.gz", gzip.compress(text.encode())),
        write("a.jsonl", lines),
        write("a.ndjson.zst", pa.compress(lines.encode(), codec="zstd", asbytes=True)),
        str(tmp_path / "a.parquet"),
        str(tmp_path / "a.arrow"),
        str(tmp_path / "b.ipc"),
    ]
    pq.write_table(rows, tmp_path / "a.parquet")
    with pa.OSFile(paths[-2], "wb") as sink, pa.ipc.new_file(sink, rows.schema) as out:
        out.write_table(rows)
    with pa.OSFile(paths[-1], "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as out:
        out.write_table(rows)

    for path in paths:
        asked = plan(path)
        ingest(asked)

        assert table(asked).equals(rows), path


def test_rows_keep_their_order_over_files_and_parts(write, plan):
    """Rows come out in the order of the files and of the rows in them, also over many parts."""
    first = write("a.csv", numbered(500))
    second = write("b.csv", "word,n\n" + "".join(f"z,{n}\n" for n in range(500, 900)))
    asked = plan(first, second, dialect=SMALL)

    report = ingest(asked)

    assert len(report.files) > 3
    assert table(asked).column("n").to_pylist() == list(range(900))


@pytest.mark.parametrize(
    ("runner", "options"),
    [
        ("FnApiRunner", {"direct_num_workers": 2, "direct_running_mode": "multi_threading"}),
        ("unverified:BundleBasedDirectRunner", {}),
    ],
)
def test_the_bytes_do_not_depend_on_the_runner(write, plan, runner, options):
    """Another Beam runner, or more workers, writes the same bytes."""
    path = write("a.csv", numbered(700) + 'x,"two\nlines"\nodd\n')
    settings = {"ratios": {"train": 3, "eval": 1}, "dialect": SMALL}
    here = plan(path, rejects=str(Path(path).parent.parent / "r1"), **settings)
    beam = BeamSettings(runner=runner, options=options)
    there = plan(path, rejects=str(Path(path).parent.parent / "r2"), beam=beam, **settings)

    ingest(here)
    ingest(there)

    assert contents(here.destination) == contents(there.destination)
    assert contents(here.rejects) == contents(there.rejects) != {}


def test_the_bytes_do_not_depend_on_the_block_size(write, plan):
    """However small the blocks are that text is parsed in, the files are the same to the byte."""
    path = write("a.csv", numbered(300) + '4.5,"a ""quoted""\nword"\n')

    written = []
    for block in (64, 1000, 1 << 20):
        asked = plan(path, dialect=Dialect(block_bytes=block))
        ingest(asked)
        written.append(contents(asked.destination))

    assert written[0] == written[1] == written[2]


def test_input_splits_stay_apart_and_an_empty_one_has_a_file(write, plan):
    """Without ratios the output splits are the input splits; a split without rows still has its columns."""
    files = {"train": (write("t.csv", "a,b\n1,x\n"),), "eval": (write("e.csv", "a,b\n"),)}
    asked = plan(files=files)

    report = ingest(asked)

    assert report.rows == {"train": 1, "eval": 0}
    assert table(asked, "eval").schema == table(asked, "train").schema


def test_an_unknown_runner_is_named(write, plan):
    """A runner that Beam does not know is a wrong parameter, in words."""
    with pytest.raises(ParameterError, match="NoSuchRunner"):
        ingest(plan(write("a.csv", "a\n1\n"), beam=BeamSettings(runner="unverified:NoSuchRunner")))


def test_a_filled_destination_is_refused(write, plan, tmp_path):
    """Files that are already there are never mixed with new ones."""
    (tmp_path / "out1").mkdir()
    (tmp_path / "out1" / "x").touch()

    with pytest.raises(ParameterError, match="not empty"):
        ingest(plan(write("a.csv", "a\n1\n")))


def test_a_part_can_be_written_twice(write, plan):
    """A worker that is started again on the same part leaves the same file and nothing else."""
    asked = plan(write("a.csv", "a\n1\n"))
    descriptors = reader_of("csv").describe(asked.files["all"][0], "csv", Dialect()).descriptors
    part = InputPart(split="all", index=0, descriptors=descriptors)
    column = Column(name="a", type=pa.int64(), source="inferred")
    writer = PartWriter(
        dialect=Dialect(), columns=(column,), destination=asked.destination, rejects=None, ratios=(), split_key=()
    )
    write_part(writer, part)
    once = contents(asked.destination)

    write_part(writer, part)

    assert contents(asked.destination) == once
    assert list(once) == ["Split-all/part-00000.parquet"]


def test_a_process_that_ingests_keeps_its_log_and_imports_late(write, plan):
    """Importing what a run plans with loads neither Beam nor pyarrow; an ingest leaves the root without a handler."""
    asked = plan(write("a.csv", "a\n1\n"))
    program = """
import logging, sys
from spanwise.components.ingest.example_gen import ExampleGen
from spanwise.components.ingest.fingerprint import fingerprint
from spanwise.components.ingest.plan import IngestPlan
from spanwise.orchestrator.beam_settings import BeamSettings
heavy = [name for name in ("apache_beam", "pyarrow", "numpy") if name in sys.modules]
from spanwise.components.ingest.ingestion import ingest
heavy += [name for name in ("apache_beam",) if name in sys.modules]
ingest(IngestPlan(files={"all": (sys.argv[1],)}, destination=sys.argv[2], beam=BeamSettings(runner="FnApiRunner")))
print(heavy, logging.getLogger().handlers, sys.modules.keys() >= {"apache_beam"})
"""
    root = Path(__file__).parents[3]

    done = subprocess.run(
        [sys.executable, "-c", program, asked.files["all"][0], asked.destination],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout == "[] [] True\n"


# --- types


@pytest.mark.parametrize(
    ("early", "late", "type_"),
    [
        ("1", "2.5", "double"),
        ("1", "x", "string"),
        ("NA", "7", "int64"),
        ("1.5", "0x1F", "string"),
        ("0x1F", "1.5", "string"),
        ("1", "true", "string"),
        ("true", "0", "string"),
        ("2013-01-01", "2013-01-02 10:00:00", "timestamp[us]"),
        ("2013-01-01", "2013-01-01T10:00:00Z", "string"),
        ("2013-01-01T10:00:00", "2013-01-01T10:00:00.123456789", "timestamp[ns]"),
        ("9999-12-31T00:00:00", "2013-01-01T10:00:00.5", "timestamp[us]"),
        ("9999-12-31T00:00:00", "2013-01-01T10:00:00.123456789", "string"),
        ("10:00", "10:00:01", "time32[ms]"),
        ("10:00", "10:00:00.5", "time32[ms]"),
        ("10:00", "10:00:00.123456", "time64[us]"),
        ("10:00:00.123456", "10:00:00.123456789", "time64[ns]"),
        ("NA", "", "null"),
        ("9223372036854775807", "9223372036854775808", "uint64"),
        ("-1", "9223372036854775808", "double"),
        ("-1", "9223372036854775809", "string"),
        ("1.5", "9007199254740993", "string"),
        ("1.5", "9007199254740992", "double"),
        ("1", "18446744073709551617", "string"),
        ("1.5", "1e400", "string"),
        ("1.5", "-Infinity", "double"),
        ("1", "0xFFFFFFFFFFFFFFFF", "string"),
    ],
)
def test_a_type_is_inferred_over_the_whole_span(write, plan, early, late, type_):
    """A value late in the span, in its last block or file, decides as much as one at its beginning."""
    filler = "".join(f"{early},{n}\n" for n in range(200))
    together = write("a.csv", f"v,n\n{filler}{late},0\n")
    apart = (write("b.csv", f"v,n\n{filler}"), write("c.csv", f"v,n\n{late},0\n"))

    for asked in (plan(together, dialect=SMALL), plan(*reversed(apart))):
        report = ingest(asked)

        assert dict(report.columns)["v"] == type_


@pytest.mark.parametrize("field", ["0x1F", " 0x1F", "\t-0X1F", '"0x1F"', '" +0x1F"'])
@pytest.mark.parametrize("row", ["{},7,N10XJ", "7,{},N10XJ", "N10XJ,7,{}"])
def test_a_number_in_hexadecimal_is_found_wherever_its_field_stands(write, plan, row, field):
    """It stays text as it is written; a 0x inside of a name leaves the whole numbers beside it alone."""
    row = row.format(field)

    report = ingest(plan(write("a.csv", f"a,b,c\n{row}\n")))

    assert [type_ for _, type_ in report.columns] == ["int64" if each == "7" else "string" for each in row.split(",")]


def test_a_type_is_inferred_over_the_whole_span_of_json(write, plan):
    """A key that comes late, or changes its kind, is right from the first row on; numbers keep their digits as text."""
    text = (
        "".join(f'{{"a":{n},"b":{n}.50,"c":{{"x":{n}}}}}\n' for n in range(60))
        + '{"a":2.5,"b":"t","d":[1],"c":{"y":1}}\n'
    )
    asked = plan(write("a.jsonl", text), dialect=SMALL)

    report = ingest(asked)

    types = dict(report.columns)
    assert types == {"a": "double", "b": "string", "c": "struct<x: int64, y: int64>", "d": "list<element: int64>"}
    assert table(asked).column("b").to_pylist()[-2:] == ["59.50", "t"]
    assert table(asked).column("d").to_pylist()[-2:] == [None, [1]]


def test_json_text_stays_text_unless_it_is_pinned(write, plan):
    """What looks like a date in JSON is a string; a pinned type makes it an instant."""
    path = write("a.jsonl", '{"t":"2013-01-01T10:00:00"}\n')
    free, pinned = plan(path), plan(path, types={"t": "timestamp[us]"})

    assert ingest(free).columns == (("t", "string"),)
    assert ingest(pinned).columns == (("t", "timestamp[us]"),)


def test_a_json_value_without_fields_is_text(write, plan):
    """An empty object has no columns that Parquet could hold, so its key is written as JSON text."""
    asked = plan(write("a.jsonl", '{"a":{},"n":1}\n{"n":2}\n'))

    ingest(asked)

    assert table(asked).to_pydict() == {"a": ["{}", None], "n": [1, 2]}


@pytest.mark.parametrize(
    ("before", "value", "stored"),
    [
        ("struct<x: int64>", "{}", {"x": None}),
        ("list<element: struct<x: int64>>", "[{}]", [{"x": None}]),
        ("struct<x: struct<y: int64>>", '{"x":{}}', {"x": {"y": None}}),
    ],
)
def test_an_object_without_fields_where_a_struct_was_has_a_pin(write, plan, before, value, stored):
    """It is no text: the message says which type takes it with its fields missing."""
    path = write("a.jsonl", f'{{"u":{value}}}\n')

    with pytest.raises(ColumnsChanged, match=re.escape(f"pin the type: types={{'u': '{before}'}}, and the fields")):
        ingest(plan(path, previous=(("u", before),)))
    pinned, free = (plan(path, previous=(("u", before),), types={"u": type_}) for type_ in (before, "inferred"))
    ingest(pinned)

    assert table(pinned).to_pydict() == {"u": [stored]}
    assert ingest(free).columns == (("u", "string"),)


@pytest.mark.parametrize(
    ("before", "rows", "now"),
    [
        ("list<element: int64>", '{"u":[]}', "list<element: int64>"),
        ("list<element: null>", '{"u":[1]}', "list<element: int64>"),
        ("struct<x: null, y: int64>", '{"u":{"x":"t","y":null}}', "struct<x: string, y: int64>"),
        ("string", '{"u":null}', "string"),
    ],
)
def test_an_empty_list_or_a_missing_value_is_no_change(write, plan, before, rows, now):
    """Where nothing is known yet of what is inside, or nothing is found, the other span says it."""
    report = ingest(plan(write("a.jsonl", rows + "\n"), previous=[("u", before)]))

    assert report.columns == (("u", now),)


def test_a_span_without_any_column_is_refused(write, plan):
    """Its rows could not be counted any more."""
    path = write("a.jsonl", '{"x": 1}\n')

    with pytest.raises(ParameterError, match="drop_columns leaves out all that the input has: x"):
        ingest(plan(path, dropped=("x",)))


@pytest.mark.parametrize(
    ("ending", "files"),
    [
        ("csv", ["n,gone\n1,1\n", "n,gone\n2,1.5\n3,x\n"]),
        ("jsonl", ['{"n":1,"gone":-1}\n', '{"n":2,"gone":18446744073709551615}\n{"n":3}\n']),
        (
            "tfrecord",
            [
                framed([serialized({"n": [1], "gone": [1]})]),
                framed([serialized({"n": [2], "gone": [1, 2]}), serialized({"n": [3]})]),
            ],
        ),
        ("parquet", [pa.table({"n": [1], "gone": [1]}), pa.table({"n": [2, 3], "gone": ["x", None]})]),
    ],
)
@pytest.mark.parametrize("keep", [False, True])
def test_values_of_a_dropped_column_cost_no_row(write, plan, tmp_path, ending, files, keep):
    """Whatever they are: they are not wanted. Neither is it an error that they have several types."""
    paths = [write(f"{n}.{ending}", file if not isinstance(file, pa.Table) else "") for n, file in enumerate(files)]
    for path, file in zip(paths, files, strict=True):
        if isinstance(file, pa.Table):
            pq.write_table(file, path)
    asked = plan(*paths, dropped=("gone",), rejects=str(tmp_path / "rejects") if keep else None)

    report = ingest(asked)

    assert table(asked).to_pydict() == {"n": [1, 2, 3]}
    assert report.rejected == 0


def test_a_missing_text_column_keeps_its_type(write, plan):
    """A day without a value in a column of text is a day of missing texts."""
    asked = plan(write("a.csv", "s,n\n,1\n,2\n"), previous=[("s", "string"), ("n", "int64")])

    assert dict(ingest(asked).columns) == {"s": "string", "n": "int64"}


@pytest.mark.parametrize(
    ("dialect", "values"),
    [
        (Dialect(), ["NA", "", None, "x"]),
        (Dialect(null_values=("NA",)), [None, "", "", "x"]),
        (Dialect(null_values={"s": ("", "x")}), ["NA", None, None, None]),
        (Dialect(null_values={"n": ("1",)}), ["NA", "", None, "x"]),
    ],
)
def test_only_an_empty_field_is_a_missing_text_unless_others_are_asked_for(write, plan, dialect, values):
    """Texts that mean missing are asked for, in all columns or by column; quotes make an empty text."""
    asked = plan(write("a.csv", 's,n\nNA,1\n"",2\n,3\nx,4\n'), dialect=dialect)

    ingest(asked)

    assert table(asked).column("s").to_pylist() == values


@pytest.mark.parametrize("end", ["", "\n"])
def test_an_empty_last_field_is_missing_with_and_without_a_newline(write, plan, end):
    """Also beside an empty text in quotes."""
    asked = plan(write("a.csv", 'a,s\n"b",x\n"",' + end))

    ingest(asked)

    assert table(asked).to_pylist() == [{"a": "b", "s": "x"}, {"a": "", "s": None}]


@pytest.mark.parametrize("block_bytes", [8, 8 << 20])
def test_a_byte_order_mark_in_a_value_stays(write, plan, block_bytes):
    """It is dropped at the beginning of a file only, not at that of a block."""
    asked = plan(write("a.csv", "\ufeffs,n\n\ufeffx,1\n\ufeffx,2\ny,3\n"), dialect=Dialect(block_bytes=block_bytes))

    ingest(asked)

    assert table(asked).column("s").to_pylist() == ["\ufeffx", "\ufeffx", "y"]


def test_null_values_name_columns_that_are_there(write, plan):
    """A misspelled name would leave its texts in the data."""
    with pytest.raises(ParameterError, match=r"null_values: .*a\.csv has no column 'S'; it has: s"):
        ingest(plan(write("a.csv", "s\nx\n"), dialect=Dialect(null_values={"S": ("NA",)})))
    with pytest.raises(ParameterError, match="column_names: two columns are named 'a'"):
        Dialect(column_names=("a", "a"))


@pytest.mark.parametrize(
    ("name", "content", "before"),
    [("a.csv", "v\n9007199254740993\n", "double"), ("a.jsonl", '{"v":9007199254740993}\n', "double")],
)
def test_a_double_of_the_span_before_holds_no_rounded_whole_number(write, plan, name, content, before):
    """2^53 + 1 is a change of type, not another number."""
    with pytest.raises(ColumnsChanged, match=f"was {before} in the previous span and is int64 now"):
        ingest(plan(write(name, content), previous=[("v", before)]))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize(("pin", "value"), [("float", "1e300"), ("float", "16777217"), ("double", "9007199254740993")])
def test_a_pin_changes_no_number(write, plan, name, pin, value):
    """A pinned type rounds fractions; what it would make infinite, or another whole number, rejects the row."""
    content = f"v\n1.1\n{value}\n" if name == "a.csv" else f'{{"v":1.1}}\n{{"v":{value}}}\n'

    with pytest.raises(UnreadableInput, match=f"column 'v': '?{value}'? is no {pin}"):
        ingest(plan(write(name, content), types={"v": pin}))


def test_a_header_without_a_newline_is_a_file_without_rows(write, plan):
    """It does not stop the other files of the span."""
    assert ingest(plan(write("a.csv", "a,b\n1,2\n"), write("b.csv", "a,b"))).rows == {"all": 1}


def test_parquet_files_of_a_span_meet_in_the_wider_type(plan, tmp_path):
    """Parquet files whose numbers differ in width are written in the width that holds both."""
    pq.write_table(
        pa.table({"a": pa.array([1], pa.int32()), "s": pa.array(["x"]).dictionary_encode()}), tmp_path / "a.parquet"
    )
    pq.write_table(pa.table({"a": pa.array([2], pa.int64()), "s": ["y"]}), tmp_path / "b.parquet")
    asked = plan(str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"))

    report = ingest(asked)

    assert report.columns == (("a", "int64"), ("s", "string"))
    assert table(asked).to_pydict() == {"a": [1, 2], "s": ["x", "y"]}


# --- the previous span


@pytest.mark.parametrize(
    ("before", "text", "values"),
    [
        ("double", "1\n2\n", [1.0, 2.0]),
        ("int64", "3.0\n4\n", [3, 4]),
        ("string", "007\n8\n", ["007", "8"]),
        ("timestamp[us]", "2013-01-01\n", None),
        ("int64", "NA\n", [None]),
        ("null", "5\n", [5]),
    ],
)
def test_a_column_is_read_as_the_previous_span_had_it(write, plan, before, text, values):
    """A day of whole numbers in a column of doubles is no change, nor is any other that loses nothing."""
    rows = "".join(f"{value},0\n" for value in text.split())
    asked = plan(write("a.csv", f"v,n\n{rows}"), previous=[("v", before), ("n", "int64")])

    report = ingest(asked)

    assert dict(report.columns)["v"] == ("int64" if before == "null" else before)
    assert values is None or table(asked).column("v").to_pylist() == values
    assert report.new_columns == ()


@pytest.mark.parametrize(
    ("before", "value", "found"),
    [
        ("int64", "1.5", "double"),
        ("double", "x", "string"),
        ("int64", "9007199254740993.0", "double"),
        ("date32[day]", "7", "string"),
    ],
)
def test_a_changed_type_is_named_with_its_line(write, plan, before, value, found):
    """A value that the previous type cannot hold stops the ingest and names column, both types, file and line."""
    good = {"int64": "1", "double": "1.5", "date32[day]": "2013-01-01"}[before]
    path = write("a.csv", f"v\n{good}\n{value}\n")

    with pytest.raises(ColumnsChanged) as raised:
        ingest(plan(path, previous=[("v", before)]))

    assert f"column 'v' was {before}" in str(raised.value)
    assert f"is {found} now: {path}, line 3 ('{value}')" in str(raised.value)
    assert "types={'v':" in str(raised.value)


def test_a_changed_type_can_be_pinned(write, plan):
    """A pin stands above the previous span."""
    report = ingest(plan(write("a.csv", "v\n1.5\n"), previous=[("v", "int64")], types={"v": "double"}))

    assert report.columns == (("v", "double"),)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_changed_type_is_found_in_typed_formats(write, plan, tmp_path, ending):
    """Text where a number was stops the ingest also where the file says itself what is text."""
    path = write(f"a.{ending}", '{"v":"x"}\n')
    if ending == "parquet":
        pq.write_table(pa.table({"v": ["x"]}), path)

    with pytest.raises(ColumnsChanged, match="column 'v' was double in the previous span and is string now"):
        ingest(plan(path, previous=[("v", "double")]))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_lossless_numbers_are_no_change_in_typed_formats(write, plan, ending):
    """Whole numbers are read as the doubles of the previous span, and 3.0 as its int64."""
    path = write(f"a.{ending}", '{"a":1,"b":3.0}\n{"a":2,"b":4}\n')
    if ending == "parquet":
        pq.write_table(pa.table({"a": [1, 2], "b": [3.0, 4.0]}), path)
    asked = plan(path, previous=[("a", "double"), ("b", "int64")])

    ingest(asked)

    assert table(asked).schema.types == [pa.float64(), pa.int64()]
    assert table(asked).to_pydict() == {"a": [1.0, 2.0], "b": [3, 4]}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_fraction_where_whole_numbers_were_is_a_change(write, plan, ending):
    """A double that is not whole stops the ingest of an int64 column, and the row is named."""
    path = write(f"a.{ending}", '{"b":3.0}\n{"b":4.5}\n')
    if ending == "parquet":
        pq.write_table(pa.table({"b": [3.0, 4.5]}), path)

    with pytest.raises(ColumnsChanged, match=r"(line|row) 2 \(4.5\)"):
        ingest(plan(path, previous=[("b", "int64")]))


def test_a_missing_column_stops_and_a_new_one_is_reported(write, plan):
    """A column may come but not go."""
    path = write("a.csv", "a,c\n1,2\n")

    report = ingest(plan(path, previous=[("a", "int64")]))
    with pytest.raises(ColumnsChanged, match=r"column 'b' \(string in the previous span\) is missing"):
        ingest(plan(path, previous=[("a", "int64"), ("b", "string")]))

    assert report.new_columns == ("c",)


# --- input that cannot be read


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", "a,b\n1,2\n"), ("a.csv.gz", "a,b\n1,2\n"), ("a.jsonl", '{"a": 1}\n')]
)
def test_a_file_that_says_that_it_is_utf_8_is_not_read_in_another_encoding(write, plan, name, text, encoding):
    """Its mark became part of the first column's name, and umlauts two letters each."""
    content = text.encode("utf-8-sig")
    path = write(name, gzip.compress(content) if name.endswith(".gz") else content)

    with pytest.raises(UnreadableInput, match=f"begins with the mark of UTF-8.*{encoding}.*Leave encoding= out"):
        ingest(plan(path, dialect=Dialect(encoding=encoding)))


def truncated(data):
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"", "the file is empty"),
        ("a.jsonl", b"", "the file is empty"),
        ("a.parquet", b"", "the file is empty"),
        ("a.arrow", b"", "the file is empty"),
        ("a.csv.gz", b"", "the file is empty|damaged or cut short"),
        ("a.csv", b"a,b\n", "the span has no rows"),
        ("a.csv", b"\n\n", "the file is empty"),
        ("a.csv.gz", truncated(gzip.compress(numbered(5000).encode())), "gzip compression is damaged or cut short"),
        ("a.csv.gz", b"a,b\n1,2\n", "gzip compression is damaged or cut short"),
        ("a.csv.zst", truncated(pa.compress(numbered(5000).encode(), codec="zstd", asbytes=True)), "zstd compression is"),
        ("a.parquet", b"PAR1 and then nothing", "not a whole Parquet file"),
        ("a.arrow", b"ARROW1\0\0 and then nothing", "not a whole Arrow file"),
        ("a.csv", "a,b\n1,x\n2,\u00fc\n".encode("latin-1"), r"line 3: byte 10 \(0xfc\) is not UTF-8.*encoding='latin-1'"),
        ("a.csv", "a,\u00fc\n1,x\n".encode("utf-16"), "byte 0 .*encoding='utf-16'"),
        ("a.csv", gzip.compress(b"a,b\n1,2\n"), r"is compressed by gzip, which its name does not say. Name it .*a.csv.gz"),
        ("a.jsonl", pa.compress(b'{"a":1}\n' * 9, codec="zstd", asbytes=True), r"compressed by zstd.*Name it .*l.zst"),
        ("a.jsonl", b'{"a":1}\n{"a":"\xff"}\n', r"line 2: byte 14 \(0xff\)"),
        ("a.csv", b"a,b\n1,2\n\n3\n4,5\n", "line 4: 2 fields wanted, 1 found.*The row: 3"),
        ("a.csv", b'a,b\n1,"x\ny"\n3,4,5\n', "line 4: 2 fields wanted, 3 found"),
        ("a.csv", b"a,b,a\n1,2,3\n", "two columns are named 'a'"),
        ("a.csv", b"a;b\n1;2\n", r"delimiter=';'"),
        ("a.csv", b"a\tb\n1\t2\n", r"delimiter='\\t'"),
        ("a.csv", b"a|b\n1|2\n", r"delimiter='\|'"),
        ("a.csv", b"a,,c\n1,2,3\n", "field 2 of the header has no name"),
        ("a.csv", b"5.1,3.5,setosa\n4.9,3.0,setosa\n", "a row of data where the header should be.*column_names"),
        ("a.csv", b"1,2\n3,4\n", "a row of data where the header should be"),
        ("a.csv", b'a,b\n1,"x\n2,y\n', "is never closed"),
        ("a.jsonl", b'{"a":1}\n{"a":\n', "line 2: not JSON"),
        ("a.jsonl", b'{"a":1}\n[2]\n', r"line 2: a JSON object wanted, \[2\] found"),
        ("a.jsonl", b'{"a":1}\nnull\n', "line 2: a JSON object wanted, null found"),
        ("a.jsonl", b'{"a":1}\n{"a":1,"a":2}\n', "line 2: not JSON: the key 'a' is repeated"),
        ("a.jsonl", b'{"a":1}\n{"a":2}{"a":3}\n', "line 2: not JSON: Extra data"),
        ("a.jsonl", b'{"a":1}\n{"a":\n2}\n', "line 2: not JSON"),
        ("a.json", b'[{"a":1}]', "one JSON array.*jq"),
        ("a.csv", b"<!DOCTYPE html>\n<html><body>\n<p>Sign in</p>\n", "is an HTML page.*Download the file again"),
        ("a.csv", b"\xef\xbb\xbf\n <HTML lang=en>\n<body>\n503\n", "is an HTML page"),
    ],
)  # fmt: skip
def test_bad_input_is_named_with_file_and_line(write, plan, name, content, says):
    """Whatever is wrong with a file, the message names the file, the line where it can be known, and a way out."""
    path = write(name, content)

    with pytest.raises(UnreadableInput, match=f"(?s){says}") as raised:
        ingest(plan(path))

    assert path in str(raised.value)


def test_a_damaged_parquet_page_is_named(plan, tmp_path):
    """A Parquet file whose footer is whole and whose data are not is unreadable."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(10000))}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[10:2000] = bytes(1990)
    path.write_bytes(data)

    with pytest.raises(UnreadableInput, match=r"a\.parquet: not a whole Parquet file"):
        ingest(plan(str(path)))


def test_an_arrow_stream_that_ends_early_is_refused(write, plan):
    """A stream that goes on after its end, or that has none, may be missing rows."""
    batch, sink = pa.record_batch({"a": [1, 2]}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as out:
        for _ in range(2):
            out.write_batch(batch)
    stream = sink.getvalue().to_pybytes()

    assert ingest(plan(write("a.arrow", stream))).rows == {"all": 4}
    with pytest.raises(UnreadableInput, match=r"a\.arrow: the Arrow stream ends at byte \d+, and \d+ more follow"):
        ingest(plan(write("a.arrow", stream + stream)))
    with pytest.raises(UnreadableInput, match=r"a\.arrow: the Arrow stream has no end marker"):
        ingest(plan(write("a.arrow", stream[:-8])))


@pytest.mark.parametrize("codec", ["gz", "zst"])
def test_a_compressed_file_of_several_members_is_read_to_its_end(write, plan, codec):
    """Compressed files that were put one after another are one file; what follows and is not compressed is refused."""

    def compress(data):
        return gzip.compress(data) if codec == "gz" else pa.compress(data, codec="zstd", asbytes=True)

    first, second = compress(b"a,b\n1,x\n"), compress(b"2,y\n")

    assert ingest(plan(write(f"a.csv.{codec}", first + second))).rows == {"all": 2}
    for rest in (b"more", second[:9]):
        with pytest.raises(UnreadableInput, match="damaged or cut short"):
            ingest(plan(write(f"a.csv.{codec}", first + rest)))


def test_the_first_bad_file_is_reported(write, plan):
    """Of several failures the one that comes first in the input is told, whichever worker was the fastest."""
    paths = [write(f"{name}.csv", f"a,b\n1,2\n{bad}\n") for name, bad in (("a", "1,2"), ("b", "1"), ("c", "1,2,3"))]

    with pytest.raises(UnreadableInput, match=r"b\.csv, line 3"):
        ingest(plan(*paths, dialect=replace(SMALL, part_bytes=1)))


def test_an_empty_file_among_full_ones_is_refused(write, plan):
    """It is a file that did not arrive, rather than one without rows."""
    with pytest.raises(UnreadableInput, match=r"b\.csv: the file is empty"):
        ingest(plan(write("a.csv", "a\n1\n"), write("b.csv", ""), write("c.csv", "a\n2\n")))


def test_two_links_to_one_file_are_two_files(write, plan, tmp_path):
    """Its rows are there twice, as the page says."""
    path = write("a.csv", "a\n1\n")
    (tmp_path / "b.csv").symlink_to(path)
    asked = plan(path, str(tmp_path / "b.csv"))

    ingest(asked)

    assert table(asked)["a"].to_pylist() == [1, 1]


@pytest.mark.parametrize("first", [2**53, 2**63, 10**20])
def test_a_split_key_of_large_numbers_divides_the_rows(write, plan, first):
    """Each is a key of its own: as doubles, thousands of neighbours were one."""
    path = write("a.csv", "id\n" + "".join(f"{first + number}\n" for number in range(600)))
    asked = plan(path, ratios={"train": 2, "eval": 1}, split_key=("id",))

    rows = ingest(asked).rows

    assert 350 <= rows["train"] <= 450
    assert rows["train"] + rows["eval"] == 600


def test_a_missing_file_is_named(plan, tmp_path):
    """A file that has gone since it was listed is unreadable, in every format."""
    for ending in ("csv", "jsonl", "parquet", "arrow"):
        with pytest.raises(UnreadableInput, match=f"gone.{ending}"):
            ingest(plan(str(tmp_path / f"gone.{ending}")))


def test_files_of_one_span_have_the_same_columns(write, plan):
    """A column that only some files have is named with a file that has it and one that does not."""
    with pytest.raises(UnreadableInput, match=r"'b' is in .*a\.csv and not in .*b\.csv"):
        ingest(plan(write("a.csv", "a,b\n1,2\n"), write("b.csv", "a,c\n1,2\n")))
    with pytest.raises(UnreadableInput, match="files of one format"):
        ingest(plan(write("a.csv", "a,b\n1,2\n"), write("b.jsonl", '{"a":1}\n')))


def test_a_pinned_value_that_does_not_fit_is_named(write, plan):
    """A value that is not of its pinned type stops the ingest with its line."""
    with pytest.raises(UnreadableInput, match=r"line 3: column 'a': 'x' is no int64"):
        ingest(plan(write("a.csv", "a\n1\nx\n"), types={"a": "int64"}))
    with pytest.raises(UnreadableInput, match=r"line 2: column 'a': \"x\" is no int64"):
        ingest(plan(write("a.jsonl", '{"a":1}\n{"a":"x"}\n'), types={"a": "int64"}))


@pytest.mark.parametrize("types", [{"a": "integer"}, {"nope": "int64"}])
def test_a_wrong_pin_is_a_wrong_parameter(write, plan, types):
    """An unknown type, or a column that is not there, is told as such."""
    with pytest.raises(ParameterError, match=r"types: .*(integer|nope)"):
        ingest(plan(write("a.csv", "a\n1\n"), types=types))


def test_a_foreign_encoding_is_read_when_it_is_named(write, plan):
    """Latin-1 and UTF-16 files are read when the plan says so; a wrong name is a wrong parameter."""
    text = "a,b\n1,\u00fcber\n"
    for encoding in ("latin-1", "utf-16"):
        asked = plan(write("a.csv", text.encode(encoding)), dialect=Dialect(encoding=encoding))
        ingest(asked)

        assert table(asked).column("b").to_pylist() == ["\u00fcber"]
    with pytest.raises(
        UnreadableInput, match=r"b\.csv: byte 0 is not utf-16 \(UTF-16 stream does not start with BOM\)"
    ):
        ingest(plan(asked.files["all"][0], write("b.csv", text), dialect=Dialect(encoding="utf-16")))
    with pytest.raises(ParameterError, match="latin-one"):
        ingest(plan(write("a.csv", text), dialect=Dialect(encoding="latin-one")))


def test_a_byte_order_mark_is_no_part_of_a_name(write, plan):
    """Files from spreadsheet programs begin with a mark that belongs to nothing."""
    asked = plan(write("a.csv", "\ufeffa,b\n1,2\n"))

    assert [name for name, _ in ingest(asked).columns] == ["a", "b"]


def test_a_headerless_file_is_read_with_given_names(write, plan):
    """`column_names` stands for the header, so the first line is a row."""
    asked = plan(write("a.csv", "5.1,setosa\n4.9,setosa\n"), dialect=Dialect(column_names=("length", "kind")))

    ingest(asked)

    assert table(asked).to_pydict() == {"length": [5.1, 4.9], "kind": ["setosa", "setosa"]}


# --- rejects


def test_bad_rows_are_set_aside_and_the_rest_goes_on(write, plan, tmp_path):
    """With a folder for rejects, rows that cannot be parsed are kept there with file, line and reason."""
    path = write("a.csv", 'a,b\n1,x\n2\n"3",y\nfour,z\n5,v,w\n6,q\n')
    asked = plan(path, types={"a": "int64"}, rejects=str(tmp_path / "rejects"))

    report = ingest(asked)

    assert table(asked).to_pydict() == {"a": [1, 3, 6], "b": ["x", "y", "q"]}
    kept = [json.loads(line) for line in (tmp_path / "rejects" / "rejects.jsonl").read_text().splitlines()]
    assert [(row["line"], row["text"]) for row in kept] == [(3, "2"), (5, "four,z"), (6, "5,v,w")]
    assert kept[1]["reason"] == "column 'a': 'four' is no int64"
    assert report.rejected == 3
    assert [example.line for example in report.reject_examples] == [3, 5, 6]
    assert list(contents(asked.rejects)) == ["rejects.jsonl"]


def test_bad_json_rows_are_set_aside(write, plan, tmp_path):
    """A line that is no JSON object, or whose pinned value does not fit, goes to the rejects."""
    text = '{"a":1}\n{"a"\n"x"\n{"a":"y"}\n{"a":"7"}\n'
    asked = plan(write("a.jsonl", text), types={"a": "int64"}, rejects=str(tmp_path / "rejects"))

    report = ingest(asked)

    assert table(asked).to_pydict() == {"a": [1, 7]}
    assert [example.line for example in report.reject_examples] == [2, 3, 4]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (r'{"a":"x\ud800"}', r"\ud800 is half a character"),
        (r'{"a":["\udc00"]}', r"\udc00 is half a character"),
        (r'{"\ud800":1}', r"\ud800 is half a character"),
        ('{"a":' + "[" * 9_000 + "]" * 9_000 + "}", "nested more deeply than 64 levels"),
        ('{"a":' * 9_000 + "1" + "}" * 9_000, "nested more deeply than 64 levels"),
        ('{"a":"x","a":"y"}', "the key 'a' is repeated"),
        ('{"a":{"b":1,"b":2}}', "the key 'b' is repeated"),
        ("null", "a JSON object wanted, null found"),
    ],
    ids=["surrogate", "in a list", "in a key", "deep lists", "deep objects", "key twice", "inner key twice", "null"],
)
@pytest.mark.parametrize("alone", [True, False])
def test_a_row_that_is_no_row_of_a_table_is_set_aside_or_named(write, plan, tmp_path, row, reason, alone):
    """Neither crashes the process nor becomes a row of nulls, whatever its neighbours are."""
    path = write("a.jsonl", f'{{"a":"good"}}\n{row}\n' + (not alone) * '{"a":"fine"}\n')
    asked = plan(path, rejects=str(tmp_path / "rejects"))

    with pytest.raises(UnreadableInput, match=rf"(?s)line 2: .*{re.escape(reason)}.*bad_rows='keep'"):
        ingest(plan(path))
    report = ingest(asked)

    assert table(asked).to_pydict() == {"a": ["good"] if alone else ["good", "fine"]}
    assert [(each.line, reason in each.reason) for each in report.reject_examples] == [(2, True)]


def test_bad_parquet_rows_are_set_aside(plan, tmp_path):
    """A row of a Parquet file whose pinned value does not fit goes to the rejects, by its number."""
    pq.write_table(pa.table({"a": ["1", "x", "3"], "b": [1, 2, 3]}), tmp_path / "a.parquet")
    asked = plan(str(tmp_path / "a.parquet"), types={"a": "int64"}, rejects=str(tmp_path / "rejects"))

    report = ingest(asked)

    assert table(asked).to_pydict() == {"a": [1, 3], "b": [1, 3]}
    assert [(example.line, example.reason) for example in report.reject_examples] == [
        (2, "column 'a': 'x' is no int64")
    ]


@pytest.mark.parametrize("values", [[1.5, 2.5], [[1], None], [{"x": 1}, {"x": 2}]])
def test_a_file_of_which_no_row_fits_a_pin_is_set_aside(write, plan, tmp_path, values):
    """Its values are of a type that cannot become the pinned one at all; those that are missing, and others, can."""
    paths = [str(tmp_path / f"{n}.parquet") for n in range(2)]
    pq.write_table(pa.table({"n": [1, 2], "x": values}), paths[0])
    pq.write_table(pa.table({"n": [3], "x": [b"y"]}), paths[1])
    asked = plan(*paths, types={"x": "binary"}, rejects=str(tmp_path / "rejects"))

    report = ingest(asked)

    wanted = [{"n": n, "x": None} for n, value in enumerate(values, 1) if value is None]
    assert report.rejected == 2 - len(wanted)
    assert table(asked).to_pylist() == [*wanted, {"n": 3, "x": b"y"}]


def test_a_missing_list_of_one_length_is_refused_beside_rejected_rows(plan, tmp_path):
    """Parquet could not give it back: the examples would be published, and nobody could read them."""
    pq.write_table(pa.table({"x": [[1], [1, 2], None]}), tmp_path / "a.parquet")
    types = {"x": "fixed_size_list<element: int64>[2]"}

    with pytest.raises(UnreadableInput, match=r"a\.parquet, row 3: column 'x' .* lacks a list"):
        ingest(plan(str(tmp_path / "a.parquet"), types=types, rejects=str(tmp_path / "rejects")))


def test_no_rejects_leave_no_file(write, plan, tmp_path):
    """When every row was good, there is no file of rejects, and nothing else either."""
    ingest(plan(write("a.csv", "a\n1\n"), rejects=str(tmp_path / "rejects")))

    assert contents(tmp_path / "rejects") == {}


def test_a_span_of_rejects_only_is_an_error(write, plan, tmp_path):
    """Rejecting every row is not a way to succeed, and leaves no half-made file of rejects."""
    with pytest.raises(UnreadableInput, match=r"no rows: .*2 rows rejected. The first: .*line 2"):
        ingest(plan(write("a.csv", "a,b\n1\n2\n"), rejects=str(tmp_path / "rejects")))

    assert contents(tmp_path / "rejects") == {}


# --- splits


def test_ratios_split_by_hash(write, plan):
    """One input split is shared out by weight; no row is lost, and each split keeps the input order."""
    asked = plan(write("a.csv", numbered(3000)), ratios={"train": 2, "eval": 1})

    report = ingest(asked)

    train, evaluation = (table(asked, split).column("n").to_pylist() for split in ("train", "eval"))
    assert sorted(train + evaluation) == list(range(3000))
    assert train == sorted(train)
    assert abs(report.rows["train"] - 2000) < 120


def test_a_split_key_keeps_rows_together(write, plan):
    """Rows with the same key are in the same split, in every span and whatever else is in the row."""
    one = plan(write("a.csv", numbered(400)), ratios={"train": 1, "eval": 1}, split_key=("word",))
    two = plan(
        write("b.csv", numbered(900).replace("n,", "m,", 1)), ratios={"train": 1, "eval": 1}, split_key=("word",)
    )

    ingest(one)
    ingest(two)

    words = [
        {split: set(table(p, split).column("word").to_pylist()) for split in ("train", "eval")} for p in (one, two)
    ]
    assert words[0] == words[1]
    assert not words[0]["train"] & words[0]["eval"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ratios": {"train": 1, "eval": 0}}, "weight of 1 or more"),
        ({"split_key": ("a",)}, "there are no ratios"),
        ({"ratios": {"train": 1, "eval": 1}, "split_key": ("zz",)}, "no column 'zz'; it has: a"),
    ],
)
def test_wrong_split_settings_are_wrong_parameters(write, plan, settings, says):
    """What cannot be meant is refused in words."""
    with pytest.raises(ParameterError, match=says):
        ingest(plan(write("a.csv", "a\n1\n"), **settings))


# --- the fingerprint


def test_the_fingerprint_is_of_contents(tmp_path):
    """The same names and contents elsewhere and at another time have the same fingerprint; any change has another."""
    paths = []
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text("a\n1\n")
        paths.append(str(tmp_path / folder / "a.csv"))
    same = [fingerprint({"all": (path,)}) for path in paths]
    Path(paths[1]).write_text("a\n2\n")

    edited = fingerprint({"all": (paths[1],)})

    assert same[0] == same[1] == "de6c7fc1b92cd724b540e1d2d73e065f"
    assert len({same[0], edited, fingerprint({"train": (paths[0],)}), fingerprint({"all": ()})}) == 4


# --- files that change meanwhile


def test_a_file_replaced_after_its_fingerprint_is_refused(write, plan, tmp_path):
    """A file of the same size and time is another file all the same, and nothing of it is ingested."""
    path = write("a.csv", "a\n1\n")
    times = Path(path).stat()
    asked = plan(path, stamp=stamp({"all": (path,)}), fingerprint=fingerprint({"all": (path,)}))
    (tmp_path / "b").write_text("a\n2\n")
    os.utime(tmp_path / "b", ns=(times.st_atime_ns, times.st_mtime_ns))

    (tmp_path / "b").replace(path)

    with pytest.raises(UnreadableInput, match=r"a\.csv changed while it was read"):
        ingest(asked)
    assert contents(asked.destination) == {}


@pytest.mark.parametrize("fails", [False, True])
def test_a_file_written_while_it_is_read_is_refused(write, plan, fails):
    """Rows of two states of a file are never ingested together; a torn row is reported as the change that tore it."""
    path = write("a.bin", "old")

    def rows(path):
        yield pa.table({"a": [1]})
        Path(path).write_text("newer")
        if fails:
            raise ValueError("torn")
        yield pa.table({"a": [2]})

    with pytest.raises(UnreadableInput, match=r"a\.bin changed while it was read"):
        ingest(plan(path, reader=FunctionReader(rows)))


def test_a_reader_that_was_edited_since_it_was_loaded_is_refused_by_a_worker_in_another_process(
    write, plan, edited_module, monkeypatch
):
    """The worker would load the file anew, and publish what the new code reads under the cache key of the old."""
    text = "import pyarrow as pa\ndef rows(path): yield pa.table({'a': [1]})\n"
    module = edited_module(text, text.replace("1", "2"))

    def map_elsewhere(parts, work, **settings):
        sent = cloudpickle.dumps(work)
        del sys.modules["edited_module"]
        received = cloudpickle.loads(sent)
        return [received(part) for part in parts]

    monkeypatch.setattr(beam, "map_in_order", map_elsewhere)

    with pytest.raises(LoadError, match=r"edited_module\.rows is not what was sent"):
        ingest(plan(write("a.bin", ""), reader=FunctionReader(module.rows), beam=BeamSettings(runner="FnApiRunner")))


def test_another_permission_is_no_change(write, plan):
    """What changes a file's record and not its bytes, such as a permission, lets the ingest go on."""
    path = write("a.csv", "a\n1\n")
    asked = plan(path, stamp=stamp({"all": (path,)}), fingerprint=fingerprint({"all": (path,)}))
    Path(path).chmod(0o600)

    assert ingest(asked).rows == {"all": 1}
