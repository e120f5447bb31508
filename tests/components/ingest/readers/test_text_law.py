"""The law of text: what comes out of generated CSV and JSON lines is what other readers find in them, digit for digit.

The oracle is the standard library: `csv` and `json` split the files, and `int`, `float`, `Decimal` and `datetime` read
the values. `SPANWISE_TEST_TEXT_FILES` says how many files of each kind are generated: some hundreds in CI, thousands
in the long form.
"""

import csv
import io
import json
import math
import os
import random
import re
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.ingest.readers import Dialect
from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.readers import json_lines
from spanwise.pipelines.input.readers.column import Column, Misfit
from spanwise.pipelines.input.readers.columns import convert as convert_column
from spanwise.pipelines.input.readers.descriptor import NULL_VALUES
from spanwise.pipelines.input.readers.fields import FieldParser
from spanwise.pipelines.input.readers.stored_types import parse_type

FILES = int(os.environ.get("SPANWISE_TEST_TEXT_FILES", "100"))
SEEDS = range(FILES)

WHOLE = ["0", "7", "-7", "007", " 5 ", "-0", "9007199254740993", "9223372036854775807", "-9223372036854775808"]
WIDE = ["9223372036854775808", "18446744073709551615", "12345678901234567891", "9007199254740993"]
FRACTION = ["1.5", "-2.25", "1e3", ".5", "5.", "0.1", "1E-7", "nan", "inf", "-Infinity", "3.141592653589793238", "+5"]
BOOL = ["true", "False", "TRUE"]
DATE = ["2013-01-01", "2024-02-29", "1969-12-31", "0001-01-01"]
INSTANT = ["2013-01-01 10:00:00", "2013-01-01T10:00", "2013-01-01T10:00:00.5", "1969-12-31 23:59:59.123456"]
TIME = ["10:00", "10:00:01", "23:59:59.5", "00:00:00.123456"]
ODD = [
    "x",
    "NA",
    "null",
    "N/A",
    "None",
    "0x1F",
    "-0x1F",
    "1e400",
    "18446744073709551616",
    "1_000",
    "1,5",
    "é",
    "😀",
    "a b",
]
MESSY = [
    'say "hi"',
    "two\nlines",
    "cr\rlf\r\n",
    ";",
    "\t",
    '"',
    '""',
    "'",
    " x ",
    "\\N",
    "#",
    "=1+1",
    "9999999999999999.5",
]
KINDS = [
    WHOLE,
    WIDE,
    WHOLE + WIDE,
    WHOLE + FRACTION,
    WIDE + FRACTION,
    FRACTION,
    BOOL,
    DATE,
    INSTANT,
    DATE + INSTANT,
    TIME,
]
KINDS += [ODD, MESSY, ODD + MESSY, WHOLE + ODD, [*DATE, "x"], [*TIME, "24:00"], [""]]
MISSING = ["", "NA", "null", "NaN"]


# --- the oracle: what a text is, by the standard library alone


def as_whole(text):
    return int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else None


def as_double(text):
    if not re.fullmatch(r"(?i)\s*[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf|infinity|nan)\s*", text):
        return None
    number = float(text)
    if math.isinf(number) and "inf" not in text.lower():
        return None
    if re.fullmatch(r"\s*[+-]?\d+\s*", text) and abs(number) >= 2**53 and Decimal(text) != Decimal(number):
        return None
    return number


def as_moment(kind, text):
    try:
        return kind.fromisoformat(text.strip())
    except ValueError:
        return None


def as_date(text):
    return as_moment(date, text) if re.fullmatch(r"\s*\d{4}-\d\d-\d\d\s*", text) else None


def as_instant(text):
    return as_moment(datetime, text) if re.match(r"\s*\d{4}-\d\d-\d\d", text) else None


def as_time(text):
    return as_moment(time, text) if re.match(r"\s*\d\d:\d\d", text) else None


def in_int64(text):
    number = as_whole(text)
    return number if number is not None and -(2**63) <= number < 2**63 else None


def in_uint64(text):
    number = as_whole(text)
    return number if number is not None and number < 2**64 and "-" not in text else None


def in_milliseconds(text):
    found = as_time(text)
    return found if found is not None and found.microsecond % 1000 == 0 and len(text.strip()) <= 12 else None


CANDIDATES = [
    ("int64", in_int64),
    ("bool", {"true": True, "True": True, "TRUE": True, "false": False, "False": False}.get),
    ("date32[day]", as_date),
    ("time32[ms]", in_milliseconds),
    ("time64[us]", as_time),
    ("timestamp[us]", as_instant),
    ("uint64", in_uint64),
    ("double", as_double),
]


def expected(fields):
    """The type and values of a column of texts, each with whether it stands in quotes."""
    present = [text for text, _ in fields if text not in NULL_VALUES]
    if not present:
        return "null", [None] * len(fields)
    for name, convert in CANDIDATES:
        if all(convert(text) is not None for text in present):
            return name, [None if text in NULL_VALUES else convert(text) for text, _ in fields]
    return "string", [None if text == "" and not quoted else text for text, quoted in fields]


def same(found, wanted):
    """Equal by value and by kind; NaN is NaN."""
    if isinstance(wanted, float) and math.isnan(wanted):
        return isinstance(found, float) and math.isnan(found)
    return type(found) is type(wanted) and found == wanted


# --- generated files


def generate(dice):
    """A few columns of few kinds of texts each, and whether each field is written in quotes."""
    columns = []
    for _ in range(dice.randint(1, 4)):
        kind = dice.choice(KINDS)
        missing = dice.choice([[], MISSING, [""]])
        texts = [dice.choice(kind + missing) for _ in range(dice.choice([1, 2, 9, 40]))]
        columns.append(texts)
    rows = dice.choice([1, 2, 9, 40])
    columns = [[texts[n % len(texts)] for n in range(rows)] for texts in columns]
    for texts in columns:
        dice.shuffle(texts)
    return columns


def write_csv(dice, columns):
    """The text of the file, and the fields of each column with whether they stand in quotes."""
    delimiter, newline, every = dice.choice(",;\t|"), dice.choice(["\n", "\r\n"]), dice.random() < 0.3
    fields = [
        [
            (text, every or dice.random() < 0.1 or bool(re.search(r'["\r\n]', text)) or delimiter in text)
            for text in texts
        ]
        for texts in columns
    ]
    names = [f"c{number}" for number in range(len(columns))]
    lines = [delimiter.join(names)]
    if len(fields) == 1:  # a blank line is no row
        fields = [[(text, quoted or not text) for text, quoted in fields[0]]]
    lines += [
        delimiter.join('"' + t.replace('"', '""') + '"' if quoted else t for t, quoted in row)
        for row in zip(*fields, strict=True)
    ]
    text = newline.join(lines) + dice.choice(["", newline])
    assert [list(row) for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)][1:] == [
        [t for t, _ in row] for row in zip(*fields, strict=True)
    ]
    return text, delimiter, dict(zip(names, fields, strict=True))


def read(tmp_path, name, text, **settings):
    """What is ingested of a file: the table, and its columns as they are recorded."""
    path, out = tmp_path / name, tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    report = ingest(IngestPlan(files={"all": (str(path),)}, destination=str(out), **settings))
    table = pa.concat_tables(pq.read_table(file) for file in sorted(Path(out, "Split-all").iterdir()))
    assert report.columns == tuple((field.name, str(field.type)) for field in table.schema)
    return table


def test_csv_comes_out_as_the_csv_module_and_python_read_it(tmp_path):
    """The type of each column is the narrowest that holds all its texts, and each value is what its text says."""
    for seed in SEEDS:
        dice = random.Random(f"csv {seed}")
        text, delimiter, columns = write_csv(dice, generate(dice))
        dialect = Dialect(
            delimiter=delimiter, block_bytes=dice.choice([1, 7, 100, 1 << 20]), part_bytes=dice.choice([1, 50, 1 << 20])
        )

        found = read(tmp_path, f"{seed}.csv", text, dialect=dialect)

        for name, fields in columns.items():
            type_, values = expected(fields)
            assert str(found.schema.field(name).type) == type_, (seed, name, fields)
            pairs = zip(found.column(name).to_pylist(), values, strict=True)
            assert all(same(one, other) for one, other in pairs), (seed, name, fields, found.column(name).to_pylist())


def test_where_blocks_are_cut_never_shows(tmp_path):
    """Small files are cut at bytes all over, into blocks and into parts: always the same rows and types."""
    for seed in range(max(2, FILES // 50)):
        dice = random.Random(f"cut {seed}")
        text, delimiter, _ = write_csv(dice, [texts[:4] for texts in generate(dice)])
        lines = "".join(json.dumps(row) + "\n" for row in objects(dice, 4))
        for name, data in ((f"{seed}.csv", text), (f"{seed}.jsonl", lines)):
            whole = read(tmp_path, name, data, dialect=Dialect(delimiter=delimiter))
            step = 1 + len(data) // 25
            for at in range(dice.randint(1, step), len(data.encode()) + 1, step):
                cut = Dialect(delimiter=delimiter, block_bytes=at, part_bytes=dice.choice([at, 1 << 20]))
                assert equal(read(tmp_path, name, data, dialect=cut), whole), (seed, name, at)


def draw_settings(dice, columns):
    """Columns to drop, rename and pin, each by the name that it is published under; at least one is left."""
    names = [f"c{number}" for number in range(len(columns))]
    renamed = {name: f"new {name}" for name in names if dice.random() < 0.3}
    published = [renamed.get(name, name) for name in names]
    dice.shuffle(published)
    dropped = published[1:][: dice.randint(0, 3)]
    pins = ["string", "int64", "double", "date32", "timestamp[us]", "bool", "decimal128(9, 2)", "inferred"]
    types = {name: dice.choice(pins) for name in published if name not in dropped and dice.random() < 0.3}
    return {"renamed": renamed, "dropped": tuple(dropped), "types": types}


def test_what_is_asked_of_columns_holds_wherever_blocks_are_cut(tmp_path):
    """The same rows are set aside, and none for a value of a column that is dropped; the others are the same."""
    for seed in range(max(8, FILES // 10)):
        dice = random.Random(f"asked {seed}")
        columns = [[*texts, dice.choice([*FRACTION, *ODD])] for texts in generate(dice)]
        text, delimiter, _ = write_csv(dice, columns)
        settings = draw_settings(dice, columns)

        def ingested(settings, text=text, delimiter=delimiter, seed=seed, **sizes):
            rejects = tmp_path / f"rejects{len(list(tmp_path.iterdir()))}"
            dialect = Dialect(delimiter=delimiter, **sizes)
            try:
                table = read(tmp_path, f"{seed}.csv", text, dialect=dialect, rejects=str(rejects), **settings)
            except UnreadableInput as error:  # not one row is left
                return "no rows" if "the span has no rows" in str(error) else str(error)
            kept = rejects / "rejects.jsonl"
            return str(table.schema), str(table.to_pylist()), kept.read_text() if kept.exists() else ""

        whole = ingested(settings)

        for _ in range(3):
            sizes = {"block_bytes": dice.choice([1, 9, 60]), "part_bytes": dice.choice([5, 50, 1 << 20])}
            assert ingested(settings, **sizes) == whole, (seed, settings, sizes)
        if not settings["types"]:
            assert whole != "no rows"
            assert not whole[2], (seed, settings)


def equal(one, other):
    """Equal tables, NaN included."""
    return one.schema == other.schema and str(one.to_pylist()) == str(other.to_pylist())


def test_the_order_of_rows_decides_nothing(tmp_path):
    """The rows of a file in another order have the same types and values."""
    for seed in range(FILES // 3):
        dice = random.Random(f"order {seed}")
        rows = list(zip(*generate(dice), strict=True))
        names = [f"c{n}" for n in range(len(rows[0]))]
        kept = read(tmp_path, "a.csv", quoted([names, *rows]))
        dice.shuffle(rows)

        found = read(tmp_path, "b.csv", quoted([names, *rows]))

        assert found.schema == kept.schema, (seed, rows)
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, kept.to_pylist())), seed


def quoted(rows):
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue()


# --- JSON lines


SCALARS = [
    [0, 7, -7, 2**53 + 1, 2**63 - 1, -(2**63)],
    [2**63, 2**64 - 1, 12345678901234567891, 5],
    [1.5, -2.25, 1e300, 0.1, 1e-7, 3, float("inf"), float("nan")],
    [2**53 + 1, 1.5],
    [2**64, 2**70 + 1, -(2**63) - 1],
    ["x", "", "NA", "null", "2013-01-01", "é😀", "\x00", 'q"\\\n', "1"],
    [True, False],
    [[], [1, 2], [3]],
    [[1.5], [2], [None]],
    [{"x": 1}, {"x": 2, "y": "t"}, {}],
    [{"x": 2**53 + 1}, {"x": 3}],
    [1, "x", True, [1], {"x": 1}],
]  # fmt: skip


def objects(dice, rows):
    kinds = {name: dice.choice(SCALARS) for name in dice.sample(["a", "b", "c", "d e", "é"], dice.randint(1, 4))}
    return [
        {name: dice.choice([*kind, None]) for name, kind in kinds.items() if dice.random() < 0.8} for _ in range(rows)
    ]


def numbers_in(values):
    return [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


def json_type(values):
    """The type that plain values of a key must have; None where the law says only that nothing is lost."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        return "string"
    if kinds == {bool}:
        return "bool"
    if kinds and kinds <= {int, float}:
        whole = [value for value in values if isinstance(value, int)]
        if float not in kinds and all(-(2**63) <= value < 2**63 for value in whole):
            return "int64"
        if float not in kinds and all(0 <= value < 2**64 for value in whole):
            return "uint64"
        return "double" if all(Decimal(float(value)) == Decimal(value) for value in whole) else "string"
    return None


def plain(value):
    """A value without what a column adds: keys that are missing in one struct and not in another."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_json_lines_come_out_as_the_json_module_reads_them(tmp_path):
    """Each value comes out with its kind and its digits, or, where no type holds all of a key, as its JSON text."""
    for seed in SEEDS:
        dice = random.Random(f"json {seed}")
        rows = [{"k": 1}, *objects(dice, dice.choice([1, 5, 30]))]
        text = "".join(json.dumps(row, ensure_ascii=dice.random() < 0.5) + dice.choice(["\n", "\r\n"]) for row in rows)
        dialect = Dialect(block_bytes=dice.choice([7, 200, 1 << 20]), part_bytes=dice.choice([50, 1 << 20]))

        found = read(tmp_path, f"{seed}.jsonl", text, dialect=dialect)

        assert set(found.column_names) == {name for row in rows for name in row}
        for name in found.column_names:
            values = [row.get(name) for row in rows]
            wanted, type_ = json_type(values), str(found.schema.field(name).type)
            assert wanted in (None, type_), (seed, name, values)
            for one, value in zip(found.column(name).to_pylist(), values, strict=True):
                if type_ == "string" and value is not None and not isinstance(value, str):
                    assert plain(json.loads(one)) == plain(value), (seed, name, values)
                elif type_ == "double" and isinstance(value, int):
                    assert one == value, (seed, name, values)
                else:
                    assert same(plain(one), plain(value)), (seed, name, values, one)


ODD_LINES = [
    "null", "  null", '{"a":1,"a":2}', '{"a":Inf}', '{"a":-NaN}', '{"a":NaN}', '{"a":Infinity}', '{"a":"\\ud800"}',
    '{"a":"x\\ud800\\u0041"}', '{"a":"\\ud83d\\ude00"}', '{"\\udc00":1}', '{"a":1e400}', '{"a":1e39}', "[1]", "1", '"x"', "{}",
    '{"a":01}', '{"a":1}{"a":2}', '{"a":"\\u0000"}', '{"a":' + "[" * 100 + "]" * 100 + "}", '{"a":' + '{"a":' * 99 + "1" + "}" * 100,
    "[" * 100_000, '{"a":' * 100_000, '{"a":-0}', '{"a":1.0}', '{"a":9007199254740993}', '{"a":18446744073709551615}', '{"a":true}',
    '{"a":"7"}', '{"a":[1]}', '{"a":{"b":1}}', '{"a":"inf"}', '{"a":1E2}', '{"a":' + "9" * 5000 + "}", '{"b":1}', '{"a":1}\x0b',
]  # fmt: skip


@pytest.mark.parametrize("pin", ["int64", "string", "decimal128(20, 2)", "list<item: int64>"])
def test_a_line_is_read_alone_as_among_others(tmp_path, pin):
    """Whether a line is a row or an error, and what it holds, does not depend on the lines around it."""
    pins = {"a": pin, "b": "int64"}

    def values(name, lines):
        rejects = tmp_path / f"{name}-rejects"
        try:
            table = read(
                tmp_path, f"{name}.jsonl", "".join(line + "\n" for line in lines), types=pins, rejects=str(rejects)
            )
        except UnreadableInput:  # not one row is left
            return []
        return table.column("a").to_pylist()

    each = [values(str(n), ['{"a":null,"b":0}', line])[1:] for n, line in enumerate(ODD_LINES)]
    together = values("all", ['{"a":null,"b":0}', *ODD_LINES])[1:]

    assert str(together) == str([value for found in each for value in found])
    assert not (tmp_path / "all-rejects" / "rejects.jsonl").read_bytes().strip().endswith(b",")
    for line in (tmp_path / "all-rejects" / "rejects.jsonl").read_text().splitlines():
        assert json.loads(line)["reason"]


VALUES = [
    "1", "-1", "300", "19000", "1.5", "1.505", "123456.78", "123456789", "99999999999", "9007199254740993", "1e3", "1e400", "true",
    '"1.5"', '"1e3"', '"a"', '"2024-05-01"', '"2024-05-01 10:00"', '"2024-05-01T10:00:00Z"', '"2024-05-01T10:00:00+02:00"',
    '"2024-05-01 10:00:00.123456789"', '"10:00"', '"10:00:00.5"',
]  # fmt: skip
PINS = [
    "bool", "int8", "int64", "double", "float", "binary", "date32", "timestamp[us]", "timestamp[ns]", "timestamp[us, tz=UTC]",
    "timestamp[us, tz=Europe/Berlin]", "time32[ms]", "time64[us]", "decimal128(9, 2)", "decimal256(50, 2)",
]  # fmt: skip
DEPTHS = [
    ('{"d":%s}', "struct<d: %s>", lambda value: {"d": value}),
    ("[%s]", "list<%s>", lambda value: [value]),
    ('[{"d":[%s]}]', "list<struct<d: list<%s>>>", lambda value: [{"d": [value]}]),
]


def read_value(path, value, type_, source, more=""):
    """The value that a row of JSON comes out as; None if it is refused. More lines have the row read by itself."""
    path.write_text(f'{{"p":{value}}}\n{more}')
    dialect, column = Dialect(), Column(name="p", type=parse_type(type_), source=source)
    (piece,) = json_lines.describe(str(path), "jsonl", dialect).descriptors
    try:
        rows = [row["p"] for batch in json_lines.read(piece, dialect, [column], [].append) for row in batch.to_pylist()]
    except Misfit:
        return None
    return rows[0] if rows else None


@pytest.mark.parametrize("source", ["pinned", "previous"])
@pytest.mark.parametrize("pin", PINS)
def test_a_value_is_read_in_a_struct_or_a_list_as_at_the_top(tmp_path, pin, source):
    """It comes out as the same, or is refused as well, whether its block is read at once or row by row."""
    for value in VALUES:
        top = read_value(tmp_path / "a.jsonl", value, pin, source)
        found = [read_value(tmp_path / "a.jsonl", value, pin, source, "null\n")]
        wanted = [top]
        for text, type_, make in DEPTHS:
            found += [
                read_value(tmp_path / "a.jsonl", text % value, type_ % pin, source, more) for more in ("", "null\n")
            ]
            wanted += [None if top is None else make(top)] * 2

        assert str(found) == str(wanted), value


TEXTS = [
    "1", "-1", "007", "300", "1.5", "1.505", "1e3", "1e39", "1e400", "-1e400", "inf", "-Infinity", "nan", "2049", "16777217", "16777218",
    "9007199254740993", "9007199254740994", "18446744073709551616", "123456789", "0x1F", "0X10", "-0x1F", "true", "FALSE", "tRue", "t", "yes",
    "a", "1_000", "1,5", "2024-05-01", "20240501", "2024-05-01 10:00", "2024-05-01T10:00:00Z", "2024-05-01T10:00:00+02:00",
    "2024-05-01 10:00:00.123456789", "10", "10:00", "10:00:00.5", "10:00:00.123456", "24:00:00", "1:00", "10:00Z",
]  # fmt: skip


def read_field(text, type_):
    return FieldParser(names=("p",), delimiter=",", dialect=Dialect()).parse(f'"{text}"\n'.encode(), {"p": type_})["p"]


def read_element(text, type_):
    return convert_column(pa.array([text]), Column(name="p", type=type_, source="pinned"))


@pytest.mark.parametrize("pin", [*PINS, "halffloat", "uint64", "time64[ns]"])
def test_a_text_is_read_as_a_pinned_type_by_one_rule(tmp_path, pin):
    """In a field of CSV, a string of JSON and a column of text: as the same value, or refused in each."""
    for text in TEXTS:
        found = [read_value(tmp_path / "a.jsonl", json.dumps(text), pin, "pinned", more) for more in ("", "null\n")]
        for read in (read_field, read_element):
            try:
                found.append(read(text, parse_type(pin))[0].as_py())
            except (pa.ArrowException, NotImplementedError):
                found.append(None)

        assert len(set(map(str, found))) == 1, (text, found)
